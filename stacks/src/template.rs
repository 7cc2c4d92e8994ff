//! Templates of catalog files: Go's text/template, as much of it as files of catalogs use.
//!
//! A template is text with actions in `{{ }}`. Answers are texts, under `.Values`; one that no question asks for is empty, and
//! the rendering says so. Variables are replaced in the result afterwards, so a `$` that an action prints is written `$$`. What is not
//! of this language is an error with its line, never text that stays as it is.

mod lex;
mod parse;
mod run;

use crate::template::parse::Node;
use crate::template::run::Run;

/// Longest template, in bytes: fifty times the longest file of a public catalog.
pub const TEMPLATE_MAX: usize = 1 << 20;

/// How deep blocks and parentheses stand in each other at most: each level is a call.
const DEPTH_MAX: usize = 64;

/// Most steps of one rendering: nodes, operands, and bytes that functions look at. Loops over answers multiply them.
const STEPS_MAX: usize = 1 << 20;

/// Longest result, in bytes.
const OUTPUT_MAX: usize = 4 << 20;

/// A template that was read.
#[derive(Clone, Debug)]
pub struct Template {
    nodes: Vec<Node>,
}

/// What a template makes of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Answers that it uses and nobody has asked for, with their lines in the template.
    pub unknown: Vec<(String, usize)>,
    /// Of each line of the text, the line of the template it comes from.
    lines: Vec<usize>,
}

/// Why a template is none, or cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}, expected {expected}")]
pub struct TemplateError {
    /// The line of the template, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
    /// What it should have been.
    pub expected: String,
}

impl TemplateError {
    fn new(line: usize, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { line, problem: problem.into(), expected: expected.into() }
    }
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// Fails with the first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > TEMPLATE_MAX {
            return Err(TemplateError::new(1, "the template is too long", format!("at most {TEMPLATE_MAX} bytes")));
        }
        Ok(Self { nodes: parse::parse(&lex::pieces(text)?)? })
    }

    /// The text for these answers; `answer` returns `None` for one that no question asks for.
    ///
    /// # Errors
    ///
    /// Fails where a function is given what it does not take, and at the bounds on steps and bytes.
    pub fn render(&self, answer: &dyn Fn(&str) -> Option<String>) -> Result<Rendered, TemplateError> {
        Run::new(answer).rendered(&self.nodes)
    }
}

impl Rendered {
    /// The line of the template that a line of the text comes from; both from 1.
    pub fn line_of(&self, line: usize) -> usize {
        let last = self.lines.last().copied().unwrap_or(1);
        line.checked_sub(1).and_then(|at| self.lines.get(at)).copied().unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(name: &str) -> Option<String> {
        let answers = [
            ("yes", "true"),
            ("no", "false"),
            ("empty", ""),
            ("port", "80"),
            ("flags", "--a=1  --b='x y' \"c d\""),
            ("list", "a b c"),
        ];
        answers.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
    }

    fn render(text: &str) -> Result<Rendered, TemplateError> {
        Template::parse(text)?.render(&answer)
    }

    fn check(text: &str, expected: &str) {
        let rendered = render(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rendered.text, expected, "{text}");
        assert_eq!(rendered.lines.len(), expected.matches('\n').count() + 1, "{text}");
    }

    fn check_wrong(text: &str, line: usize, part: &str) {
        let error = render(text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }

    #[test]
    fn answers_stand_where_they_are_named() {
        for (text, expected) in [
            ("", ""),
            ("plain {text} $x ${port}", "plain {text} $x ${port}"),
            ("p: {{ .Values.port }}", "p: 80"),
            ("p: {{.Values.port}}-{{ .Values.yes }}", "p: 80-true"),
            ("{{ $.Values.port }}", "80"),
            ("{{ \"pa$word\" }} $word", "pa$$word $word"),
            ("{{ \"a\\n\\\"b\\\"\\u00e9\\x41\" }}", "a\n\"b\"\u{e9}A"),
            ("{{ `a\\n` }}", "a\\n"),
            ("{{ 5 }}{{ -1.5 }}{{ true }}{{ false }}", "5-1.5truefalse"),
            ("{{ (.Values.port) }}", "80"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn dashes_take_the_white_space_beside_them() {
        for (text, expected) in [
            ("a \n {{- .Values.port }}\n b", "a80\n b"),
            ("a {{ .Values.port -}} \n\t b", "a 80b"),
            ("a \n{{- if .Values.yes -}} \n b \n{{- end -}} c", "abc"),
            // Without a space it is a number.
            ("a {{-3}}", "a -3"),
            ("a {{/* a comment }} */}} b", "a  b"),
            ("a {{- /* a\ncomment */ -}} b", "ab"),
            ("{{- .Values.port}}", "80"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn conditions_choose() {
        for (condition, is_true) in [
            (".Values.port", true),
            // A text is true when it is not empty, whatever it says.
            (".Values.no", true),
            (".Values.empty", false),
            (".Values.unknown", false),
            ("eq .Values.yes \"true\"", true),
            ("eq .Values.port \"1\" \"80\"", true),
            ("eq .Values.port 80", true),
            ("ne .Values.yes \"true\"", false),
            ("ne .Values.empty ``", false),
            ("and (eq .Values.yes \"true\") .Values.port", true),
            ("and .Values.port .Values.empty", false),
            ("or .Values.empty (ne .Values.yes \"false\")", true),
            ("or (eq .Values.yes \"x\") (eq .Values.no \"x\") .Values.empty", false),
            ("not .Values.empty", true),
            ("(not (eq .Values.yes \"true\"))", false),
            (".Values.yes | eq \"true\" | not", false),
            ("0", false),
            ("1", true),
            ("true", true),
            ("nil", false),
        ] {
            check(&format!("{{{{ if {condition} }}}}y{{{{ else }}}}n{{{{ end }}}}"), if is_true { "y" } else { "n" });
        }
        let chain = |name: &str| {
            format!(
                "{{{{if eq .Values.{name} \"80\"}}}}1{{{{else if eq .Values.{name} \"false\"}}}}2{{{{else if .Values.{name}}}}}3{{{{else}}}}4{{{{end}}}}"
            )
        };
        for (name, expected) in [("port", "1"), ("no", "2"), ("yes", "3"), ("empty", "4")] {
            check(&chain(name), expected);
        }
        check("{{if .Values.yes}}{{if .Values.empty}}a{{else}}b{{end}}{{end}}", "b");
        check(
            "{{with .Values.port}}{{.}}{{else}}none{{end}}{{with $x := .Values.empty}}{{$x}}{{else}}none{{end}}",
            "80none",
        );
    }

    #[test]
    fn variables_and_loops() {
        for (text, expected) in [
            ("{{ $image := \"a/b:1\" }}{{$image}}", "a/b:1"),
            ("{{ $a := \"1\" }}{{ if true }}{{ $a := \"2\" }}{{ $b := $a }}{{ $b }}{{ end }}{{ $a }}", "21"),
            ("{{ $a := \"1\" }}{{ if true }}{{ $a = \"2\" }}{{ end }}{{ $a }}", "2"),
            (
                "{{- range $i, $e := splitPreserveQuotes .Values.flags }}\n- {{ $i }} {{ $e }}{{ end }}",
                "\n- 0 --a=1\n- 1 \n- 2 --b='x y'\n- 3 \"c d\"",
            ),
            ("{{ range splitPreserveQuotes .Values.list }}{{ . }};{{ end }}", "a;b;c;"),
            ("{{ range $e := splitPreserveQuotes .Values.list }}{{ $e }}{{ $.Values.port }}{{ end }}", "a80b80c80"),
            ("{{ range splitPreserveQuotes .Values.empty }}x{{ else }}none{{ end }}", "none"),
            ("{{ splitPreserveQuotes .Values.list }}", "[a b c]"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (text, line, part) in [
            ("a\n{{ if .Values.yes }}\nb", 2, "if stays open, expected {{ end }}"),
            ("a\n\n{{ end }}", 3, "end without"),
            ("{{ else }}", 1, "else without"),
            ("{{ if true }}{{ else }}{{ else }}{{ end }}", 1, "a second else"),
            ("\n{{ .Values.port", 2, "stays open, expected }}"),
            ("\n{{ \"abc }}", 2, "a text stays open"),
            ("{{ /* a }}", 1, "a comment stays open"),
            ("{{ }}", 1, "an empty action"),
            ("{{ if }}{{ end }}", 1, "nothing, expected a value"),
            (
                "\n{{ lower .Values.port }}",
                2,
                "unknown function lower, expected one of and, eq, ne, not, or, splitPreserveQuotes",
            ),
            ("{{ define \"a\" }}{{ end }}", 1, "define is not supported"),
            ("{{ template \"a\" }}", 1, "template is not supported"),
            ("{{ .Port }}", 1, "expected .Values.NAME"),
            ("{{ .Values.port.x }}", 1, "has no fields"),
            ("{{ $x }}", 1, "no variable $x"),
            ("{{ $x = 1 }}", 1, "no variable $x"),
            ("{{ eq .Values.port }}", 1, "eq is given 1"),
            ("{{ not 1 2 }}", 1, "not is given 2"),
            ("{{ eq (splitPreserveQuotes .Values.list) 1 }}", 1, "a list"),
            ("{{ range .Values.port }}{{ end }}", 1, "expected a list"),
            ("{{ .Values.port .Values.yes }}", 1, "is no function"),
            ("{{ 1 | .Values.port }}", 1, "is no function"),
            ("{{ .Values.port | }}", 1, "nothing, expected a value"),
            ("{{ (eq 1 1 }}", 1, "stays open"),
            ("{{ eq 1 1) }}", 1, "found )"),
            ("{{ \"\\q\" }}", 1, "\\q"),
            ("{{ 'x' }}", 1, "double quotes"),
            ("{{ if true }}{{ end\n\n x }}", 3, "found x"),
            ("{{ a % b }}", 1, "found %"),
            ("{{ if true }}{{ else foo }}{{ end }}", 1, "expected if"),
        ] {
            check_wrong(text, line, part);
        }
    }

    #[test]
    fn everything_is_bounded() {
        check_wrong(&"{{if true}}".repeat(DEPTH_MAX + 1), 1, "deep");
        check_wrong(&format!("{{{{ {}1{} }}}}", "(".repeat(DEPTH_MAX + 1), ")".repeat(DEPTH_MAX + 1)), 1, "deep");
        check_wrong(&" ".repeat(TEMPLATE_MAX + 1), 1, "too long");
        let long = |_: &str| Some("x ".repeat(2_000));
        let nested = "{{range splitPreserveQuotes $.Values.a}}".repeat(4) + "y" + &"{{end}}".repeat(4);
        let error = Template::parse(&nested).unwrap().render(&long).unwrap_err();
        assert!(error.to_string().contains("steps"), "{error}");
        let big = |_: &str| Some("x".repeat(OUTPUT_MAX / 3 - 1));
        let error = Template::parse("{{.Values.a}}\n{{.Values.a}}\n{{.Values.a}}\n{{.Values.a}}").unwrap().render(&big);
        assert_eq!(error.unwrap_err().line, 4);
        // A long chain is not a deep one.
        let chain = format!("{{{{if false}}}}{}{{{{end}}}}", "{{else if false}}".repeat(1_000));
        check(&chain, "");
    }

    #[test]
    fn lines_of_the_result_lead_back_to_the_template() {
        let text = "a: 1\n{{- if .Values.yes }}\nb: 2\n{{- end }}\n{{- if .Values.empty }}\nc: 3\n{{- end }}\nd: {{ .Values.port }}\n";
        let rendered = render(text).unwrap();
        assert_eq!(rendered.text, "a: 1\nb: 2\nd: 80\n");
        let lines: Vec<_> = (1..=3).map(|line| rendered.line_of(line)).collect();
        assert_eq!(lines, [1, 3, 8]);
        assert_eq!((rendered.line_of(0), rendered.line_of(99)), (9, 9));
    }

    #[test]
    fn answers_that_nobody_asks_for_are_named_once() {
        let rendered = render("{{ .Values.port }}\n{{ .Values.lost }}{{ .Values.lost }}").unwrap();
        assert_eq!(rendered.unknown, [("lost".to_owned(), 2)]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}") {
            let _ = render(&text);
        }

        /// Texts that are made of the language's own words reach further.
        #[test]
        fn no_template_panics(parts in prop::collection::vec(prop::sample::select(vec![
            "{{", "}}", "{{-", "-}}", " ", "\n", "if", "else", "end", "range", "with", "$x", ":=", "=", ",", "|", "(", ")", ".", ".Values",
            ".Values.port", ".Values.flags", "eq", "and", "not", "splitPreserveQuotes", "\"a\"", "'", "`", "/*", "*/", "1", "-", "é", "\\",
        ]), 0..40)) {
            let text = parts.concat();
            if let Ok(rendered) = render(&text) {
                prop_assert_eq!(rendered.lines.len(), rendered.text.matches('\n').count() + 1);
            }
            let _ = render(&format!("{{{{ if true }}}}{text}{{{{ end }}}}"));
        }

        /// Text without actions is what it was.
        #[test]
        fn plain_text_stays(text in "[^{]{0,80}") {
            prop_assert_eq!(render(&text).unwrap().text, text);
        }
    }
}
