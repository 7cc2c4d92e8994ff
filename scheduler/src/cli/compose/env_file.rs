//! Files of variables or labels: lines `KEY=VALUE`, as `env_file` and `label_file` of a service and `--env-file` name them. ◇

use model::Value;

use crate::cli::compose::Compose;
use crate::cli::compose::section::{Draft, Section, unsupported};
use crate::cli::compose::service::truth;
use crate::place::invalid::Invalid;

/// How values stand in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// In quotes or not, and a remark may follow.
    #[default]
    Quoted,
    /// All of the line behind the `=` is the value.
    Raw,
}

/// The variables of a text. A line begins with `export` or not; one that begins with `#` is a remark.
///
/// # Errors
///
/// Has the line that is none of it, and what is wrong with it.
pub(crate) fn parse(text: &str, format: Format) -> Result<Vec<(String, String)>, (usize, String)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = if format == Format::Raw { line.trim_start() } else { line.trim() };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let wrong = |problem: String| (at + 1, problem);
        // What stands there may be a secret.
        let (key, value) = line.split_once('=').ok_or_else(|| wrong("no = in it; expected KEY=VALUE".to_owned()))?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(wrong(format!("found {key:?}; expected KEY=VALUE, with a key without spaces")));
        }
        let value = match format {
            Format::Quoted => unquoted(value.trim()).map_err(wrong)?,
            Format::Raw => value.to_owned(),
        };
        found.push((key.to_owned(), value));
    }
    Ok(found)
}

/// A value without its quotes, or without the remark behind it.
fn unquoted(value: &str) -> Result<String, String> {
    let Some(quote) = value.chars().next().filter(|char| ['"', '\''].contains(char)) else {
        let end = value.find(" #").unwrap_or(value.len());
        return Ok(value[..end].trim_end().to_owned());
    };
    let mut out = String::new();
    let mut chars = value[1..].chars();
    while let Some(char) = chars.next() {
        match char {
            _ if char == quote => {
                let rest = chars.as_str().trim_start();
                let is_over = rest.is_empty() || rest.starts_with('#');
                return if is_over { Ok(out) } else { Err("something follows the closing quote".to_owned()) };
            }
            '\\' if quote == '"' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(char @ ('"' | '\\' | '$')) => out.push(char),
                Some(other) => out.extend(['\\', other]),
                None => break,
            },
            _ => out.push(char),
        }
    }
    Err("a quote stays open".to_owned())
}

impl Compose<'_> {
    /// What the files say that a service names at a key, in their order.
    pub(super) fn of_files(&self, service: &Section<'_>, key: &str) -> Result<Draft, Invalid> {
        let files = match service.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::List(items)) => items.to_vec(),
            Some(one) => vec![one.clone()],
        };
        let mut found = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let field = service.at(&format!("{key}[{at}]"));
            let (path, is_required, format) = match file {
                Value::Text(path) => (path.clone(), true, Format::default()),
                Value::Map(map) => {
                    let file = Section { path: field.clone(), map };
                    file.only(&["format", "path", "required"])?;
                    let path = file.text("path")?;
                    let path = path.ok_or_else(|| Invalid::new(file.at("path"), "missing", "a file"))?;
                    let format = match file.text("format")?.as_deref() {
                        None => Format::Quoted,
                        Some("raw") => Format::Raw,
                        Some(_) => return Err(unsupported(file.at("format"), &["raw"])),
                    };
                    (path, map.get("required").is_none() || truth(&file, "required")?.is_some(), format)
                }
                other => return Err(Invalid::new(field, format!("found {}", other.kind()), "a file")),
            };
            let wrong =
                |problem: String| Invalid::new(&*field, format!("{path}: {problem}"), "a file of lines KEY=VALUE");
            match (self.file)(&path) {
                Ok(text) => {
                    let variables =
                        parse(&text, format).map_err(|(line, problem)| wrong(format!("line {line}: {problem}")))?;
                    found.extend(variables.into_iter().map(|(key, value)| (key.into(), Value::Text(value.into()))));
                }
                Err(problem) if is_required => return Err(wrong(problem)),
                Err(_) => self.warn(field.clone(), &format!("{path} is not there")),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::compose::{Reading, requests};

    #[test]
    fn files_have_a_value_on_each_line() {
        let text = "# of the shop\n\nA=1\nexport B = two words # remark\nC=\"x\\n#\\\"\" # remark\nD='$A \\n'\r\nE=\nF=a#b=c\n";
        let expected = [("A", "1"), ("B", "two words"), ("C", "x\n#\""), ("D", "$A \\n"), ("E", ""), ("F", "a#b=c")];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        assert_eq!(parse(text, Format::Quoted).unwrap(), expected.map(owned));
        let raw = parse("# of the shop\nA=\"1\" # all\r\nB='x\n", Format::Raw).unwrap();
        assert_eq!(raw, [("A", "\"1\" # all"), ("B", "'x")].map(owned));
        for (text, line, problem) in [
            ("A=1\nB", 2, "no = in it"),
            ("\n=x", 2, "found \"\""),
            ("a b=c", 1, "found \"a b\""),
            ("A=\"x", 1, "a quote stays open"),
            ("A='x' y", 1, "something follows"),
            ("A=\"x\\", 1, "a quote stays open"),
        ] {
            let (at, why) = parse(text, Format::Quoted).unwrap_err();
            assert!(at == line && why.contains(problem), "{text}: {at} {why}");
        }
        assert!(!parse("hunter2", Format::Quoted).unwrap_err().1.contains("hunter2"));
    }

    fn read(service: &str, profiles: &[String]) -> Result<Vec<serde_json::Value>, Invalid> {
        let text = format!("services:\n  web: {{image: a, {service}}}\n  other: {{image: b}}\n");
        let document = source::format::parse(&text).unwrap().value(model::scalar::core);
        let file = |name: &str| match name {
            "a.env" => Ok("A=1\nB=2\n".to_owned()),
            "b.env" => Ok("B=3\n".to_owned()),
            "bad" => Ok("x\n".to_owned()),
            _ => Err("not found".to_owned()),
        };
        let reading = Reading { unset_is_empty: false, file: &file, profiles, ..Reading::of_tests() };
        let found = requests(&[document], &reading, &mut Vec::new())?;
        Ok(found.iter().map(|one| serde_json::to_value(one).unwrap()).collect())
    }

    #[test]
    fn services_name_files_of_variables() {
        for (service, expected) in [
            ("env_file: a.env", serde_json::json!({"A": "1", "B": "2"})),
            ("env_file: [a.env, b.env]", serde_json::json!({"A": "1", "B": "3"})),
            (
                "env_file: [{path: a.env}, {path: lost, required: false}], environment: [B=4]",
                serde_json::json!({"A": "1", "B": "4"}),
            ),
        ] {
            let found = read(service, &[]).unwrap();
            let web = found.iter().find(|one| one["service"] == "web").unwrap();
            assert_eq!(web["environment"], expected, "{service}");
        }
        for (service, field, part) in [
            ("env_file: lost", "services.web.env_file[0]", "lost: not found"),
            ("env_file: [a.env, bad]", "services.web.env_file[1]", "bad: line 1"),
            ("env_file: [{path: a.env, format: other}]", "services.web.env_file[0].format", "not supported"),
            ("env_file: [{format: raw}]", "services.web.env_file[0].path", "missing"),
            ("env_file: [5]", "services.web.env_file[0]", "a file"),
        ] {
            let error = read(service, &[]).unwrap_err();
            assert_eq!(error.field, field, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn services_of_profiles_are_left_out_unless_they_are_wanted() {
        let names = |profiles: &[&str]| {
            let profiles: Vec<String> = profiles.iter().map(|name| (*name).to_owned()).collect();
            read("profiles: [debug, all]", &profiles).unwrap().len()
        };
        assert_eq!((names(&[]), names(&["other"]), names(&["all"])), (1, 1, 2));
        assert_eq!(read("profiles: []", &[]).unwrap().len(), 2);
    }
}
