//! Names that come from labels: where a container belongs, and what of it can be part of a DNS name.
//!
//! Names of stacks and services become one label of a DNS name each. What cannot stand there is written `x--HH`, an
//! byte in two hexadecimal digits, so that different names stay different and the first one can be read back.

use model::{METADATA_NAME, Map, Text};

/// Longest name of a stack or a service that is looked at: written out it has to fit one label of a DNS name, of which
/// there are 63 bytes (RFC 1035 section 2.3.4), and no name gets shorter by being written out.
const NAME_BYTES_MAX: usize = 63;

/// Longest alias: with a stack and the domain behind it, it has to fit a DNS name of 255 bytes.
const ALIAS_BYTES_MAX: usize = 160;

/// Label with the name of a compose project.
pub(super) const COMPOSE_PROJECT: &str = "com.docker.compose.project";
/// Label with the name of a service of a compose project.
pub(super) const COMPOSE_SERVICE: &str = "com.docker.compose.service";
/// Label with the number of a container within its service.
pub(super) const COMPOSE_NUMBER: &str = "com.docker.compose.container-number";
/// Label of containers that `docker compose run` creates.
pub(super) const COMPOSE_ONEOFF: &str = "com.docker.compose.oneoff";
const COMPOSE_DEPENDS: &str = "com.docker.compose.depends_on";
const STACK: &str = "io.rancher.stack.name";
const STACK_SERVICE: &str = "io.rancher.stack_service.name";
/// Label with the names that a service has for others: `SERVICE:ALIAS` or `STACK/SERVICE:ALIAS`, with commas between them.
const LINKS: &str = "io.berth.links";
/// Most links that the label of a container may say.
const LINKS_MAX: usize = 64;

/// Where a container belongs, as its labels say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    /// Its stack, also when it is of no service.
    pub(super) stack: Option<Text>,
    /// Its service; there is a stack then.
    pub(super) service: Option<Text>,
    /// The service whose sidekick its service is, when labels say so.
    pub(super) sidekick_of: Option<Text>,
    /// Its number within the service.
    pub(super) index: Option<Text>,
    /// Services of its stack that it wants to be there.
    pub(super) depends_on: Vec<Text>,
    /// What it calls other services: `stack/service`, and the name.
    pub(super) links: Vec<(Text, Text)>,
}

impl Membership {
    /// Where these labels say that a container belongs, and the labels that say nothing useful, with the reason.
    pub(super) fn of(labels: &Map) -> (Self, Vec<(&'static str, String)>) {
        let mut problems = Vec::new();
        let filled = |key: &str| labels.text(key).filter(|text| !text.is_empty());
        let mut found = Self::default();
        if let (Some(project), service) = (filled(COMPOSE_PROJECT), filled(COMPOSE_SERVICE)) {
            found.stack = named(COMPOSE_PROJECT, project, &mut problems);
            let oneoff = filled(COMPOSE_ONEOFF).is_some_and(|word| word.eq_ignore_ascii_case("true"));
            if let (Some(_), Some(service), false) = (&found.stack, service, oneoff) {
                found.service = named(COMPOSE_SERVICE, service, &mut problems);
                let is_number = |text: &&Text| text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
                found.index = filled(COMPOSE_NUMBER).filter(is_number).cloned();
            }
            for entry in filled(COMPOSE_DEPENDS).iter().flat_map(|text| text.split(',')) {
                let service = entry.split(':').next().unwrap_or_default().trim();
                if !service.is_empty() && found.service.is_some() {
                    found.depends_on.extend(named(COMPOSE_DEPENDS, service, &mut problems));
                }
            }
        } else if let Some(path) = filled(STACK_SERVICE) {
            let parts: Vec<&str> = path.split('/').collect();
            match parts[..] {
                [stack, service] if !stack.is_empty() && !service.is_empty() => {
                    found.stack = named(STACK_SERVICE, stack, &mut problems);
                    found.service = named(STACK_SERVICE, service, &mut problems);
                }
                [stack, primary, sidekick] if parts.iter().all(|part| !part.is_empty()) => {
                    found.stack = named(STACK_SERVICE, stack, &mut problems);
                    found.sidekick_of = named(STACK_SERVICE, primary, &mut problems);
                    found.service = named(STACK_SERVICE, sidekick, &mut problems);
                }
                _ => problems.push((
                    STACK_SERVICE,
                    format!("{path:?}, expected stack/service or stack/service/sidekick; the container stands alone"),
                )),
            }
            let broken = found.stack.is_none() || (parts.len() == 3 && found.sidekick_of.is_none());
            if broken || found.service.is_none() {
                (found.service, found.sidekick_of) = (None, None);
            }
        } else if let Some(stack) = filled(STACK) {
            found.stack = named(STACK, stack, &mut problems);
        }
        if let (Some(stack), Some(_)) = (&found.stack, &found.service) {
            for entry in filled(LINKS).iter().flat_map(|text| text.split(',')).take(LINKS_MAX) {
                match link(stack, entry.trim()) {
                    Some(link) => found.links.push(link),
                    None => problems.push((LINKS, format!("{entry:?}, expected SERVICE:ALIAS or STACK/SERVICE:ALIAS"))),
                }
            }
        }
        (found, problems)
    }
}

/// One link of a service of this stack.
fn link(stack: &str, entry: &str) -> Option<(Text, Text)> {
    let (target, alias) = entry.split_once(':')?;
    let (stack, service) = target.split_once('/').unwrap_or((stack, target));
    let is_own = is_alias(alias) && !alias.contains('.') && !alias.eq_ignore_ascii_case(METADATA_NAME);
    let target = format!("{}/{}", written(stack)?, written(service)?);
    is_own.then(|| (target.into(), alias.into()))
}

fn named(key: &'static str, name: &str, problems: &mut Vec<(&'static str, String)>) -> Option<Text> {
    let written = written(name);
    if written.is_none() {
        let start: String = name.chars().take(NAME_BYTES_MAX).collect();
        problems.push((key, format!("{start:?} does not fit one label of a DNS name ({NAME_BYTES_MAX} bytes)")));
    }
    written
}

/// A name of a stack or service as one label of a DNS name; `None` when it is empty or too long.
pub(super) fn written(name: &str) -> Option<Text> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let bytes = name.as_bytes();
    let mut text = String::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let outer = at == 0 || at + 1 == bytes.len();
        // What looks written out already is written out again, or two names could become one.
        let ambiguous = is_written(&bytes[at..]).is_some();
        let plain = byte.is_ascii_alphanumeric() || *byte == b'_' || (*byte == b'-' && !outer);
        if plain && !ambiguous {
            text.push(char::from(*byte));
        } else {
            let digit = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
            text.push_str("x--");
            text.extend([digit(byte >> 4), digit(byte & 15)]);
        }
    }
    (text.len() <= NAME_BYTES_MAX).then(|| text.into())
}

/// The byte that is written out at the beginning.
fn is_written(bytes: &[u8]) -> Option<u8> {
    let digits = bytes.strip_prefix(b"x--")?.get(..2)?;
    let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
    u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()
}

/// Whether a text can be a name that clients ask for: labels of letters, digits, `-` and `_`.
pub(super) fn is_alias(text: &str) -> bool {
    let label = |label: &str| {
        (1..=NAME_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= ALIAS_BYTES_MAX && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use model::Value;
    use proptest::prelude::*;

    use super::*;

    /// What [`written`] was made of; people can do this by eye.
    fn read(text: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let [first, tail @ ..] = rest {
            if let Some(byte) = is_written(rest) {
                bytes.push(byte);
                rest = &rest[5..];
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        bytes
    }

    #[test]
    fn names_that_are_labels_stay_as_they_are() {
        for (name, expected) in [
            ("web", Some("web")),
            ("Web_2-a", Some("Web_2-a")),
            ("xn--e1afmkfd", Some("xn--e1afmkfd")),
            ("my web", Some("myx--20web")),
            ("a.b", Some("ax--2eb")),
            ("a/b", Some("ax--2fb")),
            ("-a-", Some("x--2dax--2d")),
            ("ax--20b", Some("ax--78--20b")),
            ("ü", Some("x--c3x--bc")),
            ("", None),
            (&"a".repeat(63), Some(&"a".repeat(63))),
            (&"a".repeat(64), None),
            (&".".repeat(13), None),
        ] {
            assert_eq!(written(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn aliases_are_names() {
        for (text, expected) in [
            ("db", true),
            ("db.example.org", true),
            ("_db", true),
            ("", false),
            ("a..b", false),
            ("a b", false),
            ("a/b", false),
        ] {
            assert_eq!(is_alias(text), expected, "{text}");
        }
        assert!(!is_alias(&"a".repeat(64)));
        assert!(!is_alias(&"a.".repeat(100)));
    }

    /// `labels` as `key=value`, the place as `stack service sidekick_of index depends_on`, the problem if there is one.
    fn check(labels: &[&str], expected: [&str; 5], problem: &str) {
        let entries = labels.iter().filter_map(|label| label.split_once('='));
        let labels: Map = entries.map(|(key, value)| (key.into(), Value::text(value))).collect();
        let (found, problems) = Membership::of(&labels);
        let text = |text: &Option<Text>| text.as_deref().unwrap_or_default().to_owned();
        let depends = found.depends_on.join(",");
        let texts = [text(&found.stack), text(&found.service), text(&found.sidekick_of), text(&found.index), depends];
        assert_eq!(texts, expected, "{labels:?}");
        assert_eq!(problems.is_empty(), problem.is_empty(), "{problems:?}");
        assert!(problems.iter().all(|(_, text)| text.contains(problem)), "{problems:?}");
    }

    #[test]
    fn labels_say_where_a_container_belongs() {
        let (project, service) = ("com.docker.compose.project=shop", "com.docker.compose.service=web");
        let number = "com.docker.compose.container-number=2";
        let depends = "com.docker.compose.depends_on=db:service_started:true,cache:service_healthy:false";
        check(&[project, service, number, depends], ["shop", "web", "", "2", "db,cache"], "");
        check(&[project, service, "com.docker.compose.container-number=x"], ["shop", "web", "", "", ""], "");
        check(&[project, service, "com.docker.compose.oneoff=True", number], ["shop", "", "", "", ""], "");
        check(&[project, service, "com.docker.compose.oneoff=False"], ["shop", "web", "", "", ""], "");
        check(&[project, service, "io.rancher.stack_service.name=a/b"], ["shop", "web", "", "", ""], "");
        check(&[project], ["shop", "", "", "", ""], "");
        check(&[service], ["", "", "", "", ""], "");
        check(&["com.docker.compose.project=", service], ["", "", "", "", ""], "");
        check(&["io.rancher.stack_service.name=Shop/Web"], ["Shop", "Web", "", "", ""], "");
        check(&["io.rancher.stack_service.name=Shop/Web/log"], ["Shop", "log", "Web", "", ""], "");
        check(&["io.rancher.stack.name=Shop"], ["Shop", "", "", "", ""], "");
        check(&["io.rancher.stack_service.name=Shop"], ["", "", "", "", ""], "expected stack/service");
        check(&["io.rancher.stack_service.name=Shop/"], ["", "", "", "", ""], "expected stack/service");
        check(&["com.docker.compose.project=a b", service], ["ax--20b", "web", "", "", ""], "");
        let long = format!("com.docker.compose.service={}", "a".repeat(200));
        check(&[project, &long], ["shop", "", "", "", ""], "does not fit");
        check(&["io.rancher.stack_service.name=a/b/c/d"], ["", "", "", "", ""], "stands alone");
        check(&[], ["", "", "", "", ""], "");
    }

    proptest! {
        #[test]
        fn every_written_name_can_be_read_back(name in "[a-z0-9 ./ü-]{1,12}|(x--[0-9a-f]{0,2}|x|-|a){1,6}") {
            if let Some(text) = written(&name) {
                prop_assert!(is_alias(&text), "{}", text);
                prop_assert_eq!(read(&text), name.as_bytes());
            }
        }
    }
}
