//! Links of a service: other services whose names it uses. ◇

use model::{Text, Value};

use crate::cli::compose::section::Section;
use crate::cli::compose::service::texts;
use crate::place::invalid::Invalid;

/// The keys that say them.
const KEYS: [&str; 2] = ["links", "external_links"];

/// Another service whose name a service uses.
pub(super) struct Link {
    /// Where it stands.
    pub(super) key: &'static str,
    /// `SERVICE`, or `STACK/SERVICE` of another stack.
    pub(super) target: Text,
    pub(super) alias: Text,
}

impl Link {
    fn parse(key: &'static str, text: &str) -> Option<Self> {
        let (target, alias) = text.split_once(':').unwrap_or((text, ""));
        let alias = if alias.is_empty() { target.rsplit('/').next()? } else { alias };
        let is_name = |alias: &str| {
            !alias.is_empty() && alias.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char))
        };
        let parts = target.split('/').count();
        let is_service = parts <= 2 && target.split('/').all(|part| !part.is_empty());
        (is_service && is_name(alias)).then(|| Self { key, target: target.into(), alias: alias.into() })
    }

    /// What the label about links says of it. DNS answers every service of the stack by its own name, without a label.
    pub(super) fn label(&self) -> Option<String> {
        (self.alias != self.target).then(|| format!("{}:{}", self.target, self.alias))
    }
}

/// Services of the same stack whose names it uses, by either key: the predecessor read both alike.
pub(super) fn links(service: &Section<'_>) -> Result<Vec<Link>, Invalid> {
    Ok(all_links(service)?.into_iter().filter(|link| !link.target.contains('/')).collect())
}

/// Services of other stacks whose names it uses.
pub(super) fn external_links(service: &Section<'_>) -> Result<Vec<Link>, Invalid> {
    Ok(all_links(service)?.into_iter().filter(|link| link.target.contains('/')).collect())
}

fn all_links(service: &Section<'_>) -> Result<Vec<Link>, Invalid> {
    let mut all = Vec::new();
    for key in KEYS {
        let texts = link_texts(service, key)?.into_iter().enumerate();
        for (at, text) in texts.filter(|(_, text)| !names_nothing(text)) {
            let wrong = || {
                let expected = "SERVICE or STACK/SERVICE, then nothing or :ALIAS";
                Invalid::new(service.at(&format!("{key}[{at}]")), format!("found {text:?}"), expected)
            };
            all.push(Link::parse(key, &text).ok_or_else(wrong)?);
        }
    }
    Ok(all)
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
