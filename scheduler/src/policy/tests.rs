//! Who may have what, by a policy in a file and by the built-in rules.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn policy(text: &serde_json::Value) -> Result<Policy, Invalid> {
    Policy::parse(&serde_json::from_value(text.clone()).unwrap())
}

fn request(json: &serde_json::Value, subject: Option<&str>) -> Request {
    let mut request = Request::parse(&serde_json::from_value(json.clone()).unwrap()).unwrap();
    request.subject = Subject::of_token(subject);
    request
}

/// The rule and the field by which a request is refused, `request` if it is none; empty if it is not refused.
fn refused(policy: &Policy, json: &serde_json::Value) -> (&'static str, String) {
    match Request::parse(&serde_json::from_value(json.clone()).unwrap()) {
        Ok(request) => policy.check(&request, &[]).err().map(|denial| (denial.rule, denial.field)).unwrap_or_default(),
        Err(invalid) => ("request", invalid.field),
    }
}

#[test]
fn without_a_policy_nothing_leads_into_the_host_or_to_a_strangers_container() {
    let policy = Policy::default();
    for fine in [
        json!({"image": "web", "stack": "shop", "service": "web", "network": "shop", "requested_host": "one"}),
        json!({"image": "web", "network": "none", "volumes": ["/new", "data:/data", "/new:ro"]}),
        json!({"name": "app", "image": "web", "network_from": "NET", "volumes_from": ["data:ro"],
               "sidekicks": [{"name": "net"}, {"name": "data"}]}),
    ] {
        assert_eq!(refused(&policy, &fine), ("", String::new()), "{fine}");
    }
    for (wrong, rule, field) in [
        (json!({"volumes": ["/:/h"]}), "bind_sources", "volumes[0]"),
        (json!({"volumes": ["data:/a", "/etc/shadow:/a:ro"]}), "bind_sources", "volumes[1]"),
        (json!({"volumes": ["/var/run/docker.sock:/s"]}), "bind_sources", "volumes[0]"),
        (json!({"volumes": ["\\\\.\\pipe\\docker_engine:\\\\.\\pipe\\a"]}), "bind_sources", "volumes[0]"),
        (json!({"volumes": ["C:\\:C:\\h"]}), "bind_sources", "volumes[0]"),
        (json!({"volumes": ["..:/h"]}), "request", "volumes[0]"),
        (json!({"network": "host"}), "networks", "network"),
        (json!({"network": "Host"}), "networks", "network"),
        (json!({"network": "container:db"}), "networks", "network"),
        (json!({"network": "ns:/proc/1/ns/net"}), "networks", "network"),
        (json!({"network_from": "db"}), "joins", "network_from"),
        (json!({"volumes_from": ["db:ro"]}), "joins", "volumes_from[0]"),
        (
            json!({"name": "a", "sidekicks": [{"name": "b"}, {"name": "c", "network_from": "db"}]}),
            "joins",
            "sidekicks[1].network_from",
        ),
    ] {
        assert_eq!(refused(&policy, &wrong), (rule, field.to_owned()), "{wrong}");
    }
}

#[test]
fn options_of_volumes_are_privileges_and_no_denial_shows_passwords() {
    let body = json!({"volumes": ["data:/a"], "volume_options": {"data": {"device": "/etc", "o": "bind,password=s3cret", "type": "none"}}});
    let request = request(&body, None);
    let field = "volume_options.data";
    let denial = Policy::default().check(&request, &[]).unwrap_err();
    assert_eq!((denial.rule, &*denial.field), ("privileges", field));
    let allowed = |privileges: serde_json::Value| {
        let policy = policy(&json!({"default": {"privileges": privileges}})).unwrap();
        let denied = policy.check(&request, &[]).err();
        assert!(denied.as_ref().is_none_or(|denial| !denial.to_string().contains("s3cret")), "{denied:?}");
        denied.is_none()
    };
    for (privileges, fine) in [
        (json!(["volume_options=*"]), true),
        (json!(["volume_options=device=/etc", "volume_options=o", "volume_options=type=none"]), true),
        (json!(["volume_options=device=/srv", "volume_options=o", "volume_options=type=none"]), false),
        (json!(["volume_options=device=/etc", "volume_options=type=none"]), false),
    ] {
        assert_eq!(allowed(privileges.clone()), fine, "{privileges}");
    }
}

#[test]
fn nothing_but_an_entry_of_its_own_allows_the_socket_of_an_engine() {
    let all = policy(&json!({"default": {"bind_sources": ["/", "C:/"]}})).unwrap();
    for (volume, fine) in [
        ("/srv:/a", true),
        ("/etc/shadow:/a", true),
        ("/:/h", false),
        ("/run:/a", false),
        ("/var:/a", false),
        ("/var/run/docker.sock:/a", false),
        ("/run/user/1000/docker.sock:/a", false),
        ("//run//docker.sock/:/a", false),
        ("C:\\:C:\\h", true),
        ("\\\\.\\pipe\\docker_engine:\\\\.\\pipe\\a", false),
    ] {
        assert_eq!(refused(&all, &json!({"volumes": [volume]})).0.is_empty(), fine, "{volume}");
    }
    let socket = policy(&json!({"default": {"bind_sources": ["/run/docker.sock", "//./pipe/docker_engine"]}})).unwrap();
    for volume in ["/run/docker.sock:/a", "\\\\.\\PIPE\\docker_engine:\\\\.\\pipe\\a"] {
        assert_eq!(refused(&socket, &json!({"volumes": [volume]})).0, "", "{volume}");
    }
    assert_eq!(refused(&socket, &json!({"volumes": ["/run:/a"]})).0, "bind_sources");
}

#[test]
fn no_folder_around_the_endpoint_of_an_engine_is_mounted() {
    let endpoints = ["/tmp/x/docker.sock", "/var/run/own/engine", "//./pipe/own"].map(ToOwned::to_owned);
    let is_refused = |sources: &[&str], volume: &str| {
        let policy = policy(&json!({"default": {"bind_sources": sources}})).unwrap();
        policy.check(&request(&json!({"volumes": [volume]}), None), &endpoints).is_err()
    };
    for volume in ["/tmp:/t", "/tmp/x:/t", "/var/run/own:/t", "/run/own:/t", "/run/own/engine:/t"] {
        assert!(is_refused(&["/"], volume), "{volume}");
        assert!(!is_refused(&["/", "/tmp/x/docker.sock", "/run/own/engine"], volume), "{volume}");
    }
    assert!(!is_refused(&["/"], "/tmp/y:/t"));
    // One socket stands for no other.
    assert!(is_refused(&["/", "/run/docker.sock", "/var/run/own/engine"], "/:/t"));
}

#[test]
fn no_id_of_a_network_passes_as_a_name() {
    let open = policy(&json!({"default": {"networks": "*"}})).unwrap();
    for (network, fine) in [
        ("3f9c1d8a7b20", false),
        (&*"AB".repeat(32), false),
        // Names: too short or too long for an id, or with another letter.
        ("cafe", true),
        (&*"a".repeat(65), true),
        ("3f9c1d8a7b2g", true),
    ] {
        for policy in [&Policy::default(), &open] {
            let found = refused(policy, &json!({"image": "web", "network": network}));
            assert_eq!(found.0.is_empty(), fine, "{network}: {found:?}");
        }
    }
}

#[test]
fn no_container_without_a_network_gets_into_a_default_one_that_is_not_allowed() {
    for (networks, fine) in [
        (json!(["test-*"]), false),
        (json!([]), false),
        (json!(["host"]), false),
        (json!("*"), true),
        (json!(["test-*", "bridge"]), true),
        (json!(["default"]), true),
        (json!(["nat"]), true),
    ] {
        let policy = policy(&json!({"default": {"networks": networks}})).unwrap();
        assert_eq!(refused(&policy, &json!({"image": "web"})).0.is_empty(), fine, "{networks}");
        let sidekick = json!({"image": "web", "network_from": "s", "sidekicks": [{"name": "s", "image": "web"}]});
        let expected = if fine { "" } else { "sidekicks[0].network" };
        assert_eq!(refused(&policy, &sidekick).1, expected, "{networks}");
    }
    let policy = policy(&json!({"default": {"networks": ["test-*"]}})).unwrap();
    assert_eq!(refused(&policy, &json!({"image": "web", "network": "test-1"})).0, "");
    let several = |networks| refused(&policy, &json!({"image": "web", "networks": networks})).1;
    assert_eq!(several(json!(["test-1", "test-2"])), "");
    assert_eq!(several(json!(["test-1", "other"])), "networks[1]");
    assert_eq!(several(json!(["other", "test-1"])), "network");
    let denial = policy.check(&request(&json!({"image": "web"}), None), &[]).unwrap_err();
    assert!(denial.to_string().contains("give it one that they allow") && denial.expected().contains("[\"bridge\"]"));
}

#[test]
fn each_subject_has_its_own_rules() {
    let policy = policy(&json!({
        "default": {"stacks": ["shop"], "images": ["shop/*"]},
        "subjects": {
            "token:ci": {"stacks": ["test-*"], "volumes": [], "networks": ["host"], "hosts": ["build-*"]},
            "token:ops": {"stacks": "*", "bind_sources": ["/srv/shop"], "joins": ["log-*"]},
        },
    }))
    .unwrap();
    let refused = |subject: Option<&str>, json: serde_json::Value| {
        policy.check(&request(&json, subject), &[]).err().map_or("", |denial| denial.rule)
    };
    for (subject, json, rule) in [
        (None, json!({"stack": "shop", "image": "shop/web"}), ""),
        (None, json!({"stack": "shop", "image": "web"}), "images"),
        (None, json!({"stack": "data", "image": "shop/web"}), "stacks"),
        (None, json!({"image": "shop/web"}), "stacks"),
        (Some("other"), json!({"stack": "data"}), "stacks"),
        (Some("ci"), json!({"stack": "test-1", "image": "shop/web", "network": "host"}), ""),
        // What its own rules leave out is as for all.
        (Some("ci"), json!({"stack": "test-1", "image": "web"}), "images"),
        (Some("ci"), json!({"stack": "test-1", "volumes": ["data:/a"]}), "volumes"),
        (Some("ci"), json!({"stack": "test-1", "network": "host"}), ""),
        (Some("ci"), json!({"stack": "test-1", "network": "shop"}), "networks"),
        (Some("ops"), json!({"volumes": ["/srv/shop/:/a"], "network_from": "log-1"}), ""),
        // It may be a link that a container made.
        (Some("ops"), json!({"volumes": ["/srv/shop/a:/a"]}), "bind_sources"),
        (Some("ops"), json!({"volumes": ["/srv/shops:/a"]}), "bind_sources"),
    ] {
        assert_eq!(refused(subject, json.clone()), rule, "{subject:?} {json}");
    }
    let [ci, ops] = ["ci", "ops"].map(|name| Subject::of_token(Some(name)));
    assert!(policy.check_host(&ci, "build-1", "u1").is_ok() && policy.check_host(&ci, "web-1", "u2").is_err());
    assert!(policy.check_nameless(&ops).is_ok() && policy.check_nameless(&ci).is_err());
    let data = request(&json!({"stack": "data"}), None);
    assert!(policy.check_removal(&ops, &data).is_ok() && policy.check_removal(&ci, &data).is_err());
}

#[test]
fn no_label_makes_a_container_a_member_of_a_forbidden_stack() {
    let policy = policy(&json!({"default": {"stacks": ["shop"]}})).unwrap();
    for (labels, fine) in [
        (json!({"com.docker.compose.project": "shop"}), true),
        (json!({"app": "data"}), true),
        (json!({"com.docker.compose.project": "data"}), false),
        (json!({"IO.RANCHER.stack.name": "data"}), false),
        (json!({"io.rancher.stack_service.name": "data/db"}), false),
        (json!({"io.rancher.project_service.name": "data/db/side"}), false),
    ] {
        for json in [
            json!({"stack": "shop", "labels": labels}),
            json!({"stack": "shop", "sidekicks": [{"name": "side", "labels": labels}]}),
        ] {
            assert_eq!(refused(&policy, &json).0.is_empty(), fine, "{json}");
        }
    }
    // A label alone says of which stack it is.
    assert_eq!(refused(&policy, &json!({"labels": {"com.docker.compose.project": "shop"}})).0, "");
}

#[test]
fn a_refusal_names_the_rule_and_what_to_type() {
    let denial = Policy::default().check(&request(&json!({"volumes": ["/srv/a:/a"]}), Some("ci")), &[]).unwrap_err();
    assert_eq!(denial.to_string(), "volumes[0]: the policy's bind_sources do not allow token:ci to use /srv/a");
    let expected = denial.expected();
    assert!(expected.contains("--policy FILE"), "{expected}");
    assert!(expected.contains(r#"`subjects: {"token:ci": {bind_sources: ["/srv/a"]}}`"#), "{expected}");
}

#[test]
fn a_wrong_field_of_a_policy_is_named() {
    for (text, expected) in [
        (json!([]), "found a list, expected a map"),
        (json!({"subject": {}}), "subject: unknown field, expected one of default, subjects"),
        (json!({"default": {"image": []}}), "default.image: unknown field"),
        (json!({"default": {"images": 5}}), "default.images: found 5, expected a list of texts"),
        (json!({"subjects": {"token:ci": {"stacks": [true]}}}), "subjects.token:ci.stacks[0]: found true"),
        (json!({"default": {"bind_sources": ["/a", "../b"]}}), "default.bind_sources[1]: found \"../b\""),
        (json!({"default": {"bind_sources": ["/srv/a", "/srv"]}}), "bind_sources: found /srv/a, which is below /srv,"),
        (
            json!({"subjects": {"token:a": {"bind_sources": ["C:/b/c"]}, "token:b": {"bind_sources": ["c:/B"]}}}),
            "found C:\\b\\c, which is below C:\\B",
        ),
    ] {
        let error = policy(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Components of a path, with `..` taken literally: what a source means at least.
fn normal(path: &str, windows: bool) -> Vec<String> {
    let mut components = Vec::new();
    for part in path.split(|char| char == '/' || (windows && char == '\\')) {
        match part {
            "" | "." => {}
            ".." => drop(components.pop()),
            part if windows => components.push(part.trim_end_matches(['.', ' ']).to_lowercase()),
            part => components.push(part.to_owned()),
        }
    }
    components
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_source_outside_the_folders_is_accepted(
        parts in prop::collection::vec(
            prop::sample::select(vec!["data", "Data", "database", "etc", "..", ".", "", "...", "data.", ".. ", "a b", "~", "run", "docker.sock"]),
            0..6,
        ),
        separators in prop::collection::vec(prop::sample::select(vec!["/", "\\", "//"]), 6),
        root in prop::sample::select(vec!["", "/", "//", "\\", "C:\\", "c:/", "D:\\", "\\\\?\\C:\\", "\\\\.\\pipe\\", "./"]),
        target in prop::sample::select(vec![":/t", ":C:\\t", ":/t:ro", ":C:\\t:ro"]),
    ) {
        let pairs = parts.iter().zip(&separators);
        let path: String = pairs.flat_map(|(part, separator)| [*part, *separator]).collect();
        let volume = format!("{root}{path}{target}");
        let policy = policy(&json!({"default": {"bind_sources": ["/data", "C:\\data"], "volumes": []}})).unwrap();
        if refused(&policy, &json!({"volumes": [volume]})).0.is_empty() {
            let windows = root.contains(':');
            let meant = normal(&path, windows);
            prop_assert_eq!(meant.first().map(String::as_str), Some("data"), "{}", volume);
            prop_assert!(!root.contains("pipe") && root != "./" && root != "D:\\", "{}", volume);
        }
    }
}

#[test]
fn what_touches_everything_needs_every_stack_and_every_host() {
    let subject = |name: &str| Subject::of_token(Some(name));
    let policy = policy(&json!({"subjects": {
        "token:some": {"stacks": ["", "shop"]}, "token:here": {"hosts": ["a", "b"]}, "token:all": {"stacks": "*", "hosts": "*"},
    }}))
    .unwrap();
    for (name, rule) in [("some", Some("stacks")), ("here", Some("hosts")), ("all", None), ("other", None)] {
        let denial = policy.check_everything(&subject(name)).err();
        assert_eq!(denial.as_ref().map(|denial| denial.rule), rule, "{name}");
        assert!(denial.is_none_or(|denial| denial.expected().contains(r#": ["*"]}"#)), "{name}");
    }
}

#[test]
fn who_looks_inside_needs_the_stacks_that_labels_name() {
    let subject = |name: &str| Subject::of_token(Some(name));
    let policy = policy(&json!({"subjects": {
        "token:a": {"stacks": ["", "a"], "exec": ["", "a"]}, "token:b": {"stacks": ["b"], "exec": ["b"]},
        "token:both": {"stacks": ["a", "b"], "exec": ["a"]},
    }}))
    .unwrap();
    let asked = |text: serde_json::Value| Request::parse(&serde_json::from_value(text).unwrap()).unwrap();
    let plain = asked(json!({"id": "x"}));
    let by_label = asked(json!({"id": "x", "labels": {"com.docker.compose.project": "b"}}));
    let by_path = asked(json!({"id": "x", "labels": {"io.rancher.stack_service.name": "b/web"}}));
    let sidekick =
        asked(json!({"id": "x", "stack": "a", "sidekicks": [{"name": "y", "labels": {"io.rancher.stack.name": "b"}}]}));
    for (name, asked, sees, runs) in [
        ("a", &plain, true, true),
        ("a", &by_label, false, false),
        ("a", &by_path, false, false),
        ("a", &sidekick, false, false),
        ("b", &plain, false, false),
        ("b", &by_label, true, true),
        ("b", &by_path, true, true),
        ("b", &sidekick, false, false),
        ("both", &sidekick, true, false),
    ] {
        let allowed = [false, true].map(|exec| policy.check_inside(&subject(name), asked, exec).is_ok());
        assert_eq!(allowed, [sees, runs], "{name} {asked:?}");
    }
}

#[test]
fn commands_run_only_where_a_rule_says_so() {
    let subject = |name: &str| Subject::of_token(Some(name));
    let policy =
        policy(&json!({"subjects": {"token:ops": {"exec": ["shop", "test-*"]}, "token:all": {"exec": "*"}}})).unwrap();
    for (name, stack, allowed) in [
        ("ci", "shop", false),
        ("ops", "shop", true),
        ("ops", "test-1", true),
        ("ops", "bank", false),
        ("ops", "", false),
        ("all", "", true),
    ] {
        assert_eq!(policy.check_exec(&subject(name), stack).is_ok(), allowed, "{name} {stack}");
    }
    let denial = Policy::default().check_exec(&subject("ops"), "shop").unwrap_err();
    assert_eq!((denial.rule, &*denial.field), ("exec", "of"));
    assert!(denial.expected().contains(r#"{exec: ["shop"]}"#), "{}", denial.expected());
}
