//! `scheduler.release`: room given back, once, and no more than there was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Text;

use crate::api::event::body::{EventBody, PortRequest};
use crate::api::event::{EventData, owners};
use crate::ledger::book::Book;
use crate::ledger::note::Note;
use crate::ledger::record::Promise;
use crate::place::port::Bound;

pub(super) fn release(book: &mut Book, body: &EventBody, now: Duration) -> EventData {
    let Some((uuid, host)) = body.host.clone().and_then(|uuid| {
        let host = book.inventory().hosts().index(&uuid)?;
        Some((uuid, host))
    }) else {
        return EventData::Nothing;
    };
    release_amounts(book, &uuid, host, body, now);
    for request in &body.ports {
        release_ports(book, &uuid, host, request, now);
    }
    EventData::Nothing
}

fn release_amounts(book: &mut Book, uuid: &Text, host: u32, body: &EventBody, now: Duration) {
    let mut left: BTreeMap<Text, i64> = BTreeMap::new();
    for (name, amount) in &body.amounts {
        let sum = left.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
    let positive = |note: &Note| !note.gives_back && note.unit == body.unit && !note.promise.amounts.is_empty();
    let own: Vec<u64> = book.notes(uuid).filter(|(_, note)| positive(note)).map(|(at, _)| at).collect();
    for at in own {
        let Some((_, note)) = book.notes(uuid).find(|(own, _)| *own == at) else { continue };
        let mut promise = note.promise.clone();
        for (name, amount) in &mut promise.amounts {
            let less = left.get(name).copied().unwrap_or(0).min(*amount);
            *amount -= less;
            left.entry(name.clone()).and_modify(|left| *left -= less);
        }
        promise.amounts.retain(|(_, amount)| *amount > 0);
        if promise == Promise::default() {
            book.remove_note(at);
        } else {
            book.change_note(at, promise);
        }
    }
    // The rest is used by containers that the snapshot still shows: no more than they use, and only once.
    let inventory = book.inventory().clone();
    let hosts = inventory.hosts();
    let here = |owner: &&Text| inventory.account(owner).is_some_and(|account| account.host == Some(host));
    let there: BTreeSet<Text> = body.unit.iter().filter(here).cloned().collect();
    let used = |pool: usize| -> i64 {
        if body.unit.is_empty() {
            return inventory.used(pool)[host as usize];
        }
        let accounts = there.iter().filter_map(|owner| inventory.account(owner));
        accounts
            .flat_map(|account| &account.amounts)
            .filter(|(known, _)| *known == pool)
            .map(|(_, amount)| amount)
            .sum()
    };
    let given = |name: &Text| -> i64 {
        let notes =
            book.notes(uuid).filter(|(_, note)| note.gives_back && (body.unit.is_empty() || note.unit == body.unit));
        notes
            .flat_map(|(_, note)| &note.promise.amounts)
            .filter(|(known, _)| known == name)
            .map(|(_, amount)| -amount)
            .sum()
    };
    let back: Vec<(Text, i64)> = left
        .into_iter()
        .filter_map(|(name, amount)| {
            let limit = used(hosts.pool(&name)?) - given(&name);
            let amount = amount.min(limit);
            (amount > 0).then_some((name, -amount))
        })
        .collect();
    if !back.is_empty() {
        let promise = Promise { amounts: back, ..Promise::default() };
        let note = Note { waits_for: there, ..Note::new(uuid.clone(), promise, body.unit.clone(), true, now) };
        book.add_note(note);
    }
}

fn release_ports(book: &mut Book, uuid: &Text, host: u32, request: &PortRequest, now: Duration) {
    let group = &request.group;
    let meant = |bound: &Bound| {
        (group.owner.is_empty() || bound.owner == group.owner)
            && group.ports.iter().any(|port| {
                let public = if port.public == 0 { bound.private == port.private } else { bound.public == port.public };
                let address = port.address.is_none_or(|address| address.is_unspecified() || address == bound.address);
                bound.protocol == port.protocol && public && address
            })
    };
    let promised: Vec<u64> =
        book.notes(uuid).filter(|(_, note)| note.promise.bound.iter().any(meant)).map(|(at, _)| at).collect();
    for at in promised {
        let Some((_, note)) = book.notes(uuid).find(|(own, _)| *own == at) else { continue };
        let mut promise = note.promise.clone();
        promise.bound.retain(|bound| !meant(bound));
        if promise == Promise::default() {
            book.remove_note(at);
        } else {
            book.change_note(at, promise);
        }
    }
    let inventory = book.inventory().clone();
    let known: Vec<Bound> = book.notes(uuid).flat_map(|(_, note)| note.promise.released.iter().cloned()).collect();
    let mut by_owner: BTreeMap<Text, Vec<Bound>> = BTreeMap::new();
    for bound in inventory.bound(host).iter().filter(|bound| meant(bound) && !known.contains(bound)) {
        by_owner.entry(bound.owner.clone()).or_default().push(bound.clone());
    }
    for (owner, released) in by_owner {
        let promise = Promise { released, ..Promise::default() };
        book.add_note(Note::new(uuid.clone(), promise, owners(&owner), true, now));
    }
}
