//! The hosts of `agent invite --file`: a name on each line, and labels behind commas.

use std::collections::BTreeMap;

use super::intent;
use super::names::host_name;

/// Most bytes of a list.
pub(crate) const LIST_MAX: u64 = 4 << 20;

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) host: String,
    pub(crate) labels: Vec<(String, Option<String>)>,
}

/// Reads a list: `NAME[,KEY=VALUE...]` on each line; empty lines and those that begin with `#` mean nothing.
///
/// # Errors
///
/// Lists all wrong lines with their numbers: with one of them, no host is invited.
pub(crate) fn read(text: &str) -> Result<Vec<Listed>, String> {
    let (mut hosts, mut wrong) = (Vec::new(), Vec::new());
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim().trim_start_matches('\u{feff}');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match listed(line) {
            // Names of files on Windows, and those of hosts in DNS, are equal in any case.
            Ok(one) => match lines.insert(one.host.to_lowercase(), number) {
                Some(before) => wrong.push(format!("line {number}: {} stands in line {before}, too", one.host)),
                None => hosts.push(one),
            },
            Err(problem) => wrong.push(format!("line {number}: {problem}")),
        }
    }
    match (wrong.is_empty(), hosts.is_empty()) {
        (true, false) => Ok(hosts),
        (true, true) => Err("it names no host; expected NAME[,KEY=VALUE...] on each line".to_owned()),
        (false, _) => Err(wrong.join("\n  ")),
    }
}

fn listed(line: &str) -> Result<Listed, String> {
    let mut cells = line.split(',').map(str::trim);
    let name = cells.next().unwrap_or_default();
    let host = host_name(name).map_err(|problem| format!("{name:?} is no name of a host: {problem}"))?;
    let label = |text: &str| {
        let change = intent::change_of_label(text)?;
        change.1.is_some().then_some(change).ok_or_else(|| format!("{text:?} is no label; expected KEY=VALUE"))
    };
    Ok(Listed { host, labels: cells.filter(|cell| !cell.is_empty()).map(label).collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_names_and_labels() {
        let hosts = read("\u{feff}# hosts\r\n\r\nwin-1, zone=a ,disk=fast\r\n win-2\r\n").unwrap();
        let label = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        assert_eq!(hosts[0].host, "win-1");
        assert_eq!(hosts[0].labels, [label("zone", "a"), label("disk", "fast")]);
        assert_eq!((hosts[1].host.as_str(), hosts[1].labels.len(), hosts.len()), ("win-2", 0, 2));
    }

    #[test]
    fn all_that_is_wrong_in_a_list_is_told_with_its_line() {
        let error = read("a\na/b\n\nA\nb,zone\nc,zone-").unwrap_err();
        for part in ["line 2: \"a/b\"", "line 4: A stands in line 1", "line 5: \"zone\"", "line 6: \"zone-\""] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(read("# none\n").unwrap_err().contains("names no host"));
    }
}
