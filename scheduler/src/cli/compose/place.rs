//! Where in a file a field stands that an error names. ◇

use model::Node;

/// The line of a field in the text of a document, from 1: that of its key, or of its entry in a list.
///
/// `field` is the way to it as errors write it, `services.web.ports[0].mode`; a key may have dots itself. Of a field that is not
/// there, it is the line of the last one on the way that is. Besides, how much of the way is not there.
pub(crate) fn line_of(text: &str, document: &Node, field: &str) -> (Option<usize>, usize) {
    let lines: Vec<&str> = text.lines().collect();
    let (mut node, mut rest, mut line) = (document, field, None);
    loop {
        // A key may begin with a dot itself, as `.catalog` does.
        let is_dotted = |(key, _): &(model::Text, Node)| key.starts_with('.') && rest.starts_with(&**key);
        if !node.entries().unwrap_or_default().iter().any(is_dotted) {
            rest = rest.trim_start_matches('.');
        }
        let (next, key, after) = if let Some(index) = rest.strip_prefix('[') {
            let Some((number, after)) = index.split_once(']') else { break };
            let Some(item) = node.items().and_then(|items| items.get(number.parse::<usize>().ok()?)) else { break };
            (item, None, after)
        } else {
            // Of keys that begin alike, the longest one is meant.
            let entries = node.entries().unwrap_or_default().iter();
            let fits = entries.filter(|(key, _)| {
                rest.strip_prefix(&**key).is_some_and(|after| after.is_empty() || after.starts_with(['.', '[', ':']))
            });
            let Some((key, value)) = fits.max_by_key(|(key, _)| key.len()) else { break };
            (value, Some(&**key), &rest[key.len()..])
        };
        let begins = next.at.map_or(0, |at| usize::try_from(at.line).unwrap_or_default());
        // The value of a key may begin some lines after it.
        let least = line.unwrap_or(1);
        let named = key.and_then(|key| (least..=begins).rev().find(|line| has_key(lines.get(line - 1), key)));
        line = named.or_else(|| Some(begins).filter(|begins| *begins > 0)).or(line);
        (node, rest) = (next, after);
        if rest.is_empty() {
            break;
        }
    }
    (line, rest.len())
}

/// Whether a line says what a key is.
fn has_key(line: Option<&&str>, key: &str) -> bool {
    let is_key = |at: usize| {
        let (before, after) = (line.map_or("", |line| &line[..at]), line.map_or("", |line| &line[at + key.len()..]));
        let before_ends = before.is_empty() || before.ends_with([' ', '\t', '{', ',', '\'', '"', '-']);
        before_ends && after.trim_start_matches(['\'', '"']).trim_start().starts_with(':')
    };
    line.is_some_and(|line| line.match_indices(key).any(|(at, _)| is_key(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_field_is_that_of_its_key() {
        const TEXT: &str = "version: '2'\n\
            volumes:\n  data:\n    driver_opts:\n      a: b\n\
            services:\n  web:\n    image: a\n    # ports:\n    ports:\n    - 80:80\n    - target: 443\n      mode: x\n\
            \x20   labels:\n      io.rancher.a: 1\n      \"io.rancher\": {b: 2}\n  db: {image: b, tty: 5}\n";
        let source::format::Parsed::Yaml(node) = source::format::parse(TEXT).unwrap() else { panic!("it is YAML") };
        for (field, line) in [
            ("version", Some(1)),
            ("volumes.data", Some(3)),
            ("volumes.data.driver_opts", Some(4)),
            ("services.web", Some(7)),
            ("services.web.ports", Some(10)),
            ("services.web.ports[0]", Some(11)),
            ("services.web.ports[1].mode", Some(13)),
            ("services.web.labels.io.rancher.a", Some(15)),
            ("services.web.labels.io.rancher.b", Some(16)),
            ("services.db.tty", Some(17)),
            // What is not there is said of what would have it.
            ("services.web.build", Some(7)),
            ("services.web.count", Some(7)),
            ("services.web.ports[7]", Some(10)),
            ("services.web.deploy.placement.constraints[0]: node.role == manager", Some(7)),
            ("other", None),
            ("", None),
        ] {
            assert_eq!(line_of(TEXT, &node, field).0, line, "{field}");
        }
        let old = "a: 1\n.catalog:\n  questions:\n  - type: b\n";
        let source::format::Parsed::Yaml(node) = source::format::parse(old).unwrap() else { panic!("it is YAML") };
        assert_eq!(line_of(old, &node, ".catalog.questions[0].type"), (Some(4), 0));
    }
}
