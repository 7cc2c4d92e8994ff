//! Forms: all ask by GET and change nothing, so they work without script and may be bookmarked.

use crate::html::Html;
use crate::page::{Block, LEVELS};
use crate::query::Query;

/// A text field with its label.
pub(crate) fn field(html: &mut Html, name: &'static str, label: &'static str, value: &str, hint: &'static str) {
    html.raw("<label><span>").raw(label).raw("</span><input").attribute("name", name).attribute("value", value);
    html.attribute("placeholder", hint).raw(" autocomplete=\"off\" spellcheck=\"false\"></label>\n");
}

/// A choice of values with their labels.
pub(crate) fn choice(
    html: &mut Html,
    name: &'static str,
    label: &'static str,
    chosen: &str,
    values: &[(&'static str, &'static str)],
) {
    html.raw("<label><span>").raw(label).raw("</span><select").attribute("name", name).raw(">");
    for (value, shown) in values {
        html.raw("<option").attribute("value", value).raw(if *value == chosen { " selected>" } else { ">" });
        html.raw(shown).raw("</option>");
    }
    html.raw("</select></label>\n");
}

/// The beginning of a form that leads to a page.
pub(crate) fn begin(html: &mut Html, action: &'static str, label: &'static str) {
    html.raw("<form class=\"fields\" method=\"get\"")
        .attribute("action", action)
        .attribute("aria-label", label)
        .raw(">\n");
}

/// The end of a form.
pub(crate) fn end(html: &mut Html, button: &'static str) {
    html.raw("<button type=\"submit\">").raw(button).raw("</button>\n</form>\n");
}

/// A choice of a parameter: its name, label and values.
pub(crate) type Choice<'c> = (&'static str, &'static str, &'c [(&'static str, &'static str)]);

/// The filter above a table.
pub(crate) fn filter(view: &'static str, query: &Query, choices: &[Choice<'_>]) -> Block {
    let mut html = Html::default();
    html.raw("<form class=\"fields\" method=\"get\"").attribute("action", &format!("/ui/{view}"));
    html.raw(" aria-label=\"Filter\">\n");
    field(&mut html, "q", "Filter", query.get("q"), "name, address or label=value");
    for (name, label, values) in choices {
        choice(&mut html, name, label, query.get(name), values);
    }
    end(&mut html, "Apply");
    Block::Markup(html)
}

/// What the colours of a map mean.
pub(crate) fn legend(measure: &str) -> Block {
    let words: [(usize, &str); 8] = match measure {
        "state" => [
            (1, "active"),
            (5, "has unhealthy containers"),
            (6, "not active"),
            (9, ""),
            (9, ""),
            (9, ""),
            (9, ""),
            (9, ""),
        ],
        "containers" => [
            (0, "0–9 containers"),
            (1, "10–19"),
            (2, "20–29"),
            (3, "30–39"),
            (4, "40 and more"),
            (6, "not active"),
            (9, ""),
            (9, ""),
        ],
        _ => [
            (0, "below 20 %"),
            (1, "20"),
            (2, "40"),
            (3, "60"),
            (4, "80 % and more"),
            (6, "not active"),
            (7, "unknown"),
            (9, ""),
        ],
    };
    let mut html = Html::default();
    html.raw("<p class=\"legend\">");
    for (level, word) in words.iter().filter_map(|(level, word)| Some((LEVELS.get(*level)?, word))) {
        html.raw("<span><svg class=\"key\" viewBox=\"0 0 1 1\" aria-hidden=\"true\"><path");
        html.attribute("class", level).raw(" d=\"M0 0h1v1h-1z\"/></svg>").text(word).raw("</span>");
    }
    html.raw("<output id=\"pointed\"></output></p>\n");
    Block::Markup(html)
}
