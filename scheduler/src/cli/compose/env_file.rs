//! Files of variables: lines `KEY=VALUE`, as `env_file` of a service and `--env-file` name them. ◇

use model::{Text, Value};

use crate::cli::compose::Compose;
use crate::cli::compose::section::{Draft, Section};
use crate::cli::compose::service::truth;
use crate::place::invalid::Invalid;

/// The variables of a text. A line begins with `export` or not, a value stands in quotes or not; `#` begins a comment.
///
/// # Errors
///
/// Names the line that is none of it.
pub(crate) fn variables(text: &str) -> Result<Vec<(Text, Text)>, String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let pair =
            line.split_once('=').filter(|(key, _)| !key.trim().is_empty() && !key.trim().contains(char::is_whitespace));
        let Some((key, value)) = pair else { return Err(format!("line {}: no KEY=VALUE", at + 1)) };
        let value = value.trim();
        let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
        let plain = || value.split(" #").next().unwrap_or_default().trim_end();
        found.push((key.trim().into(), quoted.unwrap_or_else(plain).into()));
    }
    Ok(found)
}

impl Compose<'_> {
    /// What the files say that a service names, in their order.
    pub(super) fn of_env_files(&self, service: &Section<'_>) -> Result<Draft, Invalid> {
        let files = match service.get("env_file") {
            None => return Ok(Vec::new()),
            Some(Value::List(items)) => items.to_vec(),
            Some(one) => vec![one.clone()],
        };
        let mut found = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let field = service.at(&format!("env_file[{at}]"));
            let (path, is_required) = match file {
                Value::Text(path) => (path.clone(), true),
                Value::Map(map) => {
                    let file = Section { path: field.clone(), map };
                    file.only(&["path", "required"])?;
                    let path = file.text("path")?;
                    let path = path.ok_or_else(|| Invalid::new(file.at("path"), "missing", "a file"))?;
                    (path, map.get("required").is_none() || truth(&file, "required")?.is_some())
                }
                other => return Err(Invalid::new(field, format!("found {}", other.kind()), "a file")),
            };
            let wrong =
                |problem: String| Invalid::new(&*field, format!("{path}: {problem}"), "a file of lines KEY=VALUE");
            match (self.file)(&path) {
                Ok(text) => found
                    .extend(variables(&text).map_err(wrong)?.into_iter().map(|(key, value)| (key, Value::Text(value)))),
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
    fn lines_are_variables() {
        let text = "# none\n\nA=1\nexport B = \"x # y\" \nC='$z'\nD=a b # c\nE=\nF=a=b#c\n";
        let found: Vec<_> = variables(text).unwrap().into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, ["A=1", "B=x # y", "C=$z", "D=a b", "E=", "F=a=b#c"]);
        for (text, line) in [("A=1\nB", "line 2"), ("=x", "line 1"), ("a b=c", "line 1")] {
            assert!(variables(text).unwrap_err().contains(line), "{text}");
        }
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
        let reading = Reading {
            stack: "shop",
            variable: &|_| None,
            unset_is_empty: false,
            for_stack: true,
            rancher: None,
            file: &file,
            profiles,
        };
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
            ("env_file: [{format: raw}]", "services.web.env_file[0].format", "not supported"),
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
