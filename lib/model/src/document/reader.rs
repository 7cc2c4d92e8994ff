//! Reading the fields of one entity: shapes are checked, everything wrong becomes a defect.

use std::net::{IpAddr, Ipv4Addr};

use super::fields::{Field, Shape};
use super::written::Written;
use crate::defect::Defect;
use crate::scalar;
use crate::value::{Map, Text, Value};

/// What was read of an entity: the fields that were there and good.
pub(super) struct Fields<W> {
    list: &'static str,
    index: usize,
    pub(super) node: W,
    /// Its own uuid, or the one that was derived for it.
    pub(super) uuid: Option<Text>,
    values: Vec<(&'static str, Value)>,
}

impl<W: Written> Fields<W> {
    /// The place of the entity in the document, for later defects.
    pub(super) fn path(&self) -> String {
        path(self.list, self.index, &self.node)
    }

    /// The fields, as the document has them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(key, value)| (*key, value))
    }

    /// The value of a field; `None` when it was left out (or null).
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|(own, _)| *own == key).map(|(_, value)| value)
    }

    pub(super) fn text(&self, key: &str) -> Option<&Text> {
        self.get(key)?.as_text()
    }

    /// The name, which every entity has.
    pub(super) fn name(&self) -> &Text {
        self.text("name").expect("entities without a name were left out")
    }

    /// A defect of one field of this entity.
    pub(super) fn defect(&self, key: &str, problem: impl Into<String>) -> Defect {
        let at = self.node.get(key).and_then(Written::at).or_else(|| self.node.at());
        Defect::ignored(format!("{}/{key}", self.path()), problem).at(at)
    }
}

/// Where an entity stands: the list, and the entity's name or index.
fn path(list: &str, index: usize, node: &impl Written) -> String {
    let name = node.get("name").and_then(Written::scalar).filter(|name| !name.is_empty());
    name.map_or_else(|| format!("{list}/{index}"), |name| format!("{list}/{name}"))
}

/// The fields of the entity `node` of a list, or `None` when it has to be left out.
pub(super) fn read<W: Written>(
    list: &'static str,
    index: usize,
    node: &W,
    fields: &'static [Field],
    defects: &mut Vec<Defect>,
) -> Option<Fields<W>> {
    let path = || path(list, index, node);
    let Some(entries) = node.entries() else {
        defects.push(
            Defect::hidden(path(), format!("expected a map of fields, found {}", node.kind_name())).at(node.at()),
        );
        return None;
    };
    let mut good = true;
    let mut values = Vec::with_capacity(entries.len());
    for (place, (key, value)) in entries.iter().enumerate() {
        let Some(field) = fields.iter().find(|field| *field.key == **key) else {
            let problem = format!("unknown field{}", suggestion(key, fields.iter().map(|field| field.key)));
            defects.push(Defect::ignored(format!("{}/{key}", path()), problem).at(value.at()));
            continue;
        };
        if entries[..place].iter().any(|(earlier, _)| earlier == key) {
            defects.push(Defect::hidden(format!("{}/{key}", path()), "the field is there twice").at(value.at()));
            good = false;
        } else if let (Shape::Addresses, Some(items)) = (field.shape, value.items()) {
            // One address that is none harms only itself.
            let mut addresses = Vec::with_capacity(items.len());
            for item in items {
                let text = item.scalar().ok_or_else(|| format!("expected addresses, found {}", item.kind_name()));
                match text.and_then(|text| address(&text)) {
                    Ok(address) => addresses.push(address),
                    Err(problem) => {
                        let at = item.at().or_else(|| value.at());
                        defects.push(Defect::ignored(format!("{}/{key}", path()), problem).at(at));
                    }
                }
            }
            values.push((field.key, Value::List(addresses.into())));
        } else if !value.is_null() {
            match read_shape(field.shape, value) {
                Ok(value) => values.push((field.key, value)),
                Err(problem) => {
                    defects.push(Defect::hidden(format!("{}/{key}", path()), problem).at(value.at()));
                    good = false;
                }
            }
        }
    }
    for field in fields.iter().filter(|field| field.required) {
        if !values.iter().any(|(key, value)| *key == field.key && value.as_str() != Some("")) {
            let problem = format!("the field {} is missing", field.key);
            defects.push(Defect::hidden(path(), problem).at(node.at()));
            good = false;
        }
    }
    let own = |(_, value): &(&str, Value)| value.as_text().cloned();
    let uuid = values.iter().find(|(key, _)| *key == "uuid").and_then(own);
    good.then(|| Fields { list, index, node: node.clone(), uuid, values })
}

/// The value of a node of this shape, in the form of the wire.
fn read_shape<W: Written>(shape: Shape, node: &W) -> Result<Value, String> {
    let text = || node.scalar().ok_or_else(|| format!("expected text, found {}", node.kind_name()));
    let list = |of: fn(&Text) -> Result<Value, String>, what: &str| {
        let items = node.items().ok_or_else(|| format!("expected a list of {what}, found {}", node.kind_name()))?;
        let item = |item: &W| {
            let text = item.scalar().ok_or_else(|| format!("expected {what}, found {}", item.kind_name()))?;
            of(&text)
        };
        Ok(Value::List(items.iter().map(item).collect::<Result<_, String>>()?))
    };
    let any_text = |text: &Text| Ok(Value::Text(text.clone()));
    match shape {
        Shape::Text | Shape::Host | Shape::Network | Shape::Container | Shape::Service => text().map(Value::Text),
        Shape::Word(words) => {
            let word = text()?;
            let known = words.contains(&&*word);
            let close = || suggestion(&word, words.iter().copied());
            if known {
                Ok(Value::Text(word))
            } else {
                Err(format!("{word:?} is none of {}{}", words.join(", "), close()))
            }
        }
        Shape::Texts | Shape::Hosts => list(any_text, "texts"),
        Shape::Labels | Shape::ContainerLinks | Shape::ServiceLinks => {
            let entries = node.entries().ok_or_else(|| format!("expected a map, found {}", node.kind_name()))?;
            let entry = |(key, value): &(Text, W)| match value.scalar() {
                Some(text) => Ok((key.clone(), Value::Text(text))),
                None if value.is_null() => Ok((key.clone(), Value::text(""))),
                None => Err(format!("the value of {key} must be text, found {}", value.kind_name())),
            };
            Ok(Value::Map(entries.iter().map(entry).collect::<Result<Map, String>>()?))
        }
        Shape::Truth => match scalar::core(&text()?) {
            Value::Bool(bool) => Ok(Value::Bool(bool)),
            _ => Err("expected true or false".into()),
        },
        Shape::Count => {
            let text = text()?;
            match scalar::core(&text).as_int() {
                Some(count) if count >= 0 => Ok(Value::Int(count)),
                _ => Err(format!("expected a whole number from 0, found {text:?}")),
            }
        }
        Shape::Bytes => bytes(&text()?),
        Shape::Address => address(&text()?),
        Shape::Subnet => subnet(&text()?),
        Shape::Addresses => list(address, "addresses"),
        Shape::Ports => list(port, "ports"),
        Shape::Object(fields) => {
            let mut unknown = Vec::new();
            let entries = node.entries().ok_or_else(|| format!("expected a map, found {}", node.kind_name()))?;
            let mut values = Vec::new();
            for field in fields {
                values.push((Text::from(field.key), Value::Null));
            }
            for (key, value) in entries {
                match fields.iter().find(|field| *field.key == **key) {
                    _ if value.is_null() => {}
                    Some(field) => {
                        let value = read_shape(field.shape, value).map_err(|problem| format!("{key}: {problem}"))?;
                        values.push((key.clone(), value));
                    }
                    None => unknown.push(key.to_string()),
                }
            }
            if unknown.is_empty() {
                Ok(Value::Map(Map::new(values)))
            } else {
                Err(format!("unknown {}", unknown.join(", ")))
            }
        }
        Shape::Any => Ok(node.value()),
    }
}

/// A number of bytes with an optional unit.
fn bytes(text: &Text) -> Result<Value, String> {
    let wrong = || format!("expected bytes, such as 1073741824, 512MiB or 16GiB, found {text:?}");
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic()).trim_end();
    let shift = match text[digits.len()..].trim_start() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(wrong()),
    };
    let bytes =
        digits.parse::<i64>().ok().filter(|number| *number >= 0).and_then(|number| number.checked_mul(1 << shift));
    bytes.map(Value::Int).ok_or_else(wrong)
}

fn address(text: &Text) -> Result<Value, String> {
    match text.parse::<IpAddr>() {
        // There is one way only to write it.
        Ok(IpAddr::V4(_)) => Ok(Value::Text(text.clone())),
        Ok(IpAddr::V6(address)) => Ok(Value::text(address.to_string())),
        Err(_) => Err(format!("{text:?} is no IP address")),
    }
}

/// An IPv4 network without bits of an address within it, so that there is one way only to write it.
fn subnet(text: &Text) -> Result<Value, String> {
    let parts = text.split_once('/').and_then(|(address, length)| {
        let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
        let length = length.parse::<u8>().ok().filter(|number| *number <= 32 && number.to_string() == length)?;
        Some(address.checked_shl(length.into()).unwrap_or(0) == 0)
    });
    match parts {
        Some(true) => Ok(Value::Text(text.clone())),
        Some(false) => Err(format!("{text:?} is an address within a network, expected the network's first one")),
        None => Err(format!("expected an IPv4 network, such as 10.42.7.0/24, found {text:?}")),
    }
}

/// `[address:]public:private/protocol`; the protocol defaults to tcp, an IPv6 address stands in brackets.
fn port(text: &Text) -> Result<Value, String> {
    let wrong = || format!("expected [address:]public:private/protocol, such as 80:8080/tcp, found {text:?}");
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    if !matches!(protocol, "tcp" | "udp") {
        return Err(wrong());
    }
    let (front, private) = ports.rsplit_once(':').ok_or_else(wrong)?;
    let (address, public) = front.rsplit_once(':').map_or((None, front), |(address, public)| (Some(address), public));
    let bare = address.map(|address| address.trim_start_matches('[').trim_end_matches(']'));
    let number = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if !number(private) || !number(public) || bare.is_some_and(|address| address.parse::<IpAddr>().is_err()) {
        return Err(wrong());
    }
    Ok(Value::text(format!("{ports}/{protocol}")))
}

/// `, did you mean …?` when one of the known words is close.
pub(super) fn suggestion<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let closest = known.map(|known| (distance(word, known), known)).min();
    closest
        .filter(|(distance, _)| *distance <= 2)
        .map_or_else(String::new, |(_, known)| format!(", did you mean {known}?"))
}

/// Levenshtein's distance between two short words.
fn distance(a: &str, b: &str) -> usize {
    /// Longer words are no misspelling of a field's name; bounds the work on hostile keys.
    const WORD_MAX: usize = 64;
    if a.len() > WORD_MAX || b.len() > WORD_MAX {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(from != to)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[row.len() - 1]
}
