//! Putting the service's own address on an interface, and taking it away.
//!
//! The address is added with the longest prefix (`/32`, `/128`): it makes the machine answer for that one address and
//! adds no route. It is marked as added by Berth (Linux: by its label, Windows: by a file), so that the next start recognises
//! one that a crash or [a stop](AddedAddress::can_stay) left. On Linux IPv6 addresses have no label and are not recognised.

mod events;

#[cfg_attr(unix, path = "address/unix.rs")]
#[cfg_attr(windows, path = "address/windows.rs")]
mod system;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

pub use events::AddressEvents;
pub(crate) use system::Addresses;

/// The port by which processes exclude each other from an address; nothing is served there. It is none that systems give to clients.
const CLAIM_PORT: u16 = 16_925;

/// An address that is on an interface, and how it got there.
#[derive(Debug)]
#[must_use = "an address that is not removed stays on the interface"]
pub struct AddedAddress {
    address: IpAddr,
    interface: Interface,
    origin: Origin,
}

/// How an address got on its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// [`add`] put it there.
    Added,
    /// A Berth that is gone left it there; it is removed like an added one.
    Leftover,
    /// Another program or a person put it there, or a Berth that still runs; it stays.
    Foreign,
}

/// Which interface gets an address that none has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'n> {
    /// The one with this name.
    Named(&'n str),
    /// The first one that is up and not the loopback one.
    FirstUp,
    /// The engine's own bridge or switch, which containers reach and which stays; without it, on Linux, the loopback one.
    Containers,
}

impl AddedAddress {
    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Name of the interface that has the address.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// How it got there, which decides whether [`remove`](Self::remove) takes it away.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Leaves it to the process that serves on it, if one does: that began while this one waited.
    pub fn leave_to_others(&mut self) {
        if is_served(self.address) {
            self.origin = Origin::Foreign;
        }
    }

    /// Whether the next start recognises it, if it is not removed now.
    pub fn can_stay(&self) -> bool {
        system::MARKS_IPV6 || self.address.is_ipv4()
    }

    /// Makes this process the one to take the address away: the one that did so before is gone, and this one has its place.
    pub fn take_over(&mut self) {
        if self.origin == Origin::Foreign {
            self.origin = Origin::Leftover;
        }
    }

    /// Whether an interface has the address at the moment.
    pub async fn is_present(&self) -> Result<bool, AddressError> {
        holder(self.address).await.map(|holder| holder.is_some())
    }

    /// Puts the address back after it was lost: on the interface of the name that it was on, or, where Linux has none of
    /// this name any more, on the one that [`add`] would choose for `target`. Then it is [`Origin::Added`].
    ///
    /// # Cancel safety
    /// When dropped the address may have been added, and nothing takes it away.
    pub async fn restore(&mut self, target: Target<'_>) -> Result<(), AddressError> {
        let address = self.address;
        let mut system = Addresses::open().map_err(AddressError::Unlisted)?;
        let interfaces = system.interfaces().await.map_err(AddressError::Unlisted)?;
        let interface = match choose(&interfaces, Target::Named(&self.interface.name)) {
            // On Windows the address is of no use on another adapter, and one that is reset comes back.
            Err(_) if system::ANSWERS_EVERYWHERE => choose(&interfaces, target)?,
            chosen => chosen?,
        };
        let attempt = Attempt { verb: "add", address, interface: &interface.name };
        let added = system.add(address, interface).await.map_err(|error| attempt.failed(error))?;
        self.origin = if added { Origin::Added } else { Origin::Foreign };
        self.interface = interface.clone();
        Ok(())
    }

    /// Takes the address away again, unless it is [`Origin::Foreign`].
    ///
    /// An address or interface that has gone in the meantime is no error.
    pub async fn remove(self) -> Result<(), AddressError> {
        if self.origin == Origin::Foreign {
            return Ok(());
        }
        let attempt = Attempt { verb: "remove", address: self.address, interface: &self.interface.name };
        let mut system = Addresses::open().map_err(|error| attempt.failed(error))?;
        system.remove(self.address, self.interface.index).await.map_err(|error| attempt.failed(error))
    }
}

/// Why an address could not be added or removed.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The process lacks the right: start it with more rights, or add the address by other means.
    #[error("not permitted to {verb} {address} on interface {interface}: {}", system::WAY_OUT)]
    NotPermitted {
        /// "add" or "remove".
        verb: &'static str,
        /// The address.
        address: IpAddr,
        /// Name of the interface.
        interface: String,
    },
    /// There is no such interface: name one that exists.
    #[error("{}; there are: {}", wanted(.name.as_deref()), existing.join(", "))]
    NoSuchInterface {
        /// The name that was asked for; `None` when no interface is fit to be chosen.
        name: Option<String>,
        /// The names that exist.
        existing: Vec<String>,
    },
    /// The system refused for another reason.
    #[error("cannot {verb} {address} on interface {interface}: {error}")]
    Refused {
        /// "add" or "remove".
        verb: &'static str,
        /// The address.
        address: IpAddr,
        /// Name of the interface.
        interface: String,
        /// What the system said, with its code.
        #[source]
        error: io::Error,
    },
    /// The system does not list its interfaces.
    #[error("cannot list the network interfaces: {0}")]
    Unlisted(#[source] io::Error),
}

/// An interface as the system describes it.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own that systems report")]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) loopback: bool,
    /// Switched on.
    up: bool,
    /// Switched on and able to carry packets.
    running: bool,
    /// Whether only containers of this machine are behind it.
    pub(crate) containers: bool,
}

/// An interface that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    index: u32,
    /// Whether the address has Berth's mark.
    marked: bool,
}

/// What was tried, for the error.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    verb: &'static str,
    address: IpAddr,
    interface: &'a str,
}

impl Attempt<'_> {
    fn failed(self, error: io::Error) -> AddressError {
        let Self { verb, address, interface } = self;
        let interface = interface.to_owned();
        if system::is_not_permitted(&error) {
            AddressError::NotPermitted { verb, address, interface }
        } else {
            AddressError::Refused { verb, address, interface, error }
        }
    }
}

/// Makes sure that the address of `listen` is on an interface and can be bound when this returns.
///
/// Unless an interface is named, an address that any interface has is taken as it is. One with Berth's mark is a
/// [`Origin::Leftover`] when no program listens on it, else it is that of a Berth which runs.
///
/// # Cancel safety
/// When dropped the address may have been added, and nothing takes it away.
pub async fn add(listen: SocketAddr, target: Target<'_>) -> Result<AddedAddress, AddressError> {
    let address = listen.ip();
    let mut system = Addresses::open().map_err(AddressError::Unlisted)?;
    let interfaces = system.interfaces().await.map_err(AddressError::Unlisted)?;
    let holders = system.holders(address).await.map_err(AddressError::Unlisted)?;
    let held = |interface: &Interface| holders.iter().find(|holder| holder.index == interface.index).copied();
    let present = interfaces.iter().find_map(|interface| Some((interface, held(interface)?)));
    let (interface, holder) = if let Some((interface, holder)) = present
        && !matches!(target, Target::Named(_))
    {
        (interface, Some(holder))
    } else {
        let interface = choose(&interfaces, target)?;
        (interface, held(interface))
    };
    // What a crash left on another interface would stay there for ever.
    for left in holders.iter().filter(|other| other.marked && other.index != interface.index) {
        if !is_served(address) {
            let attempt = Attempt { verb: "remove", address, interface: name_of(&interfaces, left.index) };
            system.remove(address, left.index).await.map_err(|error| attempt.failed(error))?;
        }
    }
    let origin = match holder {
        Some(holder) if holder.marked && !is_served(address) => Origin::Leftover,
        Some(_) => Origin::Foreign,
        None => {
            let attempt = Attempt { verb: "add", address, interface: &interface.name };
            let added = system.add(address, interface).await.map_err(|error| attempt.failed(error))?;
            if added { Origin::Added } else { Origin::Foreign }
        }
    };
    Ok(AddedAddress { address, interface: interface.clone(), origin })
}

/// Takes away the addresses that a Berth which is gone left on interfaces. Gives each with the name of its interface.
///
/// # Errors
///
/// Fails at the first one that cannot be removed.
///
/// # Cancel safety
/// When dropped some may be removed.
pub async fn remove_left() -> Result<Vec<(IpAddr, String)>, AddressError> {
    let mut system = Addresses::open().map_err(AddressError::Unlisted)?;
    let interfaces = system.interfaces().await.map_err(AddressError::Unlisted)?;
    let mut removed = Vec::new();
    for address in system.marked().await.map_err(AddressError::Unlisted)? {
        // Until it is removed, none that starts can take it over.
        let Ok(_claim) = claim(address) else { continue };
        if is_served(address) {
            continue;
        }
        let holders = system.holders(address).await.map_err(AddressError::Unlisted)?;
        for left in holders.into_iter().filter(|holder| holder.marked) {
            let interface = name_of(&interfaces, left.index);
            let attempt = Attempt { verb: "remove", address, interface };
            system.remove(address, left.index).await.map_err(|error| attempt.failed(error))?;
            removed.push((address, interface.to_owned()));
        }
    }
    Ok(removed)
}

/// Claims an address of Berth for a process that is about to listen there, or to remove it.
///
/// # Errors
///
/// Fails with [`io::ErrorKind::AddrInUse`] if another one has claimed it, and with [`io::ErrorKind::AddrNotAvailable`] if it was removed.
pub fn claim(address: IpAddr) -> io::Result<TcpListener> {
    crate::socket::tcp_listener((address, CLAIM_PORT).into())
}

/// Whether a program listens on the address, whichever port it is, but for that of [`claim`].
fn is_served(address: IpAddr) -> bool {
    crate::socket::has_listener(|local| local.ip() == address.to_canonical() && local.port() != CLAIM_PORT)
}

/// Name of an interface that has `address`, when one has.
pub async fn holder(address: IpAddr) -> Result<Option<String>, AddressError> {
    let mut system = Addresses::open().map_err(AddressError::Unlisted)?;
    let interfaces = system.interfaces().await.map_err(AddressError::Unlisted)?;
    let holders = system.holders(address).await.map_err(AddressError::Unlisted)?;
    let holds = |interface: &Interface| holders.iter().any(|holder| holder.index == interface.index);
    Ok(interfaces.into_iter().find(holds).map(|interface| interface.name))
}

fn choose<'a>(interfaces: &'a [Interface], target: Target<'_>) -> Result<&'a Interface, AddressError> {
    // One without carrier is still better than none: the address is for this machine's own containers.
    let first_up = || {
        let up = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
        up.min_by_key(|interface| (!interface.running, interface.index))
    };
    let chosen = match target {
        Target::Named(name) => interfaces.iter().find(|interface| system::same_name(&interface.name, name)),
        Target::FirstUp => first_up(),
        // Whether it has a carrier says only whether a container runs at the moment. Bridges of other networks go with
        // their last container.
        Target::Containers => interfaces
            .iter()
            .find(|interface| interface.containers && system::same_name(&interface.name, system::ENGINE_INTERFACE))
            .or_else(|| if system::ANSWERS_EVERYWHERE { loopback(interfaces) } else { first_up() }),
    };
    chosen.ok_or_else(|| AddressError::NoSuchInterface {
        name: if let Target::Named(name) = target { Some(name.to_owned()) } else { None },
        existing: interfaces.iter().map(|interface| interface.name.clone()).collect(),
    })
}

fn name_of(interfaces: &[Interface], index: u32) -> &str {
    interfaces.iter().find(|interface| interface.index == index).map_or("", |interface| &interface.name)
}

fn loopback(interfaces: &[Interface]) -> Option<&Interface> {
    interfaces.iter().find(|interface| interface.loopback)
}

fn wanted(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("no network interface is called {name}"),
        None => "no network interface is up besides the loopback one, so name the one to use".to_owned(),
    }
}

fn host_prefix(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces as words like `3:eth0:up`, with `_` for a space; of the flags `up` means running as well.
    fn check(interfaces: &str, target: Target<'_>, expected: &str) {
        let interfaces: Vec<Interface> = interfaces
            .split_whitespace()
            .map(|word| {
                let parts: Vec<&str> = word.split(':').collect();
                let has = |flag| parts[2..].contains(&flag);
                Interface {
                    index: parts[0].parse().unwrap(),
                    name: parts[1].replace('_', " "),
                    loopback: has("loopback"),
                    up: has("up") || has("idle"),
                    running: has("up"),
                    containers: has("containers"),
                }
            })
            .collect();
        let chosen = match choose(&interfaces, target) {
            Ok(interface) => interface.name.clone(),
            Err(error) => error.to_string(),
        };
        assert_eq!(chosen, expected);
    }

    #[test]
    fn first_interface_that_is_up_is_chosen() {
        check("1:lo:up:loopback 2:ifb0 3:eth0:up 4:eth1:up", Target::FirstUp, "eth0");
        check("9:eth1:up 4:eth0:up", Target::FirstUp, "eth0");
    }

    #[test]
    fn interface_without_carrier_is_chosen_last() {
        check("1:lo:up:loopback 2:docker0:idle 3:eth0:up", Target::FirstUp, "eth0");
        check("1:lo:up:loopback 2:docker0:idle", Target::FirstUp, "docker0");
    }

    #[test]
    fn named_interface_is_taken_as_it_is() {
        check("1:lo:up:loopback 2:eth0:up", Target::Named("lo"), "lo");
        check("2:eth0:up 3:eth1", Target::Named("eth1"), "eth1");
    }

    #[test]
    fn missing_interface_lists_those_that_exist() {
        check(
            "1:lo:up:loopback 2:eth0:up",
            Target::Named("eth7"),
            "no network interface is called eth7; there are: lo, eth0",
        );
        check(
            "1:lo:up:loopback 2:eth0",
            Target::FirstUp,
            "no network interface is up besides the loopback one, so name the one to use; there are: lo, eth0",
        );
    }

    #[test]
    fn containers_are_served_on_their_engines_interface_and_never_on_one_that_leads_outside() {
        let (engine, word) = (system::ENGINE_INTERFACE, system::ENGINE_INTERFACE.replace(' ', "_"));
        check(&format!("1:lo:up:loopback 2:eth0:up 3:{word}:idle:containers"), Target::Containers, engine);
        check(&format!("2:eth0:up 3:br-1:up:containers 4:{word}:containers"), Target::Containers, engine);
        let without = if system::ANSWERS_EVERYWHERE { "lo" } else { "eth0" };
        check("1:lo:up:loopback 2:eth0:up", Target::Containers, without);
        check("1:lo:up:loopback 2:eth0:up 3:br-1:up:containers", Target::Containers, without);
    }

    #[tokio::test]
    async fn an_address_is_held_by_an_interface_or_by_none() {
        assert!(holder([127, 0, 0, 1].into()).await.unwrap().is_some());
        assert_eq!(holder([203, 0, 113, 7].into()).await.unwrap(), None);
    }

    #[test]
    fn futures_may_move_between_threads() {
        fn check(_: impl Send) {}
        check(add(([192, 0, 2, 1], 80).into(), Target::FirstUp));
        let (address, interface) = ([192, 0, 2, 1].into(), Interface::default());
        let mut added = AddedAddress { address, interface, origin: Origin::Foreign };
        check(added.restore(Target::FirstUp));
        check(added.remove());
    }
}
