//! A template being rendered.

use model::Text;

use crate::template::lex::path_shown;
use crate::template::parse::{Node, Operand, Pipeline};
use crate::template::{OUTPUT_MAX, Rendered, STEPS_MAX, TemplateError};

/// Functions, as errors list them.
const FUNCTIONS: &str = "one of and, eq, ne, not, or, splitPreserveQuotes";

/// How many bytes of a text count as one step where they are only compared.
const BYTES_OF_STEP: usize = 64;

/// A value.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Nothing,
    Truth(bool),
    Number(Text),
    Text(Text),
    List(Vec<Text>),
    /// The whole: `.` outside of loops, and `$`.
    Whole,
    /// `.Values`
    Answers,
}

/// One rendering.
pub(super) struct Run<'a> {
    answer: &'a dyn Fn(&str) -> Option<String>,
    rendered: Rendered,
    /// Whether the last line of the result says nothing yet.
    is_blank: bool,
    variables: Vec<(Text, Value)>,
    steps: usize,
}

impl<'a> Run<'a> {
    pub(super) fn new(answer: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let rendered = Rendered { lines: vec![1], ..Rendered::default() };
        Self { answer, rendered, is_blank: true, variables: Vec::new(), steps: 0 }
    }

    pub(super) fn rendered(mut self, nodes: &[Node]) -> Result<Rendered, TemplateError> {
        self.nodes(nodes, &Value::Whole)?;
        Ok(self.rendered)
    }

    fn step(&mut self, steps: usize, line: usize) -> Result<(), TemplateError> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > STEPS_MAX {
            return Err(TemplateError::new(line, "rendering takes too many steps", format!("at most {STEPS_MAX}")));
        }
        Ok(())
    }

    /// Adds to the result; text of the template has a line for each of its own.
    fn push(&mut self, text: &str, line: usize, is_of_template: bool) -> Result<(), TemplateError> {
        if self.rendered.text.len() + text.len() > OUTPUT_MAX {
            return Err(TemplateError::new(line, "the result is too long", format!("at most {OUTPUT_MAX} bytes")));
        }
        self.rendered.text.push_str(text);
        let mut line = line;
        for part in text.split_inclusive('\n') {
            if self.is_blank && !part.trim().is_empty() {
                self.is_blank = false;
                if let Some(last) = self.rendered.lines.last_mut() {
                    *last = line;
                }
            }
            if part.ends_with('\n') {
                line += usize::from(is_of_template);
                self.rendered.lines.push(line);
                self.is_blank = true;
            }
        }
        Ok(())
    }

    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<(), TemplateError> {
        let known = self.variables.len();
        for node in nodes {
            self.node(node, dot)?;
        }
        self.variables.truncate(known);
        Ok(())
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<(), TemplateError> {
        match node {
            Node::Plain { text, line } => {
                self.step(1, *line)?;
                self.push(text, *line, true)
            }
            Node::Print(pipeline) => {
                let value = self.pipeline(pipeline, dot)?;
                // Answers are texts: what looks like a variable in one is none of the file.
                let text = shown(&value, pipeline.line)?.replace('$', "$$");
                self.push(&text, pipeline.line, false)
            }
            Node::Set { name, declares, value: pipeline } => {
                let value = self.pipeline(pipeline, dot)?;
                if *declares {
                    self.variables.push((name.clone(), value));
                    return Ok(());
                }
                let Some(known) = self.variables.iter_mut().rev().find(|(own, _)| own == name) else {
                    return Err(no_variable(name, pipeline.line));
                };
                known.1 = value;
                Ok(())
            }
            Node::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if is_true(&self.pipeline(condition, dot)?) {
                        return self.nodes(body, dot);
                    }
                }
                self.nodes(otherwise, dot)
            }
            Node::With { name, value: pipeline, body, otherwise } => {
                let value = self.pipeline(pipeline, dot)?;
                let known = self.variables.len();
                self.variables.extend(name.clone().map(|name| (name, value.clone())));
                if is_true(&value) {
                    self.nodes(body, &value)?;
                } else {
                    self.nodes(otherwise, dot)?;
                }
                self.variables.truncate(known);
                Ok(())
            }
            Node::Range { index, item, list, body, otherwise } => {
                let items = match self.pipeline(list, dot)? {
                    Value::List(items) => items,
                    Value::Nothing => Vec::new(),
                    other => {
                        let problem = format!("range is given {}", kind(&other));
                        return Err(TemplateError::new(list.line, problem, "a list, as of splitPreserveQuotes"));
                    }
                };
                if items.is_empty() {
                    return self.nodes(otherwise, dot);
                }
                let known = self.variables.len();
                for (at, text) in items.into_iter().enumerate() {
                    self.step(1, list.line)?;
                    let value = Value::Text(text);
                    let number = Value::Number(at.to_string().into());
                    self.variables.extend(index.clone().map(|name| (name, number)));
                    self.variables.extend(item.clone().map(|name| (name, value.clone())));
                    self.nodes(body, &value)?;
                    self.variables.truncate(known);
                }
                Ok(())
            }
        }
    }

    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, TemplateError> {
        let line = pipeline.line;
        let mut piped: Option<Value> = None;
        for command in &pipeline.commands {
            let (name, operands) = match command.split_first() {
                Some((Operand::Function(name), rest)) => (Some(name), rest),
                _ => (None, &command[..]),
            };
            let mut values = Vec::new();
            for operand in operands {
                values.push(self.operand(operand, line, dot)?);
            }
            values.extend(piped.take());
            piped = Some(match name {
                Some(name) => self.call(name, &values, line)?,
                None if values.len() == 1 => values.swap_remove(0),
                None => {
                    let first = operands.first().map_or_else(String::new, operand_shown);
                    return Err(TemplateError::new(
                        line,
                        format!("{first} is no function, and is given a value"),
                        FUNCTIONS,
                    ));
                }
            });
        }
        Ok(piped.unwrap_or(Value::Nothing))
    }

    fn operand(&mut self, operand: &Operand, line: usize, dot: &Value) -> Result<Value, TemplateError> {
        self.step(1, line)?;
        Ok(match operand {
            Operand::Quoted(text) => Value::Text(text.clone()),
            Operand::Number(number) => Value::Number(number.clone()),
            Operand::Truth(truth) => Value::Truth(*truth),
            Operand::Nil => Value::Nothing,
            Operand::Group(inner) => self.pipeline(inner, dot)?,
            Operand::Function(name) => self.call(name, &[], line)?,
            Operand::Path(variable, fields) => {
                let mut value = match variable.as_deref() {
                    None => dot.clone(),
                    Some("") => Value::Whole,
                    Some(name) => {
                        let known = self.variables.iter().rev().find(|(own, _)| **own == *name);
                        known.ok_or_else(|| no_variable(name, line))?.1.clone()
                    }
                };
                for (at, field) in fields.iter().enumerate() {
                    value = match value {
                        Value::Whole if &**field == "Values" => Value::Answers,
                        Value::Whole => {
                            let problem = format!("found {}", path_shown(variable.as_deref(), fields));
                            return Err(TemplateError::new(line, problem, ".Values.NAME"));
                        }
                        Value::Answers => Value::Text(self.answered(field, line)),
                        _ => {
                            let before = path_shown(variable.as_deref(), &fields[..at]);
                            return Err(TemplateError::new(line, format!("{before} has no fields"), "it without them"));
                        }
                    };
                }
                value
            }
        })
    }

    fn answered(&mut self, name: &Text, line: usize) -> Text {
        if let Some(answer) = (self.answer)(name) {
            return answer.into();
        }
        if !self.rendered.unknown.iter().any(|(known, _)| **known == **name) {
            self.rendered.unknown.push((name.to_string(), line));
        }
        "".into()
    }

    fn call(&mut self, name: &str, values: &[Value], line: usize) -> Result<Value, TemplateError> {
        let given = |expected: &str| TemplateError::new(line, format!("{name} is given {}", values.len()), expected);
        match (name, values) {
            ("and" | "or", [first, rest @ ..]) => {
                // As in Go: the value that decides, not only whether.
                let mut decides = first;
                for value in rest {
                    if is_true(decides) == (name == "or") {
                        break;
                    }
                    decides = value;
                }
                Ok(decides.clone())
            }
            ("not", [value]) => Ok(Value::Truth(!is_true(value))),
            ("eq", [first, rest @ ..]) if !rest.is_empty() => {
                let first = self.compared(first, line)?;
                for other in rest {
                    if self.compared(other, line)? == first {
                        return Ok(Value::Truth(true));
                    }
                }
                Ok(Value::Truth(false))
            }
            ("ne", [one, other]) => Ok(Value::Truth(self.compared(one, line)? != self.compared(other, line)?)),
            ("splitPreserveQuotes", [value]) => {
                let text = self.compared(value, line)?;
                self.step(text.len(), line)?;
                Ok(Value::List(split_preserve_quotes(&text)))
            }
            ("and" | "or", _) => Err(given("one value or more")),
            ("eq", _) => Err(given("two values or more")),
            ("ne", _) => Err(given("two values")),
            ("not" | "splitPreserveQuotes", _) => Err(given("one value")),
            _ => Err(TemplateError::new(line, format!("unknown function {name}"), FUNCTIONS)),
        }
    }

    /// A value as comparisons see it: answers are texts, so a number or a truth value is compared as what it looks like.
    fn compared(&mut self, value: &Value, line: usize) -> Result<Text, TemplateError> {
        let text = match value {
            Value::Text(text) | Value::Number(text) => text.clone(),
            Value::Truth(truth) => truth.to_string().into(),
            Value::Nothing => "".into(),
            other => {
                let problem = format!("{} is compared or split", kind(other));
                return Err(TemplateError::new(line, problem, "a text such as .Values.NAME"));
            }
        };
        self.step(text.len() / BYTES_OF_STEP, line)?;
        Ok(text)
    }
}

fn no_variable(name: &str, line: usize) -> TemplateError {
    TemplateError::new(line, format!("no variable ${name}"), "one that a := before it declares")
}

fn operand_shown(operand: &Operand) -> String {
    match operand {
        Operand::Function(name) | Operand::Number(name) => name.to_string(),
        Operand::Quoted(text) => format!("{text:?}"),
        Operand::Truth(truth) => truth.to_string(),
        Operand::Nil => "nil".to_owned(),
        Operand::Path(variable, fields) => path_shown(variable.as_deref(), fields),
        Operand::Group(_) => "what is in parentheses".to_owned(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nothing => "nothing",
        Value::Truth(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::Text(_) => "a text",
        Value::List(_) => "a list",
        Value::Whole => "the whole (.)",
        Value::Answers => "all answers (.Values)",
    }
}

/// Whether a value counts as true: what is empty does not. A text that says "false" is not empty.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Nothing => false,
        Value::Truth(truth) => *truth,
        Value::Number(number) => number.parse::<f64>().is_ok_and(|number| number != 0.0),
        Value::Text(text) => !text.is_empty(),
        Value::List(items) => !items.is_empty(),
        Value::Whole | Value::Answers => true,
    }
}

fn shown(value: &Value, line: usize) -> Result<Text, TemplateError> {
    Ok(match value {
        Value::Text(text) | Value::Number(text) => text.clone(),
        Value::Truth(truth) => truth.to_string().into(),
        Value::Nothing => "".into(),
        Value::List(items) => {
            let items: Vec<&str> = items.iter().map(|item| &**item).collect();
            format!("[{}]", items.join(" ")).into()
        }
        Value::Whole | Value::Answers => {
            return Err(TemplateError::new(line, format!("{} is printed", kind(value)), ".Values.NAME"));
        }
    })
}

/// A text divided at white space, but not between quotes; these stay. As the predecessor did it: two spaces have an empty text
/// between them.
fn split_preserve_quotes(text: &str) -> Vec<Text> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut is_inside = false;
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        is_inside ^= is_quote(char);
        let is_last = chars.peek().is_none();
        let divides = char.is_whitespace() && !is_inside;
        if !divides || is_last {
            part.push(char);
        }
        if divides || is_last {
            parts.push(std::mem::take(&mut part).into());
        }
    }
    parts
}

/// Unicode's quotation marks.
fn is_quote(char: char) -> bool {
    matches!(
        char,
        '"' | '\'' | '\u{ab}' | '\u{bb}' | '\u{2018}'..='\u{201f}' | '\u{2039}' | '\u{203a}' | '\u{300c}'..='\u{300f}'
            | '\u{301d}'..='\u{301f}' | '\u{ff02}' | '\u{ff07}' | '\u{ff62}' | '\u{ff63}'
    )
}
