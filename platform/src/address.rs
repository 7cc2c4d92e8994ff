//! Putting the service's own address on an interface, and taking it away.
//!
//! The address is added with the longest prefix (`/32`, `/128`): it makes the machine answer for that one address and
//! adds no route. After a crash it stays on the interface; the next start then finds it and leaves it there when it stops.

#[cfg_attr(unix, path = "address/unix.rs")]
#[cfg_attr(windows, path = "address/windows.rs")]
mod system;

use std::io;
use std::net::IpAddr;

/// An address that is on an interface, and whether that is our doing.
#[derive(Debug)]
#[must_use = "an address that is not removed stays on the interface"]
pub struct AddedAddress {
    address: IpAddr,
    interface: Interface,
    ours: bool,
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

    /// Whether the interface had the address before, so that [`remove`](Self::remove) leaves it there.
    pub fn was_present(&self) -> bool {
        !self.ours
    }

    /// Takes the address away again if [`add`] put it there.
    ///
    /// An address or interface that has gone in the meantime is no error.
    pub async fn remove(self) -> Result<(), AddressError> {
        if !self.ours {
            return Ok(());
        }
        let attempt = Attempt { verb: "remove", address: self.address, interface: &self.interface.name };
        let mut system = system::Addresses::open().map_err(|error| attempt.failed(error))?;
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
    /// The system does not tell which interfaces it has.
    #[error("cannot list the network interfaces: {0}")]
    Unlisted(#[source] io::Error),
}

/// An interface as the system describes it.
#[derive(Clone, Debug, Default)]
struct Interface {
    index: u32,
    name: String,
    loopback: bool,
    /// Switched on.
    up: bool,
    /// Switched on and able to carry packets.
    running: bool,
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

/// Makes sure that `address` is on `interface` and can be bound when this returns.
///
/// Without an interface an address that any interface has is taken as it is; else the first interface which is up, and
/// not the loopback one, gets it.
///
/// # Cancel safety
/// When dropped the address may have been added, and nothing takes it away.
pub async fn add(address: IpAddr, interface: Option<&str>) -> Result<AddedAddress, AddressError> {
    let mut system = system::Addresses::open().map_err(AddressError::Unlisted)?;
    let interfaces = system.interfaces().await.map_err(AddressError::Unlisted)?;
    let holders = system.holders(address).await.map_err(AddressError::Unlisted)?;
    if interface.is_none()
        && let Some(holder) = interfaces.iter().find(|interface| holders.contains(&interface.index))
    {
        return Ok(AddedAddress { address, interface: holder.clone(), ours: false });
    }
    let interface = choose(&interfaces, interface)?;
    let attempt = Attempt { verb: "add", address, interface: &interface.name };
    let ours = !holders.contains(&interface.index)
        && system.add(address, interface.index).await.map_err(|error| attempt.failed(error))?;
    Ok(AddedAddress { address, interface: interface.clone(), ours })
}

/// Name of an interface that has `address`, when one has.
pub async fn holder(address: IpAddr) -> Result<Option<String>, AddressError> {
    let mut system = system::Addresses::open().map_err(AddressError::Unlisted)?;
    let interfaces = system.interfaces().await.map_err(AddressError::Unlisted)?;
    let holders = system.holders(address).await.map_err(AddressError::Unlisted)?;
    let holder = interfaces.into_iter().find(|interface| holders.contains(&interface.index));
    Ok(holder.map(|interface| interface.name))
}

fn choose<'a>(interfaces: &'a [Interface], name: Option<&str>) -> Result<&'a Interface, AddressError> {
    let chosen = match name {
        Some(name) => interfaces.iter().find(|interface| system::same_name(&interface.name, name)),
        // One without carrier is still better than none: the address is for this machine's own containers.
        None => interfaces
            .iter()
            .filter(|interface| interface.up && !interface.loopback)
            .min_by_key(|interface| (!interface.running, interface.index)),
    };
    chosen.ok_or_else(|| AddressError::NoSuchInterface {
        name: name.map(str::to_owned),
        existing: interfaces.iter().map(|interface| interface.name.clone()).collect(),
    })
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

    /// Interfaces as words like `3:eth0:up`; of the flags `up` means running as well.
    fn check(interfaces: &str, name: Option<&str>, expected: &str) {
        let interfaces: Vec<Interface> = interfaces
            .split_whitespace()
            .map(|word| {
                let parts: Vec<&str> = word.split(':').collect();
                let has = |flag| parts[2..].contains(&flag);
                Interface {
                    index: parts[0].parse().unwrap(),
                    name: parts[1].to_owned(),
                    loopback: has("loopback"),
                    up: has("up") || has("idle"),
                    running: has("up"),
                }
            })
            .collect();
        let chosen = match choose(&interfaces, name) {
            Ok(interface) => interface.name.clone(),
            Err(error) => error.to_string(),
        };
        assert_eq!(chosen, expected);
    }

    #[test]
    fn first_interface_that_is_up_is_chosen() {
        check("1:lo:up:loopback 2:ifb0 3:eth0:up 4:eth1:up", None, "eth0");
        check("9:eth1:up 4:eth0:up", None, "eth0");
    }

    #[test]
    fn interface_without_carrier_is_chosen_last() {
        check("1:lo:up:loopback 2:docker0:idle 3:eth0:up", None, "eth0");
        check("1:lo:up:loopback 2:docker0:idle", None, "docker0");
    }

    #[test]
    fn named_interface_is_taken_as_it_is() {
        check("1:lo:up:loopback 2:eth0:up", Some("lo"), "lo");
        check("2:eth0:up 3:eth1", Some("eth1"), "eth1");
    }

    #[test]
    fn missing_interface_lists_those_that_exist() {
        check("1:lo:up:loopback 2:eth0:up", Some("eth7"), "no network interface is called eth7; there are: lo, eth0");
        check(
            "1:lo:up:loopback 2:eth0",
            None,
            "no network interface is up besides the loopback one, so name the one to use; there are: lo, eth0",
        );
    }

    #[tokio::test]
    async fn an_address_is_held_by_an_interface_or_by_none() {
        assert!(holder([127, 0, 0, 1].into()).await.unwrap().is_some());
        assert_eq!(holder([203, 0, 113, 7].into()).await.unwrap(), None);
    }

    #[test]
    fn futures_may_move_between_threads() {
        fn check(_: impl Send) {}
        check(add([192, 0, 2, 1].into(), None));
        let interface = Interface::default();
        check(AddedAddress { address: [192, 0, 2, 1].into(), interface, ours: false }.remove());
    }
}
