//! Addresses through rtnetlink.

use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::{AddressMessageBuilder, Handle};

use super::{Interface, host_prefix};

pub(super) const WAY_OUT: &str =
    "run as root with the capability NET_ADMIN (docker run --cap-add NET_ADMIN), or leave the address to somebody else";

/// A conversation with the kernel about the addresses of the network namespace of the calling thread.
pub(super) struct Addresses(Handle);

impl Addresses {
    pub(super) fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // Ends when the handle is dropped.
        tokio::spawn(connection);
        Ok(Self(handle))
    }

    pub(super) async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let links: Vec<LinkMessage> = self.0.link().get().execute().try_collect().await.map_err(into_io)?;
        Ok(links.into_iter().map(interface).collect())
    }

    /// Indices of the interfaces that have the address, whatever the prefix.
    pub(super) async fn holders(&mut self, address: IpAddr) -> io::Result<Vec<u32>> {
        let request = self.0.address().get().set_address_filter(address);
        let found: Vec<AddressMessage> = request.execute().try_collect().await.map_err(into_io)?;
        Ok(found.into_iter().map(|message| message.header.index).collect())
    }

    /// Whether it was added: `false` when somebody was faster.
    pub(super) async fn add(&mut self, address: IpAddr, interface: u32) -> io::Result<bool> {
        let mut request = self.0.address().add(interface, address, host_prefix(address));
        if address.is_ipv6() {
            // Duplicate address detection takes a second or two in which the address cannot be bound.
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        match request.execute().await.map_err(into_io) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            // The kernel's word for it is "permission denied", which sends people the wrong way. Usual in Docker.
            Err(error) if address.is_ipv6() && error.raw_os_error() == Some(libc::EACCES) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "IPv6 is switched off there (sysctl disable_ipv6)"))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn remove(&mut self, address: IpAddr, interface: u32) -> io::Result<()> {
        let prefix = host_prefix(address);
        let message = match address {
            IpAddr::V4(v4) => {
                AddressMessageBuilder::<std::net::Ipv4Addr>::new().index(interface).address(v4, prefix).build()
            }
            IpAddr::V6(v6) => {
                AddressMessageBuilder::<std::net::Ipv6Addr>::new().index(interface).address(v6, prefix).build()
            }
        };
        match self.0.address().del(message).execute().await.map_err(into_io) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Not EACCES, which has other reasons.
pub(super) fn is_not_permitted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

pub(super) fn same_name(left: &str, right: &str) -> bool {
    left == right
}

fn interface(link: LinkMessage) -> Interface {
    let flags = link.header.flags;
    let name = link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    Interface {
        index: link.header.index,
        name: name.unwrap_or_default(),
        loopback: flags.contains(LinkFlags::Loopback),
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Running),
    }
}

fn into_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::UdpSocket;
    use std::thread;

    use rtnetlink::{LinkUnspec, LinkVeth};

    use super::super::{AddressError, add};
    use super::*;

    const V4: &str = "192.0.2.250";
    const V6: &str = "2001:db8::250";
    const LOOPBACK: u32 = 1;

    /// Runs a test in a thread with a network namespace of its own, where `lo` and `veth0` are up.
    ///
    /// A user without the right to make one gets the only answer there is for them, and that is checked instead.
    fn in_namespace(test: impl AsyncFnOnce() + Send) {
        on_thread(async || {
            // SAFETY: takes no pointers; only this thread, which ends with the test, moves to the new namespace.
            #[expect(unsafe_code, reason = "std does not know namespaces")]
            let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            if !moved {
                println!("no network namespace ({}): checking the refusal instead", io::Error::last_os_error());
                drop_privileges();
                return refused().await;
            }
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            tokio::spawn(connection);
            // Before the first address of IPv4 the kernel lets every address be bound, so `lo` gets its own.
            handle.link().set(LinkUnspec::new_with_index(LOOPBACK).up().build()).execute().await.unwrap();
            handle.link().add(LinkVeth::new("veth0", "peer0").up().build()).execute().await.unwrap();
            test().await;
        });
    }

    fn on_thread(test: impl AsyncFnOnce() + Send) {
        thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(test());
            });
        });
    }

    /// Takes the effective capabilities from the calling thread only, which libc's own function would not do.
    fn drop_privileges() {
        const NOBODY: libc::c_long = 65_534;
        // SAFETY: takes no pointers; the thread ends with the test.
        #[expect(unsafe_code, reason = "std has no identity of a thread")]
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) };
        // An ordinary user may not, and need not.
        assert!(result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM));
    }

    async fn refused() {
        let error = add(V4.parse().unwrap(), Some("lo")).await.unwrap_err();
        assert!(matches!(error, AddressError::NotPermitted { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "not permitted to add 192.0.2.250 on interface lo: run as root with the capability NET_ADMIN \
             (docker run --cap-add NET_ADMIN), or leave the address to somebody else"
        );
    }

    fn bindable(address: &str) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }

    #[test]
    fn address_is_there_after_add_and_gone_after_remove() {
        in_namespace(async || {
            for address in [V4, V6] {
                assert!(!bindable(address));
                let added = add(address.parse().unwrap(), None).await.unwrap();
                assert_eq!((added.interface(), added.was_present()), ("veth0", false));
                assert!(bindable(address));
                added.remove().await.unwrap();
                assert!(!bindable(address));
            }
        });
    }

    #[test]
    fn address_goes_to_the_named_interface() {
        in_namespace(async || {
            let added = add(V4.parse().unwrap(), Some("lo")).await.unwrap();
            assert_eq!(added.interface(), "lo");
            assert_eq!(Addresses::open().unwrap().holders(V4.parse().unwrap()).await.unwrap(), [LOOPBACK]);
        });
    }

    #[test]
    fn address_of_somebody_else_is_left_alone() {
        in_namespace(async || {
            let first = add(V4.parse().unwrap(), None).await.unwrap();
            for interface in [None, Some("veth0")] {
                let second = add(V4.parse().unwrap(), interface).await.unwrap();
                assert_eq!((second.interface(), second.was_present()), ("veth0", true));
                second.remove().await.unwrap();
                assert!(bindable(V4));
            }
            first.remove().await.unwrap();
        });
    }

    #[test]
    fn losing_the_race_counts_as_present() {
        in_namespace(async || {
            let index = index_of_veth().await;
            let mut system = Addresses::open().unwrap();
            assert!(system.add(V4.parse().unwrap(), index).await.unwrap());
            assert!(!system.add(V4.parse().unwrap(), index).await.unwrap());
        });
    }

    #[test]
    fn address_that_has_gone_is_removed_without_error() {
        in_namespace(async || {
            let added = add(V4.parse().unwrap(), None).await.unwrap();
            Addresses::open().unwrap().remove(V4.parse().unwrap(), index_of_veth().await).await.unwrap();
            added.remove().await.unwrap();
        });
    }

    #[test]
    fn without_the_right_the_error_names_it() {
        on_thread(async || {
            drop_privileges();
            refused().await;
        });
    }

    #[test]
    fn interface_without_v6_is_not_taken_for_a_lack_of_rights() {
        in_namespace(async || {
            fs::write("/proc/sys/net/ipv6/conf/veth0/disable_ipv6", "1").unwrap();
            let error = add(V6.parse().unwrap(), Some("veth0")).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                "cannot add 2001:db8::250 on interface veth0: IPv6 is switched off there (sysctl disable_ipv6)"
            );
        });
    }

    #[test]
    fn other_refusals_keep_the_code() {
        in_namespace(async || {
            let error = add("224.0.0.1".parse().unwrap(), Some("veth0")).await.unwrap_err();
            assert!(error.to_string().contains("(os error "), "{error}");
        });
    }

    async fn index_of_veth() -> u32 {
        let interfaces = Addresses::open().unwrap().interfaces().await.unwrap();
        interfaces.iter().find(|interface| interface.name == "veth0").unwrap().index
    }
}
