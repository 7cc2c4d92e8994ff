//! Noticing that addresses or interfaces may have changed.

#[cfg_attr(target_os = "linux", path = "events/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "events/other.rs")]
mod system;

/// A stream of hints that an address or an interface of this machine came or went.
///
/// Linux reports changes; elsewhere, and as long as the kernel reports none, a hint comes at a fixed interval.
#[derive(Debug)]
pub struct AddressEvents(system::Events);

impl AddressEvents {
    /// Starts watching.
    ///
    /// Look at the addresses afterwards: a change in between is then seen twice, never missed.
    pub fn open() -> Self {
        Self(system::Events::open())
    }

    /// Waits until something may have changed.
    ///
    /// # Cancel safety
    /// May be dropped at any time; a change that was reported is looked at after the next interval at the latest.
    pub async fn next(&mut self) {
        self.0.next().await;
    }
}
