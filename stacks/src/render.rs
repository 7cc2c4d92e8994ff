//! A plan as text for people; equal plans have equal texts.

use std::fmt;

use crate::plan::{Plan, Step, Turn};

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place { id, .. } => write!(f, "+ place and start {id}"),
            Self::StopKept { id } => write!(f, "~ stop {id} and keep it"),
            Self::StartKept { id } => write!(f, "~ start {id}, which was kept"),
            Self::Remove { id } => write!(f, "- remove {id}"),
            Self::Evict { id, host } => write!(f, "- evict {id} from host {host}, which is dead"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for phase in &self.phases {
            let waits = if phase.waits.is_empty() { "as it should be" } else { &phase.waits };
            let (service, good, wanted, old) = (&phase.service, phase.good, phase.wanted, phase.old);
            writeln!(f, "{service}: {good} of {wanted} good, {old} old: {waits}")?;
        }
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        for (service, turn) in &self.turns {
            match turn {
                Turn::Finished => writeln!(f, "{service} is done")?,
                Turn::Unconfirmed => writeln!(f, "{service} waits for confirm or rollback")?,
                Turn::RollBack(why) => writeln!(f, "{service} goes back to what it was: {why}")?,
                Turn::Stuck(why) => writeln!(f, "{service} is stuck: {why}")?,
            }
        }
        for orphan in &self.orphans {
            writeln!(f, "{orphan} is not in the file: --prune removes it")?;
        }
        Ok(())
    }
}
