//! Stacks in the ledger: changed by their owner, and stored before anything follows from it.

use std::time::Duration;

use model::Text;
use stacks::{Rollout, Service, Stack, Stage, State, Turn, World};

use crate::clock::Clock;
use crate::ledger::draft::TakeOver;
use crate::ledger::record::Record;
use crate::ledger::stack::{StackRecord, StackRevision, UNDONE, stack_id};
use crate::place::Placer;
use crate::place::promise::unreadable;
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::stack::unit::any_unit;
use crate::stack::wish::Wish;
use crate::subject::Subject;

/// The outcome of a revision that is there.
pub(super) const DONE: &str = "done";

/// What the outcome of one begins with that failed, and whose services are what they were before.
const ROLLED_BACK: &str = "rolled back: ";

/// The outcome of one that a person has to confirm.
const UNCONFIRMED: &str = "waits for confirm or rollback";

/// Another state of a stack that a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Pause,
    Resume,
    /// What an update has left stopped is removed.
    Confirm,
    /// All of it is removed, at the end also the volumes that were made for it.
    Remove {
        volumes: bool,
    },
}

impl Placer {
    /// A stack, and whether another scheduler has it.
    pub(crate) fn stack(&self, name: &str, now: Duration) -> Result<(StackRecord, bool), Refusal> {
        self.with(now, |book| {
            let known = book.stack(name).map(|record| (record.clone(), book.is_foreign(&stack_id(name))));
            known.ok_or_else(|| match book.unreadable(&stack_id(name)) {
                Some(why) => unreadable(&stack_id(name), why),
                None => Refusal::NoStack(name.into()),
            })
        })
    }

    /// The names of all stacks.
    pub(crate) fn stack_names(&self, now: Duration) -> Result<Vec<Text>, Refusal> {
        self.with(now, |book| Ok(book.stack_names().cloned().collect()))
    }

    /// Stores what is wanted of a stack, as its next revision unless nothing changes; returns the revision.
    ///
    /// # Errors
    ///
    /// [`Refusal::Taken`] if it is not at the revision that the client expects, [`Refusal::Forbidden`] if the subject may not
    /// have it, and if it cannot be stored.
    pub(crate) async fn put_stack(
        &self,
        name: &Text,
        wish: &Wish,
        subject: &Subject,
        clock: Clock,
    ) -> Result<u64, Refusal> {
        self.update_stack(name, clock, |before| {
            let revision = before.map_or(0, |record| record.stack.revision);
            if let Some(expect) = wish.expect.filter(|expect| *expect != revision) {
                let problem =
                    format!("stack {name} is at revision {revision}, not {expect}: somebody else has changed it");
                return Err(Refusal::Taken(problem));
            }
            let rules = (wish.prune, wish.atomic);
            let record = self.revised(before, (name, wish.services_for(before)), rules, subject, clock.now())?;
            let answers = wish.answers.clone().unwrap_or_else(|| record.answers.clone());
            Ok(record.answered(answers))
        })
        .await
    }

    /// Stores another number of units of services; returns the revision.
    ///
    /// # Errors
    ///
    /// As [`Placer::put_stack`].
    pub(crate) async fn scale_stack(
        &self,
        name: &Text,
        scales: &[(Text, u32)],
        subject: &Subject,
        clock: Clock,
    ) -> Result<u64, Refusal> {
        self.update_stack(name, clock, |before| {
            let before = before.ok_or_else(|| Refusal::NoStack(name.clone()))?;
            let mut services: Vec<Service> = wanted(&before.stack);
            for (service, scale) in scales {
                let found = services.iter_mut().find(|own| own.name == *service);
                let own = found.ok_or_else(|| Refusal::NoStack(format!("{name} with a service {service}").into()))?;
                own.scale = *scale;
            }
            let rules = (false, before.stack.atomic);
            self.revised(Some(before), (name, services), rules, subject, clock.now())
        })
        .await
    }

    /// Goes back to an older revision, or to the one before; returns the new revision, which has the old one's services.
    ///
    /// # Errors
    ///
    /// As [`Placer::put_stack`], and if there is no such revision.
    pub(crate) async fn roll_back_stack(
        &self,
        name: &Text,
        to: Option<u64>,
        subject: &Subject,
        clock: Clock,
    ) -> Result<u64, Refusal> {
        self.update_stack(name, clock, |before| {
            let before = before.ok_or_else(|| Refusal::NoStack(name.clone()))?;
            let now = wanted(&before.stack);
            let older = before.history.iter().rev();
            let found = if let Some(to) = to {
                older.clone().find(|revision| revision.revision == to)
            } else {
                let others = || older.clone().skip(1).filter(|other| !same_services(&other.services, &now));
                let worked = |other: &&StackRevision| [DONE, UNCONFIRMED].contains(&&*other.outcome);
                // One that was not seen to its end may be good; what had to be rolled back is nothing to go back to.
                let failed =
                    |other: &&StackRevision| [ROLLED_BACK, UNDONE].iter().any(|start| other.outcome.starts_with(start));
                others().find(worked).or_else(|| others().find(|other| !failed(other)))
            };
            let found = found.ok_or_else(|| {
                let known: Vec<String> = older.map(|revision| revision.revision.to_string()).collect();
                let known = known.join(", ");
                match to {
                    Some(to) => Refusal::NoStack(format!("{name} with revision {to}; there are {known}").into()),
                    None => Refusal::Taken(format!(
                        "stack {name} has no other revision that worked; there are {known}, and --to takes any"
                    )),
                }
            })?;
            let (services, rules) = (found.services.clone(), (true, before.stack.atomic));
            let answers = found.answers.clone().unwrap_or_else(|| before.answers.clone());
            let record = self.revised(Some(before), (name, services), rules, subject, clock.now())?;
            Ok(record.answered(answers))
        })
        .await
    }

    /// Does what a person asks of a stack as a whole; returns its revision.
    ///
    /// # Errors
    ///
    /// As [`Placer::put_stack`].
    pub(crate) async fn command_stack(
        &self,
        name: &Text,
        command: &Command,
        subject: &Subject,
        clock: Clock,
    ) -> Result<u64, Refusal> {
        self.permit_stack(name, subject)?;
        self.update_stack(name, clock, |before| {
            let mut record = before.cloned().ok_or_else(|| Refusal::NoStack(name.clone()))?;
            let stack = &mut record.stack;
            match command {
                Command::Pause => stack.paused = true,
                Command::Resume => stack.paused = false,
                Command::Remove { volumes } => {
                    (stack.removing, stack.volumes, stack.paused) = (true, *volumes, false);
                }
                Command::Confirm => {
                    for rollout in &mut stack.services {
                        if rollout.stage == Stage::Unconfirmed {
                            rollout.turn(Turn::Finished);
                        }
                    }
                }
            }
            note_outcome(&mut record);
            Ok(record)
        })
        .await
    }

    /// Changes a stack, and stores it; returns its revision.
    async fn update_stack(
        &self,
        name: &Text,
        clock: Clock,
        change: impl Fn(Option<&StackRecord>) -> Result<StackRecord, Refusal>,
    ) -> Result<u64, Refusal> {
        let id = stack_id(name);
        if self.with_any(clock.now(), |book| book.gives_up()) {
            let why = "this scheduler does not see the cluster, and has given its stacks to others: ask another one";
            return Err(Refusal::Away(why.into()));
        }
        self.own(&id, TakeOver::Idle, clock).await?;
        let before = self.with(clock.now(), |book| {
            let before = book.stack(name).cloned();
            let record = change(before.as_ref())?;
            match &before {
                Some(_) => drop(book.change_stack(name, |own| *own = record)),
                None => book.enter(id.clone(), Record::of_stack(record, clock.now())),
            }
            Ok(before)
        })?;
        let stored = self.settled(&id).await;
        match &stored {
            // It may be stored yet, so it stands.
            Ok(()) | Err(Refusal::Unsettled(_)) => {}
            Err(_) => self.with_any(clock.now(), |book| match before {
                Some(before) => drop(book.change_stack(name, |own| *own = before)),
                None => drop(book.release(&id)),
            }),
        }
        stored?;
        Ok(self.stack(name, clock.now())?.0.stack.revision)
    }

    /// Stores what a plan of the stack as it was `seen` decided about services. Nothing follows if another revision is wanted since.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be stored, or another scheduler has the stack.
    pub(super) async fn turn_stack(&self, seen: &Stack, turns: &[(Text, Turn)], clock: Clock) -> Result<(), Refusal> {
        let stack_id = stack_id(&seen.name);
        let changed = self.with_any(clock.now(), |book| {
            let is_other = book.stack(&seen.name).is_some_and(|record| record.stack != *seen);
            if is_other {
                Some(())
            } else {
                book.change_stack(&seen.name, |record| take_turns(record, turns)).map(drop)
            }
        });
        changed.ok_or_else(|| Refusal::NoStack(seen.name.clone()))?;
        self.settled(&stack_id).await
    }

    /// Stores which jobs of a stack are done. They stay so without their containers and hosts.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be stored.
    pub(super) async fn note_done(&self, stack: &Stack, world: &World, clock: Clock) -> Result<(), Refusal> {
        let is_job = |name: &Text| stack.services.iter().any(|one| one.wanted.job && one.wanted.name == *name);
        let done = world.units.iter().filter(|unit| unit.state == State::Done && is_job(&unit.service));
        let noted: Vec<&Text> =
            self.with_any(clock.now(), |book| done.map(|unit| &unit.id).filter(|id| book.note_done(id)).collect());
        for id in noted {
            self.settled(id).await?;
        }
        Ok(())
    }

    /// Stores where units with volumes have run, by service and index.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be stored.
    pub(super) async fn note_homes(
        &self,
        stack: &Text,
        homes: Vec<(Text, Text, Text)>,
        clock: Clock,
    ) -> Result<(), Refusal> {
        if homes.is_empty() {
            return Ok(());
        }
        let changed = self.with_any(clock.now(), |book| {
            book.change_stack(stack, |record| {
                for (service, index, host) in homes {
                    let mut services = record.stack.services.iter_mut();
                    if let Some(rollout) = services.find(|rollout| rollout.wanted.name == service) {
                        rollout.homes.insert(index, host);
                    }
                }
            })
            .map(drop)
        });
        changed.ok_or_else(|| Refusal::NoStack(stack.clone()))?;
        self.settled(&stack_id(stack)).await
    }

    /// Deletes a stack of which nothing is left.
    pub(super) async fn end_stack(&self, name: &str, clock: Clock) -> Result<(), Refusal> {
        let id = stack_id(name);
        self.with_any(clock.now(), |book| book.release(&id));
        self.settled(&id).await
    }

    /// Notes that another unit takes the place of one whose host is gone.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be stored.
    pub(super) async fn evict(&self, id: &Text, clock: Clock) -> Result<(), Refusal> {
        self.own(id, TakeOver::Idle, clock).await?;
        self.with_any(clock.now(), |book| book.evict(id, clock.now()));
        self.settled(id).await
    }

    /// A stack of which these services are wanted, if the subject may have each.
    fn revised(
        &self,
        before: Option<&StackRecord>,
        (name, services): (&Text, Vec<Service>),
        rules: (bool, bool),
        subject: &Subject,
        now: Duration,
    ) -> Result<StackRecord, Refusal> {
        self.permit_services(name, &services, subject)?;
        Ok(changed(before, (name, services), rules, subject, now))
    }

    /// Whether the policy allows a subject to have all of these services; the field of a refusal says of which one it is.
    pub(super) fn permit_services(&self, stack: &Text, services: &[Service], subject: &Subject) -> Result<(), Refusal> {
        for (at, service) in services.iter().enumerate() {
            let permitted =
                any_unit(stack, service, subject).map_err(Refusal::from).and_then(|unit| self.permit(&unit));
            permitted.map_err(|refusal| refusal.within(&format!("services[{at}]")))?;
        }
        Ok(())
    }

    /// Whether the policy allows a subject to do something with a stack as a whole.
    pub(crate) fn permit_stack(&self, stack: &str, subject: &Subject) -> Result<(), Refusal> {
        let asked = serde_json::json!({ "stack": stack });
        let value = serde_json::from_value::<model::Value>(asked).unwrap_or(model::Value::Null);
        Ok(self.policy().check_removal(subject, &Request::parse(&value)?).map_err(Box::new)?)
    }
}

/// The services of a stack as they are wanted.
pub(crate) fn wanted(stack: &Stack) -> Vec<Service> {
    stack.services.iter().map(|rollout| rollout.wanted.clone()).collect()
}

fn same_services(one: &[Service], other: &[Service]) -> bool {
    one.len() == other.len() && one.iter().all(|service| other.contains(service))
}

/// A stack of which these services are wanted.
pub(crate) fn changed(
    before: Option<&StackRecord>,
    (name, services): (&Text, Vec<Service>),
    (prune, atomic): (bool, bool),
    subject: &Subject,
    now: Duration,
) -> StackRecord {
    let mut history = before.map(|record| record.history.clone()).unwrap_or_default();
    let answers = before.map(|record| record.answers.clone()).unwrap_or_default();
    let mut stack =
        before.map_or_else(|| Stack { name: name.clone(), ..Stack::default() }, |record| record.stack.clone());
    let last = history.last().map(|revision| &revision.services);
    let is_new = stack.removing || last.is_none_or(|last| !same_services(last, &services));
    let mut old = std::mem::take(&mut stack.services);
    for service in &services {
        let rollout = match old.iter().position(|rollout| rollout.wanted.name == service.name) {
            None => Rollout::new(service.clone()),
            Some(at) => {
                let mut rollout = old.swap_remove(at);
                rollout.change(service.clone());
                // What a person asks for once more is tried once more.
                match rollout.stage {
                    Stage::Stuck(_) => (rollout.stage, rollout.asked) = (Stage::Updating, now),
                    // It is wanted as it is.
                    Stage::RolledBack(_) => rollout.stage = Stage::Steady,
                    _ => {}
                }
                rollout
            }
        };
        stack.services.push(rollout);
    }
    (stack.prune, stack.atomic, stack.removing, stack.paused) = (prune, atomic, false, false);
    stack.volumes = false;
    if is_new {
        stack.revision += 1;
        let made = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let revision = StackRevision {
            revision: stack.revision,
            made,
            subject: subject.clone(),
            services,
            outcome: Text::default(),
            answers: Some(answers.clone()),
        };
        let mut record = StackRecord { stack, history, answers };
        record.add(revision);
        note_outcome(&mut record);
        return record;
    }
    if let Some(last) = history.last_mut() {
        last.outcome = Text::default();
        last.subject = subject.clone();
    }
    let mut record = StackRecord { stack, history, answers };
    note_outcome(&mut record);
    record
}

/// Takes the turns of services, and notes what has come of the revision.
fn take_turns(record: &mut StackRecord, turns: &[(Text, Turn)]) {
    let mut failed = None;
    for (service, turn) in turns {
        if let Turn::RollBack(why) | Turn::Stuck(why) = turn {
            failed = failed.or_else(|| Some(format!("{service}: {why}")));
        }
        if let Some(rollout) = record.stack.services.iter_mut().find(|rollout| rollout.wanted.name == *service) {
            rollout.turn(turn.clone());
        }
    }
    if let Some(why) = failed.filter(|_| record.stack.atomic) {
        undo_all(record, &why);
    }
    note_outcome(record);
}

/// All of a revision goes when one service of it fails: what was not there before is removed.
fn undo_all(record: &mut StackRecord, why: &str) {
    let older = record.history.iter().rev().skip(1);
    let good = older.clone().find(|revision| &*revision.outcome == DONE).or_else(|| older.clone().next());
    let Some(good) = good.map(|revision| revision.services.clone()) else {
        record.stack.removing = true;
        if let Some(last) = record.history.last_mut() {
            last.outcome = format!("{UNDONE}{why}").into();
        }
        return;
    };
    let was_there = |name: &Text| good.iter().any(|service| service.name == *name);
    record.stack.services.retain(|rollout| was_there(&rollout.wanted.name));
    // What was to be pruned stays: its units are there until all else is done.
    for service in good {
        if record.stack.services.iter().all(|rollout| rollout.wanted.name != service.name) {
            record.stack.services.push(Rollout { stage: Stage::Steady, ..Rollout::new(service) });
        }
    }
    record.stack.prune = true;
}

/// Notes what has come of the last revision, once it is known.
fn note_outcome(record: &mut StackRecord) {
    let stages = record.stack.services.iter().map(|rollout| (&rollout.wanted.name, &rollout.stage));
    let mut outcome = Some(String::from(DONE));
    for (service, stage) in stages {
        match stage {
            Stage::Updating | Stage::RollingBack(_) => {
                outcome = None;
                break;
            }
            Stage::Stuck(why) => outcome = Some(format!("stuck: {service}: {why}")),
            Stage::RolledBack(why) if outcome.as_deref().is_some_and(|text| !text.starts_with("stuck")) => {
                outcome = Some(format!("{ROLLED_BACK}{service}: {why}"));
            }
            Stage::Unconfirmed if outcome.as_deref() == Some(DONE) => {
                outcome = Some(UNCONFIRMED.to_owned());
            }
            Stage::Steady | Stage::Unconfirmed | Stage::RolledBack(_) => {}
        }
    }
    if let (Some(last), Some(outcome)) = (record.history.last_mut(), outcome)
        && !last.outcome.starts_with(UNDONE)
    {
        last.outcome = outcome.into();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn services(images: &[(&str, &str)]) -> Vec<Service> {
        let service = |(name, image): &(&str, &str)| {
            let request = serde_json::json!({ "service": name, "image": image });
            Service::parse(&serde_json::from_value(request).unwrap()).unwrap()
        };
        images.iter().map(service).collect()
    }

    fn next(before: Option<&StackRecord>, images: &[(&str, &str)], atomic: bool) -> StackRecord {
        changed(before, (&"shop".into(), services(images)), (false, atomic), &Subject::own(), NOW)
    }

    fn finish(record: &mut StackRecord) {
        let all: Vec<_> = record.stack.services.iter().map(|one| (one.wanted.name.clone(), Turn::Finished)).collect();
        take_turns(record, &all);
    }

    fn outcome(record: &StackRecord) -> &str {
        &record.history.last().unwrap().outcome
    }

    #[test]
    fn what_was_to_be_pruned_is_there_again_when_all_goes_back() {
        let mut first = next(None, &[("a", "1"), ("c", "1")], true);
        finish(&mut first);
        let pruning = (true, true);
        let second = services(&[("a", "2"), ("d", "1")]);
        let mut second = changed(Some(&first), (&"shop".into(), second), pruning, &Subject::own(), NOW);
        take_turns(&mut second, &[("d".into(), Turn::RollBack("it does not start".into()))]);
        let mut names: Vec<_> = second.stack.services.iter().map(|one| (&*one.wanted.name, &one.stage)).collect();
        names.sort_by_key(|(name, _)| *name);
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names[0].0 == "a" && names[1] == ("c", &Stage::Steady), "{names:?}");
    }

    #[test]
    fn what_was_rolled_back_and_is_wanted_as_it_is_is_done() {
        let mut first = next(None, &[("web", "1")], false);
        finish(&mut first);
        let mut second = next(Some(&first), &[("web", "2")], false);
        take_turns(&mut second, &[("web".into(), Turn::RollBack("it does not start".into()))]);
        finish(&mut second);
        assert_eq!(outcome(&second), "rolled back: web: it does not start");
        let third = next(Some(&second), &[("web", "1")], false);
        assert_eq!((third.stack.revision, outcome(&third)), (3, DONE));
        assert_eq!(third.stack.services[0].stage, Stage::Steady);
    }

    #[test]
    fn a_revision_has_the_answers_that_it_was_made_with() {
        let answers = |port: &str| BTreeMap::from([(Text::from("port"), Text::from(port))]);
        let first = next(None, &[("web", "1")], false).answered(answers("80"));
        let second = next(Some(&first), &[("web", "2")], false).answered(answers("81"));
        // An update without answers has those of the revision before.
        let third = next(Some(&second), &[("web", "3")], false);
        let noted: Vec<_> = third.history.iter().map(|revision| revision.answers.clone().unwrap()).collect();
        assert_eq!((noted, third.answers), (vec![answers("80"), answers("81"), answers("81")], answers("81")));
    }

    #[test]
    fn revisions_are_counted_when_something_changes() {
        let mut first = next(None, &[("web", "1")], false);
        assert_eq!((first.stack.revision, outcome(&first)), (1, ""));
        finish(&mut first);
        assert_eq!(outcome(&first), DONE);
        let same = next(Some(&first), &[("web", "1")], false);
        assert_eq!((same.stack.revision, same.history.len(), outcome(&same)), (1, 1, DONE));
        let second = next(Some(&first), &[("web", "2")], false);
        assert_eq!((second.stack.revision, second.history.len(), outcome(&second)), (2, 2, ""));
        assert!(second.stack.services[0].previous.is_some());
    }

    #[test]
    fn what_failed_is_noted_and_tried_again_when_it_is_asked_for_again() {
        let mut record = next(None, &[("web", "bad")], false);
        take_turns(&mut record, &[("web".into(), Turn::Stuck("no room".into()))]);
        assert_eq!(outcome(&record), "stuck: web: no room");
        let again = next(Some(&record), &[("web", "bad")], false);
        assert_eq!((again.stack.revision, outcome(&again)), (1, ""));
        assert_eq!(again.stack.services[0].stage, Stage::Updating);
    }

    #[test]
    fn an_atomic_revision_is_undone_as_a_whole() {
        let failed: [(Text, Turn); 1] = [("web".into(), Turn::RollBack("sick".into()))];
        let mut first = next(None, &[("db", "1"), ("web", "1")], true);
        let mut alone = first.clone();
        take_turns(&mut alone, &failed);
        assert!(alone.stack.removing);
        assert_eq!(outcome(&alone), "removed, since web: sick");
        finish(&mut first);
        let mut second = next(Some(&first), &[("db", "1"), ("web", "2"), ("new", "1")], true);
        take_turns(&mut second, &failed);
        let names: Vec<&str> = second.stack.services.iter().map(|one| &*one.wanted.name).collect();
        assert_eq!((names, second.stack.prune), (vec!["db", "web"], true));
        assert_eq!(second.stack.services[1].stage, Stage::RollingBack("sick".into()));
    }
}
