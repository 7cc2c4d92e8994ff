//! `dns query`: asks a running service why a client gets its answer.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use process::command::get_admin;
use serde_json::Value;

/// Longest wait: upstreams may take twice their time, a minute at most each.
const LIMIT: Duration = Duration::from_secs(125);

/// Subcommands of the DNS service alone.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Ask a running service for a name, and why it answers what it answers
    Query(Query),
}

/// `query NAME [TYPE]`.
#[derive(Args, Clone, Debug)]
pub struct Query {
    /// The name, as a client would ask for it
    #[arg(value_name = "NAME")]
    name: String,

    /// The type of the records
    #[arg(value_name = "TYPE", default_value = "A")]
    kind: String,

    /// Answer as if this address had asked [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    client: Option<IpAddr>,

    /// The admin address of the service [default: 127.0.0.1:8113]
    #[arg(long, visible_alias = "server", value_name = "ADDR", env = "BERTH_ADMIN", value_parser = process::listen_address)]
    admin: Option<SocketAddr>,

    /// Write JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Query {
    /// Asks, and prints the explanation; `port` is that of the admin pages by default.
    ///
    /// The exit code is 0 if there is an explanation, also of a negative answer.
    pub fn run(&self, port: u16) -> ExitCode {
        let admin = self.admin.unwrap_or_else(|| ([127, 0, 0, 1], port).into());
        let client = self.client.map(|client| format!("&client={client}")).unwrap_or_default();
        let path = format!("/v1/query?name={}&type={}{client}", escaped(&self.name), escaped(&self.kind));
        let (text, good) = match get_admin(admin, &path, LIMIT) {
            Ok((status, body)) if status.is_success() => match serde_json::from_str::<Value>(&body) {
                Ok(value) if self.json => (format!("{value:#}"), true),
                Ok(value) => (table(&value), true),
                Err(error) => (format!("{admin}: {error}"), false),
            },
            Ok((_, body)) => {
                let problem = serde_json::from_str::<Value>(&body).ok();
                let problem = problem.as_ref().and_then(|value| value["error"].as_str());
                (problem.map_or_else(|| body.trim_end().to_owned(), str::to_owned), false)
            }
            Err(problem) => (problem, false),
        };
        // Who closed the output does not want to know.
        let _ = if good {
            writeln!(io::stdout(), "{}", text.trim_end())
        } else {
            writeln!(io::stderr(), "error: {}", text.trim_end())
        };
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A text as part of a URL's query (RFC 3986 section 2.1).
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// The explanation for people.
fn table(value: &Value) -> String {
    let mut table = Vec::new();
    let mut line = |label: &str, text: String| table.push(format!("{label:<10} {text}\n"));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(", ");
    line("question", format!("{} {} from {}", text(&value["name"]), text(&value["type"]), text(&value["client"])));
    let section = &value["section"];
    let search = list(&section["search"]);
    let links = section["links"].as_u64().filter(|links| *links > 0);
    let links = links.map(|links| format!(", {links} names of its own")).unwrap_or_default();
    line("section", format!("{}, search {search}{links}", text(&section["name"])));
    for step in value["steps"].as_array().into_iter().flatten() {
        let place = if step["section"] == "client" { "this client's" } else { "all clients'" };
        let found = match &step["found"] {
            Value::Object(alias) => format!("alias of {}", text(&alias["alias"])),
            found => text(found).replace('_', " "),
        };
        let search = step["search"].as_str().map(|search| format!(" (search {search})")).unwrap_or_default();
        line("tried", format!("{} among {place} names{search}: {found}", text(&step["name"])));
    }
    for left_out in value["left_out"].as_array().into_iter().flatten() {
        let host = left_out["host"].as_str().map(|host| format!(" on {host}")).unwrap_or_default();
        let time = left_out["for_s"].as_u64().map(|seconds| format!(" (for {seconds} s)")).unwrap_or_default();
        line("left out", format!("{}{host}: {}{time}", text(&left_out["container"]), text(&left_out["reason"])));
    }
    if let Some(forwarding) = value.get("forwarding") {
        let asked = list(&forwarding["asked_first_to_last"]);
        let asked = if asked.is_empty() { "none".to_owned() } else { asked };
        line("upstreams", format!("{asked} ({})", text(&forwarding["upstreams_of"])));
    }
    if let Some(address) = value["forwarding"]["dropped"].as_str() {
        let name = text(&value["name"]);
        line("dropped", format!("{address}: no name of others may lead there; --private-upstream {name} allows it"));
    }
    let by = match (text(&value["answered_by"]).as_str(), value["forwarding"]["answered"].as_str()) {
        ("cache", Some(upstream)) => format!("cached from {upstream}"),
        ("upstream", Some(upstream)) => format!("from {upstream}"),
        ("upstream", None) => "no upstream gave one".to_owned(),
        ("zone", _) => "from the names of the cluster".to_owned(),
        ("not_served", _) => "the client is in no network of --clients".to_owned(),
        ("not_ready", _) => "no names are known yet".to_owned(),
        _ => "refused".to_owned(),
    };
    let reason = value["extended_error"].as_u64().map(|reason| format!(", extended error {reason}"));
    line("answer", format!("{}, {by}{}", text(&value["code"]), reason.unwrap_or_default()));
    for (section, label) in [("answers", ""), ("authority", "authority"), ("additional", "additional")] {
        for record in value[section].as_array().into_iter().flatten() {
            let [name, ttl, kind, data] = ["name", "ttl", "type", "data"].map(|key| text(&record[key]));
            line(label, format!("{name} {ttl} {kind} {data}"));
        }
    }
    table.concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_explanation_reads_from_the_question_to_the_answer() {
        let value = json!({
            "name": "web.", "type": "A", "client": "10.42.0.1",
            "section": { "name": "10.42.0.1", "search": ["shop.rancher.internal."], "links": 0 },
            "steps": [
                { "name": "web.", "section": "default", "found": "nothing" },
                { "name": "web.shop.rancher.internal.", "section": "default", "search": "shop.rancher.internal.", "found": "records" },
            ],
            "left_out": [
                { "container": "web-2", "host": "h2", "reason": "it publishes no port" },
                { "container": "web-3", "host": "h2", "reason": "it is unhealthy: 2 of 3 hosts: refused (a, b); c: well", "for_s": 12 },
            ],
            "answered_by": "zone", "code": "NOERROR",
            "answers": [{ "name": "web.", "ttl": 1, "type": "A", "data": "10.42.1.1" }],
        });
        let expected = "\
question   web. A from 10.42.0.1
section    10.42.0.1, search shop.rancher.internal.
tried      web. among all clients' names: nothing
tried      web.shop.rancher.internal. among all clients' names (search shop.rancher.internal.): records
left out   web-2 on h2: it publishes no port
left out   web-3 on h2: it is unhealthy: 2 of 3 hosts: refused (a, b); c: well (for 12 s)
answer     NOERROR, from the names of the cluster
           web. 1 A 10.42.1.1
";
        assert_eq!(table(&value), expected);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("_http._tcp.web&x=ü"), "_http._tcp.web%26x%3D%C3%BC");
    }
}
