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

/// What a line has: a key, and its value unless the key stands there alone.
pub(crate) type Line = (String, Option<String>);

/// The variables of a text. A line begins with `export` or not; one that begins with `#` is a remark. A value in quotes may have
/// several lines.
///
/// # Errors
///
/// Has the line that is none of it, and what is wrong with it.
pub(crate) fn parse(text: &str, format: Format) -> Result<Vec<Line>, (usize, String)> {
    let mut found = Vec::new();
    let (mut rest, mut at) = (text, 0);
    while !rest.is_empty() {
        let (whole, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let from = rest;
        (rest, at) = (after, at + 1);
        let line = whole.strip_suffix('\r').unwrap_or(whole).trim_start();
        let line = if format == Format::Raw { line } else { line.trim_end() };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let wrong = |problem: String| (at, problem);
        let Some((key, value)) = line.split_once('=') else {
            // What stands there may be a secret.
            if line.contains(char::is_whitespace) {
                return Err(wrong("no = in it; expected KEY=VALUE or KEY".to_owned()));
            }
            found.push((line.to_owned(), None));
            continue;
        };
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(wrong(format!("found {key:?}; expected KEY=VALUE, with a key without spaces")));
        }
        let value = match (format, value.trim_start()) {
            (Format::Raw, _) => value.to_owned(),
            (Format::Quoted, value) if value.starts_with(['"', '\'']) => {
                // From the quote on, whose end may be in a later line.
                let quoted = from.split_once('=').map_or("", |(_, behind)| behind.trim_start());
                let (value, behind) = quoted_value(quoted).map_err(wrong)?;
                let (end, next) = behind.split_once('\n').unwrap_or((behind, ""));
                if !end.trim().is_empty() && !end.trim_start().starts_with('#') {
                    return Err(wrong("something follows the closing quote".to_owned()));
                }
                at += quoted[..quoted.len() - behind.len()].matches('\n').count();
                rest = next;
                value
            }
            (Format::Quoted, value) => value[..value.find(" #").unwrap_or(value.len())].trim_end().to_owned(),
        };
        found.push((key.to_owned(), Some(value)));
    }
    Ok(found)
}

/// The value that begins with a quote, without its quotes, and what follows them.
fn quoted_value(text: &str) -> Result<(String, &str), String> {
    let mut chars = text.chars();
    let quote = chars.next().unwrap_or('"');
    let mut out = String::new();
    while let Some(char) = chars.next() {
        match char {
            _ if char == quote => return Ok((out, chars.as_str())),
            '\r' if chars.as_str().starts_with('\n') => {}
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
    /// What the files say that a service names at a key, in their order; a key that stands alone is `alone`.
    pub(super) fn of_files(&self, service: &Section<'_>, key: &str, alone: &Value) -> Result<Draft, Invalid> {
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
                    let value = |value: Option<String>| value.map_or_else(|| alone.clone(), Value::text);
                    found.extend(variables.into_iter().map(|(key, of_key)| (key.into(), value(of_key))));
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
        let owned = |(key, value): (&str, &str)| (key.to_owned(), Some(value.to_owned()));
        assert_eq!(parse(text, Format::Quoted).unwrap(), expected.map(owned));
        let raw = parse("# of the shop\nA=\"1\" # all\r\nB='x\n", Format::Raw).unwrap();
        assert_eq!(raw, [("A", "\"1\" # all"), ("B", "'x")].map(owned));
        // A value of several lines, and keys alone.
        let text = "A='one\r\n two # no remark\n' # remark\nB\nexport C\n D=\"\n\"";
        let expected = [("A", Some("one\n two # no remark\n")), ("B", None), ("C", None), ("D", Some("\n"))];
        let owned = |(key, value): (&str, Option<&str>)| (key.to_owned(), value.map(ToOwned::to_owned));
        assert_eq!(parse(text, Format::Quoted).unwrap(), expected.map(owned));
        for (text, line, problem) in [
            ("A=1\nB c", 2, "no = in it"),
            ("\n=x", 2, "found \"\""),
            ("a b=c", 1, "found \"a b\""),
            ("A=\"x\nB=1\n", 1, "a quote stays open"),
            ("A='x' y", 1, "something follows"),
            ("A='x\n' y", 1, "something follows"),
            ("A=\"\n\n\"\nb c", 4, "no = in it"),
            ("A=\"x\\", 1, "a quote stays open"),
        ] {
            let (at, why) = parse(text, Format::Quoted).unwrap_err();
            assert!(at == line && why.contains(problem), "{text}: {at} {why}");
        }
        assert!(!parse("hunter2 x", Format::Quoted).unwrap_err().1.contains("hunter2"));
    }

    fn read(service: &str, profiles: &[String]) -> Result<Vec<serde_json::Value>, Invalid> {
        let text = format!("services:\n  web: {{image: a, {service}}}\n  other: {{image: b}}\n");
        let document = source::format::parse(&text).unwrap().value(model::scalar::core);
        let file = |name: &str| match name {
            "a.env" => Ok("A=1\nB=2\n".to_owned()),
            "b.env" => Ok("B=3\n".to_owned()),
            "c.env" => Ok("A=1\nB\nNONE\n".to_owned()),
            "bad" => Ok("x y\n".to_owned()),
            _ => Err("not found".to_owned()),
        };
        let variable = |name: &str| (name == "B").then(|| "of the shell".to_owned());
        let reading = Reading { file: &file, variable: &variable, profiles, ..Reading::of_tests() };
        let found = requests(&[document], &reading, &mut Vec::new())?;
        Ok(found.iter().map(|one| serde_json::to_value(one).unwrap()).collect())
    }

    #[test]
    fn services_name_files_of_variables() {
        for (service, expected) in [
            ("env_file: a.env", serde_json::json!({"A": "1", "B": "2"})),
            ("env_file: c.env", serde_json::json!({"A": "1", "B": "of the shell"})),
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
