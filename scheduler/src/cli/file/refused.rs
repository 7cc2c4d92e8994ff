//! What a scheduler says against requests in the words of the files that they are from.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::Failure;
use crate::cli::compose::origins::{Origins, joined};
use crate::cli::file::Input;

/// A stack, read.
#[derive(Debug)]
pub(in crate::cli) struct ReadStack {
    pub(in crate::cli) name: String,
    pub(in crate::cli) services: Vec<Value>,
    pub(super) places: Places,
}

/// Where requests come from.
#[derive(Debug)]
pub(in crate::cli) struct Places {
    /// The first file, as messages call it.
    pub(super) shown: String,
    /// Where each of the requests comes from.
    pub(super) origins: Vec<Origins>,
    /// The file and the line of ways that these have.
    pub(super) lines: BTreeMap<String, String>,
    /// The files, if fields are to be sought in them.
    pub(super) inputs: Vec<Input>,
}

impl Places {
    /// A failure of the scheduler's about a request, with file, line and key where it names a field.
    pub(in crate::cli) fn placed(&self, at: usize, failure: Failure) -> Failure {
        let Failure::Refused { status, mut body } = failure else { return failure };
        // What is not there, or in the way, is no fault of the file's.
        if let Some(sent) = body["field"].as_str().filter(|field| !field.is_empty() && !matches!(status, 404 | 409)) {
            let sent = sent.to_owned();
            self.place(at, &sent, &sent, &mut body);
        }
        Failure::Refused { status, body }
    }

    /// Names in the body of an error what in the files is the field of a request that was sent as `sent`.
    fn place(&self, at: usize, field: &str, sent: &str, body: &mut Value) {
        let Some((origin, rest)) = self.origins.get(at).and_then(|origins| origins.of(field)) else { return };
        let named = joined(origin, &rest);
        // Of several files, the last one that has it has said it.
        let place = self.inputs.iter().rev().find_map(|input| input.place_of(&named));
        let place = place.as_ref().or_else(|| self.lines.get(origin)).unwrap_or(&self.shown);
        let error = body["error"].as_str().unwrap_or_default();
        let problem = error.strip_prefix(sent).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(error);
        body["error"] = format!("{place}: {named}: {problem}").into();
        body["field"] = named.into();
    }
}

impl ReadStack {
    /// A failure of the scheduler's about this stack, with file, line and key where it names a field of the body that was sent.
    pub(in crate::cli) fn placed(&self, failure: Failure) -> Failure {
        let Failure::Refused { status, mut body } = failure else { return failure };
        if status == 413 {
            let error = body["error"].as_str().unwrap_or("body too large");
            body["error"] = format!("{}: {error}{}", self.places.shown, self.largest()).into();
        } else if let Some(sent) = body["field"].as_str().map(ToOwned::to_owned) {
            let service = sent.strip_prefix("services[").and_then(|rest| rest.split_once(']'));
            if let Some((number, field)) = service
                && let Ok(at) = number.parse()
            {
                self.places.place(at, field.strip_prefix('.').unwrap_or(field), &sent, &mut body);
            }
        }
        Failure::Refused { status, body }
    }

    /// What makes the stack large, for the end of a sentence.
    fn largest(&self) -> String {
        let sizes = self.services.iter().map(|service| service.to_string().len());
        let all: usize = sizes.clone().sum();
        let Some((at, bytes)) = sizes.enumerate().max_by_key(|(_, bytes)| *bytes) else { return String::new() };
        let (service, _) = self.places.origins.get(at).and_then(|origins| origins.of("")).unwrap_or_default();
        let sidekicks = self.services[at]["sidekicks"].as_array();
        let members = std::iter::once(&self.services[at]).chain(sidekicks.into_iter().flatten());
        let files = members.filter_map(|member| member["files"].as_array()).flatten();
        let of_files = match files.map(|file| file.to_string().len()).sum::<usize>() {
            0 => String::new(),
            contents => format!(", {contents} of them contents of configs and secrets in base64"),
        };
        format!(": {service} has {bytes} of its {all} bytes{of_files}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::file::tests::read_of;

    const SHOP: &str = "services:\n  db:\n    image: a\n    mem_limit: 1m\n  web:\n    image: b\n    labels:\n      \
                        io.rancher.sidekicks: log\n    secrets:\n    - pw\n  log:\n    image: c\n    configs:\n    - source: conf\n      \
                        target: /a\n    - host\nsecrets:\n  pw:\n    environment: PW\nconfigs:\n  conf:\n    content: x\n  host:\n    file: /srv/x\n";

    fn refused(status: u16, field: &str, error: &str) -> (String, Value) {
        let body = json!({ "error": error, "field": field, "expected": "more" });
        let read = read_of(SHOP, &|name| (name == "PW").then(|| "s3cret".to_owned()));
        let Failure::Refused { body, .. } = read.placed(Failure::Refused { status, body }) else { unreachable!() };
        (body["error"].as_str().unwrap().to_owned(), body["field"].clone())
    }

    #[test]
    fn what_a_scheduler_says_of_a_stack_is_said_of_its_file() {
        for (field, place) in [
            ("services[0].limits.memory", "shop.yml, line 4: services.db.mem_limit"),
            ("services[1].files[0].content", "shop.yml, line 19: secrets.pw.environment"),
            ("services[1].files[0].target", "shop.yml, line 10: services.web.secrets[0].target"),
            ("services[1].sidekicks[0].files[0].content", "shop.yml, line 22: configs.conf.content"),
            ("services[1].sidekicks[0].files[0]", "shop.yml, line 14: services.log.configs[0]"),
            ("services[1].sidekicks[0].image", "shop.yml, line 12: services.log.image"),
        ] {
            let (error, named) = refused(400, field, &format!("{field}: is wrong"));
            assert_eq!(error, format!("{place}: is wrong"));
            assert!(error.ends_with(&format!("{}: is wrong", named.as_str().unwrap())), "{error}");
        }
        let denied = refused(403, "services[0].image", "the policy does not allow it");
        assert_eq!(denied.0, "shop.yml, line 3: services.db.image: the policy does not allow it");
        let places = read_of(SHOP, &|_| Some(String::new())).places;
        let body = json!({ "error": "engine.init: why", "field": "engine.init" });
        let Failure::Refused { body, .. } = places.placed(1, Failure::Refused { status: 403, body }) else {
            unreachable!()
        };
        assert_eq!(body, json!({ "error": "shop.yml, line 5: services.web.init: why", "field": "services.web.init" }));
        // What is about something else is left alone.
        for field in ["expect", "services", "services[7].image", ""] {
            assert_eq!(refused(409, field, "why"), ("why".to_owned(), json!(field)));
        }
    }

    #[test]
    fn what_is_too_large_is_named() {
        let (error, _) = refused(413, "", "body too large");
        assert!(error.starts_with("shop.yml: body too large: services.web has "), "{error}");
        assert!(error.ends_with(" of them contents of configs and secrets in base64"), "{error}");
    }
}
