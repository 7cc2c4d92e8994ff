//! The page for people: the tree as their own address sees it, to browse without a script.
//!
//! Clients never see it: it is at `/` alone, and only for those who prefer HTML to everything else. What it shows of
//! the tree is escaped, and its policy forbids browsers to run or load anything.

use std::borrow::Cow;
use std::fmt::Write as _;

use model::Value;

use crate::body::render;
use crate::escape;
use crate::tree::node::Node;

/// What the page lets browsers do: nothing but show it.
pub(crate) const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Most entries of one place that are shown; browsers get slow with more, and people too.
const ENTRIES_MAX: usize = 1000;

/// Most characters of a value among other entries; its own page shows the whole.
const VALUE_MAX: usize = 200;

/// The page that shows a place; `path` leads to it from the root of all versions.
pub(crate) fn page(path: &[&str], node: &Node<'_>) -> String {
    let mut body = String::new();
    if let Some(entries) = node.entries() {
        let count = entries.len();
        table(&mut body, path, count, entries.into_iter().map(|(key, value)| (key.clone(), key, value)));
    } else if let Some(elements) = node.elements() {
        let elements: Vec<_> = elements.collect();
        let count = elements.len();
        table(
            &mut body,
            path,
            count,
            elements.into_iter().enumerate().map(|(index, element)| {
                let index = index.to_string();
                let name = element.get("name").and_then(|name| name.text().map(ToOwned::to_owned));
                let shown = name.map_or_else(|| index.clone(), |name| format!("{index}: {name}"));
                (Cow::Owned(index), Cow::Owned(shown), element)
            }),
        );
    } else if node.is_container() {
        body.push_str("<p>Nothing in it.</p>\n");
    } else if is_null(node) {
        body.push_str("<p>No value.</p>\n");
    } else {
        body.push_str("<pre>");
        push_text(&mut body, &render::plain(node));
        body.push_str("</pre>\n");
    }
    document(path, &body)
}

/// The page that lists the versions.
pub(crate) fn versions<'v>(names: impl IntoIterator<Item = &'v str>) -> String {
    let mut body = String::from("<ul>\n");
    for name in names {
        body.push_str("<li>");
        push_link(&mut body, &[name], name);
        body.push_str("/</li>\n");
    }
    body.push_str("</ul>\n");
    document(&[], &body)
}

/// The page for a place that is not there.
pub(crate) fn nothing(path: &[&str]) -> String {
    document(path, "<p>Not found.</p>\n")
}

fn document(path: &[&str], body: &str) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
    );
    push_text(&mut out, &format!("/{}", path.join("/")));
    out.push_str("</title>\n</head>\n<body>\n<h1><a href=\"/\">metadata</a>");
    for (at, step) in path.iter().enumerate() {
        out.push_str(" / ");
        push_link(&mut out, &path[..=at], step);
    }
    out.push_str("</h1>\n");
    out.push_str(body);
    out.push_str("</body>\n</html>\n");
    out
}

/// Rows of key, label and value.
fn table<'n>(
    out: &mut String,
    path: &[&str],
    count: usize,
    rows: impl Iterator<Item = (Cow<'n, str>, Cow<'n, str>, Node<'n>)>,
) {
    out.push_str("<table>\n");
    for (key, label, value) in rows.take(ENTRIES_MAX) {
        out.push_str("<tr><td>");
        push_link(out, &[path, &[&key]].concat(), &label);
        out.push_str(if value.is_container() { "/</td><td>" } else { "</td><td>" });
        if !value.is_container() && !is_null(&value) {
            let text = render::plain(&value);
            let end = text.char_indices().nth(VALUE_MAX).map(|(end, _)| end);
            push_text(out, &text[..end.unwrap_or(text.len())]);
            if end.is_some() {
                out.push('…');
            }
        }
        out.push_str("</td></tr>\n");
    }
    out.push_str("</table>\n");
    if count > ENTRIES_MAX {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<p>{ENTRIES_MAX} of {count} are shown.</p>");
    }
}

/// Whether a place has no value, for which clients have a word that says nothing to people.
fn is_null(node: &Node<'_>) -> bool {
    node.scalar().is_some_and(Value::is_null)
}

/// A link to the place that these steps lead to.
fn push_link(out: &mut String, path: &[&str], label: &str) {
    let mut target = String::new();
    for step in path {
        target.push('/');
        escape::push_query(&mut target, step);
    }
    out.push_str("<a href=\"/?path=");
    // Escaped once more, as a value of a query; after that nothing is left that HTML could mistake.
    escape::push_query(out, &target);
    out.push_str("\">");
    push_text(out, label);
    out.push_str("</a>");
}

/// Text as HTML, in content and in quotes.
fn push_text(out: &mut String, text: &str) {
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Map;

    use super::*;

    fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
        Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect::<Map>())
    }

    /// What stands between `<body>` and `</body>` behind the heading.
    fn shown(path: &[&str], value: &Value) -> String {
        let page = page(path, &Node::of(value));
        let (_, body) = page.split_once("</h1>\n").unwrap();
        body.strip_suffix("</body>\n</html>\n").unwrap().to_owned()
    }

    #[test]
    fn places_are_tables_with_links() {
        let value = map([("name", Value::text("web")), ("labels", map([])), ("state", Value::Null)]);
        assert_eq!(
            shown(&["latest", "self"], &value),
            "<table>\n<tr><td><a href=\"/?path=%2Flatest%2Fself%2Flabels\">labels</a>/</td><td></td></tr>\n\
             <tr><td><a href=\"/?path=%2Flatest%2Fself%2Fname\">name</a></td><td>web</td></tr>\n\
             <tr><td><a href=\"/?path=%2Flatest%2Fself%2Fstate\">state</a></td><td></td></tr>\n</table>\n"
        );
        assert_eq!(shown(&["latest", "self", "state"], &Value::Null), "<p>No value.</p>\n");
        let list = Value::List([value, Value::Int(7)].into_iter().collect());
        assert_eq!(
            shown(&["latest"], &list),
            "<table>\n<tr><td><a href=\"/?path=%2Flatest%2F0\">0: web</a>/</td><td></td></tr>\n\
             <tr><td><a href=\"/?path=%2Flatest%2F1\">1</a></td><td>7</td></tr>\n</table>\n"
        );
    }

    #[test]
    fn nothing_of_the_tree_becomes_markup() {
        let evil = "</title><script>alert(1)</script>\"'&";
        let value = map([(evil, Value::text(evil))]);
        for page in [
            page(&["latest", evil], &Node::of(&value)),
            page(&[evil], &Node::of(&Value::text(evil))),
            nothing(&[evil]),
            versions([evil]),
        ] {
            assert!(!page.contains("<script") && !page.contains("\"'&") && !page.contains('\''), "{page}");
            assert_eq!(page.matches("</title>").count(), 1, "{page}");
            let links = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
            assert!(links.into_iter().all(|link| !link.contains(['<', '>', '&'])), "{page}");
        }
        assert_eq!(shown(&["latest"], &Value::text("a<b & \"c\"")), "<pre>a&lt;b &amp; &quot;c&quot;</pre>\n");
    }

    #[test]
    fn long_values_and_lists_are_cut() {
        let list = Value::List((0..=1000).map(Value::Int).collect());
        assert!(shown(&["latest"], &list).ends_with("<p>1000 of 1001 are shown.</p>\n"));
        let long = "ü".repeat(VALUE_MAX + 1);
        let cut = shown(&[], &map([("a", Value::text(&*long))]));
        assert!(cut.contains(&format!("<td>{}…</td>", "ü".repeat(VALUE_MAX))), "{cut}");
        assert!(shown(&["a"], &Value::text(&*long)).contains(&long));
    }
}
