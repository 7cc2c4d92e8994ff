//! The network adapters of a Windows machine, as `GetAdaptersAddresses` returns them.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GAA_FLAG_SKIP_ANYCAST, GAA_FLAG_SKIP_MULTICAST, GetAdaptersAddresses, IF_TYPE_SOFTWARE_LOOPBACK,
    IP_ADAPTER_ADDRESSES_LH,
};
use windows_sys::Win32::NetworkManagement::Ndis::IfOperStatusUp;
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, SOCKADDR_IN, SOCKADDR_IN6, SOCKET_ADDRESS,
};
use windows_sys::core::{PSTR, PWSTR};

/// Room for the first attempt; the size that the documentation recommends.
const FIRST_ROOM_BYTES: u32 = 15_000;

/// How often the room is made larger because adapters came in the meantime.
const ATTEMPTS: u32 = 5;

/// An adapter, which Windows also calls an interface.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) index: u32,
    /// The GUID as text, which survives a restart and a new name.
    pub(crate) guid: String,
    /// The friendly name or alias, such as "vEthernet (Ethernet)".
    pub(crate) name: String,
    pub(crate) loopback: bool,
    pub(crate) up: bool,
    pub(crate) metric_v4: u32,
    pub(crate) metric_v6: u32,
    /// Longest packet, in bytes.
    pub(crate) mtu: u32,
    pub(crate) addresses: Vec<IpAddr>,
    /// The length of each address's prefix.
    pub(crate) prefix_lengths: Vec<u8>,
    /// The port is as the system has it, usually 0.
    pub(crate) resolvers: Vec<SocketAddr>,
}

/// Lists the adapters in the system's order, those that are down too.
pub(crate) fn adapters() -> io::Result<Vec<Adapter>> {
    let mut bytes = FIRST_ROOM_BYTES;
    for _ in 0..ATTEMPTS {
        // Words of 64 bits are aligned as the structures in there must be.
        let mut room = vec![0_u64; (bytes as usize).div_ceil(size_of::<u64>())];
        // SAFETY: `room` has at least `bytes` bytes, is aligned for the structures, and is not shared; `bytes` is
        // a local variable; the reserved pointer is null as it must be.
        #[expect(unsafe_code, reason = "std does not know adapters")]
        let result = unsafe {
            GetAdaptersAddresses(
                AF_UNSPEC.into(),
                GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST,
                ptr::null(),
                room.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        match result {
            // SAFETY: the call succeeded, so `room` begins with a list whose pointers are null or point into `room`,
            // which lives until the list has been read.
            #[expect(unsafe_code, reason = "the system gives a linked list")]
            NO_ERROR => return Ok(unsafe { read_list(room.as_ptr().cast()) }),
            ERROR_NO_DATA => return Ok(Vec::new()),
            ERROR_BUFFER_OVERFLOW => {}
            code => return Err(io::Error::from_raw_os_error(code.cast_signed())),
        }
    }
    Err(io::Error::other("the network adapters change faster than they can be listed"))
}

/// # Safety
/// `next`, and every pointer to be reached from it, is null or points to what the system says it does.
#[expect(unsafe_code, reason = "the system gives a linked list")]
unsafe fn read_list(mut next: *const IP_ADAPTER_ADDRESSES_LH) -> Vec<Adapter> {
    let mut adapters = Vec::new();
    // SAFETY: null or valid, as the caller promises.
    while let Some(adapter) = unsafe { next.as_ref() } {
        let (mut addresses, mut prefix_lengths) = (Vec::new(), Vec::new());
        let mut unicast = adapter.FirstUnicastAddress;
        // SAFETY: null or valid, as the caller promises.
        while let Some(entry) = unsafe { unicast.as_ref() } {
            // SAFETY: the system's description of an address, as the caller promises.
            if let Some(address) = unsafe { socket_address(&entry.Address) } {
                addresses.push(address.ip());
                prefix_lengths.push(entry.OnLinkPrefixLength);
            }
            unicast = entry.Next;
        }
        let mut resolvers = Vec::new();
        let mut server = adapter.FirstDnsServerAddress;
        // SAFETY: null or valid, as the caller promises.
        while let Some(entry) = unsafe { server.as_ref() } {
            // SAFETY: the system's description of an address, as the caller promises.
            resolvers.extend(unsafe { socket_address(&entry.Address) });
            server = entry.Next;
        }
        // SAFETY: both members of the union are plain numbers, so that any bytes are valid; the system fills this one.
        let v4_index = unsafe { adapter.Anonymous1.Anonymous.IfIndex };
        adapters.push(Adapter {
            // 0 where IPv4 is switched off; otherwise both are the same.
            index: if v4_index == 0 { adapter.Ipv6IfIndex } else { v4_index },
            // SAFETY: null or a string, as the caller promises.
            guid: unsafe { narrow_text(adapter.AdapterName) },
            // SAFETY: null or a string, as the caller promises.
            name: unsafe { text(adapter.FriendlyName) },
            loopback: adapter.IfType == IF_TYPE_SOFTWARE_LOOPBACK,
            up: adapter.OperStatus == IfOperStatusUp,
            metric_v4: adapter.Ipv4Metric,
            metric_v6: adapter.Ipv6Metric,
            mtu: adapter.Mtu,
            addresses,
            prefix_lengths,
            resolvers,
        });
        next = adapter.Next;
    }
    adapters
}

/// # Safety
/// The pointer is null or points to as many bytes as the length beside it says.
#[expect(unsafe_code, reason = "the system gives a pointer and a length")]
unsafe fn socket_address(address: &SOCKET_ADDRESS) -> Option<SocketAddr> {
    let length = usize::try_from(address.iSockaddrLength).ok()?;
    if address.lpSockaddr.is_null() || length < size_of::<SOCKADDR_IN>() {
        return None;
    }
    // SAFETY: not null and long enough, as was just seen; the family comes first in every kind of address.
    match unsafe { (*address.lpSockaddr).sa_family } {
        AF_INET => {
            // SAFETY: long enough, and the family says that it is of this kind; read wherever it lies.
            let v4 = unsafe { address.lpSockaddr.cast::<SOCKADDR_IN>().read_unaligned() };
            // SAFETY: all members of the union are the same four bytes.
            let bytes = unsafe { v4.sin_addr.S_un.S_addr }.to_ne_bytes();
            Some(SocketAddr::new(bytes.into(), u16::from_be(v4.sin_port)))
        }
        AF_INET6 if length >= size_of::<SOCKADDR_IN6>() => {
            // SAFETY: long enough, as the guard says, and of this kind; read wherever it lies.
            let v6 = unsafe { address.lpSockaddr.cast::<SOCKADDR_IN6>().read_unaligned() };
            // SAFETY: both members of each union are plain numbers of the same size.
            let (bytes, zone) = unsafe { (v6.sin6_addr.u.Byte, v6.Anonymous.sin6_scope_id) };
            Some(SocketAddrV6::new(bytes.into(), u16::from_be(v6.sin6_port), 0, zone).into())
        }
        _ => None,
    }
}

/// # Safety
/// The pointer is null or points to a string which ends with zero.
#[expect(unsafe_code, reason = "the system gives a pointer")]
unsafe fn text(text: PWSTR) -> String {
    if text.is_null() {
        return String::new();
    }
    let mut length = 0;
    // SAFETY: every character up to the zero belongs to the string.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: that many characters were just read, and no thread changes them.
    String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(text, length) })
}

/// # Safety
/// The pointer is null or points to a string which ends with zero.
#[expect(unsafe_code, reason = "the system gives a pointer")]
unsafe fn narrow_text(text: PSTR) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it ends with zero, as the caller promises, and no thread changes it.
    unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_adapter_has_its_address() {
        let adapters = adapters().unwrap();
        let loopback = adapters.iter().find(|adapter| adapter.loopback).unwrap();
        assert!(loopback.index != 0 && !loopback.name.is_empty() && loopback.up, "{loopback:?}");
        let own = loopback.addresses.iter().position(|address| *address == Ipv4Addr::LOCALHOST).unwrap();
        assert_eq!(loopback.prefix_lengths[own], 8, "{loopback:?}");
        assert!(loopback.guid.starts_with('{') && loopback.guid.ends_with('}'), "{loopback:?}");
    }
}
