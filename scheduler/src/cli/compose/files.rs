//! `configs` and `secrets` of a compose file: files that containers read. ◇
//!
//! An absolute path is a file of the hosts: a volume as others are, which the policy's `bind_sources` have to allow. Anything else is
//! contents, which the scheduler stores sealed and puts into the container before it is started.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::{Map, Text, Value};

use crate::cli::compose::Compose;
use crate::cli::compose::section::{Draft, Section};
use crate::place::invalid::Invalid;
use crate::secret::CONTENT_MAX;

/// What a file can be, where it appears unless the service says so, and its word for one.
const KINDS: [(&str, &str); 2] = [("configs", "/"), ("secrets", "/run/secrets/")];

/// Ways to give contents.
const GIVEN: [&str; 3] = ["content", "environment", "file"];

/// What a service may say of a file that it uses.
const OWN: [&str; 3] = ["gid", "mode", "uid"];

const EXPECTED: &str =
    "file: a path beside the compose file, or an absolute one on the hosts; or environment; or content";

/// Where the contents of a file are.
enum Source {
    /// On each host, at this path.
    Hosts(Text),
    /// Here, as base64, and the field that has them.
    Here { content: String, field: String },
}

/// Where a file that is put into a container comes from.
pub(super) struct FileOrigin {
    /// The way to it in its service.
    pub(super) used: String,
    /// The way to its contents.
    pub(super) source: String,
}

/// What a service has of configs and secrets.
#[derive(Default)]
pub(super) struct Used {
    /// Volumes, for the files of its host.
    pub(super) volumes: Vec<Value>,
    /// Files that are put into its containers.
    pub(super) files: Vec<Value>,
    /// Where each of these comes from.
    pub(super) origins: Vec<FileOrigin>,
}

/// The files that a compose file names.
#[derive(Default)]
pub(super) struct Files(Vec<(&'static str, Text, Source)>);

impl Files {
    /// Those of a file.
    ///
    /// # Errors
    ///
    /// Fails if one has no contents, and is none of the hosts either.
    pub(super) fn described(compose: &Compose<'_>, file: &Section<'_>) -> Result<Self, Invalid> {
        let mut found = Vec::new();
        for (kind, _) in KINDS {
            let Some(all) = file.below(kind)? else { continue };
            for (name, value) in all.map {
                let one = Section::new(all.at(name), value)?;
                found.push((kind, name.clone(), Source::of(compose, &one)?));
            }
        }
        Ok(Self(found))
    }

    /// What a service has of them.
    pub(super) fn used(&self, service: &Section<'_>) -> Result<Used, Invalid> {
        let mut used = Used::default();
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
                let none = Map::default();
                let (name, long) = match item {
                    Value::Map(map) => {
                        let long = Section { path: path.clone(), map };
                        long.only(&[&OWN[..], &["source", "target"]].concat())?;
                        let source = long.text("source")?;
                        (source.ok_or_else(|| Invalid::new(long.at("source"), "missing", "a name"))?, long)
                    }
                    Value::Text(name) => (name.clone(), Section { path: path.clone(), map: &none }),
                    other => return Err(Invalid::new(path, format!("found {}", other.kind()), "a name")),
                };
                let known = self.0.iter().find(|(own, known, _)| *own == kind && *known == name);
                let Some((.., source)) = known else {
                    return Err(Invalid::new(path, format!("no {name} among {kind}"), format!("{kind} of this file")));
                };
                let target = match long.text("target")? {
                    Some(target) if target.starts_with('/') => target.to_string(),
                    Some(target) => format!("{folder}{target}"),
                    None => format!("{folder}{name}"),
                };
                match source {
                    Source::Hosts(source) => {
                        if let Some(key) = OWN.iter().find(|key| long.get(key).is_some()) {
                            let expected = "none: owner and mode are those of the file on the host";
                            return Err(Invalid::new(long.at(key), "is not supported", expected));
                        }
                        used.volumes.push(Value::text(format!("{source}:{target}:ro")));
                    }
                    Source::Here { content, field } => {
                        used.files.push(file(&long, target, content)?);
                        used.origins.push(FileOrigin { used: path, source: field.clone() });
                    }
                }
            }
        }
        Ok(used)
    }
}

impl Source {
    fn of(compose: &Compose<'_>, one: &Section<'_>) -> Result<Self, Invalid> {
        let given: Vec<_> = GIVEN.into_iter().filter(|key| one.get(key).is_some()).collect();
        let key = match given[..] {
            [key] => key,
            [] => {
                // What is there instead is the mistake.
                let other = one.map.iter().find(|(key, value)| !key.starts_with("x-") && !value.is_null());
                let problem = if other.is_some() { "is not supported" } else { "missing" };
                return Err(Invalid::new(one.at(other.map_or("file", |(key, _)| key)), problem, EXPECTED));
            }
            [_, second, ..] => return Err(Invalid::new(one.at(second), "given twice", EXPECTED)),
        };
        // Labels are for an engine's own store of configs, which a stack has none of.
        one.only(&[key, "labels", "name"])?;
        for without_effect in ["labels", "name"].into_iter().filter(|key| one.get(key).is_some()) {
            compose.warn(one.at(without_effect), "has no effect: contents are the stack's own");
        }
        let text = one.text(key)?.unwrap_or_default();
        let wrong = |problem: String| Invalid::new(one.at(key), problem, EXPECTED);
        let bytes = match key {
            "content" => text.as_bytes().to_vec(),
            "environment" => {
                let value = (compose.variable)(&text);
                value.ok_or_else(|| wrong(format!("nothing sets the variable {text}")))?.into_bytes()
            }
            _ if text.starts_with('/') && !text.contains(':') => return Ok(Self::Hosts(text)),
            _ if text.is_empty() || text.starts_with('~') || text.contains([':', '\\']) => {
                return Err(wrong(format!("found {text:?}")));
            }
            _ => (compose.content)(&text).map_err(|why| wrong(format!("{text}: {why}")))?,
        };
        if bytes.len() > CONTENT_MAX {
            return Err(wrong(format!("it has {} bytes, of at most {CONTENT_MAX}", bytes.len())));
        }
        if !compose.for_stack {
            let expected = "an absolute path on the hosts; `scheduler up` brings contents";
            return Err(Invalid::new(one.at(key), "is for stacks alone", expected));
        }
        Ok(Self::Here { content: STANDARD.encode(bytes), field: one.at(key) })
    }
}

/// A file that is put into a container.
fn file(long: &Section<'_>, target: String, content: &str) -> Result<Value, Invalid> {
    let mut file: Draft = vec![("target".into(), Value::text(target)), ("content_base64".into(), Value::text(content))];
    for key in ["gid", "uid"] {
        let Some(text) = long.text(key)? else { continue };
        let number = text.parse().map_err(|_| Invalid::new(long.at(key), format!("found {text:?}"), "a number"))?;
        file.push((key.into(), Value::Int(number)));
    }
    if let Some(text) = long.text("mode")? {
        // As they stand there, the digits are octal: 0440, 440 and "0440" are the same.
        if !text.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) {
            return Err(Invalid::new(long.at("mode"), format!("found {text}"), "octal digits, 0440"));
        }
        let digits = text.trim_start_matches('0');
        file.push(("mode".into(), Value::text(if digits.is_empty() { "0" } else { digits })));
    }
    Ok(Map::new(file).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::compose::{Reading, requests};

    fn read(for_stack: bool, top: &str, service: &str) -> Result<serde_json::Value, Invalid> {
        let text = format!("{top}\nservices: {{web: {{image: a, {service}}}}}\n");
        let document = source::format::parse(&text).unwrap().value(model::scalar::core);
        let content = |name: &str| match name {
            "large" => Ok(vec![0; CONTENT_MAX + 1]),
            "pw.txt" => Ok(vec![0, 255]),
            _ => Err("not found".to_owned()),
        };
        let variable = |name: &str| (name == "PASSWORD").then(|| "s3cret".to_owned());
        let reading = Reading { for_stack, content: &content, variable: &variable, ..Reading::of_tests() };
        let found = requests(&[document], &reading, &mut Vec::new())?;
        Ok(serde_json::to_value(&found[0]).unwrap())
    }

    #[test]
    fn contents_are_taken_along_and_files_of_hosts_are_mounted() {
        let top = "secrets: {pw: {file: pw.txt}, env: {environment: PASSWORD}, key: {file: /srv/key}}\n\
                   configs: {conf: {content: 'a ${PASSWORD}'}}";
        let found =
            read(true, top, "secrets: [pw, {source: env, target: /a, uid: '5', mode: 0440}, key], configs: [conf]");
        let found = found.unwrap();
        let file = |target: &str, content: &[u8]| serde_json::json!({ "target": target, "content_base64": STANDARD.encode(content) });
        let mut own = file("/a", b"s3cret");
        own["uid"] = 5.into();
        own["mode"] = "440".into();
        assert_eq!(found["files"][0], file("/conf", b"a s3cret"));
        assert_eq!(found["files"][1], file("/run/secrets/pw", &[0, 255]));
        assert_eq!(found["files"][2], own);
        assert_eq!(found["volumes"], serde_json::json!(["/srv/key:/run/secrets/key:ro"]));
    }

    #[test]
    fn what_has_no_contents_is_named() {
        for (top, service, field, part) in [
            ("secrets: {a: {file: lost}}", "", "secrets.a.file", "lost: not found"),
            ("secrets: {a: {file: large}}", "", "secrets.a.file", "65537 bytes"),
            ("secrets: {a: {file: 'C:\\a'}}", "", "secrets.a.file", "beside the compose file"),
            ("secrets: {a: {environment: NONE}}", "", "secrets.a.environment", "nothing sets"),
            ("secrets: {a: {external: true}}", "", "secrets.a.external", "is not supported"),
            ("secrets: {a: {file: pw.txt, content: a}}", "", "secrets.a.file", "given twice"),
            (
                "secrets: {a: {content: a}}",
                "secrets: [{source: a, mode: 288}]",
                "services.web.secrets[0].mode",
                "octal",
            ),
            (
                "secrets: {a: {content: a}}",
                "secrets: [{source: a, uid: me}]",
                "services.web.secrets[0].uid",
                "a number",
            ),
            (
                "secrets: {a: {file: /a}}",
                "secrets: [{source: a, uid: 5}]",
                "services.web.secrets[0].uid",
                "on the host",
            ),
        ] {
            let wrong = read(true, top, service).unwrap_err();
            assert_eq!(wrong.field, field, "{top}");
            assert!(wrong.to_string().contains(part), "{top}: {wrong}");
        }
        let wrong = read(false, "secrets: {a: {content: a}}", "").unwrap_err();
        assert!(wrong.to_string().contains("`scheduler up`"), "{wrong}");
    }
}
