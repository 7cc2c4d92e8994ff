//! `configs` and `secrets` of a compose file: files of the hosts, which containers read. ◇
//!
//! Nothing is sent to a host and nothing is stored, so what is no file there is refused. A file is a volume as others are, and
//! the policy's `bind_sources` have to allow it.

use model::{Text, Value};

use crate::cli::compose::section::Section;
use crate::place::invalid::Invalid;

/// What a file can be, where it appears unless the service says so, and its word for one.
const KINDS: [(&str, &str); 2] = [("configs", "/"), ("secrets", "/run/secrets/")];

/// Ways to give contents that are refused.
const CONTENTS: [&str; 5] = ["content", "driver", "environment", "external", "template_driver"];

/// The files that a compose file names: the kind, the name, and where it is on each host.
#[derive(Default)]
pub(super) struct HostFiles(Vec<(&'static str, Text, Text)>);

const EXPECTED: &str = "file: an absolute path on the hosts, whose contents you put there yourself";

impl HostFiles {
    /// Those of a file.
    ///
    /// # Errors
    ///
    /// Fails if one is no file of the hosts.
    pub(super) fn described(file: &Section<'_>) -> Result<Self, Invalid> {
        let mut found = Vec::new();
        for (kind, _) in KINDS {
            let Some(all) = file.below(kind)? else { continue };
            for (name, value) in all.map {
                let one = Section::new(all.at(name), value)?;
                if let Some(key) = CONTENTS.iter().find(|key| one.get(key).is_some()) {
                    return Err(Invalid::new(one.at(key), "is not supported: nothing is stored or sent", EXPECTED));
                }
                one.only(&["file"])?;
                let path = one.text("file")?.ok_or_else(|| Invalid::new(one.at("file"), "missing", EXPECTED))?;
                if !path.starts_with('/') || path.contains(':') {
                    return Err(Invalid::new(one.at("file"), format!("found {path:?}"), EXPECTED));
                }
                found.push((kind, name.clone(), path));
            }
        }
        Ok(Self(found))
    }

    /// The volumes of a service for the files that it uses.
    pub(super) fn volumes(&self, service: &Section<'_>) -> Result<Vec<Value>, Invalid> {
        let mut volumes = Vec::new();
        for (kind, folder) in KINDS {
            let items = match service.get(kind) {
                None => continue,
                Some(Value::List(items)) => items,
                Some(other) => {
                    return Err(Invalid::new(service.at(kind), format!("found {}", other.kind()), "a list"));
                }
            };
            for (at, item) in items.iter().enumerate() {
                let path = service.at(&format!("{kind}[{at}]"));
                let (name, target) = match item {
                    Value::Map(map) => {
                        let long = Section { path: path.clone(), map };
                        if let Some(key) = ["gid", "mode", "uid"].iter().find(|key| long.get(key).is_some()) {
                            let expected = "none: owner and mode are those of the file on the host";
                            return Err(Invalid::new(long.at(key), "is not supported", expected));
                        }
                        long.only(&["source", "target"])?;
                        let source = long.text("source")?;
                        (
                            source.ok_or_else(|| Invalid::new(long.at("source"), "missing", "a name"))?,
                            long.text("target")?,
                        )
                    }
                    Value::Text(name) => (name.clone(), None),
                    other => return Err(Invalid::new(path, format!("found {}", other.kind()), "a name")),
                };
                let known = self.0.iter().find(|(own, known, _)| *own == kind && *known == name);
                let Some((.., source)) = known else {
                    return Err(Invalid::new(path, format!("no {name} among {kind}"), format!("{kind} of this file")));
                };
                let target = match target {
                    Some(target) if target.starts_with('/') => target.to_string(),
                    Some(target) => format!("{folder}{target}"),
                    None => format!("{folder}{name}"),
                };
                volumes.push(Value::text(format!("{source}:{target}:ro")));
            }
        }
        Ok(volumes)
    }
}
