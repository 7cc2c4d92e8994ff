//! Command lines as the predecessors took them: Go's single dash before long names, `-xff=true`.

use std::ffi::OsString;

/// The arguments with every single-dash long name turned into the double-dash form.
///
/// `switches` names the flags that are there or not: `-xff=true` becomes `--xff`, `-xff=false` vanishes.
/// What stands behind `--` is left as it is, and so are single letters (`-h`).
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

#[cfg(test)]
mod tests {
    use super::*;

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
