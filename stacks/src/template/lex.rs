//! The pieces of a template: text, and actions as tokens.

use model::Text;

use crate::template::TemplateError;

/// White space of the language.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// Tokens, each with its line.
type Tokens = Vec<(Token, usize)>;

/// A piece of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    /// Text that stays as it is, and the line on which it begins.
    Plain(Text, usize),
    /// What stands between braces, with the line of each token and that of the action.
    Action(Tokens, usize),
}

/// A token of an action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// `if`, `eq`, `true`: keywords, functions and constants.
    Word(Text),
    /// `.Values.port`, `.`, `$x`, `$x.port`: where it begins, without its sign, and the fields.
    Path(Option<Text>, Vec<Text>),
    /// A text in quotes.
    Quoted(Text),
    Number(Text),
    /// `(`, `)`, `|`, `,`.
    Sign(char),
    /// `:=`
    Declare,
    /// `=`
    Assign,
}

impl Token {
    /// The token as messages call it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Word(word) | Self::Number(word) => word.to_string(),
            Self::Quoted(text) => format!("{text:?}"),
            Self::Path(variable, fields) => path_shown(variable.as_deref(), fields),
            Self::Sign(sign) => sign.to_string(),
            Self::Declare => ":=".to_owned(),
            Self::Assign => "=".to_owned(),
        }
    }
}

/// A path as messages call it.
pub(super) fn path_shown(variable: Option<&str>, fields: &[Text]) -> String {
    let start = match variable {
        Some(name) => format!("${name}"),
        None if fields.is_empty() => ".".to_owned(),
        None => String::new(),
    };
    fields.iter().fold(start, |path, field| format!("{path}.{field}"))
}

/// The pieces of a template.
pub(super) fn pieces(text: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    let mut lexer = Lexer { rest: text, line: 1 };
    let mut trims = false;
    loop {
        let open = lexer.rest.find("{{");
        let begins = open.map(|at| &lexer.rest[at + 2..]);
        let trims_before =
            begins.is_some_and(|after| after.strip_prefix('-').is_some_and(|rest| rest.starts_with(SPACE)));
        let plain = &lexer.rest[..open.unwrap_or(lexer.rest.len())];
        let kept = if trims { plain.trim_start_matches(SPACE) } else { plain };
        let first = lexer.line + plain[..plain.len() - kept.len()].matches('\n').count();
        let kept = if trims_before { kept.trim_end_matches(SPACE) } else { kept };
        if !kept.is_empty() {
            pieces.push(Piece::Plain(kept.into(), first));
        }
        let Some(open) = open else { return Ok(pieces) };
        lexer.advance(open + 2 + usize::from(trims_before));
        let line = lexer.line;
        let (tokens, trims_after) = lexer.action()?;
        trims = trims_after;
        pieces.extend(tokens.map(|tokens| Piece::Action(tokens, line)));
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn wrong<T>(&self, problem: impl Into<String>, expected: &str) -> Result<T, TemplateError> {
        Err(TemplateError::new(self.line, problem, expected))
    }

    /// The end of the action, if it is here: how long it is, and whether it takes the white space behind it.
    fn end(&self) -> Option<(usize, bool)> {
        if self.rest.starts_with("}}") {
            return Some((2, false));
        }
        let spaces = self.rest.len() - self.rest.trim_start_matches(SPACE).len();
        (spaces > 0 && self.rest[spaces..].starts_with("-}}")).then_some((spaces + 3, true))
    }

    /// The tokens of an action, none of a comment; and whether it takes the white space behind it.
    fn action(&mut self) -> Result<(Option<Tokens>, bool), TemplateError> {
        let spaces = self.rest.len() - self.rest.trim_start_matches(SPACE).len();
        if self.rest[spaces..].starts_with("/*") {
            let Some(end) = self.rest.find("*/") else { return self.wrong("a comment stays open", "*/}}") };
            self.advance(end + 2);
            let Some((bytes, trims)) = self.end() else {
                return self.wrong("a comment with more behind it", "*/}} or */ -}}");
            };
            self.advance(bytes);
            return Ok((None, trims));
        }
        let opened = self.line;
        let mut tokens = Vec::new();
        loop {
            if let Some((bytes, trims)) = self.end() {
                self.advance(bytes);
                return Ok((Some(tokens), trims));
            }
            let Some(first) = self.rest.chars().next() else {
                return Err(TemplateError::new(opened, "an action stays open", "}}"));
            };
            if SPACE.contains(&first) {
                self.advance(1);
                continue;
            }
            let line = self.line;
            tokens.push((self.token(first)?, line));
        }
    }

    fn token(&mut self, first: char) -> Result<Token, TemplateError> {
        let second = self.rest[first.len_utf8()..].chars().next();
        Ok(match first {
            '(' | ')' | '|' | ',' => {
                self.advance(1);
                Token::Sign(first)
            }
            ':' if second == Some('=') => {
                self.advance(2);
                Token::Declare
            }
            '=' => {
                self.advance(1);
                Token::Assign
            }
            '"' => Token::Quoted(self.quoted()?),
            '\'' => return self.wrong("found '", "texts in double quotes"),
            '`' => {
                let Some(end) = self.rest[1..].find('`') else { return self.wrong("a text stays open", "`") };
                let taken = self.advance(end + 2);
                Token::Quoted(taken[1..=end].into())
            }
            '$' => {
                self.advance(1);
                let name = self.name();
                Token::Path(Some(name.into()), self.fields())
            }
            '.' => {
                let fields = self.fields();
                if fields.is_empty() {
                    self.advance(1);
                }
                Token::Path(None, fields)
            }
            '0'..='9' => self.number(),
            '-' | '+' if second.is_some_and(|second| second.is_ascii_digit()) => self.number(),
            _ if first.is_alphabetic() || first == '_' => Token::Word(self.name().into()),
            _ => return self.wrong(format!("found {first}"), "a value, a function or }}"),
        })
    }

    fn number(&mut self) -> Token {
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '.' || char == '_';
        let end = self.rest[1..].find(|char| !is_part(char)).map_or(self.rest.len(), |at| at + 1);
        Token::Number(self.advance(end).into())
    }

    fn name(&mut self) -> &'a str {
        let end = self.rest.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(self.rest.len());
        self.advance(end)
    }

    /// `.a.b`, as far as there are names behind the dots.
    fn fields(&mut self) -> Vec<Text> {
        let mut fields = Vec::new();
        while self
            .rest
            .strip_prefix('.')
            .is_some_and(|rest| rest.starts_with(|char: char| char.is_alphabetic() || char == '_'))
        {
            self.advance(1);
            fields.push(self.name().into());
        }
        fields
    }

    /// A text with escapes.
    fn quoted(&mut self) -> Result<Text, TemplateError> {
        let opened = self.line;
        self.advance(1);
        let mut text = String::new();
        loop {
            let Some(char) = self.rest.chars().next().filter(|char| *char != '\n') else {
                return Err(TemplateError::new(opened, "a text stays open", "\""));
            };
            self.advance(char.len_utf8());
            match char {
                '\\' => text.push(self.escape()?),
                '"' => return Ok(text.into()),
                _ => text.push(char),
            }
        }
    }

    fn escape(&mut self) -> Result<char, TemplateError> {
        let found = self.rest.chars().next();
        let digits = match found {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let escaped = match found {
            Some('n') => Some('\n'),
            Some('t') => Some('\t'),
            Some('r') => Some('\r'),
            Some(char @ ('\\' | '"' | '\'')) => Some(char),
            Some('x' | 'u' | 'U') => {
                let code = self.rest.get(1..=digits).and_then(|text| u32::from_str_radix(text, 16).ok());
                code.and_then(char::from_u32)
            }
            _ => None,
        };
        let Some(escaped) = escaped else {
            let found = found.map(String::from).unwrap_or_default();
            return self.wrong(format!("found \\{found}"), "one of \\n, \\t, \\r, \\\\, \\\", \\', \\xHH, \\uHHHH");
        };
        self.advance(1 + digits);
        Ok(escaped)
    }
}
