//! The nodes of a template.

use model::Text;

use crate::template::lex::{Piece, Token};
use crate::template::{DEPTH_MAX, TemplateError};

/// A node.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Plain {
        text: Text,
        line: usize,
    },
    Print(Pipeline),
    /// `$name := …`, or `$name = …` of one that is there.
    Set {
        name: Text,
        declares: bool,
        value: Pipeline,
    },
    /// `if`, with what follows it as `else if`.
    If {
        branches: Vec<(Pipeline, Vec<Self>)>,
        otherwise: Vec<Self>,
    },
    Range {
        index: Option<Text>,
        item: Option<Text>,
        list: Pipeline,
        body: Vec<Self>,
        otherwise: Vec<Self>,
    },
    With {
        name: Option<Text>,
        value: Pipeline,
        body: Vec<Self>,
        otherwise: Vec<Self>,
    },
}

/// Commands, each of which is given what the one before it says.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) commands: Vec<Vec<Operand>>,
    pub(super) line: usize,
}

/// What a command is made of; the first one may be a function.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Function(Text),
    Quoted(Text),
    Number(Text),
    Truth(bool),
    Nil,
    Path(Option<Text>, Vec<Text>),
    Group(Pipeline),
}

/// Words that are no values.
const KEYWORDS: [&str; 10] = ["block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"];

/// The nodes of these pieces.
pub(super) fn parse(pieces: &[Piece]) -> Result<Vec<Node>, TemplateError> {
    let mut parser = Parser { pieces, at: 0 };
    let (nodes, end) = parser.nodes(0)?;
    match end {
        None => Ok(nodes),
        Some(end) => Err(TemplateError::new(
            end.line,
            format!("{} without a block", if end.is_else { "else" } else { "end" }),
            "if, range or with before it",
        )),
    }
}

/// What ends a list of nodes: `{{ end }}`, or `{{ else … }}` with its tokens.
struct End<'a> {
    is_else: bool,
    rest: Tokens<'a>,
    line: usize,
}

struct Parser<'a> {
    pieces: &'a [Piece],
    at: usize,
}

impl<'a> Parser<'a> {
    /// Nodes up to what ends them, which is nothing at the end of the text.
    fn nodes(&mut self, depth: usize) -> Result<(Vec<Node>, Option<End<'a>>), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.get(self.at) {
            self.at += 1;
            let (tokens, line) = match piece {
                Piece::Plain(text, line) => {
                    nodes.push(Node::Plain { text: text.clone(), line: *line });
                    continue;
                }
                Piece::Action(tokens, line) => (tokens, *line),
            };
            let mut tokens = Tokens { all: tokens, at: 0, line };
            let word = tokens.word().filter(|word| KEYWORDS.contains(&&**word));
            match word.as_deref() {
                Some(word @ ("end" | "else")) => {
                    tokens.at += 1;
                    return Ok((nodes, Some(End { is_else: word == "else", rest: tokens, line })));
                }
                Some(word @ ("if" | "range" | "with")) => {
                    tokens.at += 1;
                    if depth >= DEPTH_MAX {
                        let expected = format!("at most {DEPTH_MAX}");
                        return Err(TemplateError::new(line, "blocks stand too deep in each other", expected));
                    }
                    nodes.push(self.block(word, tokens, depth + 1)?);
                }
                Some(word) => {
                    let problem = format!("{word} is not supported");
                    return Err(TemplateError::new(line, problem, "one of if, else, end, range, with or a value"));
                }
                None if tokens.all.is_empty() => {
                    return Err(TemplateError::new(line, "an empty action", "a value or a block"));
                }
                None => nodes.push(match tokens.target()? {
                    (Some(name), _, declares) => Node::Set { name, declares, value: tokens.pipeline()? },
                    (None, ..) => Node::Print(tokens.pipeline()?),
                }),
            }
        }
        Ok((nodes, None))
    }

    fn block(&mut self, word: &str, mut tokens: Tokens<'a>, depth: usize) -> Result<Node, TemplateError> {
        let opened = tokens.line;
        let (mut first, mut second) = (None, None);
        if word != "if" {
            let (one, other, _) = tokens.target()?;
            (first, second) = (one, other);
        }
        let mut condition = tokens.pipeline()?;
        let mut branches = Vec::new();
        let mut otherwise = None;
        loop {
            let (body, end) = self.nodes(depth)?;
            let Some(mut end) = end else {
                return Err(TemplateError::new(opened, format!("{word} stays open"), "{{ end }}"));
            };
            if otherwise.is_some() {
                if end.is_else {
                    return Err(TemplateError::new(end.line, "a second else", "{{ end }}"));
                }
                otherwise = Some(body);
            } else {
                branches.push((condition.clone(), body));
                if end.is_else && word == "if" && end.rest.word().as_deref() == Some("if") {
                    end.rest.at += 1;
                    condition = end.rest.pipeline()?;
                    continue;
                }
                otherwise = end.is_else.then(Vec::new);
            }
            if let Some((token, line)) = end.rest.advance() {
                let expected = if end.is_else && word == "if" { "if or }}" } else { "}}" };
                return Err(TemplateError::new(line, format!("found {}", token.shown()), expected));
            }
            if !end.is_else {
                break;
            }
        }
        let otherwise = otherwise.unwrap_or_default();
        if word == "if" {
            return Ok(Node::If { branches, otherwise });
        }
        let (value, body) = branches.pop().unwrap_or((condition, Vec::new()));
        Ok(match (word, second) {
            ("range", None) => Node::Range { index: None, item: first, list: value, body, otherwise },
            ("range", item) => Node::Range { index: first, item, list: value, body, otherwise },
            (_, None) => Node::With { name: first, value, body, otherwise },
            (_, Some(_)) => return Err(TemplateError::new(opened, "with has two variables", "one")),
        })
    }
}

/// The tokens of an action.
struct Tokens<'a> {
    all: &'a [(Token, usize)],
    at: usize,
    line: usize,
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.all.get(self.at).map(|(token, _)| token)
    }

    fn advance(&mut self) -> Option<(&'a Token, usize)> {
        let (token, line) = self.all.get(self.at)?;
        self.at += 1;
        self.line = *line;
        Some((token, *line))
    }

    fn word(&self) -> Option<Text> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word.clone()),
            _ => None,
        }
    }

    /// `$a :=`, `$a =`, `$a, $b :=`: the variables before a value, and whether they are new.
    fn target(&mut self) -> Result<(Option<Text>, Option<Text>, bool), TemplateError> {
        let variable = |at: usize| match self.all.get(at).map(|(token, _)| token) {
            Some(Token::Path(Some(name), fields)) if fields.is_empty() && !name.is_empty() => Some(name.clone()),
            _ => None,
        };
        let is = |at: usize, token: &Token| self.all.get(at).is_some_and(|(own, _)| own == token);
        let Some(first) = variable(self.at) else { return Ok((None, None, false)) };
        let second = if is(self.at + 1, &Token::Sign(',')) { variable(self.at + 2) } else { None };
        let behind = self.at + if second.is_some() { 3 } else { 1 };
        let declares = is(behind, &Token::Declare);
        if !declares && !is(behind, &Token::Assign) {
            return Ok((None, None, false));
        }
        // The two variables of a loop only.
        let is_loop = matches!(self.all.first(), Some((Token::Word(word), _)) if &**word == "range");
        if second.is_some() && !is_loop {
            return Err(TemplateError::new(self.line, "two variables", "one: only range has two"));
        }
        self.at = behind + 1;
        Ok((Some(first), second, declares))
    }

    /// A value up to the end of the action.
    fn pipeline(&mut self) -> Result<Pipeline, TemplateError> {
        let pipeline = self.commands(0)?;
        match self.advance() {
            None => Ok(pipeline),
            Some((token, line)) => {
                Err(TemplateError::new(line, format!("found {}", token.shown()), "a value, a function or }}"))
            }
        }
    }

    fn commands(&mut self, depth: usize) -> Result<Pipeline, TemplateError> {
        if depth >= DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX}");
            return Err(TemplateError::new(self.line, "parentheses stand too deep in each other", expected));
        }
        let line = self.line;
        let mut commands = Vec::new();
        loop {
            let mut command = Vec::new();
            while let Some(operand) = self.operand(depth)? {
                command.push(operand);
            }
            if command.is_empty() {
                return Err(TemplateError::new(self.line, "nothing", "a value or a function"));
            }
            commands.push(command);
            if self.peek() != Some(&Token::Sign('|')) {
                return Ok(Pipeline { commands, line });
            }
            self.at += 1;
        }
    }

    fn operand(&mut self, depth: usize) -> Result<Option<Operand>, TemplateError> {
        let operand = match self.peek() {
            None | Some(Token::Sign(')' | '|' | ',') | Token::Declare | Token::Assign) => return Ok(None),
            Some(Token::Sign(_)) => {
                let opened = self.advance().map_or(self.line, |(_, line)| line);
                let inner = self.commands(depth + 1)?;
                if self.peek() != Some(&Token::Sign(')')) {
                    return Err(TemplateError::new(opened, "a parenthesis stays open", ")"));
                }
                Operand::Group(inner)
            }
            Some(Token::Word(word)) => match &**word {
                "true" => Operand::Truth(true),
                "false" => Operand::Truth(false),
                "nil" => Operand::Nil,
                word if KEYWORDS.contains(&word) => {
                    return Err(TemplateError::new(self.line, format!("found {word}"), "a value or a function"));
                }
                _ => Operand::Function(word.clone()),
            },
            Some(Token::Path(variable, fields)) => Operand::Path(variable.clone(), fields.clone()),
            Some(Token::Quoted(text)) => Operand::Quoted(text.clone()),
            Some(Token::Number(number)) => Operand::Number(number.clone()),
        };
        self.advance();
        Ok(Some(operand))
    }
}
