//! Templates of a catalog: what they are, their versions, the questions of a version, and the answers to them.
//!
//! Values of questions are texts as they are written, since templates compare them as texts: a default of `1.10` is no number.
//! A key that is not known is named and has no effect, as in the predecessor: most are words for people.

use model::{Map, Text, Value};

use crate::update::Invalid;

/// Most questions of a version: the longest list of a public catalog has 60.
const QUESTIONS_MAX: usize = 1_000;

/// What `config.yml` says of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogTemplate {
    /// Its name, for people.
    pub name: Text,
    /// What it is.
    pub description: Text,
    /// The version that is meant when none is named, as the version calls itself.
    pub version: Text,
    /// What it is listed under.
    pub category: Text,
}

/// What a version says of itself, and what it asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CatalogVersion {
    /// How it calls itself, such as `v1.2`.
    pub version: Text,
    /// What it is.
    pub description: Text,
    /// The versions that it is an upgrade of, as it says.
    pub upgrade_from: Text,
    /// What it asks.
    pub questions: Vec<Question>,
    /// Keys of questions that have no effect, with the way to them.
    pub ignored: Vec<String>,
}

/// One question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The name of the answer.
    pub variable: Text,
    /// The question, for people.
    pub label: Text,
    /// More of it.
    pub description: Text,
    /// What an answer is.
    pub kind: QuestionKind,
    /// Whether there has to be one that is not empty.
    pub required: bool,
    /// The answer when none is given.
    pub default: Option<Text>,
    /// What can be chosen.
    pub options: Vec<Text>,
    /// Least and greatest number.
    pub range: (Option<i64>, Option<i64>),
    /// Least and greatest number of characters.
    pub length: (Option<i64>, Option<i64>),
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// A line of text.
    String,
    /// Text of several lines.
    Multiline,
    /// Text that is not shown.
    Password,
    /// The name of a secret.
    Secret,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// One of the options.
    Enum,
    /// `STACK/SERVICE`.
    Service,
    /// The name of a certificate.
    Certificate,
}

const KINDS: [(&str, QuestionKind); 10] = [
    ("boolean", QuestionKind::Boolean),
    ("certificate", QuestionKind::Certificate),
    ("enum", QuestionKind::Enum),
    ("float", QuestionKind::Float),
    ("int", QuestionKind::Int),
    ("multiline", QuestionKind::Multiline),
    ("password", QuestionKind::Password),
    ("secret", QuestionKind::Secret),
    ("service", QuestionKind::Service),
    ("string", QuestionKind::String),
];

const QUESTION_KEYS: [&str; 13] = [
    "default",
    "description",
    "group",
    "label",
    "max",
    "max_length",
    "min",
    "min_length",
    "options",
    "required",
    "type",
    "variable",
    "hint",
];

impl QuestionKind {
    /// The word for it in a file.
    pub fn word(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }

    /// Whether answers are not shown.
    pub fn is_secret(self) -> bool {
        matches!(self, Self::Password | Self::Secret)
    }
}

impl CatalogTemplate {
    /// What a `config.yml` says. What it does not say is empty.
    pub fn read(config: &Value) -> Self {
        let text =
            |key: &str| config.as_map().and_then(|map| map.get(key)).and_then(Value::scalar_text).unwrap_or_default();
        Self {
            name: text("name"),
            description: one_line(&text("description")),
            version: text("version"),
            category: text("category"),
        }
    }

    /// Which of these versions is meant when none is named: the last one that calls itself as `config.yml` says, or the last one.
    pub fn default_version(&self, versions: &[Text]) -> Option<usize> {
        let named = versions.iter().rposition(|version| !self.version.is_empty() && *version == self.version);
        named.or_else(|| versions.len().checked_sub(1))
    }
}

impl CatalogVersion {
    /// What the file of a version says: its map `catalog`, or `.catalog`.
    ///
    /// # Errors
    ///
    /// Fails with the field of a question that is wrong.
    pub fn read(file: &Value) -> Result<Self, Invalid> {
        let file = file.as_map();
        let known = ["catalog", ".catalog"].into_iter().find(|key| file.is_some_and(|map| map.get(key).is_some()));
        let Some((key, Some(map))) = known.map(|key| (key, file.and_then(|map| map.map(key)))) else {
            return Ok(Self::default());
        };
        let text = |key: &str| map.get(key).and_then(Value::scalar_text).unwrap_or_default();
        let mut version = Self {
            version: text("version"),
            description: one_line(&text("description")),
            upgrade_from: text("upgrade_from"),
            ..Self::default()
        };
        let questions = match map.get("questions") {
            None | Some(Value::Null) => return Ok(version),
            Some(Value::List(questions)) => questions,
            Some(other) => {
                return Err(Invalid::new(&format!("{key}.questions"), format!("found {}", other.kind()), "a list"));
            }
        };
        if questions.len() > QUESTIONS_MAX {
            let problem = format!("{} questions", questions.len());
            return Err(Invalid::new(&format!("{key}.questions"), problem, format!("at most {QUESTIONS_MAX}")));
        }
        for (at, question) in questions.iter().enumerate() {
            let path = format!("{key}.questions[{at}]");
            let Value::Map(map) = question else {
                return Err(Invalid::new(&path, format!("found {}", question.kind()), "a map with variable and type"));
            };
            let unknown = map.iter().filter(|(key, _)| !QUESTION_KEYS.contains(&&**key));
            version.ignored.extend(unknown.map(|(key, _)| format!("{path}.{key}")));
            let question = Question::read(map, &path)?;
            if version.questions.iter().any(|other| other.variable == question.variable) {
                let problem = format!("{} is asked twice", question.variable);
                return Err(Invalid::new(&format!("{path}.variable"), problem, "each variable once"));
            }
            version.questions.push(question);
        }
        Ok(version)
    }

    /// The answers to all questions: what is given, else the default, else nothing.
    ///
    /// # Errors
    ///
    /// Fails with all that is missing or wrong; the field is the variable.
    pub fn answers(&self, given: &[(String, String)]) -> Result<Vec<(Text, Text)>, Vec<Invalid>> {
        let mut wrong = Vec::new();
        let mut answers = Vec::new();
        let known = || {
            let names: Vec<&str> = self.questions.iter().map(|question| &*question.variable).collect();
            if names.is_empty() {
                "no answers: this version has no questions".to_owned()
            } else {
                format!("one of {}", names.join(", "))
            }
        };
        for (name, _) in given {
            if !self.questions.iter().any(|question| *question.variable == **name) {
                wrong.push(Invalid::new(name, "no question asks for it", known()));
            }
        }
        for question in &self.questions {
            let given = given.iter().rev().find(|(name, _)| **name == *question.variable).map(|(_, value)| &**value);
            let answer = given.or(question.default.as_deref()).unwrap_or_default();
            if answer.is_empty() && question.required {
                wrong.push(Invalid::new(&question.variable, "has no answer", question.expected()));
            } else if let Some(given) = given.filter(|given| !given.is_empty() && !question.is_answer(given)) {
                let found = if question.kind.is_secret() {
                    "the answer does not fit".into()
                } else {
                    format!("found {given:?}")
                };
                wrong.push(Invalid::new(&question.variable, found, question.expected()));
            }
            answers.push((question.variable.clone(), answer.into()));
        }
        if wrong.is_empty() { Ok(answers) } else { Err(wrong) }
    }
}

impl Question {
    fn read(map: &Map, path: &str) -> Result<Self, Invalid> {
        let at = |key: &str| format!("{path}.{key}");
        let text = |key: &str| map.get(key).and_then(Value::scalar_text).unwrap_or_default();
        let number = |key: &str| match map.get(key).and_then(Value::scalar_text).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => match text.parse::<i64>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Invalid::new(&at(key), format!("found {text:?}"), "a whole number")),
            },
        };
        let variable = text("variable");
        let is_name = |name: &str| {
            !name.starts_with(|first: char| first.is_ascii_digit())
                && name.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
        };
        if variable.is_empty() || !is_name(&variable) {
            return Err(Invalid::new(
                &at("variable"),
                format!("found {variable:?}"),
                "a name of letters, digits and '_'",
            ));
        }
        let word = text("type");
        let word = if word.is_empty() { "string" } else { &*word };
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)) else {
            let known: Vec<&str> = KINDS.iter().map(|(word, _)| *word).collect();
            return Err(Invalid::new(&at("type"), format!("found {word:?}"), format!("one of {}", known.join(", "))));
        };
        let options = match map.get("options") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::List(options)) => options.iter().filter_map(Value::scalar_text).collect(),
            Some(other) => return Err(Invalid::new(&at("options"), format!("found {}", other.kind()), "a list")),
        };
        if *kind == QuestionKind::Enum && options.is_empty() {
            return Err(Invalid::new(&at("options"), "missing", "what can be chosen"));
        }
        let required = match &*text("required") {
            "" | "false" => false,
            "true" => true,
            other => return Err(Invalid::new(&at("required"), format!("found {other:?}"), "true or false")),
        };
        Ok(Self {
            variable,
            label: text("label"),
            description: one_line(&text("description")),
            kind: *kind,
            required,
            default: map.get("default").and_then(Value::scalar_text),
            options,
            range: (number("min")?, number("max")?),
            length: (number("min_length")?, number("max_length")?),
        })
    }

    fn is_answer(&self, text: &str) -> bool {
        let within = |(least, most): (Option<i64>, Option<i64>), number: i64| {
            least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
        };
        let is_word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        let fits = match self.kind {
            QuestionKind::Boolean => matches!(text, "true" | "false"),
            QuestionKind::Int => text.parse::<i64>().is_ok_and(|number| within(self.range, number)),
            QuestionKind::Float => text.parse::<f64>().is_ok_and(f64::is_finite),
            QuestionKind::Enum => self.options.iter().any(|option| **option == *text),
            QuestionKind::Service => text.split('/').count() <= 2 && text.split('/').all(is_word),
            QuestionKind::Certificate | QuestionKind::Secret => is_word(text),
            QuestionKind::String | QuestionKind::Password => !text.contains('\n'),
            QuestionKind::Multiline => true,
        };
        fits && within(self.length, i64::try_from(text.chars().count()).unwrap_or(i64::MAX))
    }

    /// What an answer is, for messages.
    pub fn expected(&self) -> String {
        let bounds = |(least, most): (Option<i64>, Option<i64>), what: &str| match (least, most) {
            (None, None) => String::new(),
            (Some(least), None) => format!(", at least {least}{what}"),
            (None, Some(most)) => format!(", at most {most}{what}"),
            (Some(least), Some(most)) => format!(", {least} to {most}{what}"),
        };
        let kind = match self.kind {
            QuestionKind::Boolean => "true or false".to_owned(),
            QuestionKind::Int => "a whole number".to_owned(),
            QuestionKind::Float => "a number".to_owned(),
            QuestionKind::Enum => {
                let options: Vec<&str> = self.options.iter().map(|option| &**option).collect();
                format!("one of {}", options.join(", "))
            }
            QuestionKind::Service => "STACK/SERVICE".to_owned(),
            QuestionKind::Certificate => "the name of a certificate".to_owned(),
            QuestionKind::Secret => "the name of a secret".to_owned(),
            QuestionKind::Password => "a password".to_owned(),
            QuestionKind::String => "a line of text".to_owned(),
            QuestionKind::Multiline => "text".to_owned(),
        };
        let label = if self.label.is_empty() { String::new() } else { format!(" for \"{}\"", self.label) };
        format!("{kind}{}{}{label}", bounds(self.range, ""), bounds(self.length, " characters"))
    }
}

/// A text with single spaces between its words.
fn one_line(text: &str) -> Text {
    text.split_whitespace().collect::<Vec<_>>().join(" ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(questions: serde_json::Value) -> Result<CatalogVersion, Invalid> {
        let mut file = serde_json::json!({ "catalog": {} });
        file["catalog"]["questions"] = questions;
        CatalogVersion::read(&serde_json::from_value(file).unwrap())
    }

    fn one(question: serde_json::Value) -> CatalogVersion {
        version(serde_json::Value::Array(vec![question])).unwrap()
    }

    fn answered(version: &CatalogVersion, given: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let given: Vec<_> = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let texts = |list: Vec<(Text, Text)>| list.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let wrong = |list: Vec<Invalid>| list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        version.answers(&given).map(texts).map_err(wrong)
    }

    #[test]
    fn answers_fit_their_questions() {
        for (question, fine, wrong) in [
            (serde_json::json!({ "type": "int" }), &["5", "-1"][..], &["x", "1.5", "9999999999999999999"][..]),
            (serde_json::json!({ "type": "int", "min": 1, "max": "9" }), &["1", "9"], &["0", "10"]),
            (serde_json::json!({ "type": "float" }), &["5", "1.5"], &["x", "nan", "inf"]),
            (serde_json::json!({ "type": "boolean" }), &["true", "false"], &["yes", "1", "True"]),
            (serde_json::json!({ "type": "enum", "options": ["a", 1.5, true] }), &["a", "1.5", "true"], &["b"]),
            (serde_json::json!({ "type": "service" }), &["web", "shop/web"], &["a/b/c", "a b", "/"]),
            (serde_json::json!({ "type": "certificate" }), &["edge"], &["a b"]),
            (serde_json::json!({ "type": "secret" }), &["db"], &["a b"]),
            (serde_json::json!({ "type": "multiline" }), &["a\nb"], &[]),
            (serde_json::json!({ "type": "password", "min_length": 3 }), &["abc"], &["ab", "a\nb"]),
            (serde_json::json!({ "max_length": 2 }), &["ab", "éé"], &["abc"]),
            (serde_json::json!({}), &["any thing"], &["a\nb"]),
        ] {
            let mut question = question.clone();
            question["variable"] = "x".into();
            let version = one(question.clone());
            for answer in fine {
                assert_eq!(answered(&version, &[("x", answer)]), Ok(vec![format!("x={answer}")]), "{question}");
            }
            for answer in wrong {
                let error = answered(&version, &[("x", answer)]).unwrap_err();
                assert!(error.starts_with("x: ") && error.contains("expected "), "{question} {answer}: {error}");
            }
            // What is not required may be empty.
            assert_eq!(answered(&version, &[("x", "")]), Ok(vec!["x=".to_owned()]));
        }
    }

    #[test]
    fn defaults_stand_in_and_all_that_is_missing_is_named() {
        let version = version(serde_json::json!([
            { "variable": "port", "type": "int", "default": 80, "required": true },
            { "variable": "password", "label": "Root password", "type": "password", "required": true },
            { "variable": "user", "required": "true" },
            { "variable": "note", "default": null },
        ]))
        .unwrap();
        let all = answered(&version, &[("password", "s3"), ("user", "me"), ("user", "you")]).unwrap();
        assert_eq!(all, ["port=80", "password=s3", "user=you", "note="]);
        let error = answered(&version, &[("prot", "1"), ("port", "")]).unwrap_err();
        for part in [
            "prot: no question asks for it, expected one of port, password, user, note",
            "port: has no answer",
            "password: has no answer, expected a password for \"Root password\"",
            "user: has no answer",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // What a person typed as a password is in no message.
        let short = one(serde_json::json!({ "variable": "p", "type": "password", "min_length": 9 }));
        assert!(!answered(&short, &[("p", "hunter2")]).unwrap_err().contains("hunter2"));
    }

    #[test]
    fn what_is_wrong_in_a_question_is_named() {
        for (questions, field) in [
            (serde_json::json!({}), "catalog.questions"),
            (serde_json::json!(["a"]), "catalog.questions[0]"),
            (serde_json::json!([{}]), "catalog.questions[0].variable"),
            (serde_json::json!([{ "variable": "a b" }]), "catalog.questions[0].variable"),
            (serde_json::json!([{ "variable": "a", "type": "colour" }]), "catalog.questions[0].type"),
            (serde_json::json!([{ "variable": "a", "type": "enum" }]), "catalog.questions[0].options"),
            (serde_json::json!([{ "variable": "a", "options": "b" }]), "catalog.questions[0].options"),
            (serde_json::json!([{ "variable": "a", "required": "maybe" }]), "catalog.questions[0].required"),
            (serde_json::json!([{ "variable": "a", "min": "x" }]), "catalog.questions[0].min"),
            (serde_json::json!([{ "variable": "a" }, { "variable": "a" }]), "catalog.questions[1].variable"),
        ] {
            assert_eq!(version(questions.clone()).unwrap_err().field, field, "{questions}");
        }
        let odd = one(serde_json::json!({ "variable": "a", "lable": "A" }));
        assert_eq!(odd.ignored, ["catalog.questions[0].lable"]);
    }

    #[test]
    fn the_version_that_is_meant() {
        let config = |version: &str| CatalogTemplate { version: version.into(), ..CatalogTemplate::default() };
        let versions: Vec<Text> = ["v1", "v2", "v2", "v3"].map(Text::from).to_vec();
        assert_eq!(config("v2").default_version(&versions), Some(2));
        assert_eq!(config("v9").default_version(&versions), Some(3));
        assert_eq!(config("").default_version(&versions), Some(3));
        assert_eq!(config("v1").default_version(&[]), None);
        let read =
            serde_json::json!({ "name": "MySQL", "description": "a\n  b\n", "version": "v1", "category": "Databases" });
        let read = CatalogTemplate::read(&serde_json::from_value(read).unwrap());
        assert_eq!((&*read.description, &*read.name, &*read.category), ("a b", "MySQL", "Databases"));
        let old = serde_json::json!({ ".catalog": { "version": "v0.1", "questions": null } });
        let old = CatalogVersion::read(&serde_json::from_value(old).unwrap()).unwrap();
        assert_eq!((&*old.version, old.questions.len()), ("v0.1", 0));
    }
}
