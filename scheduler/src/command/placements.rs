//! Placements as people read them.

use serde_json::Value;

use crate::command::explain::explanation;
use crate::command::terminal::warn;
use crate::command::{list, row, word};

pub(super) fn placement_rows(answers: &[Value]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["ID", "STATE", "HOST", "CONTAINER", "PORTS", "IMAGE"])];
    for answer in answers {
        let dry = if answer["dry_run"] == true { " (dry run)" } else { "" };
        for unit in list(&answer["placements"]) {
            for container in list(&unit["containers"]) {
                let ports: Vec<_> = list(&container["ports"])
                    .iter()
                    .map(|port| port_words(port, &format!("->{}", port["private"])))
                    .collect();
                let image = &container["image"];
                let keys = ["os", "os_version", "architecture", "isolation"].iter();
                let entry: Vec<_> = keys.filter_map(|key| image[*key].as_str()).collect();
                rows.push(vec![
                    word(&answer["id"]),
                    format!("{}{dry}", word(&container["state"])),
                    word(&unit["host"]["name"]),
                    word(&container["name"]),
                    ports.join(", "),
                    entry.join(" "),
                ]);
            }
        }
        if answer["state"] == "unreadable" {
            rows.push(vec![word(&answer["id"]), "unreadable".into()]);
        }
        let unplaced = answer["unplaced"].as_u64().unwrap_or_default();
        if unplaced > 0 {
            let state = if answer["state"] == "failed" { "failed" } else { "no place" };
            rows.push(vec![word(&answer["id"]), format!("{state}{dry}"), "-".into(), format!("{unplaced} more")]);
        }
    }
    rows
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
