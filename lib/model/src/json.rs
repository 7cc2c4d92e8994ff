//! Usual JSON into values, in a fraction of the time that a parser for everything takes.
//!
//! Entities of one kind look alike: they have the same keys in the same order, and many of their values too. So each
//! key is first compared with the one that stood in its place in the object before, and so is each text, list and map,
//! byte for byte; what is equal is shared and not read. Large objects are remembered, since the predecessor's answers
//! say each container twice. What is no JSON is not for this reader to explain: it gives up, and a caller that wants to
//! know why asks a complete one.

use std::hash::BuildHasher as _;
use std::ops::Range;
use std::sync::Arc;

use foldhash::HashMap;
use foldhash::fast::RandomState;

use crate::pool::Pool;
use crate::value::{Map, Text, Value};

/// Deepest nesting, as with `serde_json`.
const DEPTH_MAX: usize = 127;

/// Most fields of the objects at one level of nesting of which it is known what stood there before: the wire's own
/// objects have about fifty, and objects of thousands are maps from names that do not come again.
const FIELDS_MAX: usize = 128;

/// Shortest object that is remembered, in bytes: shorter ones are read as fast as they are found.
const REMEMBERED_MIN: usize = 256;

/// This many bytes at its beginning identify an object well enough to look whether it is remembered.
const TELLING: usize = 128;

/// The value of a JSON text; `None` when it is none that is wholly usual.
///
/// What it returns is what a complete parser would return.
pub fn read(text: &str) -> Option<Value> {
    let mut reader = Reader::new(text, true);
    reader.space();
    let value = reader.value()?;
    reader.space();
    (reader.at == text.len()).then_some(value)
}

/// Calls `found` with each object of concatenated JSON texts; `None` if there is anything else.
pub(crate) fn each_object(text: &str, mut found: impl FnMut(Map)) -> Option<()> {
    let mut reader = Reader::new(text, false);
    loop {
        reader.space();
        match reader.next() {
            None => return Some(()),
            Some(b'{') => found(reader.object()?),
            Some(_) => return None,
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    pool: Pool,
    /// What stood in the objects before, by how deep they stood.
    levels: Vec<Level>,
    depth: usize,
    /// The greatest depth since the last call of the getter.
    deepest: usize,
    /// The entries and elements of what is still being read; the innermost stand last.
    entries: Vec<(Text, Value)>,
    items: Vec<Value>,
    /// Large objects, by the hash of their beginning; `None` where they do not come again.
    remembered: Option<HashMap<u64, Remembered>>,
    hasher: RandomState,
}

/// The fields of the object that was read before at one depth, as far as later ones had them too.
#[derive(Default)]
struct Level {
    fields: Vec<Field>,
    /// How many fields from the first on are in the order of their keys.
    ascending: usize,
}

struct Field {
    key: Text,
    /// The text, list or map that stood there last, and where.
    before: Option<(Range<usize>, Value)>,
}

struct Remembered {
    place: Range<usize>,
    /// How much deeper it goes.
    height: usize,
    map: Map,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str, remembers: bool) -> Self {
        Self {
            text,
            at: 0,
            pool: Pool::default(),
            levels: Vec::new(),
            depth: 0,
            deepest: 0,
            entries: Vec::new(),
            items: Vec::new(),
            remembered: remembers.then(HashMap::default),
            hasher: RandomState::default(),
        }
    }

    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn space(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Option<Value> {
        match self.next()? {
            b'"' => self.string().map(|text| match text {
                Read::Plain(text) => Value::Text(self.pool.text(text)),
                Read::Escaped(text) => Value::Text(self.pool.text(&text)),
            }),
            b'{' => self.object().map(Value::Map),
            b'[' => self.list(),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Option<Value> {
        self.rest().starts_with(word.as_bytes()).then(|| {
            self.at += word.len();
            value
        })
    }

    fn number(&mut self) -> Option<Value> {
        let start = self.at;
        let negative = self.next() == Some(b'-');
        self.at += usize::from(negative);
        let first = self.next()?;
        let digits = self.digits()?;
        if first == b'0' && digits > 1 {
            return None;
        }
        let mut whole = true;
        if self.next() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            whole = false;
        }
        if matches!(self.next(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.next(), Some(b'+' | b'-')));
            self.digits()?;
            whole = false;
        }
        let text = &self.text[start..self.at];
        if whole && text != "-0" {
            let int =
                if negative { text.parse().map(Value::Int).ok() } else { text.parse::<u64>().map(Value::from).ok() };
            if int.is_some() {
                return int;
            }
        }
        text.parse().ok().filter(|float: &f64| float.is_finite()).map(Value::Float)
    }

    /// Passes over digits and returns how many there were; `None` for none.
    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while self.next().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(self.at - start)
    }

    fn list(&mut self) -> Option<Value> {
        self.open()?;
        let start = self.items.len();
        if self.next()? == b']' {
            self.close();
            return Some(Value::List(Arc::default()));
        }
        loop {
            let item = self.value()?;
            self.items.push(item);
            self.space();
            match self.next()? {
                b',' => self.at += 1,
                b']' => break,
                _ => return None,
            }
            self.space();
        }
        self.close();
        Some(Value::List(self.items.drain(start..).collect()))
    }

    fn object(&mut self) -> Option<Map> {
        let place = self.at;
        let hash = self.beginning_hash();
        if let Some(known) = hash.and_then(|hash| self.known(hash)) {
            return Some(known);
        }
        let outside = std::mem::replace(&mut self.deepest, self.depth);
        let map = self.fields()?;
        let height = self.deepest - self.depth;
        self.deepest = self.deepest.max(outside);
        if let (Some(remembered), Some(hash)) = (&mut self.remembered, hash)
            && self.at - place >= REMEMBERED_MIN
        {
            remembered.insert(hash, Remembered { place: place..self.at, height, map: map.clone() });
        }
        Some(map)
    }

    /// Stands for the beginning of an object that may be remembered.
    fn beginning_hash(&self) -> Option<u64> {
        self.remembered.as_ref()?;
        Some(self.hasher.hash_one(self.rest().get(..TELLING)?))
    }

    /// The object that begins here, when the same bytes were read before.
    fn known(&mut self, hash: u64) -> Option<Map> {
        let Remembered { place, height, map } = self.remembered.as_ref()?.get(&hash)?;
        let is_same = self.rest().starts_with(&self.text.as_bytes()[place.clone()]);
        if !is_same || self.depth + height > DEPTH_MAX {
            return None;
        }
        self.at += place.len();
        self.deepest = self.deepest.max(self.depth + height);
        Some(map.clone())
    }

    fn fields(&mut self) -> Option<Map> {
        self.open()?;
        let start = self.entries.len();
        if self.next()? == b'}' {
            self.close();
            return Some(Map::default());
        }
        if self.levels.len() < self.depth {
            self.levels.resize_with(self.depth, Level::default);
        }
        let level = self.depth - 1;
        let mut as_before = true;
        loop {
            let number = self.entries.len() - start;
            let key = if let Some(key) = self.key_as_before(level, number) {
                key
            } else {
                as_before = false;
                self.key(level, number)?
            };
            self.space();
            if self.next()? != b':' {
                return None;
            }
            self.at += 1;
            self.space();
            let value = match self.value_as_before(level, number) {
                Some(value) => value,
                None => self.field_value(level, number)?,
            };
            self.entries.push((key, value));
            self.space();
            match self.next()? {
                b',' => self.at += 1,
                b'}' => break,
                _ => return None,
            }
            self.space();
        }
        self.close();
        let is_sorted = as_before && self.entries.len() - start <= self.levels[level].ascending;
        Some(if is_sorted { Map::of_sorted(&mut self.entries, start) } else { Map::of_last(&mut self.entries, start) })
    }

    /// The key that is here, when it is the one that was in its place before.
    fn key_as_before(&mut self, level: usize, number: usize) -> Option<Text> {
        let key = &self.levels[level].fields.get(number)?.key;
        let [b'"', rest @ ..] = self.rest() else { return None };
        let after = rest.strip_prefix(key.as_bytes())?;
        if after.first() != Some(&b'"') {
            return None;
        }
        self.at += key.len() + 2;
        Some(key.clone())
    }

    /// The key that is here.
    fn key(&mut self, level: usize, number: usize) -> Option<Text> {
        if self.next()? != b'"' {
            return None;
        }
        let (key, is_plain) = match self.string()? {
            Read::Plain(key) => (self.pool.key(key), true),
            Read::Escaped(key) => (self.pool.key(&key), false),
        };
        let Level { fields, ascending } = &mut self.levels[level];
        // A key with escapes does not stand there as it is.
        if is_plain && number < FIELDS_MAX && number <= fields.len() {
            let field = Field { key: key.clone(), before: None };
            *ascending = number.min(*ascending);
            match fields.get_mut(number) {
                Some(known) => *known = field,
                None => fields.push(field),
            }
            while *ascending < fields.len() && (*ascending == 0 || fields[*ascending - 1].key < fields[*ascending].key)
            {
                *ascending += 1;
            }
        }
        Some(key)
    }

    /// The text, list or map that is here, when it is the one that was in its place before.
    fn value_as_before(&mut self, level: usize, number: usize) -> Option<Value> {
        let (place, value) = self.levels[level].fields.get(number)?.before.as_ref()?;
        // Each ends with a sign of its own, so that nothing longer begins like it.
        if !self.rest().starts_with(&self.text.as_bytes()[place.clone()]) {
            return None;
        }
        self.at += place.len();
        Some(value.clone())
    }

    /// The value that is here, to be compared with the next one in its place.
    fn field_value(&mut self, level: usize, number: usize) -> Option<Value> {
        let start = self.at;
        let value = self.value()?;
        if matches!(value, Value::Text(_) | Value::List(_) | Value::Map(_))
            && let Some(field) = self.levels[level].fields.get_mut(number)
        {
            field.before = Some((start..self.at, value.clone()));
        }
        Some(value)
    }

    /// Begins a list or object.
    fn open(&mut self) -> Option<()> {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        if self.depth > DEPTH_MAX {
            return None;
        }
        self.at += 1;
        self.space();
        Some(())
    }

    /// Ends one.
    fn close(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    /// The text between quotes.
    fn string(&mut self) -> Option<Read<'t>> {
        let start = self.at + 1;
        let end = start + plain(&self.text.as_bytes()[start..]);
        match self.text.as_bytes().get(end)? {
            b'"' => {
                self.at = end + 1;
                Some(Read::Plain(&self.text[start..end]))
            }
            b'\\' => self.escaped(start, end).map(Read::Escaped),
            _ => None,
        }
    }

    /// The text from `start` on, whose first escape is at `end`.
    fn escaped(&mut self, mut start: usize, mut end: usize) -> Option<String> {
        let bytes = self.text.as_bytes();
        let mut text = String::new();
        loop {
            text.push_str(&self.text[start..end]);
            start = match bytes.get(end)? {
                b'"' => {
                    self.at = end + 1;
                    return Some(text);
                }
                b'\\' => {
                    let (char, length) = escape(&bytes[end..])?;
                    text.push(char);
                    end + length
                }
                _ => return None,
            };
            end = start + plain(&bytes[start..]);
        }
    }
}

/// Text between quotes.
enum Read<'t> {
    /// As it stands there.
    Plain(&'t str),
    Escaped(String),
}

/// How many bytes there are before a quote, a backslash or a control character.
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    // Sets the highest bit of each byte that is below another one, or of one that follows such a byte.
    let below = |word: u64, byte: u8| word.wrapping_sub(ONES * u64::from(byte)) & !word;
    let (words, _) = bytes.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let found = (quote | backslash | below(word, b' ')) & HIGH;
        if found != 0 {
            return 8 * index + found.trailing_zeros() as usize / 8;
        }
    }
    let checked = 8 * words.len();
    let is_plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | ..b' ');
    bytes[checked..].iter().position(|byte| !is_plain(byte)).map_or(bytes.len(), |at| checked + at)
}

/// What the escape at the beginning means, and how many bytes it has.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    let char = match bytes.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = unit(bytes)?;
            if !(0xd800..0xdc00).contains(&first) {
                return Some((char::from_u32(first)?, 6));
            }
            let second = unit(&bytes[6..]).filter(|second| (0xdc00..0xe000).contains(second))?;
            return Some((char::from_u32(0x1_0000 + ((first - 0xd800) << 10 | (second - 0xdc00)))?, 12));
        }
        _ => return None,
    };
    Some((char, 2))
}

/// The number in `\uXXXX`.
fn unit(bytes: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = bytes.get(..6)? else { return None };
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests;
