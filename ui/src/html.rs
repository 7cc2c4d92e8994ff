//! Writing HTML: tags and attribute names are the program's own text, everything else is escaped by one function.

/// HTML being written. Nothing that came from elsewhere gets into it unescaped, since there is no method for that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Html(String);

impl Html {
    /// The program's own markup.
    pub(crate) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text of any origin, in content or in a quoted attribute.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        push_escaped(&mut self.0, text);
        self
    }

    /// ` name="value"`.
    pub(crate) fn attribute(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// Other HTML.
    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// The HTML as text.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// The one function that escapes. Characters that no document may hold become the replacement character, and so do those that
/// turn the direction of what follows: a name could otherwise make a line read as another one.
fn push_escaped(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(shown(character)),
        }
    }
}

/// A character as it may be shown.
fn shown(character: char) -> char {
    match character {
        '\n' | '\t' => ' ',
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        _ if character.is_control() => '\u{fffd}',
        _ => character,
    }
}

/// Text as it may be shown, cut after so many characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let mut characters = text.chars().map(shown);
    let mut short: String = characters.by_ref().take(most).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a browser reads in a text or a quoted attribute.
    fn unescaped(html: &str) -> String {
        let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
        entities.iter().fold(html.to_owned(), |text, (entity, character)| text.replace(entity, character))
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_place_and_none_is_lost(text in "(?s).{0,40}|[<>&\"'a]{0,20}") {
            let mut html = Html::default();
            html.text(&text);
            let written = html.into_string();
            prop_assert!(!written.contains(['<', '>', '"', '\'']), "{written}");
            let whole: String = text.chars().map(shown).collect();
            prop_assert_eq!(unescaped(&written), whole);
        }
    }

    #[test]
    fn what_turns_lines_around_is_shown_as_what_it_is() {
        assert_eq!(shortened("a\u{202e}b\0c\nd", 9), "a\u{fffd}b\u{fffd}c d");
        assert_eq!(shortened("abcdef", 3), "abc…");
    }
}
