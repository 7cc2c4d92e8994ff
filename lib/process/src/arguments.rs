//! Command lines as the predecessors took them: Go's single dash before long names, `-xff=true`; and what is wrong with
//! them in our words.

use std::error::Error;
use std::ffi::OsString;
use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};

/// The arguments with every single-dash long name turned into the double-dash form.
///
/// `switches` names the flags that are there or not: `-xff=true` becomes `--xff`, `-xff=false` vanishes.
/// Arguments behind `--` are left as they are, and so are single letters (`-h`).
pub fn normalise(arguments: impl IntoIterator<Item = OsString>, switches: &[&str]) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut normal: Vec<OsString> = arguments.next().into_iter().collect();
    let mut literal = false;
    for argument in arguments {
        let text = argument.to_str().filter(|_| !literal);
        literal |= text == Some("--");
        match text.map(|text| long(text, switches)) {
            None => normal.push(argument),
            Some(Some(text)) => normal.push(text.into()),
            Some(None) => {}
        }
    }
    normal
}

/// One argument; `None` when it says nothing.
fn long(text: &str, switches: &[&str]) -> Option<String> {
    let Some(name) = text
        .strip_prefix('-')
        .filter(|name| name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '-'))
    else {
        return Some(text.to_owned());
    };
    let bare = name.strip_prefix('-').unwrap_or(name);
    let (flag, value) = bare.split_once('=').map_or((bare, None), |(flag, value)| (flag, Some(value)));
    if flag.len() <= 1 {
        return Some(text.to_owned());
    }
    match value {
        // Go's own words for truth values.
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") if switches.contains(&flag) => Some(format!("--{flag}")),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") if switches.contains(&flag) => None,
        _ => Some(format!("--{bare}")),
    }
}

/// The same error for people: a wrong value with what was expected, and with the variable of the environment that has it
/// when it was not typed.
pub fn explained(error: clap::Error, command: &Command, arguments: &[OsString]) -> clap::Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let Some((flag, value)) = context(ContextKind::InvalidArg).zip(context(ContextKind::InvalidValue)) else {
        return error;
    };
    let typed = |text: &str| text == value || text.split(['=', ',']).any(|part| part == value);
    let is_typed = arguments.iter().any(|argument| typed(&argument.to_string_lossy()));
    // Only a command that was built can show its flags.
    let mut command = command.clone();
    command.build();
    let variable = variable(&command, &flag).filter(|_| !is_typed);
    let words = error.source().map(ToString::to_string);
    let expected = error.source().and_then(expected);
    if variable.is_none() && expected.is_none() {
        return error;
    }
    let mut text = error.render().to_string();
    if let Some(variable) = variable {
        let named = format!("'{flag}'");
        text = text.replacen(&named, &format!("{named}, from the environment variable {variable}"), 1);
    }
    if let Some((words, expected)) = words.zip(expected) {
        text = text.replacen(&format!(": {words}"), &format!(": expected {expected}"), 1);
    }
    clap::Error::raw(error.kind(), text.strip_prefix("error: ").unwrap_or(&text))
}

/// The variable of the environment that stands for a flag, when it is set.
fn variable(command: &Command, flag: &str) -> Option<String> {
    let own = || command.get_arguments().find(|arg| arg.to_string() == flag).and_then(Arg::get_env);
    let below = || command.get_subcommands().find_map(|own| variable(own, flag));
    let set = |name: &std::ffi::OsStr| std::env::var_os(name).map(|_| name.to_string_lossy().into_owned());
    own().and_then(set).or_else(below)
}

/// What was expected, where a parser of a library only says what it stumbled over.
fn expected(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "a smaller number".to_owned(),
            IntErrorKind::NegOverflow => "a larger number".to_owned(),
            _ => "a whole number".to_owned(),
        });
    }
    if error.is::<ParseFloatError>() {
        return Some("a number".to_owned());
    }
    let words = error.to_string();
    if error.is::<AddrParseError>() {
        let is_socket = words.contains("socket");
        return Some(if is_socket { "IP:PORT, such as 127.0.0.1:8112" } else { "an IP address" }.to_owned());
    }
    let (_, bounds) = words.split_once(" is not in ")?;
    Some(bounds.strip_suffix("..").map_or_else(|| bounds.replace("..=", " to "), |least| format!("{least} or more")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_is_not_explained_by_the_words_of_a_parser() {
        let number = Arg::new("number").long("number").value_parser(clap::value_parser!(u32).range(3..=9));
        let address = Arg::new("address").long("address").value_parser(clap::value_parser!(std::net::IpAddr));
        let socket = Arg::new("socket").long("socket").value_parser(clap::value_parser!(std::net::SocketAddr));
        let share = Arg::new("share").long("share").value_parser(clap::value_parser!(f64));
        let own = Arg::new("own").long("own").value_parser(|text: &str| Err::<(), _>(format!("no {text} here")));
        // This one is set wherever programs run.
        let path = Arg::new("path").long("path").env("PATH").value_parser(clap::value_parser!(u16));
        let command = || {
            let sub = Command::new("sub").args([&number, &address, &socket, &share, &own]);
            Command::new("all").subcommand(sub).subcommand(Command::new("path").arg(&path))
        };
        for (line, expected) in [
            ("all sub --number x", "invalid value 'x' for '--number <number>': expected a whole number"),
            ("all sub --number 10", "invalid value '10' for '--number <number>': expected 3 to 9"),
            ("all sub --address x", "invalid value 'x' for '--address <address>': expected an IP address"),
            (
                "all sub --socket x",
                "invalid value 'x' for '--socket <socket>': expected IP:PORT, such as 127.0.0.1:8112",
            ),
            ("all sub --share x", "invalid value 'x' for '--share <share>': expected a number"),
            ("all sub --own x", "invalid value 'x' for '--own <own>': no x here"),
            ("all path --path x", "for '--path <path>': expected a whole number"),
            ("all path", "for '--path <path>', from the environment variable PATH: expected a whole number"),
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = command().try_get_matches_from(&arguments).unwrap_err();
            let text = explained(error, &command(), &arguments).to_string();
            assert!(text.starts_with("error: ") && text.contains(expected), "{line}: {text}");
        }
    }

    fn check(line: &str, expected: &str) {
        let normal = normalise(line.split(' ').map(OsString::from), &["xff", "debug"]);
        let normal: Vec<_> = normal.iter().map(|argument| argument.to_str().unwrap()).collect();
        assert_eq!(normal.join(" "), expected);
    }

    #[test]
    fn old_command_lines_become_new_ones() {
        check("metadata -listen :80 -xff", "metadata --listen :80 --xff");
        check(
            "metadata -reload-interval-limit=1000 -xff=true -debug=false",
            "metadata --reload-interval-limit=1000 --xff",
        );
        check("dns --listen=169.254.169.251:53 -ttl 1", "dns --listen=169.254.169.251:53 --ttl 1");
        check("dns -h", "dns -h");
        check("dns query -- -listen", "dns query -- -listen");
        check("dns -ttl -1", "dns --ttl -1");
        check("agent up a-file.yml", "agent up a-file.yml");
    }
}
