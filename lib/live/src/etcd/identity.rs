//! The identity by which a machine recognises its own keys.

use model::Text;
use source::StateDir;
use tracing::warn;

/// The file inside the state directory.
const FILE: &str = "machine.txt";

/// Bytes of an identity: never drawn twice.
const BYTES: usize = 16;

/// The writer of keys: this machine, and this run of its agent.
///
/// An agent that was killed and starts again takes over the keys of its machine at once. Without a state directory
/// the machine is not recognised, and the keys have to expire first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The machine, the same after each start.
    pub machine: Text,
    /// The life of the agent, another one after each start.
    pub life: Text,
}

impl Identity {
    /// The machine that is stored in the state directory; `None` where there is none. Blocks.
    pub fn known(state: &StateDir) -> Option<Text> {
        let text = String::from_utf8(state.load_contents(FILE)?).ok()?.trim().to_owned();
        let is_one = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then(|| text.into())
    }

    /// The identity that is stored in the state directory, or a new one that is stored there from now on. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if the system gives no random numbers.
    pub fn open(state: Option<&StateDir>) -> std::io::Result<Self> {
        let life = random()?;
        if let Some(machine) = state.and_then(Self::known) {
            return Ok(Self { machine, life });
        }
        let machine = random()?;
        if let Some(state) = state
            && let Err(error) = state.save_contents(FILE, format!("{machine}\n").as_bytes())
        {
            warn!(%error, "cannot store the identity of this machine; after a crash its keys have to expire first");
        }
        Ok(Self { machine, life })
    }
}

fn random() -> std::io::Result<Text> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(model::hex(&bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_stays_the_same_and_its_lives_differ() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path().to_owned()).unwrap();
        let (one, two) = (Identity::open(Some(&state)).unwrap(), Identity::open(Some(&state)).unwrap());
        assert_eq!(one.machine, two.machine);
        assert_ne!(one.life, two.life);
        std::fs::write(folder.path().join(FILE), "damaged").unwrap();
        assert_ne!(Identity::open(Some(&state)).unwrap().machine, one.machine);
        assert_ne!(Identity::open(None).unwrap().machine, Identity::open(None).unwrap().machine);
    }
}
