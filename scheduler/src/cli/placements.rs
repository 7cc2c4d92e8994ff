//! Placements as people read them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cli::explain::explanation;
use crate::cli::terminal::warn;
use crate::cli::{list, row, word};

pub(super) fn placement_rows(answers: &[Value]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["ID", "STATE", "SINCE", "HOST", "CONTAINER", "IMAGE", "PORTS", "DETAIL"])];
    for answer in answers {
        let dry = if answer["dry_run"] == true { " (dry run)" } else { "" };
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        for unit in list(&answer["placements"]) {
            for container in list(&unit["containers"]) {
                let ports: Vec<_> = list(&container["ports"])
                    .iter()
                    .map(|port| port_words(port, &format!("->{}", port["private"])))
                    .collect();
                let image = &container["image"];
                let keys = ["os", "os_version", "architecture", "isolation"].iter();
                let entry: Vec<_> = keys.filter_map(|key| image[*key].as_str()).collect();
                let entry = if entry.is_empty() { String::new() } else { format!(" ({})", entry.join(" ")) };
                rows.push(vec![
                    word(&answer["id"]),
                    format!("{}{dry}", state_words(container)),
                    text(&container["life"]["since"]),
                    word(&unit["host"]["name"]),
                    word(&container["name"]),
                    format!("{}{entry}", text(&container["image_name"])),
                    if ports.is_empty() { "-".to_owned() } else { ports.join(", ") },
                    detail(unit, container),
                ]);
            }
        }
        if answer["state"] == "unreadable" {
            rows.push(row([&word(&answer["id"]), "unreadable", "-", "-", "-", "-", "-", &text(&answer["error"])]));
        }
        let unplaced = answer["unplaced"].as_u64().unwrap_or_default();
        if unplaced > 0 {
            let state = if answer["state"] == "failed" { "failed" } else { "no place" };
            let count = match (unplaced, list(&answer["placements"]).is_empty()) {
                (1, true) => String::new(),
                (_, true) => format!(": {unplaced}"),
                (_, false) => format!(": {unplaced} more"),
            };
            let hosts: BTreeSet<_> =
                list(&answer["failures"]).iter().map(|failure| word(&failure["host"]["name"])).collect();
            let hosts = if hosts.is_empty() { "-".to_owned() } else { Vec::from_iter(hosts).join(", ") };
            let id = word(&answer["id"]);
            rows.push(row([&id, &format!("{state}{dry}{count}"), "-", &hosts, "-", "-", "-", ""]));
        }
    }
    if rows[1..].iter().all(|row| row[7].is_empty()) {
        for row in &mut rows {
            row.truncate(7);
        }
    }
    rows
}

/// What a container waits for or why it failed, and what was done about failures before.
fn detail(unit: &Value, container: &Value) -> String {
    let detail = container["detail"].as_str().map(ToOwned::to_owned);
    let replaced = &unit["replaced"];
    let done = replaced["times"].as_u64().map(|times| {
        let time = |key: &str| replaced[key].as_str().and_then(|time| time.get(11..19)).unwrap_or("-").to_owned();
        if times == 0 {
            // That its host is gone is no failure, and is followed by no pause.
            return format!("moved at {}: {}", time("at"), word(&replaced["why"]));
        }
        format!("replaced at {} ({}, not again before {})", time("at"), ordinal(times), time("not_before"))
    });
    detail.into_iter().chain(done).collect::<Vec<_>>().join("; ")
}

fn ordinal(number: u64) -> String {
    let suffix = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{suffix} time")
}

/// How a container is: its life where that is known, and how far it got where it is not.
fn state_words(container: &Value) -> String {
    let (state, life) = (word(&container["state"]), &container["life"]);
    let code = life["exit_code"].as_i64().map(|code| format!(" ({code})")).unwrap_or_default();
    match (state.as_str(), life["health"].as_str()) {
        ("started" | "settled", Some("unhealthy")) => "unhealthy".to_owned(),
        ("started" | "settled", _) => life["state"].as_str().map_or(state, ToOwned::to_owned),
        ("exited" | "restarting" | "dead", _) => format!("{state}{code}"),
        // The word of the API.
        ("over", _) => "gone".to_owned(),
        _ => state,
    }
}

/// A port as it is published: `80/tcp`, with its address unless that is all of them.
pub(super) fn port_words(port: &Value, inside: &str) -> String {
    let ip = word(&port["ip"]);
    let address = match ip.as_str() {
        "0.0.0.0" | "::" => String::new(),
        ip if ip.contains(':') => format!("[{ip}]:"),
        ip => format!("{ip}:"),
    };
    format!("{address}{}{inside}/{}", port["public"], word(&port["protocol"]))
}

/// Says on standard error why something has no place or was not started.
pub(super) fn tell_why(answer: &Value) {
    for failure in list(&answer["failures"]) {
        let (host, container) = (word(&failure["host"]["name"]), word(&failure["container"]));
        warn(&format!("{container} could not be started on {host}: {}", word(&failure["error"])));
    }
    if answer["explanation"].is_object() {
        warn(explanation(&answer["explanation"]).trim_end());
    } else if let Some(error) = answer["error"].as_str().filter(|_| list(&answer["failures"]).is_empty()) {
        warn(error);
    }
}

pub(super) fn is_placed(answer: &Value) -> bool {
    answer["state"] == "placed"
}

/// Says on standard error which of its containers do not run that should; says whether all do. One that has ended
/// without an error has done what it had to.
pub(super) fn all_run(answer: &Value) -> bool {
    let mut all = true;
    for unit in list(&answer["placements"]) {
        for container in list(&unit["containers"]) {
            let done = container["state"] == "exited" && container["life"]["exit_code"] == 0;
            let state = word(&container["state"]);
            if !done && !matches!(&*state, "reserved" | "started" | "settled" | "kept") {
                let (name, host) = (word(&container["name"]), word(&unit["host"]["name"]));
                let detail = container["detail"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default();
                warn(&format!("{name} does not run on {host}, it is {}{detail}", state_words(container)));
                all = false;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_run_is_no_success() {
        for (state, life, success) in [
            ("started", json!({"state": "running"}), true),
            ("settled", json!({"state": "running", "health": "unhealthy"}), true),
            ("reserved", json!(null), true),
            ("exited", json!({"state": "exited", "exit_code": 0}), true),
            ("exited", json!({"state": "exited", "exit_code": 137}), false),
            ("restarting", json!({"state": "restarting", "exit_code": 1}), false),
            ("unknown", json!(null), false),
            ("kept", json!(null), true),
            ("over", json!(null), false),
        ] {
            let containers = [json!({"name": "web", "state": state, "life": life})];
            let answer =
                json!({"state": "placed", "placements": [{"host": {"name": "one"}, "containers": containers}]});
            assert_eq!(all_run(&answer), success, "{state}");
        }
    }

    #[test]
    fn what_is_not_there_any_more_is_gone() {
        for (state, life, words) in [
            ("over", json!(null), "gone"),
            ("exited", json!({"state": "exited", "exit_code": 137}), "exited (137)"),
            ("started", json!({"state": "running"}), "running"),
            ("reserved", json!(null), "reserved"),
        ] {
            assert_eq!(state_words(&json!({"state": state, "life": life})), words);
        }
    }

    #[test]
    fn an_unreadable_record_does_not_keep_the_others_from_being_shown() {
        let unreadable = json!({"id": "bad", "state": "unreadable", "placements": [], "error": "no owner"});
        let failed = json!({"id": "web", "state": "failed", "placements": [], "unplaced": 1});
        let rows = placement_rows(&[unreadable, failed]);
        assert_eq!((&*rows[1][0], &*rows[1][1], &*rows[1][7]), ("bad", "unreadable", "no owner"));
        assert_eq!((&*rows[2][0], &*rows[2][1]), ("web", "failed"));
    }

    #[test]
    fn what_failed_is_counted_beside_what_runs_and_names_its_hosts() {
        let unit = json!({"host": {"name": "one"}, "containers": [{"name": "web-1", "state": "started"}]});
        let failures = json!([{"host": {"name": "two"}, "error": "no"}, {"host": {"name": "two"}, "error": "no"}]);
        for (placements, unplaced, words) in
            [(json!([]), 1, "failed"), (json!([]), 3, "failed: 3"), (json!([unit]), 1, "failed: 1 more")]
        {
            let answer = json!({"id": "web", "state": "failed", "placements": placements, "unplaced": unplaced,
                "failures": failures});
            let last = placement_rows(&[answer]).pop().unwrap();
            assert_eq!((&*last[1], &*last[3]), (words, "two"));
        }
    }
}
