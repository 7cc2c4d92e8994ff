//! Links of a service: other services whose names it uses. ◇

use model::{Text, Value};

use crate::cli::compose::section::Section;
use crate::cli::compose::service::texts;
use crate::place::invalid::Invalid;

/// Another service whose name a service uses.
pub(super) struct Link {
    /// `SERVICE`, or `STACK/SERVICE` of another stack.
    pub(super) target: Text,
    pub(super) alias: Text,
}

impl Link {
    /// What the label about links says of it. DNS answers every service of the stack by its own name, without a label.
    pub(super) fn label(&self) -> Option<String> {
        (self.alias != self.target).then(|| format!("{}:{}", self.target, self.alias))
    }
}

/// Other services of the file whose names it uses.
pub(super) fn links(service: &Section<'_>) -> Result<Vec<Link>, Invalid> {
    linked(service, "links", |target| !target.contains('/'), "SERVICE or SERVICE:ALIAS")
}

/// Services of other stacks whose names it uses.
pub(super) fn external_links(service: &Section<'_>) -> Result<Vec<Link>, Invalid> {
    let of_stack = |target: &str| target.split('/').count() == 2 && target.split('/').all(|part| !part.is_empty());
    linked(service, "external_links", of_stack, "STACK/SERVICE or STACK/SERVICE:ALIAS")
}

fn linked(
    service: &Section<'_>,
    key: &str,
    is_fine: impl Fn(&str) -> bool,
    expected: &str,
) -> Result<Vec<Link>, Invalid> {
    let link = |(at, text): (usize, Text)| {
        let (target, alias) = text.split_once(':').unwrap_or_else(|| (&text, text.rsplit('/').next().unwrap_or(&text)));
        let is_name = |alias: &str| {
            !alias.is_empty() && alias.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char))
        };
        if target.is_empty() || !is_fine(target) || !is_name(alias) {
            return Err(Invalid::new(service.at(&format!("{key}[{at}]")), format!("found {text:?}"), expected));
        }
        Ok(Link { target: target.into(), alias: alias.into() })
    };
    link_texts(service, key)?.into_iter().enumerate().filter(|(_, text)| !names_nothing(text)).map(link).collect()
}

/// Links as texts: a list of them, or a map to aliases.
pub(super) fn link_texts(service: &Section<'_>, key: &str) -> Result<Vec<Text>, Invalid> {
    let Some(Value::Map(map)) = service.get(key) else { return texts(service, key) };
    let all = Section { path: service.at(key), map };
    let text = |(target, _): &(Text, Value)| {
        Ok(all.text(target)?.map_or_else(|| target.clone(), |alias| format!("{target}:{alias}").into()))
    };
    map.iter().map(text).collect()
}

/// Whether a link has only an alias, as an empty variable leaves it.
pub(super) fn names_nothing(link: &str) -> bool {
    link.is_empty() || link.starts_with(':')
}
