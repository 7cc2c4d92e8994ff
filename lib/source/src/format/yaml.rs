//! YAML into nodes, event by event, with bounds against documents that are small to write and huge to read.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use model::node::NodeKind;
use model::{Node, Position, Text};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{FormatError, position, twice};

/// Deepest nesting; the wire's own is about ten.
const DEPTH_MAX: usize = 64;

/// Most nodes of a document, counting each alias as all that it stands for: 100,000 containers have five million.
const NODES_MAX: u64 = 20_000_000;

/// The key whose maps are merged into its own.
const MERGE: &str = "<<";

/// What `!!` stands for.
const CORE: &str = "tag:yaml.org,2002:";

/// The types that it may stand before.
const TYPES: [&str; 10] = ["binary", "bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp"];

/// The node of the only document of a YAML text.
pub(super) fn parse(text: &str) -> Result<Node, FormatError> {
    let mut loader = Loader::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| scan_error(&error))?;
        loader.event(event, span)?;
    }
    loader.document.ok_or_else(|| FormatError::new("the file is empty"))
}

/// A list or map whose end has not come yet.
struct Open {
    at: Position,
    anchor: usize,
    weight: u64,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { entries: Vec<(Text, Node)>, merges: Vec<Node>, key: Option<Key> },
}

enum Key {
    Name(Text),
    Merge,
}

#[derive(Default)]
struct Loader {
    open: Vec<Open>,
    /// Anchored nodes with what they weigh.
    anchors: HashMap<usize, (Node, u64)>,
    document: Option<Node>,
}

impl Loader {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), FormatError> {
        let at = position(span.start.line(), span.start.col() + 1);
        let failed = |problem: &str| Err(FormatError { problem: problem.into(), at: Some(at) });
        match event {
            Event::DocumentStart(_) if self.document.is_some() => failed("more than one document"),
            // What such a tag does (`!reset`, `!override`) its reader decides, and this one knows none.
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag))
                if !is_known(&tag) =>
            {
                let mark = if tag.handle == CORE { "!!" } else { &*tag.handle };
                let way = self.way();
                let colon = if way.is_empty() { "" } else { ": " };
                failed(&format!("{way}{colon}the tag {mark}{} is not supported", tag.suffix))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = match &tag {
                    // `!!str 5` is text, `!!int "5"` a number.
                    Some(tag) => tag.suffix != "str" && tag.suffix != "binary",
                    None => style == ScalarStyle::Plain,
                };
                let text = if style == ScalarStyle::SingleQuoted { folded(&text) } else { text };
                let node = Node { at: Some(at), kind: NodeKind::Scalar { text: Text::from(&*text), plain } };
                self.complete(node, 1, anchor, at)
            }
            Event::SequenceStart(anchor, _) => self.begin(at, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => {
                self.begin(at, anchor, Content::Map { entries: Vec::new(), merges: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { at, anchor, weight, content }) => {
                    let kind = match content {
                        Content::List(items) => NodeKind::List(items.into()),
                        Content::Map { entries, merges, .. } => {
                            if let Some(wrong) = merges.iter().find_map(not_merged) {
                                let way = self.way();
                                let dot = if way.is_empty() { "" } else { "." };
                                let problem = format!("{way}{dot}{MERGE}: expected a map, or a list of maps");
                                return Err(FormatError { problem, at: wrong.at });
                            }
                            NodeKind::Map(merged(entries, &merges).into())
                        }
                    };
                    self.complete(Node { at: Some(at), kind }, weight, anchor, at)
                }
                None => failed("an end without a beginning"),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some((node, weight)) => {
                    let (node, weight) = (node.clone(), *weight);
                    self.complete(node, weight, 0, at)
                }
                None => failed("an alias inside what it stands for"),
            },
            _ => Ok(()),
        }
    }

    /// The keys that lead to what is being read: `services.web`.
    fn way(&self) -> String {
        let mut way = String::new();
        for open in &self.open {
            match &open.content {
                Content::List(items) => way = format!("{way}[{}]", items.len()),
                Content::Map { key, .. } => {
                    let key = match key {
                        Some(Key::Name(name)) => &**name,
                        Some(Key::Merge) => MERGE,
                        None => break,
                    };
                    if !way.is_empty() {
                        way.push('.');
                    }
                    way.push_str(key);
                }
            }
        }
        way
    }

    fn begin(&mut self, at: Position, anchor: usize, content: Content) -> Result<(), FormatError> {
        if self.open.len() >= DEPTH_MAX {
            return Err(FormatError { problem: format!("nested more than {DEPTH_MAX} levels deep"), at: Some(at) });
        }
        self.open.push(Open { at, anchor, weight: 1, content });
        Ok(())
    }

    /// Puts a complete node where it belongs.
    fn complete(&mut self, node: Node, weight: u64, anchor: usize, at: Position) -> Result<(), FormatError> {
        let failed = |problem: String| Err(FormatError { problem, at: Some(at) });
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), weight));
        }
        let Some(open) = self.open.last_mut() else {
            self.document = Some(node);
            return Ok(());
        };
        open.weight = open.weight.saturating_add(weight);
        if open.weight > NODES_MAX {
            return failed(format!("more than {NODES_MAX} values, aliases counted as what they stand for"));
        }
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, merges, key } => match key.take() {
                Some(Key::Name(name)) => entries.push((name, node)),
                Some(Key::Merge) => merges.push(node),
                None => match node.kind {
                    NodeKind::Scalar { text, plain: true } if &*text == MERGE => *key = Some(Key::Merge),
                    NodeKind::Scalar { text, .. } => *key = Some(Key::Name(text)),
                    NodeKind::List(_) | NodeKind::Map(_) => return failed("a key must be text".into()),
                },
            },
        }
        Ok(())
    }
}

/// Refuses a node in which a map has a key twice.
pub(super) fn check_unique(node: &Node) -> Result<(), FormatError> {
    let mut keys = HashSet::new();
    for (key, value) in node.entries().into_iter().flatten() {
        if !keys.insert(key) {
            return Err(FormatError { problem: twice(key), at: value.at });
        }
        check_unique(value)?;
    }
    node.items().into_iter().flatten().try_for_each(check_unique)
}

/// Whether a tag means what a value is as it is written, or is one of YAML's own types.
fn is_known(tag: &Tag) -> bool {
    let whole = format!("{}{}", tag.handle, tag.suffix);
    whole == "!" || whole.strip_prefix(CORE).is_some_and(|name| TYPES.contains(&name))
}

/// What of the value of a merge key is no map.
fn not_merged(merge: &Node) -> Option<&Node> {
    match merge.items() {
        Some(items) => items.iter().find(|item| item.entries().is_none()),
        None => merge.entries().is_none().then_some(merge),
    }
}

/// The entries and those of merged maps (`<<`) whose keys they lack.
fn merged(mut entries: Vec<(Text, Node)>, merges: &[Node]) -> Vec<(Text, Node)> {
    let maps = merges.iter().flat_map(|merge| merge.items().unwrap_or_else(|| std::slice::from_ref(merge)));
    for (key, node) in maps.filter_map(Node::entries).flatten() {
        if !entries.iter().any(|(own, _)| own == key) {
            entries.push((key.clone(), node.clone()));
        }
    }
    entries
}

/// Single-quoted text without the spaces around line and paragraph separators.
///
/// To YAML 1.1, in which the predecessor's answers are written, these end lines (section 4.2 there), and the spaces
/// around them are indentation. Such spaces in single quotes are never meant.
fn folded(text: &str) -> Cow<'_, str> {
    let separators = ['\u{2028}', '\u{2029}'];
    if !text.contains(separators) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<_> = text.split_inclusive(separators).collect();
    let last = lines.len() - 1;
    let fold = |(index, line): (usize, &&str)| {
        let line = if index == 0 { line } else { line.trim_start_matches(' ') };
        let end = line.trim_end_matches(separators);
        let kept = if index == last { end } else { end.trim_end_matches(' ') };
        format!("{kept}{}", &line[end.len()..])
    };
    Cow::Owned(lines.iter().enumerate().map(fold).collect())
}

fn scan_error(error: &ScanError) -> FormatError {
    let at = position(error.marker().line(), error.marker().col() + 1);
    FormatError { problem: format!("not YAML: {}", error.info()), at: Some(at) }
}
