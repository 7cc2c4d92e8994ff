//! Networks that a container is in, with what others in them call it. ◇

use model::{Text, Value};

use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::request::limits::TEXT_MAX;
use crate::place::request::member::RunOptions;

/// Most networks of a container: each is one more request to its engine.
const NETWORKS_MAX: usize = 16;

/// Modes of an engine that are no networks which several containers join by name.
const MODES: [&str; 4] = ["bridge", "default", "host", "none"];

/// A network of the engine, which has to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JoinedNetwork {
    pub(crate) name: Text,
    /// Further names of the container in it.
    pub(crate) aliases: Vec<Text>,
}

/// Whether it is the name of a network, and not a mode of an engine or another container's.
fn is_network(name: &str) -> bool {
    !MODES.contains(&name) && !name.contains(':')
}

impl RunOptions {
    /// The networks that have to be there.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &Text> {
        let others = self.more_networks.iter().map(|network| &network.name);
        self.network.iter().chain(others).filter(|name| is_network(name))
    }
}

impl Fields<'_> {
    /// The networks of a container; the first one is the one that it is created in.
    pub(super) fn networks(&self) -> Result<Vec<JoinedNetwork>, Invalid> {
        let mut networks: Vec<JoinedNetwork> = Vec::new();
        for (at, item) in self.list("networks", NETWORKS_MAX)?.iter().enumerate() {
            let field = format!("networks[{at}]");
            let network = match item {
                Value::Text(name) if !name.is_empty() && name.len() <= TEXT_MAX => {
                    JoinedNetwork { name: name.clone(), aliases: Vec::new() }
                }
                Value::Map(_) => {
                    let entry = self.entry("networks", at, item)?;
                    entry.only(&[&["aliases", "name"]])?;
                    let name = entry.text("name")?;
                    let name = name.ok_or_else(|| Invalid::new(entry.at("name"), "missing", "the network's name"))?;
                    JoinedNetwork { name, aliases: entry.text_list("aliases")? }
                }
                other => return self.wrong(&field, other, "the name of a network, or a map of name and aliases"),
            };
            if networks.iter().any(|other| other.name == network.name) {
                return Err(Invalid::new(self.at(&field), format!("{} is there twice", network.name), "each once"));
            }
            networks.push(network);
        }
        if let Some(at) = networks.iter().position(|network| !is_network(&network.name))
            && (networks.len() > 1 || !networks[at].aliases.is_empty())
        {
            let problem = format!("{} with other networks or aliases", networks[at].name);
            let expected = "a network that was made for containers (`docker network create`)";
            return Err(Invalid::new(self.at(&format!("networks[{at}]")), problem, expected));
        }
        Ok(networks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<JoinedNetwork>, Invalid> {
        let map: model::Map = serde_json::from_str(json).unwrap();
        Fields { path: String::new(), map: &map }.networks()
    }

    #[test]
    fn networks_have_names_and_aliases() {
        let found = read(r#"{"networks": ["front", {"name": "back", "aliases": ["db", "sql"]}]}"#).unwrap();
        assert_eq!((found.len(), &*found[0].name, found[1].aliases.len()), (2, "front", 2));
        assert_eq!(read(r#"{"networks": ["host"]}"#).unwrap().len(), 1);
        for (json, field) in [
            (r#"{"networks": "front"}"#, "networks"),
            (r#"{"networks": [5]}"#, "networks[0]"),
            (r#"{"networks": ["a", "a"]}"#, "networks[1]"),
            (r#"{"networks": ["a", "host"]}"#, "networks[1]"),
            (r#"{"networks": [{"name": "bridge", "aliases": ["x"]}]}"#, "networks[0]"),
            (r#"{"networks": [{"aliases": ["x"]}]}"#, "networks[0].name"),
            (r#"{"networks": [{"name": "a", "mac": "x"}]}"#, "networks[0].mac"),
        ] {
            assert_eq!(read(json).unwrap_err().field, field, "{json}");
        }
    }
}
