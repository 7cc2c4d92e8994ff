//! A page as a value: blocks of tiles, tables, maps, forms and notes.
//!
//! The server writes it as HTML. For a script that keeps an open page up to date it is a list of pieces, each known by its block
//! and key, so that only those that are different are sent.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::mem::discriminant;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::html::{Html, shortened};

/// Most characters of a cell; its own page shows more.
const CELL_MAX: usize = 300;

/// What a cell says besides its text; each has a colour and a glyph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// It matters less.
    Quiet,
    /// All is well.
    Good,
    /// It is on its way.
    Waiting,
    /// It does not run, and nothing is wrong with that.
    Off,
    /// Something is not as it should be.
    Bad,
}

impl Tone {
    /// Class of the style sheet.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Quiet => "quiet",
            Self::Good => "good",
            Self::Waiting => "waiting",
            Self::Off => "off",
            Self::Bad => "bad",
        }
    }

    /// What those see who see no colours.
    fn glyph(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Quiet => None,
            Self::Good => Some("●"),
            Self::Waiting => Some("◌"),
            Self::Off => Some("■"),
            Self::Bad => Some("▲"),
        }
    }
}

/// A cell of a table, or the value of a tile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Its text.
    pub(crate) text: String,
    /// What that means.
    pub(crate) tone: Tone,
    /// The page it leads to, of this server.
    pub(crate) link: Option<String>,
    /// How much of a whole it is, in percent, drawn as a bar.
    pub(crate) share: Option<u8>,
    /// A second, quiet text.
    pub(crate) note: String,
}

impl Cell {
    /// A cell of plain text.
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self { text: shortened(text.as_ref(), CELL_MAX), ..Self::default() }
    }

    /// A cell of quiet text.
    pub(crate) fn quiet(text: impl AsRef<str>) -> Self {
        Self::new(text).tone(Tone::Quiet)
    }

    /// The same with a meaning.
    #[must_use]
    pub(crate) fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    /// The same leading to a page.
    #[must_use]
    pub(crate) fn link(self, link: String) -> Self {
        Self { link: Some(link), ..self }
    }

    /// The same with a second text.
    #[must_use]
    pub(crate) fn note(self, note: impl AsRef<str>) -> Self {
        Self { note: shortened(note.as_ref(), CELL_MAX), ..self }
    }

    /// The same with a bar.
    #[must_use]
    pub(crate) fn share(self, percent: u8) -> Self {
        Self { share: Some(percent.min(100)), ..self }
    }

    fn write(&self, html: &mut Html) {
        if let Some(share) = self.share {
            html.raw(
                "<svg class=\"bar\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect",
            );
            html.attribute("width", &share.to_string()).raw(" height=\"6\"/></svg>");
        }
        if let Some(glyph) = self.tone.glyph() {
            html.raw("<span class=\"glyph\" aria-hidden=\"true\">").raw(glyph).raw("</span>");
        }
        match &self.link {
            Some(link) => html.raw("<a").attribute("href", link).raw(">").text(&self.text).raw("</a>"),
            None => html.text(&self.text),
        };
        if !self.note.is_empty() {
            html.raw("<small>").text(&self.note).raw("</small>");
        }
    }

    /// The same for the script: text, class, glyph, link, share, note.
    fn piece(&self) -> Value {
        json!([self.text, self.tone.class(), self.tone.glyph(), self.link, self.share, self.note])
    }
}

/// A row with its key, which no other row of the table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) cells: Vec<Cell>,
}

/// The head of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    label: &'static str,
    is_number: bool,
}

/// A column of text.
pub(crate) const fn column(label: &'static str) -> Column {
    Column { label, is_number: false }
}

/// A column of numbers.
pub(crate) const fn number(label: &'static str) -> Column {
    Column { label, is_number: true }
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) id: &'static str,
    pub(crate) caption: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    /// What stands there instead of no rows.
    pub(crate) empty: &'static str,
}

/// One group of a map: a cell for each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) id: String,
    pub(crate) label: String,
    /// A digit for each host, see [`LEVELS`].
    pub(crate) levels: String,
    /// Where a script finds which hosts these are.
    pub(crate) names: String,
    /// Stands for which hosts these are.
    pub(crate) hosts: u64,
}

/// Classes of the cells of a map, by digit: five shares, then bad, then out of use, then unknown.
pub(crate) const LEVELS: [&str; 8] = ["l0", "l1", "l2", "l3", "l4", "bad", "off", "none"];

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Large numbers with a label each.
    Tiles(&'static str, Vec<(&'static str, Cell)>),
    /// A table.
    Table(Table),
    /// Names and values of one thing.
    Facts(&'static str, String, Vec<(&'static str, Cell)>),
    /// Maps of hosts, side by side where there is room.
    Maps(Vec<Map>),
    /// What the view itself writes, such as a form; where it changes, an open page is loaded again.
    Markup(Html),
    /// A sentence.
    Note(Tone, String),
    /// Which rows of a long table are shown, between the links to those before and after.
    Pager { before: Option<String>, rows: String, after: Option<String> },
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// The heading.
    pub(crate) title: String,
    /// A sentence below it.
    pub(crate) lead: String,
    /// Whether what it is about does not exist.
    pub(crate) is_missing: bool,
    /// The section that is shown as the current one.
    pub(crate) section: &'static str,
    /// The command line that says the same.
    pub(crate) command: Option<String>,
    pub(crate) blocks: Vec<Block>,
}

impl Page {
    /// A page without blocks.
    pub(crate) fn new(section: &'static str, title: impl AsRef<str>, lead: impl AsRef<str>) -> Self {
        let (title, lead) = (shortened(title.as_ref(), CELL_MAX), shortened(lead.as_ref(), 2 * CELL_MAX));
        Self { title, lead, section, ..Self::default() }
    }

    /// The blocks as HTML.
    pub(crate) fn write(&self, html: &mut Html) {
        for (at, block) in self.blocks.iter().enumerate() {
            match block {
                Block::Tiles(id, tiles) => write_tiles(html, id, tiles),
                Block::Table(table) => write_table(html, table),
                Block::Facts(id, caption, facts) => write_facts(html, id, caption, facts),
                Block::Maps(maps) => {
                    html.raw("<div class=\"maps\">\n");
                    for map in maps {
                        write_map(html, map);
                    }
                    html.raw("</div>\n");
                }
                Block::Markup(markup) => drop(html.append(markup)),
                Block::Note(tone, text) => {
                    html.raw("<p class=\"note\"><span class=\"")
                        .raw(tone.class())
                        .raw("\"")
                        .attribute("id", &note_id(at));
                    html.raw(">").text(text).raw("</span></p>\n");
                }
                Block::Pager { before, rows, after } => {
                    html.raw("<nav class=\"pager\" aria-label=\"Pages\">");
                    if let Some(before) = before {
                        html.raw("<a rel=\"prev\"").attribute("href", before).raw(">← Previous</a>");
                    }
                    html.raw("<span class=\"plain\"").attribute("id", PAGER).raw(">").text(rows).raw("</span>");
                    if let Some(after) = after {
                        html.raw("<a rel=\"next\"").attribute("href", after).raw(">Next →</a>");
                    }
                    html.raw("</nav>\n");
                }
            }
        }
    }

    /// The pieces that change while the page is open: block, key and value.
    fn pieces(&self) -> impl Iterator<Item = (String, String, Value)> + '_ {
        self.blocks.iter().enumerate().flat_map(|(at, block)| match block {
            Block::Tiles(id, facts) | Block::Facts(id, _, facts) => facts
                .iter()
                .map(|(label, cell)| ((*id).to_owned(), (*label).to_owned(), json!([cell.piece()])))
                .collect(),
            Block::Table(table) => table
                .rows
                .iter()
                .map(|row| {
                    let cells: Vec<_> = row.cells.iter().map(Cell::piece).collect();
                    (table.id.to_owned(), row.key.clone(), cells.into())
                })
                .collect(),
            Block::Maps(maps) => maps.iter().map(|map| (map.id.clone(), String::new(), json!(map.levels))).collect(),
            // As that of a cell, which a sentence is not cut like.
            Block::Note(tone, text) => {
                let piece = json!([[shortened(text, usize::MAX), tone.class(), null, null, null, ""]]);
                vec![(note_id(at), String::new(), piece)]
            }
            Block::Pager { rows, .. } => vec![(PAGER.to_owned(), String::new(), json!([Cell::new(rows).piece()]))],
            Block::Markup(_) => Vec::new(),
        })
    }

    /// Stands for what is no piece: where it changes, an open page is loaded again. It is the same in each process.
    pub(crate) fn frame(&self) -> u64 {
        let mut frame = DefaultHasher::new();
        (&self.title, self.is_missing, &self.command, self.blocks.len()).hash(&mut frame);
        let labels = |facts: &[(&'static str, Cell)]| facts.iter().map(|(label, _)| *label).collect::<Vec<_>>();
        for block in &self.blocks {
            discriminant(block).hash(&mut frame);
            match block {
                Block::Tiles(id, facts) => (id, labels(facts)).hash(&mut frame),
                Block::Facts(id, caption, facts) => (id, caption, labels(facts)).hash(&mut frame),
                Block::Table(table) => (table.id, table.columns.len()).hash(&mut frame),
                Block::Maps(maps) => {
                    for map in maps {
                        (&map.id, &map.label, &map.names, map.hosts).hash(&mut frame);
                    }
                }
                Block::Markup(html) => html.hash(&mut frame),
                Block::Note(..) => {}
                Block::Pager { before, after, .. } => (before, after).hash(&mut frame),
            }
        }
        frame.finish()
    }
}

/// The element that says which rows of a long table are shown.
const PAGER: &str = "pager-rows";

/// The element of a sentence, by its place among the blocks.
fn note_id(at: usize) -> String {
    format!("note-{at}")
}

/// What an open page is sent when it is to be loaded again.
pub(crate) const RELOAD: &str = "data: {\"reload\":true}\n\n";

/// The pieces of a page: made once for all who look at it.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) frame: u64,
    all: Vec<Piece>,
    lead: String,
    shown: Arc<Shown>,
    /// The events that were made, each for those who show something else.
    events: Mutex<Vec<(Arc<Shown>, Event)>>,
}

/// A server-sent event.
pub(crate) type Event = Arc<[u8]>;

/// A row, or the order of the rows of a table.
#[derive(Debug)]
struct Piece {
    /// The hash of its block and key.
    place: u64,
    /// The hash of its value.
    hash: u64,
    is_order: bool,
    /// What is sent.
    json: String,
}

/// The place of the lead, which no hash of a place is likely to be.
const LEAD: u64 = 0;

/// What an open page shows: hashes of values by those of their places, and its frame if that is known.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pieces: HashMap<u64, u64>,
    frame: Option<u64>,
}

/// Most events of one page that are remembered: nearly all who look at it show the one before it, or nothing yet.
const EVENTS_MAX: usize = 4;

impl Shown {
    /// What a page shows that was opened a moment ago, as far as the server knows.
    pub(crate) fn nothing() -> Arc<Self> {
        static NOTHING: LazyLock<Arc<Shown>> = LazyLock::new(Arc::default);
        NOTHING.clone()
    }
}

impl Pieces {
    /// Those of a page. The hashes of one process are comparable.
    pub(crate) fn of(page: &Page) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let piece = |block: &str, key: &str, value: &str, is_order, json: Value| {
            let (place, hash) = (HASHER.hash_one((is_order, block, key)), HASHER.hash_one(value));
            Piece { place, hash, is_order, json: json.to_string() }
        };
        let mut all: Vec<_> = page
            .pieces()
            .map(|(block, key, value)| piece(&block, &key, &value.to_string(), false, json!([block, key, value])))
            .collect();
        all.extend(page.blocks.iter().filter_map(|block| {
            let Block::Table(table) = block else { return None };
            let order = json!([table.id, table.rows.iter().map(|row| &row.key).collect::<Vec<_>>(), table.caption]);
            Some(piece(table.id, "", &order.to_string(), true, order))
        }));
        let (frame, lead) = (page.frame(), json!(page.lead).to_string());
        let pieces = all.iter().map(|piece| (piece.place, piece.hash)).chain([(LEAD, HASHER.hash_one(&lead))]);
        let shown = Arc::new(Shown { pieces: pieces.collect(), frame: Some(frame) });
        Self { frame, all, lead, shown, events: Mutex::default() }
    }

    /// What is shown by who has all of them.
    pub(crate) fn shown(&self) -> &Arc<Shown> {
        &self.shown
    }

    /// The event that makes a page show this, made once for all that show the same before.
    pub(crate) fn event(&self, before: &Arc<Shown>) -> Event {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, event)) = events.iter().find(|(shown, _)| Arc::ptr_eq(shown, before)) {
            return event.clone();
        }
        let event = match self.message(before) {
            _ if before.frame.is_some_and(|frame| frame != self.frame) => RELOAD.to_owned(),
            Some(message) => format!("data: {message}\n\n"),
            None if Arc::ptr_eq(before, &Shown::nothing()) => "data: {}\n\n".to_owned(),
            // A comment, of which no script hears: it has the connection noticed that is dead.
            None => ":\n\n".to_owned(),
        };
        let event: Event = event.into_bytes().into();
        events.truncate(EVENTS_MAX - 1);
        events.push((before.clone(), event.clone()));
        event
    }

    /// What is different from what is shown; `None` if nothing is.
    fn message(&self, before: &Shown) -> Option<String> {
        let different = |is_order| {
            let all = self.all.iter().filter(|piece| piece.is_order == is_order);
            let different = all.filter(|piece| before.pieces.get(&piece.place) != Some(&piece.hash));
            different.map(|piece| &*piece.json).collect::<Vec<_>>().join(",")
        };
        let (set, order) = (different(false), different(true));
        let has_lead = before.frame.is_none() || before.pieces.get(&LEAD) == self.shown.pieces.get(&LEAD);
        (!set.is_empty() || !order.is_empty() || !has_lead)
            .then(|| format!(r#"{{"set":[{set}],"order":[{order}],"lead":{}}}"#, self.lead))
    }
}

fn write_tiles(html: &mut Html, id: &str, tiles: &[(&'static str, Cell)]) {
    html.raw("<dl class=\"tiles\"").attribute("id", id).raw(">\n");
    for (label, cell) in tiles {
        html.raw("<div").attribute("data-key", label).raw("><dt>").text(label).raw("</dt><dd class=\"");
        html.raw(cell.tone.class()).raw("\">");
        cell.write(html);
        html.raw("</dd></div>\n");
    }
    html.raw("</dl>\n");
}

fn write_facts(html: &mut Html, id: &str, caption: &str, facts: &[(&'static str, Cell)]) {
    html.raw("<section><h2>").text(caption).raw("</h2>\n<dl class=\"facts\"").attribute("id", id).raw(">\n");
    for (label, cell) in facts {
        html.raw("<div").attribute("data-key", label).raw("><dt>").text(label).raw("</dt><dd class=\"");
        html.raw(cell.tone.class()).raw("\">");
        cell.write(html);
        html.raw("</dd></div>\n");
    }
    html.raw("</dl></section>\n");
}

fn write_table(html: &mut Html, table: &Table) {
    html.raw("<section class=\"sheet\"><h2").attribute("id", &format!("{}-caption", table.id)).raw(">");
    html.text(&table.caption).raw("</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\"");
    html.attribute("aria-labelledby", &format!("{}-caption", table.id)).raw("><table");
    html.attribute("id", table.id).attribute("aria-labelledby", &format!("{}-caption", table.id));
    html.attribute("data-empty", table.empty).raw("><thead><tr>");
    for column in &table.columns {
        html.raw(if column.is_number { "<th scope=\"col\" class=\"number\">" } else { "<th scope=\"col\">" });
        html.text(column.label).raw("</th>");
    }
    html.raw("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        html.raw("<tr").attribute("data-key", &row.key).raw(">");
        for (cell, column) in row.cells.iter().zip(&table.columns) {
            // Most cells are plain: a class for each would be a tenth of the page.
            match (cell.tone, column.is_number) {
                (Tone::Plain, false) => html.raw("<td>"),
                (tone, false) => html.raw("<td class=\"").raw(tone.class()).raw("\">"),
                (tone, true) => html.raw("<td class=\"").raw(tone.class()).raw(" number\">"),
            };
            cell.write(html);
            html.raw("</td>");
        }
        html.raw("</tr>\n");
    }
    if table.rows.is_empty() {
        html.raw("<tr class=\"empty\"><td").attribute("colspan", &table.columns.len().to_string()).raw(">");
        html.text(table.empty).raw("</td></tr>\n");
    }
    html.raw("</tbody></table></div></section>\n");
}

/// Cells of a map up to which they are drawn large.
const LARGE_CELLS_MAX: usize = 120;

/// Cells of a map in a row, large and small ones: both are as wide as the page.
const CELLS_IN_ROW: [usize; 2] = [30, 100];

fn write_map(html: &mut Html, map: &Map) {
    let is_large = map.levels.len() <= LARGE_CELLS_MAX;
    let wide = CELLS_IN_ROW[usize::from(!is_large)];
    let (side, count) = (if is_large { 36 } else { 11 }, map.levels.len());
    let columns = if is_large { count.clamp(1, wide) } else { wide };
    let rows = count.div_ceil(columns);
    html.raw("<figure class=\"map\"><figcaption>").text(&map.label).raw("</figcaption><svg");
    html.attribute("id", &map.id).attribute("viewBox", &format!("0 0 {columns} {rows}"));
    html.attribute("width", &(columns * side).to_string()).attribute("height", &(rows * side).to_string());
    html.attribute("data-levels", &map.levels).attribute("data-columns", &columns.to_string());
    html.attribute("data-names", &map.names).raw(" aria-hidden=\"true\">");
    // Outlines reach into their neighbours, which are drawn after them.
    for (digit, class) in LEVELS.iter().enumerate().rev() {
        html.raw("<path").attribute("class", class).attribute("d", &cells(&map.levels, digit, columns)).raw("/>");
    }
    // What separates the cells.
    let across = (1..rows).map(|row| format!("M0 {row}h{columns}"));
    let lines: String = (1..columns).map(|column| format!("M{column} 0v{rows}")).chain(across).collect();
    html.raw("<path class=\"grid\"").attribute("d", &lines).raw("/></svg></figure>\n");
}

/// The cells of one level as one path, so that a map of thousands is a few elements: one rectangle for neighbours in a row, each
/// placed by its distance from the one before it. Not strokes: a browser makes the outline of all of them again for each tile.
fn cells(levels: &str, digit: usize, columns: usize) -> String {
    use std::fmt::Write as _;
    let (mut path, mut before) = (String::new(), (0, 0));
    for (y, row) in levels.as_bytes().chunks(columns).enumerate() {
        let mut x = 0;
        for run in row.chunk_by(|level, next| level == next) {
            if usize::from(run[0].wrapping_sub(b'0')) == digit {
                let (place, wide) = ((usize::cast_signed(x), y.cast_signed()), run.len());
                // Writing to a string cannot fail.
                let _ = write!(path, "m{} {}h{wide}v1h-{wide}z", place.0 - before.0, place.1 - before.1);
                before = place;
            }
            x += run.len();
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[(&str, &str)]) -> Page {
        let row = |(key, text): &(&str, &str)| Row { key: (*key).to_owned(), cells: vec![Cell::new(text)] };
        let rows = rows.iter().map(row).collect();
        let table =
            Table { id: "hosts", caption: "Hosts".into(), columns: vec![column("Name")], rows, empty: "No host." };
        Page { blocks: vec![Block::Table(table)], ..Page::new("hosts", "Hosts", "") }
    }

    #[test]
    fn only_what_is_different_is_sent() {
        let pieces = |rows: &[(&str, &str)]| Pieces::of(&page(rows));
        let from = |before: &Arc<Shown>, pieces: &Pieces| {
            let message = pieces.message(before).map(|text| serde_json::from_str::<Value>(&text).unwrap());
            (pieces.shown().clone(), message)
        };
        let (shown, all) = from(&Shown::nothing(), &pieces(&[("a", "1"), ("b", "2")]));
        assert_eq!(all.unwrap()["set"].as_array().unwrap().len(), 2);
        let (shown, none) = from(&shown, &pieces(&[("a", "1"), ("b", "2")]));
        assert_eq!(none, None);
        let (shown, one) = from(&shown, &pieces(&[("a", "1"), ("b", "3")]));
        let one = one.unwrap();
        assert_eq!(one["set"], json!([["hosts", "b", [["3", "plain", null, null, null, ""]]]]));
        assert_eq!(one["order"], json!([]));
        let (_, gone) = from(&shown, &pieces(&[("b", "3")]));
        let gone = gone.unwrap();
        assert_eq!((&gone["set"], &gone["order"][0][1]), (&json!([]), &json!(["b"])));
    }

    #[test]
    fn pages_that_show_the_same_get_the_same_event() {
        let [first, second] = ["1", "2"].map(|text| Pieces::of(&page(&[("a", text), ("b", "0")])));
        let event = second.event(first.shown());
        assert_eq!(event.as_ptr(), second.event(first.shown()).as_ptr());
        assert!(event.starts_with(b"data: {") && event.ends_with(b"}\n\n"), "{event:?}");
        assert_eq!(*second.event(second.shown()), *b":\n\n");
        let empty = Pieces::of(&Page::default());
        assert_eq!(*empty.event(&Shown::nothing()), *b"data: {}\n\n", "that it is live");
        assert!(second.event(&Shown::nothing()).len() > event.len());
        for _ in 0..100 {
            second.event(&Arc::default());
        }
        assert!(second.events.lock().unwrap().len() <= EVENTS_MAX);
    }

    #[test]
    fn what_becomes_another_page_is_loaded_again_and_sentences_and_numbers_are_not() {
        let page = |text: &str, rows: &[(&str, &str)], shown: &str| {
            let mut page = page(rows);
            page.blocks.push(Block::Note(Tone::Good, text.to_owned()));
            page.blocks.push(Block::Pager {
                before: None,
                rows: shown.to_owned(),
                after: Some("/ui/hosts?page=2".into()),
            });
            page
        };
        let first = Pieces::of(&page("It fits.", &[("a", "1")], "1–100 of 200"));
        let sent = |other: &Page| String::from_utf8(Pieces::of(other).event(first.shown()).to_vec()).unwrap();
        let other = sent(&page("It does not.", &[("a", "1")], "1–100 of 201"));
        for part in ["It does not.", "1–100 of 201", "note-1", PAGER] {
            assert!(other.contains(part), "{part}: {other}");
        }
        assert!(!other.contains("reload"), "{other}");
        let led = Page { lead: "another".into(), ..page("It fits.", &[("a", "1")], "1–100 of 200") };
        assert!(sent(&led).contains(r#""lead":"another""#), "a lead alone is different");
        for gone in [
            Page { is_missing: true, ..page("It fits.", &[("a", "1")], "1–100 of 200") },
            Page { title: "Not found".into(), ..page("It fits.", &[("a", "1")], "1–100 of 200") },
            Page { blocks: Vec::new(), ..page("", &[], "") },
        ] {
            assert_eq!(sent(&gone), RELOAD);
        }
        let map = |hosts| Map { id: "m".into(), label: String::new(), levels: "0".into(), names: String::new(), hosts };
        let [one, other] = [1, 2].map(|hosts| Page { blocks: vec![Block::Maps(vec![map(hosts)])], ..Page::default() });
        assert_ne!(one.frame(), other.frame(), "cells of a map are other hosts");
    }

    #[test]
    fn a_map_is_as_many_elements_for_thousands_as_for_one() {
        let map = |count: usize| {
            let mut html = Html::default();
            let levels = "0123456700".chars().cycle().take(count).collect();
            write_map(&mut html, &Map { id: "m".into(), label: String::new(), levels, names: String::new(), hosts: 0 });
            html.into_string()
        };
        assert_eq!(map(1).matches("<path").count(), map(5000).matches("<path").count());
        let runs = |html: &str| -> usize {
            html.split('h').filter_map(|run| run.split_once('v')?.0.parse::<usize>().ok()).sum()
        };
        assert_eq!(runs(&map(5000)), 5000);
        assert_eq!(cells("00100", 0, 3), "m0 0h2v1h-2zm0 1h2v1h-2z");
        assert!(map(5000).len() < 75_000, "{}", map(5000).len());
    }
}
