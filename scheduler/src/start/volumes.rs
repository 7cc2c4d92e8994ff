//! Volumes with names that units of stacks have: made with labels that say whose they are.
//!
//! An engine makes a volume that a container names, and puts no label on it. So that a stack can be removed with its volumes, and
//! with no others, the scheduler makes them before the container: what has its labels was made by it for this stack. One that
//! is there already gets none.

use std::collections::BTreeSet;

use engine::EngineError;
use model::Text;
use tracing::warn;

use crate::place::request::Request;
use crate::place::request::member::Member;
use crate::place::request::volume::named_volume;
use crate::stack::unit::STACK_LABEL;
use crate::start::docker::{DockerEngine, LEDGER_LABEL};
use crate::start::job::StartJob;

/// The setting that names the driver of all volumes of a container.
const VOLUME_DRIVER: &str = "VolumeDriver";

impl StartJob {
    /// Has an engine make the volumes of a container of a stack that are not there yet.
    ///
    /// # Errors
    ///
    /// Fails if one with options is not made, or is there with others, and if one that others make is not there: what is written would
    /// be somewhere else. Of another one it is no error yet: the engine makes it for the container too, or says why not.
    pub(super) async fn make_volumes(
        &self,
        docker: &DockerEngine,
        request: &Request,
        at: usize,
        ledger: Option<&str>,
    ) -> Result<(), EngineError> {
        let member = &request.members[at];
        let settings = member.run.engine.as_json();
        let driver = settings[VOLUME_DRIVER].as_str();
        let (Some(unit), Some(ledger)) = (&request.unit, ledger) else {
            return match member.run.volume_options.first() {
                None => Ok(()),
                Some(one) => Err(EngineError::Refused(format!("{} has options, and is of no stack", one.volume))),
            };
        };
        // A driver may have it without having been asked for it on this host.
        for name in named_volumes(member).filter(|name| driver.is_none() && is_external(member, name)) {
            if !docker.has_volume(name).await? {
                let text = format!(
                    "no volume {name} there, and it is external: type `docker volume create {name}` on the host that is to have it"
                );
                return Err(EngineError::Refused(text));
            }
        }
        for name in named_volumes(member).filter(|name| !is_external(member, name)) {
            let options = member.run.volume_options.iter().find(|one| *one.volume == *name);
            let options = options.map_or(&[][..], |one| &one.options);
            match docker.make_volume(name, driver, options, &labels(&unit.stack, ledger)).await {
                Ok(()) => {}
                Err(error) if !options.is_empty() => return Err(error),
                Err(error) => {
                    warn!(id = %self.id, volume = name, %error, "a volume has no label of its stack: it will not be removed with it");
                }
            }
        }
        Ok(())
    }
}

/// The labels of a stack's volumes. No image can bring them.
pub(crate) fn labels<'a>(stack: &'a str, ledger: &'a str) -> [(&'a str, &'a str); 2] {
    [(STACK_LABEL, stack), (LEDGER_LABEL, ledger)]
}

/// The names of the volumes of a container, each once.
fn named_volumes(member: &Member) -> impl Iterator<Item = &str> {
    let names: BTreeSet<&str> = member.run.volumes.iter().filter_map(|volume| named_volume(volume)).collect();
    names.into_iter()
}

/// Whether others make a volume.
fn is_external(member: &Member, name: &str) -> bool {
    member.run.external_volumes.iter().any(|own: &Text| **own == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_external_and_what_is_no_volume_is_not_made() {
        let request = serde_json::json!({ "image": "i", "external_volumes": ["theirs"],
            "volumes": ["data:/a", "data:/b:ro", "theirs:/c", "/srv:/d", "C:\\srv:C:\\e", "/f", "log:/g"] });
        let request = Request::parse(&serde_json::from_value(request).unwrap()).unwrap();
        let member = &request.members[0];
        let (theirs, own): (Vec<_>, Vec<_>) = named_volumes(member).partition(|name| is_external(member, name));
        assert_eq!((theirs, own), (vec!["theirs"], vec!["data", "log"]));
    }
}
