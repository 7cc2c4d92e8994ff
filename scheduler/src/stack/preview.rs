//! What would follow if this were wanted of a stack: the differences, and where each unit would go. Nothing is changed.

use std::time::Duration;

use model::Text;
use serde::Serialize;
use stacks::{Difference, Order, Plan, differences};

use crate::place::refusal::Refusal;
use crate::stack::ahead::Asking;
use crate::stack::store::{changed, wanted};
use crate::stack::wish::Wish;
use crate::start::Starter;
use crate::start::credentials::RequestCredentials;
use crate::subject::Subject;

/// What would follow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Preview {
    pub(crate) name: Text,
    /// The revision that the stack is at; 0 when there is none. What `expect` is to be.
    pub(crate) revision: u64,
    /// Whether nothing would change.
    pub(crate) is_empty: bool,
    pub(crate) differences: Vec<Difference>,
    pub(crate) services: Vec<ServicePreview>,
    /// Services that would be left with their units, which `prune` removes.
    pub(crate) orphans: Vec<Text>,
    /// What would be done first.
    pub(crate) plan: Plan,
    /// The same as text.
    pub(crate) text: String,
}

/// What would become of a service.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ServicePreview {
    pub(crate) name: Text,
    /// What comes first, the new unit or the end of the old one, and why.
    pub(crate) order: &'static str,
    pub(crate) why: String,
    /// How many units are replaced at once.
    pub(crate) batch: u32,
    /// How long it takes at least, in seconds: each batch has to be good for a while, and images and starts come on top.
    pub(crate) at_least: u64,
    pub(crate) units: Vec<UnitPreview>,
}

/// Where a unit would be placed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UnitPreview {
    pub(crate) index: Text,
    /// The host of the unit that has this index now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Text>,
    /// The host of the new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<Text>,
    /// Why there is none for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Starter {
    /// What would follow if this were wanted.
    ///
    /// # Errors
    ///
    /// As [`crate::place::Placer::put_stack`].
    pub(crate) fn preview_stack(&self, name: &Text, wish: &Wish, subject: &Subject) -> Result<Preview, Refusal> {
        let now = self.clock().now();
        let before = match self.placer().stack(name, now) {
            Ok((record, _)) => Some(record),
            Err(Refusal::NoStack(_)) => None,
            Err(refusal) => return Err(refusal),
        };
        let revision = before.as_ref().map_or(0, |record| record.stack.revision);
        let old = before.as_ref().filter(|record| !record.stack.removing).map(|record| wanted(&record.stack));
        let services = wish.services_for(before.as_ref());
        self.placer().permit_services(name, &services, subject)?;
        let differences = differences(old.as_deref().unwrap_or_default(), &services);
        let rules = (wish.prune, wish.atomic);
        // Nothing of it is remembered: any client may ask about any name.
        let mut memory = self.memory_of(name);
        let record = changed(before.as_ref(), (name, services), rules, subject, now);
        let seen = self.see(record, &mut memory, Duration::ZERO);
        let stack = &seen.record.stack;
        let inventory = self.placer().inventory();
        let brought = RequestCredentials::default();
        let asking = Asking { subject, brought: &brought };
        let mut previews = Vec::new();
        for rollout in &stack.services {
            let service = &rollout.wanted;
            let has_old = seen
                .world
                .units
                .iter()
                .any(|unit| unit.service == service.name && unit.is_live() && unit.digest != service.digest);
            let beside = seen.world.fits_beside.contains(&service.name);
            let (order, why) = order_of(service, has_old, beside);
            let start_first = order == "start-first";
            let rehearsal = self.rehearse_service(stack, service, asking, (&seen.world, start_first || !has_old));
            let units: Vec<UnitPreview> = rehearsal
                .places
                .into_iter()
                .map(|(index, answer)| {
                    let own = |unit: &&stacks::Unit| {
                        unit.service == service.name && unit.index == index && unit.is_live() && !unit.host.is_empty()
                    };
                    let from = seen.world.units.iter().find(own).map(|unit| inventory.hosts().name_of(&unit.host));
                    let to = answer.placements.first().map(|unit| unit.host.name.clone());
                    UnitPreview { index, from, to, error: answer.error }
                })
                .collect();
            if !units.is_empty() {
                let batch = service.update.batch;
                let turns =
                    if has_old { units.len().div_ceil(usize::try_from(batch.max(1)).unwrap_or(usize::MAX)) } else { 1 };
                let at_least = service.update.monitor.saturating_mul(turns as u64);
                previews.push(ServicePreview { name: service.name.clone(), order, why, batch, at_least, units });
            }
        }
        let text = seen.plan.to_string();
        let is_empty = differences.is_empty() && seen.plan.is_empty();
        let orphans = seen.plan.orphans.clone();
        Ok(Preview {
            name: name.clone(),
            revision,
            is_empty,
            differences,
            services: previews,
            orphans,
            plan: seen.plan,
            text,
        })
    }
}

/// What comes first, and why.
fn order_of(service: &stacks::Service, has_old: bool, fits_beside: bool) -> (&'static str, String) {
    if !has_old {
        return ("start", "there is nothing to replace".to_owned());
    }
    match service.update.order {
        Order::StopFirst => ("stop-first", "as its rules say".to_owned()),
        Order::StartFirst => ("start-first", "as its rules say".to_owned()),
        Order::Auto if service.global => ("stop-first", "each host has one".to_owned()),
        Order::Auto if fits_beside => ("start-first", "there is room for one more unit".to_owned()),
        Order::Auto => {
            ("stop-first", "no host has room or ports for one more unit, or its volume is on one host".to_owned())
        }
    }
}
