//! The addresses that the process put on interfaces: put back when something takes them away, removed at the end.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use platform::address::{AddedAddress, AddressError, AddressEvents, Origin, Target};
use source::Readiness;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::options::ProcessOptions;

/// The part of readiness that reports lost addresses.
const PART: &str = "address";

/// Pause after an address was put back: a program that takes it away again and again costs no more than this.
const RESTORED_PAUSE: Duration = Duration::from_millis(500);

/// Time between two attempts to put a lost address back when nothing is reported.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait for another process that is removing an address: that takes milliseconds.
const CLAIM_LIMIT: Duration = Duration::from_secs(1);

/// Time between two attempts to claim an address.
const CLAIM_RETRY: Duration = Duration::from_millis(10);

/// The addresses of a process; clones share them.
///
/// The lock is held while addresses are put back, so that none comes back after its removal at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldAddresses(Arc<Mutex<Vec<HeldAddress>>>);

#[derive(Debug)]
struct HeldAddress {
    address: AddedAddress,
    /// Why it is on no interface and could not be put back.
    lost: Option<String>,
    /// Shows others that the address is in use while the services do not listen yet.
    claim: Option<TcpListener>,
}

/// Which interface gets the addresses of a process.
pub(crate) fn target(options: &ProcessOptions) -> Target<'_> {
    match &options.interface {
        Some(name) => Target::Named(name),
        None if options.serve_containers => Target::Containers,
        None => Target::FirstUp,
    }
}

impl HeldAddresses {
    /// Puts the address of `listen` on an interface, unless one has it.
    pub(crate) async fn add(&self, listen: SocketAddr, options: &ProcessOptions) -> Result<(), AddressError> {
        // Two services may have one address.
        if self.0.lock().await.iter().any(|held| held.address.address() == listen.ip()) {
            return Ok(());
        }
        let mut address = platform::address::add(listen, target(options)).await?;
        let claim =
            if address.origin() == Origin::Foreign { None } else { claim(&mut address, target(options)).await? };
        let how = match address.origin() {
            Origin::Added => "added",
            Origin::Leftover => "was left by a process that is gone",
            Origin::Foreign => "was there already",
        };
        info!(address = %address.address(), interface = address.interface(), "address {how}");
        self.0.lock().await.push(HeldAddress { address, lost: None, claim });
        Ok(())
    }

    /// From now on the services listen.
    pub(crate) async fn settle(&self) {
        self.0.lock().await.iter_mut().for_each(|held| held.claim = None);
    }

    /// Whether the process has none.
    pub(crate) async fn is_empty(&self) -> bool {
        self.0.lock().await.is_empty()
    }

    /// Puts back what is lost, until `stop`; meanwhile the process is not ready.
    pub(crate) async fn guard(self, options: ProcessOptions, readiness: Arc<Readiness>, stop: CancellationToken) {
        let mut events = AddressEvents::open();
        while !stop.is_cancelled() {
            let (mut restored, mut lost) = (false, Vec::new());
            for held in &mut *self.0.lock().await {
                restored |= held.look(target(&options), &readiness).await;
                lost.extend(held.lost.clone());
            }
            if lost.is_empty() {
                readiness.ready(PART);
            } else {
                readiness.not_ready(PART, lost.join("; "));
            }
            let pause = async {
                if restored {
                    tokio::time::sleep(RESTORED_PAUSE).await;
                } else if lost.is_empty() {
                    events.next().await;
                } else {
                    let _ = tokio::time::timeout(RETRY, events.next()).await;
                }
            };
            stop.run_until_cancelled(pause).await;
        }
    }

    /// Those that this process has to remove.
    pub(crate) async fn own(&self) -> Vec<IpAddr> {
        let held = self.0.lock().await;
        let own = held.iter().filter(|held| held.address.origin() != Origin::Foreign);
        own.map(|held| held.address.address()).collect()
    }

    /// From now on this process has to remove these of its addresses.
    pub(crate) async fn take_over(&self, addresses: &[IpAddr]) {
        for held in &mut *self.0.lock().await {
            if addresses.contains(&held.address.address()) {
                held.address.take_over();
            }
        }
    }

    /// Leaves all of them to another process.
    pub(crate) async fn leave(&self) {
        for HeldAddress { address, .. } in std::mem::take(&mut *self.0.lock().await) {
            // It has the same one.
            drop(address);
        }
    }

    /// Removes the addresses that this process has to remove; with `keep` those stay that the next start recognises.
    pub(crate) async fn end(self, keep: bool) {
        for HeldAddress { address: held, .. } in std::mem::take(&mut *self.0.lock().await) {
            let address = held.address();
            if keep && held.can_stay() {
                if held.origin() != Origin::Foreign {
                    info!(%address, interface = held.interface(), "the address stays for the next start");
                }
                continue;
            }
            if let Err(failure) = held.remove().await {
                warn!(%failure, %address, "the address stays");
            }
        }
    }
}

impl HeldAddress {
    /// Looks whether the address is there, and puts it back when it is not; says whether that was done.
    async fn look(&mut self, target: Target<'_>, readiness: &Readiness) -> bool {
        let (address, interface) = (self.address.address(), self.address.interface().to_owned());
        match self.address.is_present().await {
            Ok(true) => {
                if self.lost.take().is_some() {
                    info!(%address, "the lost address is back");
                }
                return false;
            }
            Ok(false) => {}
            // Nothing is known, so nothing changes.
            Err(_) => return false,
        }
        if self.lost.is_none() {
            readiness.not_ready(PART, missing(address, &interface, "it is being put back"));
        }
        match self.address.restore(target).await {
            Ok(()) => {
                let interface = self.address.interface();
                if self.lost.take().is_some() {
                    info!(%address, interface, "the lost address was put back");
                } else {
                    warn!(%address, interface, "the address was taken away by another program, and was put back");
                }
                true
            }
            Err(failure) => {
                if self.lost.is_none() {
                    warn!(%address, interface, %failure, "the address was taken away, and cannot be put back yet");
                }
                self.lost = Some(missing(address, &interface, &failure.to_string()));
                false
            }
        }
    }
}

/// Claims an address until the services listen, and puts it back if another process removed it before that saw this one; `None` if
/// something else has the port for that.
async fn claim(address: &mut AddedAddress, target: Target<'_>) -> Result<Option<TcpListener>, AddressError> {
    let (until, mut claimed) = (Instant::now() + CLAIM_LIMIT, None);
    while claimed.is_none() && Instant::now() < until {
        match platform::address::claim(address.address()) {
            Ok(claim) => claimed = Some(claim),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => address.restore(target).await?,
            Err(error) if error.kind() == ErrorKind::AddrInUse => tokio::time::sleep(CLAIM_RETRY).await,
            Err(_) => break,
        }
    }
    address.leave_to_others();
    Ok(claimed)
}

/// Why clients get no answer at an address.
fn missing(address: IpAddr, interface: &str, why: &str) -> String {
    format!("{address} was taken away from interface {interface}, so that no client is answered there: {why}")
}
