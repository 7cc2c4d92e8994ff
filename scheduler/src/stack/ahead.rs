//! What is found out before anything of an update is begun: whether there is room, and whether images are on their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use model::Text;
use stacks::{Rollout, Service, Stack, State, Unit, World, unit_id};
use tokio_util::sync::CancellationToken;

use crate::ledger::book::Book;
use crate::place::answer::{Placement, failure};
use crate::place::invalid::Invalid;
use crate::place::rehearsal::Rehearsed;
use crate::place::request::Request;
use crate::place::request::member::Member;
use crate::stack::memory::Room;
use crate::stack::unit::{UnitRequest, any_unit, is_pinned};
use crate::stack::world::is_gone;
use crate::start::Starter;
use crate::start::credentials::RequestCredentials;
use crate::start::pull_ahead::{ImageOutcome, WantedImage};
use crate::subject::Subject;

/// How long no host has to fit until that counts: a cluster shows what was removed a moment later.
pub(super) const HOPELESS_AFTER: Duration = Duration::from_secs(5);

/// Leaves 24 of 64 random bits for a suffix, six digits: nobody promises so many ids in advance.
const SUFFIX_SHIFT: u32 = 40;

/// Most homes that are kept of a service: with 50 bytes each a stack of many services still fits into a value of etcd.
const HOMES_MAX: usize = 1000;

/// Most units of a service for which a free id is looked for at once: more than are begun at once.
const SUFFIXED_MAX: usize = 256;

/// On whose behalf units are placed, and with which credentials for registries.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) subject: &'a Subject,
    pub(super) brought: &'a RequestCredentials,
}

/// Places of the units of a service that are still to come.
pub(super) struct Rehearsal {
    /// By index.
    pub(super) places: BTreeMap<Text, Placement>,
    /// The images of a unit, each once, and whether it is pulled also when a host has one of this name.
    images: BTreeMap<Text, bool>,
    /// Why contents of its files cannot be opened here, if so.
    unopened: Option<String>,
}

impl Starter {
    /// What the plan has to know of hosts.
    ///
    /// `hopeless` says since when no host fits a service.
    pub(super) fn look_for_room(
        &self,
        stack: &Stack,
        asking: Asking<'_>,
        world: &World,
        hopeless: &mut BTreeMap<Text, Duration>,
    ) -> Room {
        let mut room = Room::default();
        for rollout in &stack.services {
            let name = &rollout.wanted.name;
            if rollout.wanted.global {
                room.hosts.insert(name.clone(), self.hosts_of(stack, rollout, asking, world));
                continue;
            }
            let is_left = world.units.iter().any(|unit| leaves(unit, &rollout.wanted, world));
            let is_asked = is_left || rollout.stage.is_changing() && lacks_units(rollout, world);
            if !is_asked {
                hopeless.remove(name);
                continue;
            }
            let Ok(request) = self.any_request(stack, &rollout.wanted, asking) else { continue };
            let Ok(fitting) = self.placer().fitting_hosts(&request, world.now) else { continue };
            // Where its volume is there is the old unit.
            if !fitting.is_empty() && !is_pinned(&rollout.wanted) {
                room.fits_beside.insert(name.clone());
                hopeless.remove(name);
                continue;
            }
            if !rollout.stage.is_changing() {
                hopeless.remove(name);
                continue;
            }
            let gone = units_of(world, name);
            let why = if let Some(why) = self.why_not_at_home(stack, &rollout.wanted, asking, world) {
                Some(why)
            } else if !fitting.is_empty() {
                None
            } else if gone.is_empty() {
                let explained = self.placer().explain_request(&request, world.now).ok();
                Some(failure(1, 0, explained.as_ref()))
            } else {
                let rehearsed = Rehearsed { id: &Text::from("unit"), request: &request, gone: &gone };
                let answer = self.placer().rehearse(&[rehearsed], world.now).ok().and_then(|mut all| all.pop());
                answer.and_then(|answer| answer.error)
            };
            match why {
                None => drop(hopeless.remove(name)),
                Some(why) => {
                    let since = *hopeless.entry(name.clone()).or_insert(world.now);
                    if world.now >= since.saturating_add(HOPELESS_AFTER) {
                        room.hopeless.insert(name.clone(), why.into());
                    }
                }
            }
        }
        room
    }

    /// Why a unit cannot be where its volume is, with the old ones gone; that another host fits is of no use to it.
    fn why_not_at_home(&self, stack: &Stack, service: &Service, asking: Asking<'_>, world: &World) -> Option<String> {
        if !is_pinned(service) {
            return None;
        }
        let inventory = self.placer().inventory();
        let places = self.rehearse_service(stack, service, asking, (world, false)).places;
        let mut at_home =
            places.into_iter().filter(|(index, _)| place_of(stack, service, index, world, &inventory).is_some());
        at_home.find_map(|(_, answer)| answer.error)
    }

    /// The names of hosts on which a unit of a global service belongs: where there is one, and where one fits.
    fn hosts_of(&self, stack: &Stack, rollout: &Rollout, asking: Asking<'_>, world: &World) -> BTreeSet<Text> {
        let name = &rollout.wanted.name;
        let stays =
            |unit: &&Unit| !world.has_to_leave(unit, &rollout.wanted) && !world.keeps_as_it_is(unit, &rollout.wanted);
        let inventory = self.placer().inventory();
        // The host of one that ends has it back only then.
        let ends = |unit: &Unit| unit.state == State::Removing && !is_gone(&inventory, &unit.host);
        let own = world.units.iter().filter(|unit| unit.service == *name && (unit.is_live() || ends(unit)));
        let mut hosts: BTreeSet<Text> = own.filter(stays).map(|unit| unit.index.clone()).collect();
        let request = self.any_request(stack, &rollout.wanted, asking);
        if let Ok(Ok(fitting)) = request.map(|request| self.placer().fitting_hosts(&request, world.now)) {
            hosts.extend(fitting);
        }
        hosts
    }

    /// Where the units of a service would be placed that are still to come, with the old ones gone if those cannot stay.
    pub(super) fn rehearse_service(
        &self,
        stack: &Stack,
        service: &Service,
        asking: Asking<'_>,
        (world, beside): (&World, bool),
    ) -> Rehearsal {
        let has_new = new_of(service, world);
        let missing: Vec<Text> =
            indices_of(service, world).into_iter().filter(|index| !has_new.contains(index)).collect();
        let gone = if beside { Vec::new() } else { units_of(world, &service.name) };
        if missing.len() > 1 && !service.global && !is_pinned(service) {
            return self.rehearse_alike(stack, service, asking, (world, &gone[..]), missing);
        }
        let ids: Vec<Text> = missing.iter().map(|index| format!("rehearsed-{index}").into()).collect();
        let inventory = self.placer().inventory();
        let requests: Vec<(Text, Request)> = missing
            .iter()
            .zip(&ids)
            .filter_map(|(index, id)| {
                let host = place_of(stack, service, index, world, &inventory);
                let unit = UnitRequest { stack: &stack.name, service, index, id, host: host.as_deref() };
                let request = unit.request(asking.subject).ok()?;
                Some((id.clone(), self.filled(request, asking)))
            })
            .collect();
        let rehearsed: Vec<Rehearsed<'_>> = requests
            .iter()
            .enumerate()
            .map(|(at, (id, request))| Rehearsed { id, request, gone: if at == 0 { &gone } else { &[] } })
            .collect();
        let answers = self.placer().rehearse(&rehearsed, world.now).unwrap_or_default();
        let images = images_of(requests.iter().flat_map(|(_, request)| &request.members));
        let unopened = requests.first().and_then(|(_, request)| self.unopened(request));
        Rehearsal { places: missing.into_iter().zip(answers).collect(), images, unopened }
    }

    /// The same for units that differ by their index alone, which is one question about many.
    fn rehearse_alike(
        &self,
        stack: &Stack,
        service: &Service,
        asking: Asking<'_>,
        (world, gone): (&World, &[(Text, usize)]),
        missing: Vec<Text>,
    ) -> Rehearsal {
        let id = Text::from("rehearsed");
        let unit = UnitRequest { stack: &stack.name, service, index: &missing[0], id: &id, host: None };
        let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
        let Ok(request) = unit.request(asking.subject).map(|request| Request { count, ..self.filled(request, asking) })
        else {
            return Rehearsal { places: BTreeMap::new(), images: BTreeMap::new(), unopened: None };
        };
        let rehearsed = Rehearsed { id: &id, request: &request, gone };
        let answer = self.placer().rehearse(&[rehearsed], world.now).ok().and_then(|mut all| all.pop());
        let images = images_of(request.members.iter());
        let unopened = self.unopened(&request);
        let Some(answer) = answer else { return Rehearsal { places: BTreeMap::new(), images, unopened } };
        let explained = || failure(answer.unplaced, answer.placements.len(), answer.explanation.as_ref());
        let error = (answer.unplaced > 0).then(|| answer.error.clone().unwrap_or_else(explained));
        let mut units = answer.placements.iter().cloned();
        let places = missing.into_iter().map(|index| {
            let own: Vec<_> = units.next().into_iter().collect();
            let error = error.clone().filter(|_| own.is_empty());
            let state = if own.is_empty() { "unplaceable" } else { "placed" };
            let unplaced = u32::from(own.is_empty());
            let (failures, explanation) = (Vec::new(), None);
            let id = id.clone();
            let (dry_run, repeated) = (true, false);
            (index, Placement { id, state, dry_run, repeated, placements: own, unplaced, error, failures, explanation })
        });
        Rehearsal { places: places.collect(), images, unopened }
    }

    /// A request with what is known of the systems that its images support.
    fn filled(&self, mut request: Request, asking: Asking<'_>) -> Request {
        self.placer().platforms().fill(&mut request, asking.brought);
        request
    }

    /// The request of any unit of a service, likewise.
    fn any_request(&self, stack: &Stack, service: &Service, asking: Asking<'_>) -> Result<Request, Invalid> {
        any_unit(&stack.name, service, asking.subject).map(|request| self.filled(request, asking))
    }

    /// Brings the images of a service to the hosts where its units are going to be, if the contents of their files can be opened; the
    /// error says what is missing.
    pub(super) async fn bring_images(
        self: &Arc<Self>,
        rehearsal: &Rehearsal,
        brought: &RequestCredentials,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        if let Some(why) = &rehearsal.unopened {
            return Err(why.clone());
        }
        let hosts: BTreeSet<Text> = rehearsal
            .places
            .values()
            .flat_map(|answer| &answer.placements)
            .map(|unit| unit.host.uuid.clone())
            .collect();
        let wanted: Vec<WantedImage> = hosts
            .iter()
            .flat_map(|host| rehearsal.images.iter().map(|(image, always)| (host.clone(), image.clone(), *always)))
            .map(|(host, image, always)| WantedImage { host, image, always })
            .collect();
        let outcomes = self.pull_ahead(&wanted, brought, &None, stop).await;
        for (one, outcome) in wanted.iter().zip(outcomes) {
            if let ImageOutcome::Failed(error) = outcome {
                let host = self.placer().inventory().hosts().name_of(&one.host);
                return Err(format!("image {} did not come to host {host}: {error}", one.image));
            }
        }
        Ok(())
    }
}

/// The images of containers, and whether each is pulled also when a host has one of this name.
fn images_of<'m>(members: impl Iterator<Item = &'m Member>) -> BTreeMap<Text, bool> {
    let mut images = BTreeMap::new();
    for member in members {
        if let Some(image) = &member.image {
            *images.entry(image.clone()).or_default() |= member.run.pulls_always;
        }
    }
    images
}

/// Whether a unit is one of this service and is to leave its host.
fn leaves(unit: &Unit, service: &Service, world: &World) -> bool {
    unit.service == service.name && unit.is_live() && world.has_to_leave(unit, service)
}

/// Whether fewer units of the wanted revision are there than are wanted.
fn lacks_units(rollout: &Rollout, world: &World) -> bool {
    let service = &rollout.wanted;
    let own = |unit: &&Unit| unit.service == service.name && unit.is_live() && unit.digest == service.digest;
    world.units.iter().filter(own).count() < service.scale as usize
}

/// The units of a service that have room, by id and index in their placement; also those that are ending.
fn units_of(world: &World, service: &Text) -> Vec<(Text, usize)> {
    let has_room = |unit: &Unit| unit.is_live() || unit.state == State::Removing;
    let own = world.units.iter().filter(|unit| unit.service == *service && has_room(unit));
    own.filter(|unit| !matches!(unit.state, State::Failed(_))).map(|unit| (unit.id.clone(), 0)).collect()
}

/// Chooses what is added to ids of units to come that placements of others have, which nobody can know before; forgets
/// what is not needed any more.
pub(super) fn add_suffixes(book: &Book, stack: &Stack, world: &World, suffixes: &mut BTreeMap<Text, Text>) {
    let is_own = |id: &str| {
        let unit = book.record(id).and_then(|record| record.unit.as_ref());
        unit.is_some_and(|unit| unit.stack == stack.name)
    };
    let is_taken = |service: &Service, id: &Text| {
        let sidekicks = service.request.list("sidekicks").iter().filter_map(|one| one.as_map()?.text("name"));
        let names = std::iter::once(id.clone()).chain(sidekicks.map(|name| format!("{id}-{name}").into()));
        // What cannot be read may be the very unit.
        book.record(id).is_some() && !is_own(id)
            || names.into_iter().any(|name| book.owner_of(&name).is_some_and(|owner| !is_own(owner)))
    };
    let mut needed = BTreeSet::new();
    for service in stack.services.iter().map(|rollout| &rollout.wanted) {
        for id in missing_of(service, world).iter().map(|index| unit_id(&stack.name, service, index)) {
            if !is_taken(service, &id) {
                continue;
            }
            let known = suffixes.get(&id).filter(|suffix| !is_taken(service, &format!("{id}.{suffix}").into()));
            if known.is_none() {
                let random = RandomState::new().hash_one(&id) >> SUFFIX_SHIFT;
                suffixes.insert(id.clone(), format!("{random:06x}").into());
            }
            needed.insert(id);
        }
    }
    suffixes.retain(|id, _| needed.contains(id));
}

/// The indices of a service that have a unit of the wanted revision.
fn new_of<'w>(service: &Service, world: &'w World) -> BTreeSet<&'w Text> {
    let own = |unit: &&Unit| unit.service == service.name && unit.is_live() && unit.digest == service.digest;
    world.units.iter().filter(own).map(|unit| &unit.index).collect()
}

/// The indices of a service that lack a unit of the wanted revision, those first that have none at all; as many as are looked at.
fn missing_of(service: &Service, world: &World) -> Vec<Text> {
    let has_new = new_of(service, world);
    let own = world.units.iter().filter(|unit| unit.service == service.name && unit.is_live());
    let used: BTreeSet<&Text> = own.map(|unit| &unit.index).collect();
    let all: BTreeSet<Text> =
        indices_of(service, world).into_iter().chain(used.iter().map(|index| (*index).clone())).collect();
    let mut missing: Vec<Text> = all.into_iter().filter(|index| !has_new.contains(index)).collect();
    missing.sort_by_key(|index| (used.contains(index), index.parse::<u32>().unwrap_or(u32::MAX)));
    missing.truncate(SUFFIXED_MAX);
    missing
}

/// The numbers of the units of a service, or the names of the hosts of a global one.
fn indices_of(service: &Service, world: &World) -> Vec<Text> {
    match world.hosts.get(&service.name) {
        Some(hosts) if service.global => hosts.iter().cloned().collect(),
        _ => (1..=service.scale).map(|index| index.to_string().into()).collect(),
    }
}

/// The host, by uuid, where a unit has to be: that of its index for a global service, or that of its volume.
pub(super) fn place_of(
    stack: &Stack,
    service: &Service,
    index: &Text,
    world: &World,
    inventory: &crate::place::inventory::Inventory,
) -> Option<Text> {
    if service.global {
        let host = inventory.hosts().find(index)?;
        return Some(inventory.hosts().facts(host).uuid.clone());
    }
    if !is_pinned(service) {
        return None;
    }
    let own = || world.units.iter().filter(|unit| unit.service == service.name && unit.index == *index);
    let rollout = stack.services.iter().find(|rollout| rollout.wanted.name == service.name);
    let home = rollout.and_then(|rollout| rollout.homes.get(index)).filter(|home| {
        // Somebody decided that it goes on without what is on a dead host.
        !own().any(|unit| unit.host == **home && matches!(unit.state, State::Evicted | State::Returned))
    });
    home.cloned().or_else(|| {
        // One that has not run yet may have its volume all the same.
        let is_there = |unit: &&Unit| !matches!(unit.state, State::Failed(_) | State::Evicted | State::Returned);
        let before = own().find(|unit| is_there(unit) && !unit.host.is_empty() && unit.digest != service.digest);
        before.map(|unit| unit.host.clone())
    })
}

/// The homes of units with volumes that are not noted yet, by service and index; as many as are kept.
pub(super) fn homes_of(stack: &Stack, world: &World) -> Vec<(Text, Text, Text)> {
    let mut noted = Vec::new();
    let pinned = stack.services.iter().filter(|rollout| is_pinned(&rollout.wanted) && !rollout.wanted.global);
    for Rollout { wanted, homes, .. } in pinned.filter(|_| !stack.removing) {
        let own = world.units.iter().filter(|unit| unit.service == wanted.name && unit.digest == wanted.digest);
        let mut room = HOMES_MAX.saturating_sub(homes.len());
        let own: Vec<&Unit> = own.filter(|unit| has_home(unit)).collect();
        let is_at_home = |unit: &&Unit| homes.get(&unit.index) == Some(&unit.host);
        let at_home: BTreeSet<&Text> = own.iter().copied().filter(is_at_home).map(|unit| &unit.index).collect();
        for unit in own.into_iter().filter(|unit| !at_home.contains(&unit.index)) {
            if !homes.contains_key(&unit.index) {
                let Some(left) = room.checked_sub(1) else { continue };
                room = left;
            }
            noted.push((unit.service.clone(), unit.index.clone(), unit.host.clone()));
        }
    }
    noted
}

/// Whether a unit has run on its host, so that there is something in its volume there.
fn has_home(unit: &Unit) -> bool {
    use State::{Done, Ended, Healthy, Kept, Lost, Unhealthy};
    !unit.host.is_empty() && matches!(unit.state, Ended(_) | Unhealthy | Healthy(_) | Done | Kept | Lost(_))
}
