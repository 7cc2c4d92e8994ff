//! What changed lately.

use super::forms::{begin, end, field};
use super::{Context, ago, paged};
use crate::html::Html;
use crate::page::{Block, Cell, Page, Row, Table, Tone, column};
use crate::query::{Query, link};
use crate::world::Happened;

/// The latest changes that are wanted.
pub(crate) fn table(context: &Context, most: usize, caption: &str, is_wanted: impl Fn(&Happened) -> bool) -> Table {
    let wanted = context.world.happened.iter().filter(|one| is_wanted(one)).take(most);
    let rows = wanted.map(|one| row(context, one)).collect();
    let columns = ["When", "What", "Which", "Became"].map(column).to_vec();
    Table {
        id: "changes",
        caption: caption.to_owned(),
        columns,
        rows,
        empty: "Nothing changed since this process began.",
    }
}

fn row(context: &Context, one: &Happened) -> Row {
    let section = match one.kind {
        "host" => Some("hosts"),
        "service" => Some("services"),
        "container" => Some("containers"),
        _ => None,
    };
    let name = Cell::new(&one.name);
    let name = match section.filter(|_| one.what != "gone") {
        Some(section) => name.link(link(&[section, &one.id])),
        None => name,
    };
    let tone = if one.what.ends_with("unhealthy") { Tone::Bad } else { Tone::Plain };
    let at = time::OffsetDateTime::from_unix_timestamp(one.at).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let clock = format!("{:02}:{:02}:{:02}", at.hour(), at.minute(), at.second());
    let when = Cell::new(format!("{clock} UTC")).tone(Tone::Quiet).note(if context.now - one.at < 60 {
        String::new()
    } else {
        ago(context.now - one.at)
    });
    Row { key: one.number.to_string(), cells: vec![when, Cell::quiet(one.kind), name, Cell::new(&one.what).tone(tone)] }
}

/// All changes that are remembered.
pub(crate) fn changes(context: &Context, query: &Query) -> Page {
    let wanted = query.get("q").to_lowercase();
    let is_wanted = |one: &Happened| {
        wanted.is_empty()
            || one.name.to_lowercase().contains(&wanted)
            || one.what.contains(&wanted)
            || one.kind == wanted
    };
    let all: Vec<_> = context.world.happened.iter().filter(|one| is_wanted(one)).collect();
    let lead = format!("The last {} changes that this process saw; the newest first.", context.world.happened.len());
    let mut page = Page::new("changes", "Changes", lead);
    let mut html = Html::default();
    begin(&mut html, "/ui/changes", "Filter");
    field(&mut html, "q", "Filter", query.get("q"), "name, kind or state");
    end(&mut html, "Apply");
    page.blocks.push(Block::Markup(html));
    let (range, pager) = paged(query, all.len());
    let columns = ["When", "What", "Which", "Became"].map(column).to_vec();
    let rows = all[range].iter().map(|one| row(context, one)).collect();
    page.blocks.push(Block::Table(Table {
        id: "changes",
        caption: "Table of changes".into(),
        columns,
        rows,
        empty: "Nothing changed since this process began.",
    }));
    page.blocks.extend(pager);
    page
}
