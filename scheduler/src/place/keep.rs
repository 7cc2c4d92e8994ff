//! Kept units take their room again: exactly the host, the amounts and the ports that their containers have.

use std::time::Duration;

use model::{Entity, Text};

use crate::ledger::record::{Replica, Stage};
use crate::place::Placer;
use crate::place::filter::check::Check;
use crate::place::refusal::Refusal;
use crate::place::replica::replica_of;
use crate::start::credentials::RequestCredentials;

impl Placer {
    /// Notes that the containers of a unit are stopped and kept.
    pub(crate) fn keep(&self, id: &str, at: usize, now: Duration) -> bool {
        self.with_any(now, |book| book.keep(id, at))
    }

    /// Promises a kept unit its room again, so that its containers can be started. What is not about room is not asked
    /// again: it stood there before.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unknown`] if no such unit is kept, [`Refusal::DoesNotFit`] with what has its room or its ports now.
    pub(crate) fn take_again(&self, id: &str, at: usize, now: Duration) -> Result<(), Refusal> {
        let unit = self.unit(id, at, &RequestCredentials::default(), now);
        let Some((request, replica)) = unit.filter(|(_, replica)| replica.stage == Stage::Kept) else {
            return Err(Refusal::Unknown(id.into()));
        };
        let names: Vec<Text> = replica.members.iter().map(|held| held.name.clone()).collect();
        let bound: Vec<_> = replica.members.iter().flat_map(|held| held.bound.clone()).collect();
        self.with(now, |book| {
            let (room, host_name) = (book.room(), &replica.host_name);
            let refuse =
                |why: String| Refusal::DoesNotFit(format!("{id} cannot be started again on {host_name}: {why}"));
            let host = room.inventory.hosts().index(&replica.host);
            let host = host.ok_or_else(|| refuse("the cluster does not have this host now".to_owned()))?;
            let need = self.need(&request, room.inventory, &names, &[]);
            let mut amounts = need.checks.iter().filter(|check| matches!(check, Check::Room(_)));
            if let Some(reason) = amounts.find_map(|check| check.refuse(&room, host)) {
                return Err(refuse(reason.detail));
            }
            // A request that names its host has its ports in any case.
            let asked = bound.iter().filter(|_| request.requested_host.is_none());
            for own in asked {
                if let Some(other) = room.blocker(host, own.protocol, own.address, own.public, &own.owner) {
                    let (port, protocol) = (own.public, own.protocol.name());
                    return Err(refuse(format!("{} has port {port}/{protocol}", self.name_of_owner(&other.owner))));
                }
            }
            let full = replica_of(&request, (replica.host.clone(), replica.host_name.clone()), &names, &bound);
            book.take_again(id, at, &full);
            Ok(())
        })
    }

    /// Undoes [`Placer::take_again`].
    pub(crate) fn put_aside(&self, id: &str, at: usize, now: Duration) {
        self.with_any(now, |book| book.put_aside(id, at));
    }

    /// Sets the stage of these units where it is one of `from`; returns those where it was, with what it was.
    pub(crate) fn begin(
        &self,
        id: &str,
        units: &[usize],
        (from, to): (&[Stage], Stage),
        now: Duration,
    ) -> Vec<(usize, Stage)> {
        self.with_any(now, |book| {
            let before = |at: usize| book.replica(id, at).map(|replica| replica.stage).filter(|is| from.contains(is));
            let begun: Vec<_> = units.iter().filter_map(|at| Some((*at, before(*at)?))).collect();
            for (at, _) in &begun {
                book.reached(id, *at, to, &[]);
            }
            begun
        })
    }

    /// Whether the cluster shows a container of the unit as one that takes room.
    pub(crate) fn is_shown_running(&self, replica: &Replica) -> bool {
        let inventory = self.inventory();
        let mut shown = replica.members.iter().flat_map(|held| inventory.placed(&held.name).to_vec());
        shown.any(|uuid| inventory.account(&uuid).is_some_and(|account| account.stands()))
    }

    /// Whether all hosts know that a unit which runs is about to be stopped, and clients have others to ask.
    pub(crate) fn is_known_to_leave(&self, id: &str, replica: &Replica, now: Duration) -> bool {
        let unit = self.with_any(now, |book| book.record(id)?.unit.clone().filter(|_| book.may_evict()));
        replica.containers().next().is_some()
            && self.is_shown_running(replica)
            && unit.is_some_and(|unit| unit.covered && !unit.evicted)
    }

    /// What a person calls the owner of a port: the name of a container, where it has one.
    fn name_of_owner(&self, owner: &Text) -> Text {
        let inventory = self.inventory();
        inventory
            .containers()
            .get(owner)
            .and_then(|container| container.name().cloned())
            .unwrap_or_else(|| owner.clone())
    }
}
