//! Published ports of a compose file.

use model::{Map, Value};

use crate::cli::compose::section::{Draft, Section, unsupported};
use crate::place::invalid::Invalid;

pub(super) fn ports(service: &Section<'_>) -> Result<Value, Invalid> {
    let items = match service.get("ports") {
        None => return Ok(Value::list([])),
        Some(Value::List(items)) => items,
        Some(other) => return Err(Invalid::new(service.at("ports"), format!("found {}", other.kind()), "a list")),
    };
    let mut ports = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let path = service.at(&format!("ports[{at}]"));
        match item {
            Value::Map(_) => {
                let port = Section::new(path, item)?;
                port.only(&["app_protocol", "host_ip", "mode", "name", "protocol", "published", "target"])?;
                if port.text("mode")?.is_some_and(|mode| &*mode != "host") {
                    return Err(unsupported(port.at("mode"), &["host"]));
                }
                let mut fields: Draft = Vec::new();
                for (key, field) in [("target", "private"), ("published", "public")] {
                    let number = port.text(key)?.map(|text| {
                        text.parse().map_err(|_| Invalid::new(port.at(key), format!("found {text:?}"), "a port"))
                    });
                    fields.extend(number.transpose()?.map(|number: i64| (field.into(), Value::Int(number))));
                }
                fields.extend(port.text("host_ip")?.map(|ip| ("ip".into(), Value::Text(ip))));
                fields.extend(port.text("protocol")?.map(|word| ("protocol".into(), Value::Text(word))));
                ports.push(Map::new(fields).into());
            }
            scalar => {
                let text = crate::place::hosts::label(&("".into(), scalar.clone())).map(|(_, text)| text);
                let text = text.ok_or_else(|| Invalid::new(&*path, "no port", "a port such as \"80:8080\""))?;
                // Without a number, as an empty variable leaves it, the port outside is any; without all, there is none.
                let bare = text.trim().trim_start_matches(':');
                if bare.is_empty() {
                    continue;
                }
                ports.extend(range(bare).ok_or_else(|| {
                    Invalid::new(&*path, format!("found {text:?}"), "a port such as \"80:8080/tcp\"")
                })?);
            }
        }
    }
    Ok(Value::list(ports))
}

/// `8000-8002:80-82/tcp` as three ports; anything without a dash as it is.
fn range(text: &str) -> Option<Vec<Value>> {
    if !text.contains('-') {
        return Some(vec![Value::text(text)]);
    }
    let (rest, protocol) =
        text.split_once('/').map_or((text, String::new()), |(rest, word)| (rest, format!("/{word}")));
    let (before, inside) = rest.rsplit_once(':').map_or((None, rest), |(before, inside)| (Some(before), inside));
    let (address, outside) = match before.map(|before| before.rsplit_once(':').unwrap_or(("", before))) {
        None => ("", None),
        Some((address, outside)) => (address, Some(outside)),
    };
    let bounds = |text: &str| -> Option<(u16, u16)> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?)).filter(|(first, last)| first <= last)
    };
    let inside = bounds(inside)?;
    let outside = outside.map(bounds).map_or(Some(None), |bounds| bounds.map(Some))?;
    if outside.is_some_and(|outside| outside.1 - outside.0 != inside.1 - inside.0) {
        return None;
    }
    let separator = if address.is_empty() { "" } else { ":" };
    let port = |step: u16| {
        let private = inside.0 + step;
        Value::text(match outside {
            Some((first, _)) => format!("{address}{separator}{}:{private}{protocol}", first + step),
            None => format!("{private}{protocol}"),
        })
    };
    Some((0..=inside.1 - inside.0).map(port).collect())
}
