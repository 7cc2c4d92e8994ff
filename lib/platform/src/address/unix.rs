//! Addresses through rtnetlink.

use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::{AddressMessageBuilder, Handle};

use super::{Holder, Interface, host_prefix};
use crate::broker::{self, Request};

pub(super) const WAY_OUT: &str = "run as root with the capability NET_ADMIN (docker run --cap-add NET_ADMIN), or leave the address to another process";

/// The bridge that the engine makes for containers without a network of their own.
pub(super) const ENGINE_INTERFACE: &str = "docker0";

/// An address of one interface is answered on all of them (the weak host model).
pub(super) const ANSWERS_EVERYWHERE: bool = true;

/// Whether addresses of IPv6 that Berth added are recognised. Addresses of IPv6 have no label.
pub(super) const MARKS_IPV6: bool = false;

/// The mark of an address that Berth added: its label is the interface's name and this.
const MARK: &str = ":berth";

/// Most bytes of a label without the final zero (IFNAMSIZ).
const LABEL_MAX: usize = 15;

/// A conversation with the kernel about the addresses of the network namespace of the calling thread.
pub(crate) struct Addresses(Handle);

impl Addresses {
    pub(crate) fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // Ends when the handle is dropped.
        tokio::spawn(connection);
        Ok(Self(handle))
    }

    pub(crate) fn over(handle: Handle) -> Self {
        Self(handle)
    }

    pub(crate) async fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let links: Vec<LinkMessage> = self.0.link().get().execute().try_collect().await.map_err(into_io)?;
        Ok(interfaces(&links))
    }

    /// The interfaces that have the address, with any prefix.
    pub(super) async fn holders(&mut self, address: IpAddr) -> io::Result<Vec<Holder>> {
        let request = self.0.address().get().set_address_filter(address);
        let found: Vec<AddressMessage> = request.execute().try_collect().await.map_err(into_io)?;
        Ok(found
            .into_iter()
            .map(|message| Holder { index: message.header.index, marked: is_marked(&message) })
            .collect())
    }

    /// Whether an interface has the address with Berth's mark.
    pub(crate) async fn is_marked(&mut self, address: IpAddr, interface: u32) -> io::Result<bool> {
        let holders = self.holders(address).await?;
        Ok(holders.iter().any(|holder| holder.index == interface && holder.marked))
    }

    /// The addresses that have Berth's mark.
    pub(super) async fn marked(&mut self) -> io::Result<Vec<IpAddr>> {
        let found: Vec<AddressMessage> = self.0.address().get().execute().try_collect().await.map_err(into_io)?;
        let marked = found.into_iter().filter(is_marked);
        let address = |attribute: &AddressAttribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        };
        Ok(marked.filter_map(|message| message.attributes.iter().find_map(address)).collect())
    }

    /// Whether it was added: `false` when another program was faster.
    pub(super) async fn add(&mut self, address: IpAddr, interface: &Interface) -> io::Result<bool> {
        match broker::asked(Request::Add(address, interface.index)).await {
            Some(answer) => Ok(answer?.added),
            None => self.add_here(address, interface).await,
        }
    }

    /// [`Self::add`] by this very process.
    pub(crate) async fn add_here(&mut self, address: IpAddr, interface: &Interface) -> io::Result<bool> {
        let mut request = self.0.address().add(interface.index, address, host_prefix(address));
        if address.is_ipv6() {
            // Duplicate address detection takes a second or two in which the address cannot be bound.
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        } else {
            request.message_mut().attributes.push(AddressAttribute::Label(label(&interface.name)));
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
        match broker::asked(Request::Remove(address, interface)).await {
            Some(answer) => answer.map(drop),
            None => self.remove_here(address, interface).await,
        }
    }

    /// [`Self::remove`] by this very process.
    pub(crate) async fn remove_here(&mut self, address: IpAddr, interface: u32) -> io::Result<()> {
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

/// Whether Berth added an address: by its label, and alone, as others add none.
fn is_marked(message: &AddressMessage) -> bool {
    let is_mark =
        |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Label(label) if label.ends_with(MARK));
    message.header.prefix_len == 32 && message.attributes.iter().any(is_mark)
}

/// Not EACCES, which has other reasons.
pub(super) fn is_not_permitted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

pub(super) fn same_name(left: &str, right: &str) -> bool {
    left == right
}

/// The label of an address that Berth adds: the name of the interface, cut where it is too long, and the mark.
fn label(interface: &str) -> String {
    // Names are bytes to the kernel, which need not be UTF-8; one that is cut in a character loses all of it.
    let mut room = LABEL_MAX - MARK.len();
    while !interface.is_char_boundary(room.min(interface.len())) {
        room -= 1;
    }
    format!("{}{MARK}", &interface[..room.min(interface.len())])
}

fn interfaces(links: &[LinkMessage]) -> Vec<Interface> {
    links.iter().map(|link| interface(link, is_containers(link, links))).collect()
}

/// Whether only containers of this machine are behind an interface: it is a bridge that nothing but virtual cables are
/// plugged into, which is what engines make. One with a network card, a VLAN or a virtual machine leads elsewhere.
fn is_containers(link: &LinkMessage, links: &[LinkMessage]) -> bool {
    let is_port = |other: &&LinkMessage| other.attributes.contains(&LinkAttribute::Controller(link.header.index));
    is_kind(link, &InfoKind::Bridge) && links.iter().filter(is_port).all(|port| is_kind(port, &InfoKind::Veth))
}

fn is_kind(link: &LinkMessage, kind: &InfoKind) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().any(|info| matches!(info, LinkInfo::Kind(own) if own == kind)),
        _ => false,
    })
}

fn interface(link: &LinkMessage, containers: bool) -> Interface {
    let flags = link.header.flags;
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    Interface {
        index: link.header.index,
        name: name.unwrap_or_default(),
        loopback: flags.contains(LinkFlags::Loopback),
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Running),
        containers,
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
    use std::net::{TcpListener, UdpSocket};
    use std::thread;
    use std::time::Duration;

    use rtnetlink::{LinkBridge, LinkIfb, LinkUnspec, LinkVeth};

    use super::super::{AddressError, Origin, Target};
    use super::*;

    const V4: &str = "192.0.2.250";
    const V6: &str = "2001:db8::250";
    const LOOPBACK: u32 = 1;

    /// [`super::super::add`] for a service on port 80.
    async fn add(address: IpAddr, target: Target<'_>) -> Result<super::super::AddedAddress, AddressError> {
        super::super::add((address, 80).into(), target).await
    }

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
        let error = add(V4.parse().unwrap(), Target::Named("lo")).await.unwrap_err();
        assert!(matches!(error, AddressError::NotPermitted { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "not permitted to add 192.0.2.250 on interface lo: run as root with the capability NET_ADMIN \
             (docker run --cap-add NET_ADMIN), or leave the address to another process"
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
                let added = add(address.parse().unwrap(), Target::FirstUp).await.unwrap();
                assert_eq!((added.interface(), added.origin()), ("veth0", Origin::Added));
                assert!(bindable(address));
                added.remove().await.unwrap();
                assert!(!bindable(address));
            }
        });
    }

    #[test]
    fn address_goes_to_the_named_interface() {
        in_namespace(async || {
            let added = add(V4.parse().unwrap(), Target::Named("lo")).await.unwrap();
            assert_eq!(added.interface(), "lo");
            assert_eq!(
                Addresses::open().unwrap().holders(V4.parse().unwrap()).await.unwrap(),
                [Holder { index: LOOPBACK, marked: true }]
            );
        });
    }

    #[test]
    fn address_of_another_program_is_left_alone() {
        in_namespace(async || {
            let (address, index): (IpAddr, u32) = (V4.parse().unwrap(), veth().await.index);
            let system = Addresses::open().unwrap();
            system.0.address().add(index, address, 32).execute().await.unwrap();
            for target in [Target::FirstUp, Target::Containers, Target::Named("veth0")] {
                let added = add(address, target).await.unwrap();
                assert_eq!((added.interface(), added.origin()), ("veth0", Origin::Foreign));
                added.remove().await.unwrap();
                assert!(bindable(V4));
            }
        });
    }

    #[test]
    fn address_that_a_crash_left_is_removed_and_that_of_a_running_service_is_not() {
        in_namespace(async || {
            let crashed = add(V4.parse().unwrap(), Target::FirstUp).await.unwrap();
            assert_eq!(crashed.origin(), Origin::Added);
            let listener = TcpListener::bind((V4, 80)).unwrap();
            let second = add(V4.parse().unwrap(), Target::FirstUp).await.unwrap();
            assert_eq!(second.origin(), Origin::Foreign, "the first one still serves");
            second.remove().await.unwrap();
            assert!(bindable(V4));
            drop(listener);
            let listener = TcpListener::bind((V4, 53)).unwrap();
            let other = add(V4.parse().unwrap(), Target::FirstUp).await.unwrap();
            assert_eq!(other.origin(), Origin::Foreign, "another service has the same address");
            drop((listener, other));
            let next = add(V4.parse().unwrap(), Target::FirstUp).await.unwrap();
            assert_eq!(next.origin(), Origin::Leftover);
            drop(next);
            let elsewhere = add(V4.parse().unwrap(), Target::Named("lo")).await.unwrap();
            assert_eq!((elsewhere.interface(), elsewhere.origin()), ("lo", Origin::Added));
            elsewhere.remove().await.unwrap();
            assert!(!bindable(V4), "what the crash left on the other interface has gone too");
        });
    }

    #[test]
    fn bridges_with_nothing_but_virtual_cables_are_the_containers() {
        in_namespace(async || {
            let handle = Addresses::open().unwrap().0;
            for bridge in ["docker0", "br-0123456789ab", "outside0"] {
                handle.link().add(LinkBridge::new(bridge).up().build()).execute().await.unwrap();
            }
            let found = |interfaces: Vec<Interface>| -> Vec<String> {
                interfaces.into_iter().filter(|found| found.containers).map(|found| found.name).collect()
            };
            let mut system = Addresses::over(handle.clone());
            let named = async |system: &mut Addresses, name: &str| {
                system.interfaces().await.unwrap().into_iter().find(|found| found.name == name).unwrap().index
            };
            assert_eq!(found(system.interfaces().await.unwrap()), ["docker0", "br-0123456789ab", "outside0"]);
            let (outside, inside) = (named(&mut system, "outside0").await, named(&mut system, "docker0").await);
            handle.link().add(LinkIfb::new("card0").controller(outside).build()).execute().await.unwrap();
            let veth = LinkUnspec::new_with_index(veth().await.index).controller(inside).build();
            handle.link().set(veth).execute().await.unwrap();
            assert_eq!(found(system.interfaces().await.unwrap()), ["docker0", "br-0123456789ab"]);

            let added = add(V4.parse().unwrap(), Target::Containers).await.unwrap();
            assert_eq!(added.interface(), "docker0", "although no container gives it a carrier");
            added.remove().await.unwrap();
        });
    }

    #[test]
    fn labels_fit_the_kernel() {
        for (name, expected) in [
            ("lo", "lo:berth"),
            ("docker0", "docker0:berth"),
            ("br-0123456789ab", "br-012345:berth"),
            ("ääääää", "ääää:berth"),
        ] {
            assert_eq!(label(name), expected);
        }
    }

    #[test]
    fn losing_the_race_is_no_error() {
        in_namespace(async || {
            let veth = veth().await;
            let mut system = Addresses::open().unwrap();
            assert!(system.add(V4.parse().unwrap(), &veth).await.unwrap());
            assert!(!system.add(V4.parse().unwrap(), &veth).await.unwrap());
        });
    }

    #[test]
    fn address_that_has_gone_is_removed_without_error() {
        in_namespace(async || {
            let added = add(V4.parse().unwrap(), Target::FirstUp).await.unwrap();
            Addresses::open().unwrap().remove(V4.parse().unwrap(), veth().await.index).await.unwrap();
            added.remove().await.unwrap();
        });
    }

    #[test]
    fn a_lost_address_is_noticed_and_put_back_where_it_was_or_where_it_would_be_put_now() {
        in_namespace(async || {
            let mut added = add(V4.parse().unwrap(), Target::FirstUp).await.unwrap();
            let mut events = super::super::AddressEvents::open();
            let system = Addresses::open().unwrap();
            let lost = async |events: &mut super::super::AddressEvents, added: &super::super::AddedAddress| {
                let look = async {
                    while added.is_present().await.unwrap() {
                        events.next().await;
                    }
                };
                // Shorter than the interval of looking without a report.
                tokio::time::timeout(Duration::from_secs(8), look).await.unwrap();
            };
            Addresses::open().unwrap().remove(V4.parse().unwrap(), veth().await.index).await.unwrap();
            lost(&mut events, &added).await;
            added.restore(Target::FirstUp).await.unwrap();
            assert_eq!((added.interface(), added.origin(), bindable(V4)), ("veth0", Origin::Added, true));

            system.0.link().del(veth().await.index).execute().await.unwrap();
            lost(&mut events, &added).await;
            let error = added.restore(Target::Named("veth0")).await.unwrap_err();
            assert!(matches!(error, AddressError::NoSuchInterface { .. }), "{error}");
            added.restore(Target::Containers).await.unwrap();
            assert_eq!((added.interface(), bindable(V4)), ("lo", true));
            added.remove().await.unwrap();
            assert!(!bindable(V4));
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
            let error = add(V6.parse().unwrap(), Target::Named("veth0")).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                "cannot add 2001:db8::250 on interface veth0: IPv6 is switched off there (sysctl disable_ipv6)"
            );
        });
    }

    #[test]
    fn other_refusals_keep_the_code() {
        in_namespace(async || {
            let error = add("224.0.0.1".parse().unwrap(), Target::Named("veth0")).await.unwrap_err();
            assert!(error.to_string().contains("(os error "), "{error}");
        });
    }

    async fn veth() -> Interface {
        let interfaces = Addresses::open().unwrap().interfaces().await.unwrap();
        interfaces.into_iter().find(|interface| interface.name == "veth0").unwrap()
    }
}
