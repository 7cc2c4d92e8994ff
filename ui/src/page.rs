//! A page as a value: blocks of tiles, tables, maps, forms and notes.
//!
//! The server writes it as HTML. For a script that keeps an open page up to date it is a list of pieces, each known by its block
//! and key, so that only those that are different are sent.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

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
    /// What the view itself writes, such as a form; it does not change while the page is open.
    Markup(Html),
    /// A sentence.
    Note(Tone, String),
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// The heading.
    pub(crate) title: String,
    /// A sentence below it.
    pub(crate) lead: String,
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
        for block in &self.blocks {
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
                    html.raw("<p class=\"note ").raw(tone.class()).raw("\">").text(text).raw("</p>\n");
                }
            }
        }
    }

    /// The pieces that change while the page is open: block, key and value.
    fn pieces(&self) -> impl Iterator<Item = (String, String, Value)> + '_ {
        self.blocks.iter().flat_map(|block| match block {
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
            Block::Markup(_) | Block::Note(..) => Vec::new(),
        })
    }
}

/// The pieces of a page with the hashes by which they are compared: made once for all who look at it.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// The hash of its block and key, what is sent, and the hash of its value.
    all: Vec<(u64, Value, u64)>,
    /// The keys of each table in their order with its caption, and the hash of the keys.
    orders: Vec<(&'static str, Value, u64)>,
    lead: String,
}

impl Pieces {
    /// Those of a page. The hashes of one process are comparable.
    pub(crate) fn of(page: &Page) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let pieces = page.pieces().map(|(block, key, value)| {
            let (place, hash) = (HASHER.hash_one((&block, &key)), HASHER.hash_one(value.to_string()));
            (place, json!([block, key, value]), hash)
        });
        let orders = page.blocks.iter().filter_map(|block| {
            let Block::Table(table) = block else { return None };
            let keys: Vec<_> = table.rows.iter().map(|row| &row.key).collect();
            Some((table.id, json!([table.id, keys, table.caption]), HASHER.hash_one(&keys)))
        });
        Self { all: pieces.collect(), orders: orders.collect(), lead: page.lead.clone() }
    }
}

/// What one open page shows, as far as the server has sent it.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Hashes of values by those of their places.
    pieces: HashMap<u64, u64>,
    orders: HashMap<&'static str, u64>,
}

impl Shown {
    /// What has to be sent so that it shows this; `None` if that is nothing.
    ///
    /// The memory is that of one page, however long it is open.
    pub(crate) fn next(&mut self, page: &Pieces) -> Option<Value> {
        let (mut set, mut known) = (Vec::new(), HashMap::with_capacity(page.all.len()));
        for (place, piece, hash) in &page.all {
            if self.pieces.get(place) != Some(hash) {
                set.push(piece.clone());
            }
            known.insert(*place, *hash);
        }
        let mut orders = Vec::new();
        for (table, order, hash) in &page.orders {
            if self.orders.insert(table, *hash) != Some(*hash) {
                orders.push(order.clone());
            }
        }
        self.pieces = known;
        (!set.is_empty() || !orders.is_empty()).then(|| json!({ "set": set, "order": orders, "lead": page.lead }))
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
    let (width, height) = (columns * side, count.div_ceil(columns) * side);
    html.raw("<figure class=\"map\"><figcaption>").text(&map.label).raw("</figcaption><svg");
    html.attribute("id", &map.id).attribute("viewBox", &format!("0 0 {width} {height}"));
    html.attribute("width", &width.to_string()).attribute("height", &height.to_string());
    html.attribute("data-levels", &map.levels).attribute("data-columns", &columns.to_string());
    html.attribute("data-side", &side.to_string()).attribute("data-names", &map.names);
    html.raw(" aria-hidden=\"true\">");
    for (digit, class) in LEVELS.iter().enumerate() {
        html.raw("<path").attribute("class", class).attribute("d", &strokes(&map.levels, digit, columns, side));
        html.attribute("stroke-width", &(side - side / 10 - 1).to_string()).raw("/>");
    }
    html.raw("</svg></figure>\n");
}

/// The cells of one level as strokes as wide as a cell, so that a map of thousands is a few elements.
fn strokes(levels: &str, digit: usize, columns: usize, side: usize) -> String {
    use std::fmt::Write as _;
    let mut path = String::new();
    for (at, level) in levels.bytes().enumerate() {
        if usize::from(level.wrapping_sub(b'0')) == digit {
            let (x, y) = (at % columns * side, at / columns * side + side / 2);
            // Writing to a string cannot fail.
            let _ = write!(path, "M{x} {y}h{}", side - side / 10 - 1);
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
        let mut shown = Shown::default();
        let all = shown.next(&pieces(&[("a", "1"), ("b", "2")])).unwrap();
        assert_eq!(all["set"].as_array().unwrap().len(), 2);
        assert_eq!(shown.next(&pieces(&[("a", "1"), ("b", "2")])), None);
        let one = shown.next(&pieces(&[("a", "1"), ("b", "3")])).unwrap();
        assert_eq!(one["set"], json!([["hosts", "b", [["3", "plain", null, null, null, ""]]]]));
        assert_eq!(one["order"], json!([]));
        let gone = shown.next(&pieces(&[("b", "3")])).unwrap();
        assert_eq!((&gone["set"], &gone["order"][0][1]), (&json!([]), &json!(["b"])));
    }

    #[test]
    fn a_map_is_as_many_elements_for_thousands_as_for_one() {
        let map = |count: usize| {
            let mut html = Html::default();
            let levels = "0123456700".chars().cycle().take(count).collect();
            write_map(&mut html, &Map { id: "m".into(), label: String::new(), levels, names: String::new() });
            html.into_string()
        };
        assert_eq!(map(1).matches("<path").count(), map(5000).matches("<path").count());
        assert_eq!(map(5000).matches('M').count(), 5000);
        assert!(map(5000).len() < 75_000, "{}", map(5000).len());
    }
}
