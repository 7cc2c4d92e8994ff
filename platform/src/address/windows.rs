//! Addresses through IP Helper; a container image without PowerShell and netsh can do it too.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR, WIN32_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CreateUnicastIpAddressEntry, DeleteUnicastIpAddressEntry, GetUnicastIpAddressEntry,
    InitializeUnicastIpAddressEntry, MIB_UNICASTIPADDRESS_ROW,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, IN_ADDR, IN_ADDR_0, IN6_ADDR, IN6_ADDR_0, IpDadStateDuplicate, IpDadStatePreferred, SOCKADDR_IN,
    SOCKADDR_IN6, SOCKADDR_INET,
};

use super::{Interface, host_prefix};
use crate::adapter::{Adapter, adapters};

pub(super) const WAY_OUT: &str =
    "run as administrator (in a container as the user ContainerAdministrator), or leave the address to somebody else";

/// Longest time until a new address can be bound.
///
/// Looking for another machine with the same address takes about a second, where the system insists on it.
const USABLE_WITHIN: Duration = Duration::from_secs(5);

/// Time between two looks at a new address.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The system's table of addresses.
pub(super) struct Addresses;

#[expect(clippy::unused_async, reason = "the signatures are shared with unix.rs")]
impl Addresses {
    #[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        Ok(adapters()?.into_iter().map(interface).collect())
    }

    /// Indices of the interfaces that have the address, whatever the prefix.
    pub(super) async fn holders(&mut self, address: IpAddr) -> io::Result<Vec<u32>> {
        let holders = adapters()?.into_iter().filter(|adapter| adapter.addresses.contains(&address));
        Ok(holders.map(|adapter| adapter.index).collect())
    }

    /// Whether it was added: `false` when somebody was faster. Returns when the address can be bound.
    pub(super) async fn add(&mut self, address: IpAddr, interface: u32) -> io::Result<bool> {
        let mut row = row(address, interface);
        row.OnLinkPrefixLength = host_prefix(address);
        // We are the only one with this address, whatever other machines do with theirs: no search for duplicates.
        row.DadState = IpDadStatePreferred;
        // What the machine itself sends keeps its usual source address.
        row.SkipAsSource = true;
        // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
        #[expect(unsafe_code, reason = "std does not change addresses")]
        let result = unsafe { CreateUnicastIpAddressEntry(&raw const row) };
        match result {
            NO_ERROR => {}
            ERROR_OBJECT_ALREADY_EXISTS => return Ok(false),
            code => return Err(os_error(code)),
        }
        if let Err(error) = usable(address, interface).await {
            // The first error is the one to tell.
            let _ = self.remove(address, interface).await;
            return Err(error);
        }
        Ok(true)
    }

    pub(super) async fn remove(&mut self, address: IpAddr, interface: u32) -> io::Result<()> {
        let row = row(address, interface);
        // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
        #[expect(unsafe_code, reason = "std does not change addresses")]
        let result = unsafe { DeleteUnicastIpAddressEntry(&raw const row) };
        match result {
            NO_ERROR | ERROR_NOT_FOUND => Ok(()),
            code => Err(os_error(code)),
        }
    }
}

pub(super) fn is_not_permitted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_ACCESS_DENIED.cast_signed())
}

/// Windows does not tell the case of names apart.
pub(super) fn same_name(left: &str, right: &str) -> bool {
    left.to_lowercase() == right.to_lowercase()
}

fn interface(adapter: Adapter) -> Interface {
    let Adapter { index, name, loopback, up, .. } = adapter;
    Interface { index, name, loopback, up, running: up }
}

async fn usable(address: IpAddr, interface: u32) -> io::Result<()> {
    let wait = async {
        loop {
            let mut row = row(address, interface);
            // SAFETY: the pointer is to an initialised row which nobody else has and which lives until the call returns.
            #[expect(unsafe_code, reason = "std does not know the state of an address")]
            let result = unsafe { GetUnicastIpAddressEntry(&raw mut row) };
            #[expect(non_upper_case_globals, reason = "the names are those of Windows")]
            match (result, row.DadState) {
                (NO_ERROR, IpDadStatePreferred) => return Ok(()),
                (NO_ERROR, IpDadStateDuplicate) => {
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, "another machine has this address"));
                }
                // Not in the table yet, or still being looked for.
                (NO_ERROR | ERROR_NOT_FOUND, _) => tokio::time::sleep(LOOK_AGAIN_AFTER).await,
                (code, _) => return Err(os_error(code)),
            }
        }
    };
    tokio::time::timeout(USABLE_WITHIN, wait).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("not usable after {} s", USABLE_WITHIN.as_secs())))
    })
}

fn row(address: IpAddr, interface: u32) -> MIB_UNICASTIPADDRESS_ROW {
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the pointer is to a row which nobody else has and which lives until the call returns.
    #[expect(unsafe_code, reason = "std does not change addresses")]
    unsafe {
        InitializeUnicastIpAddressEntry(&raw mut row);
    }
    row.InterfaceIndex = interface;
    row.Address = match address {
        IpAddr::V4(v4) => SOCKADDR_INET {
            Ipv4: SOCKADDR_IN {
                sin_family: AF_INET,
                sin_addr: IN_ADDR { S_un: IN_ADDR_0 { S_addr: u32::from_ne_bytes(v4.octets()) } },
                ..SOCKADDR_IN::default()
            },
        },
        IpAddr::V6(v6) => SOCKADDR_INET {
            Ipv6: SOCKADDR_IN6 {
                sin6_family: AF_INET6,
                sin6_addr: IN6_ADDR { u: IN6_ADDR_0 { Byte: v6.octets() } },
                ..SOCKADDR_IN6::default()
            },
        },
    };
    row
}

fn os_error(code: WIN32_ERROR) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::{AddressError, add};
    use super::*;

    fn bindable(address: IpAddr) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }

    /// On the loopback adapter, where it disturbs nobody.
    async fn added_and_removed(address: IpAddr) {
        let loopback = adapters().unwrap().into_iter().find(|adapter| adapter.loopback).unwrap().name;
        assert!(!bindable(address));
        let added = match add(address, Some(&loopback.to_uppercase())).await {
            Err(error @ AddressError::NotPermitted { .. }) => {
                println!("checked the refusal only, as this is not an administrator");
                assert_eq!(
                    error.to_string(),
                    format!(
                        "not permitted to add {address} on interface {loopback}: run as administrator (in a container \
                         as the user ContainerAdministrator), or leave the address to somebody else"
                    )
                );
                return;
            }
            added => added.unwrap(),
        };
        assert_eq!((added.interface(), added.was_present()), (loopback.as_str(), false));
        assert!(bindable(address));

        let again = add(address, None).await.unwrap();
        assert_eq!((again.interface(), again.was_present()), (loopback.as_str(), true));
        again.remove().await.unwrap();
        assert!(bindable(address));
        let index = adapters().unwrap().into_iter().find(|adapter| adapter.loopback).unwrap().index;
        assert!(!Addresses.add(address, index).await.unwrap(), "somebody else was faster");

        added.remove().await.unwrap();
        assert!(!bindable(address));
        Addresses.remove(address, index).await.expect("one that has gone is no error");
    }

    #[tokio::test]
    async fn v4_address_is_there_after_add_and_gone_after_remove() {
        added_and_removed("192.0.2.250".parse().unwrap()).await;
    }

    #[tokio::test]
    async fn v6_address_is_there_after_add_and_gone_after_remove() {
        added_and_removed("2001:db8::250".parse().unwrap()).await;
    }
}
