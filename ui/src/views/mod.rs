//! The views: what a world and answers look like to people.

mod balancer;
pub(crate) mod changes;
pub(crate) mod containers;
pub(crate) mod forms;
pub(crate) mod hosts;
pub(crate) mod names;
pub(crate) mod overview;
pub(crate) mod placements;
pub(crate) mod search;
pub(crate) mod services;
pub(crate) mod stacks;

use std::collections::HashMap;
use std::sync::Arc;

use model::Text;

use crate::answers::Host;
use crate::hidden::Hidden;
use crate::page::{Block, Cell, Page, Tone};
use crate::query::Query;
use crate::world::{Counts, Life, World};

/// Rows of one page of a table: a browser shows them at once, and what it has to hold stays below 2,500 elements.
pub(crate) const ROWS_MAX: usize = 100;

/// What all views are made of.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) world: Arc<World>,
    /// What the scheduler says of hosts, by uuid.
    pub(crate) hosts: Arc<HashMap<String, Host>>,
    pub(crate) hidden: Arc<Hidden>,
    /// Seconds since 1970.
    pub(crate) now: i64,
}

/// A state as people read it.
pub(crate) fn life_cell(life: Life, words: &str) -> Cell {
    let tone = match life {
        Life::Running => Tone::Good,
        Life::Starting => Tone::Waiting,
        Life::Unhealthy => Tone::Bad,
        Life::Stopped => Tone::Off,
    };
    Cell::new(words).tone(tone)
}

/// How many of them run, and what is wrong with the others.
pub(crate) fn counts_cell(counts: Counts) -> Cell {
    let well = counts.of(Life::Running);
    let words = format!("{well} / {}", counts.all());
    let mut others = Vec::new();
    for (life, word) in [(Life::Unhealthy, "unhealthy"), (Life::Starting, "starting"), (Life::Stopped, "stopped")] {
        if counts.of(life) > 0 {
            others.push(format!("{} {word}", counts.of(life)));
        }
    }
    let tone = if counts.of(Life::Unhealthy) > 0 {
        Tone::Bad
    } else if counts.of(Life::Starting) > 0 {
        Tone::Waiting
    } else if counts.all() == 0 || well < counts.all() {
        Tone::Off
    } else {
        Tone::Good
    };
    Cell::new(words).tone(tone).note(others.join(", "))
}

/// The page number `page` of `count` rows: which rows, and a block that leads to the others.
pub(crate) fn paged(query: &Query, count: usize) -> (std::ops::Range<usize>, Option<Block>) {
    let pages = count.div_ceil(ROWS_MAX).max(1);
    let page = query.page().min(pages);
    let rows = (page - 1) * ROWS_MAX..(page * ROWS_MAX).min(count);
    if pages == 1 {
        return (rows, None);
    }
    let to = |page: usize| query.with("page", &page.to_string());
    let shown = format!("{}–{} of {count}", rows.start + 1, rows.end);
    let (before, after) = ((page > 1).then(|| to(page - 1)), (page < pages).then(|| to(page + 1)));
    (rows, Some(Block::Pager { before, rows: shown, after }))
}

/// Whether a text in lower case is in a label as people may see it, `key=value` or `key:value`.
pub(crate) fn has_label(context: &Context, labels: Option<&model::Map>, wanted: &str) -> bool {
    let spelled = [wanted.to_owned(), wanted.replacen(':', "=", 1)];
    labels.into_iter().flat_map(model::Map::iter).any(|(key, value)| {
        let value = context.hidden.value(key, value.as_str().unwrap_or_default());
        let label = format!("{key}={value}").to_lowercase();
        spelled.iter().any(|wanted| label.contains(wanted))
    })
}

/// The labels of an entity as people may see them.
pub(crate) fn labels_cell(labels: Option<&model::Map>, hidden: &Hidden) -> Cell {
    let all = labels.into_iter().flat_map(model::Map::iter);
    let shown: Vec<_> =
        all.map(|(key, value)| format!("{key}={}", hidden.value(key, value.as_str().unwrap_or("?")))).collect();
    if shown.is_empty() { Cell::quiet("none") } else { Cell::new(shown.join("  ")) }
}

/// Bytes as people read them.
pub(crate) fn bytes(amount: i64) -> String {
    let mut rest = f64::from(i32::try_from(amount >> 20).unwrap_or(i32::MAX));
    for unit in ["MiB", "GiB"] {
        if rest < 1024.0 {
            return format!("{} {unit}", (rest * 10.0).round() / 10.0);
        }
        rest /= 1024.0;
    }
    format!("{} TiB", (rest * 10.0).round() / 10.0)
}

/// How long ago something was.
pub(crate) fn ago(seconds: i64) -> String {
    match seconds.max(0) {
        0 => "now".to_owned(),
        seconds @ 1..60 => format!("{seconds} s ago"),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}

/// The name of an entity, else what it is known by.
pub(crate) fn name_of<E: model::Entity>(entity: &E) -> &Text {
    entity.name().filter(|name| !name.is_empty()).unwrap_or_else(|| entity.id())
}

/// Longest word of a command line.
const WORD_MAX: usize = 200;

/// A command line of these words, which people copy into any shell; `None` if a word means something to one, as the name of a
/// container may.
pub(crate) fn command(words: &[&str]) -> Option<String> {
    let is_plain = |word: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/' | b':');
        (1..=WORD_MAX).contains(&word.len()) && word.bytes().all(is_plain)
    };
    // The only option that a view gives; a name that begins like one would be taken for it.
    let is_given = |word: &&str| *word == "--client" || !word.starts_with('-');
    words.iter().all(|word| is_plain(word) && is_given(word)).then(|| words.join(" "))
}

/// A page that says that there is no such thing.
pub(crate) fn nothing(section: &'static str, what: &str) -> Page {
    let mut page = Page { is_missing: true, ..Page::new(section, "Not found", "") };
    page.blocks.push(Block::Note(Tone::Bad, what.to_owned()));
    page
}

#[cfg(test)]
mod tests;
