//! Addresses through IP Helper; a container image without PowerShell and netsh can do it too.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
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

use super::{Holder, Interface, host_prefix};
use crate::adapter::{Adapter, adapters};

pub(super) const WAY_OUT: &str =
    "run as administrator (in a container as the user ContainerAdministrator), or leave the address to another process";

/// The host's adapter on the switch that the engine makes for containers, its network `nat`.
///
/// The address has to be there: containers of that switch have this adapter as their gateway, and Windows takes no
/// packet for an address of another adapter (the strong host model). Amazon's agent does the same with 169.254.170.2.
pub(super) const ENGINE_INTERFACE: &str = "vEthernet (nat)";

/// An address is answered on its own adapter only.
pub(super) const ANSWERS_EVERYWHERE: bool = false;

/// Whether addresses of IPv6 that Berth added are recognised. A file says so for each of them.
pub(super) const MARKS_IPV6: bool = true;

/// Longest time until a new address can be bound.
///
/// Looking for another machine with the same address takes about a second, where the system insists on it.
const USABLE_WITHIN: Duration = Duration::from_secs(5);

/// Time between two looks at a new address.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The system's table of addresses.
pub(crate) struct Addresses;

#[expect(clippy::unused_async, reason = "the signatures are shared with unix.rs")]
impl Addresses {
    #[expect(clippy::unnecessary_wraps, reason = "the signature is shared with unix.rs")]
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        Ok(adapters()?.into_iter().map(interface).collect())
    }

    /// The interfaces that have the address, with any prefix.
    pub(super) async fn holders(&mut self, address: IpAddr) -> io::Result<Vec<Holder>> {
        let holders = adapters()?.into_iter().filter(|adapter| adapter.addresses.contains(&address));
        let recorded = fs::read_to_string(record(address)).ok();
        let holder = |index: u32| Holder { index, marked: recorded.as_deref() == Some(&index.to_string()) };
        Ok(holders.map(|adapter| holder(adapter.index)).collect())
    }

    /// The addresses that have Berth's mark.
    pub(super) async fn marked(&mut self) -> io::Result<Vec<IpAddr>> {
        let on_adapters = adapters()?.into_iter().flat_map(|adapter| {
            let index = adapter.index.to_string();
            adapter.addresses.into_iter().map(move |address| (address, index.clone()))
        });
        let is_recorded = |(address, index): &(IpAddr, String)| {
            fs::read_to_string(record(*address)).is_ok_and(|recorded| recorded == *index)
        };
        Ok(on_adapters.filter(is_recorded).map(|(address, _)| address).collect())
    }

    /// Whether it was added: `false` when another program was faster. Returns when the address can be bound.
    pub(super) async fn add(&mut self, address: IpAddr, interface: &Interface) -> io::Result<bool> {
        let mut row = row(address, interface.index);
        row.OnLinkPrefixLength = host_prefix(address);
        // We are the only one with this address, and other machines have their own: no search for duplicates.
        row.DadState = IpDadStatePreferred;
        // What the machine itself sends has its usual source address.
        row.SkipAsSource = true;
        // Before the address, so that no crash leaves one without a record.
        write_record(address, interface.index);
        // SAFETY: the pointer is to an initialised row, which is only read and lives until the call returns.
        #[expect(unsafe_code, reason = "std does not change addresses")]
        let result = unsafe { CreateUnicastIpAddressEntry(&raw const row) };
        match result {
            NO_ERROR => {}
            code => {
                remove_record(address);
                return if code == ERROR_OBJECT_ALREADY_EXISTS { Ok(false) } else { Err(os_error(code)) };
            }
        }
        if let Err(error) = usable(address, interface.index).await {
            // The first error is the one to report.
            let _ = self.remove(address, interface.index).await;
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
            NO_ERROR | ERROR_NOT_FOUND => {
                remove_record(address);
                Ok(())
            }
            code => Err(os_error(code)),
        }
    }
}

/// The file that says on which adapter Berth added an address: there is no room for a mark on the address itself.
///
/// After a restart of the machine the address is gone, and the file of no consequence.
fn record(address: IpAddr) -> PathBuf {
    let data = std::env::var_os("ProgramData").map_or_else(|| PathBuf::from(r"C:\ProgramData"), PathBuf::from);
    data.join("Berth").join(format!("address-{address}").replace(':', "-"))
}

fn write_record(address: IpAddr, interface: u32) {
    let path = record(address);
    let folder = path.parent().map(fs::create_dir_all);
    // Without it the address works all the same; only after a crash it is taken for another program's.
    let _ = folder.transpose().and_then(|_| fs::write(&path, interface.to_string()));
}

fn remove_record(address: IpAddr) {
    // A record that stays is of no consequence without the address.
    let _ = fs::remove_file(record(address));
}

pub(super) fn is_not_permitted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_ACCESS_DENIED.cast_signed())
}

/// Windows ignores the case of names.
pub(super) fn same_name(left: &str, right: &str) -> bool {
    left.to_lowercase() == right.to_lowercase()
}

fn interface(adapter: Adapter) -> Interface {
    let Adapter { index, name, loopback, up, .. } = adapter;
    let containers = same_name(&name, ENGINE_INTERFACE);
    Interface { index, name, loopback, up, running: up, containers }
}

async fn usable(address: IpAddr, interface: u32) -> io::Result<()> {
    let wait = async {
        loop {
            let mut row = row(address, interface);
            // SAFETY: the pointer is to an initialised row which is not shared and which lives until the call returns.
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
    // SAFETY: the pointer is to a row which is not shared and which lives until the call returns.
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
    use std::net::{TcpListener, UdpSocket};

    use super::super::{AddressError, Origin, Target, add};
    use super::*;

    fn bindable(address: IpAddr) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }

    /// On the loopback adapter, where it disturbs no traffic.
    async fn added_and_removed(address: IpAddr) {
        let adapter = Addresses.interfaces().await.unwrap().into_iter().find(|adapter| adapter.loopback).unwrap();
        let (loopback, listen) = (adapter.name.clone(), (address, 80).into());
        assert!(!bindable(address));
        let added = match add(listen, Target::Named(&loopback.to_uppercase())).await {
            Err(error @ AddressError::NotPermitted { .. }) => {
                println!("checked the refusal only, as this is not an administrator");
                assert_eq!(
                    error.to_string(),
                    format!(
                        "not permitted to add {address} on interface {loopback}: run as administrator (in a container \
                         as the user ContainerAdministrator), or leave the address to another process"
                    )
                );
                return;
            }
            added => added.unwrap(),
        };
        assert_eq!((added.interface(), added.origin()), (loopback.as_str(), Origin::Added));
        assert!(bindable(address));

        let listener = TcpListener::bind(listen).unwrap();
        let again = add(listen, Target::FirstUp).await.unwrap();
        assert_eq!((again.interface(), again.origin()), (loopback.as_str(), Origin::Foreign), "the first one serves");
        again.remove().await.unwrap();
        assert!(bindable(address));
        drop(listener);
        let again = add(listen, Target::Containers).await.unwrap();
        assert_eq!((again.interface(), again.origin()), (loopback.as_str(), Origin::Leftover), "as after a crash");
        let index = adapter.index;
        write_record(address, index + 1);
        assert_eq!(Addresses.holders(address).await.unwrap(), [Holder { index, marked: false }]);
        assert!(!Addresses.add(address, &adapter).await.unwrap(), "another program was faster");

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
