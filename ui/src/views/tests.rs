//! Sizes and contents of the views over generated clusters.

use model::{Map, Snapshot, Value, objects};

use super::*;
use crate::answers::{HostDetails, Stack, Stacks};
use crate::html::Html;
use crate::world::generated::{object, snapshot};

fn context(snapshot: Snapshot) -> Context {
    Context {
        world: Arc::new(World::empty().next(&Arc::new(snapshot), 0)),
        hosts: Arc::default(),
        hidden: Arc::new(Hidden::new(&["*secret*".into()])),
        now: 0,
    }
}

/// A port, and so many images: a third each that runs on a host, that does not and that may.
fn details(count: usize, name: &str) -> HostDetails {
    let image = |number: usize| {
        let mut image = serde_json::json!({ "image": format!("{name}{number:03}"), "isolation": name });
        match number % 3 {
            0 => {
                image["entry"] =
                    serde_json::json!({ "os": name, "os_version": name, "isolation": name, "warning": name });
            }
            1 => image["refusal"] = name.into(),
            _ => {}
        }
        image
    };
    let port = serde_json::json!({ "public": 8081, "protocol": name });
    let images = (0..count).map(image).collect::<Vec<_>>();
    serde_json::from_value(serde_json::json!({ "ports": [port], "images": images })).unwrap()
}

#[test]
fn a_command_line_has_no_word_that_a_shell_reads_as_more() {
    assert_eq!(command(&["agent", "health", "shop/web-1"]).as_deref(), Some("agent health shop/web-1"));
    assert_eq!(
        command(&["dns", "query", "web", "A", "--client", "fd00::1"]).as_deref(),
        Some("dns query web A --client fd00::1")
    );
    for name in [
        "",
        "$(id)",
        "a b",
        "a;b",
        "`id`",
        "-v",
        "--json",
        "a|b",
        "a&b",
        "a'b",
        "a\nb",
        "a\\b",
        "%PATH%",
        "ü",
        &"a".repeat(201),
    ] {
        assert_eq!(command(&["agent", "health", name]), None, "{name:?}");
    }
}

#[test]
fn a_form_is_asked_as_it_is_written_or_not_at_all() {
    let hidden = Hidden::new(&["*password*".into()]);
    let asked = |path: &str, fields: &str| placements::question(&Query::parse(path, fields), &hidden);
    for (path, fields, wrong) in [
        ("placements/explain", "image=a&cpu=-5", "cpu"),
        ("placements/explain", "image=a&cpu=abc", "cpu"),
        ("placements/explain", "memory=1GiB", "image"),
        ("placements/explain", "image=a&constraints=db_password%3Dhunter2", "constraints"),
        ("placements/what-if", "count=3", "service"),
        ("placements/what-if", "service=a%2Fb&count=abc", "count"),
        ("placements/rebalance", "moves=-1", "moves"),
        ("placements/rebalance", "moves=0", "moves"),
        ("placements/rebalance", "moves=101", "moves"),
    ] {
        let why = asked(path, fields).unwrap_err();
        assert!(why.starts_with(&format!("{wrong}: ")), "{fields}: {why}");
    }
    assert_eq!(asked("placements", "").unwrap(), None);
    assert_eq!(asked("placements/explain", "image=").unwrap(), None);
    let hosts: Vec<_> = (0..300).map(|host| format!("host-{host:04}")).collect();
    let (_, body) = asked("placements/what-if", &format!("lose={}", hosts.join(","))).unwrap().unwrap();
    assert_eq!(body["lose"].as_array().unwrap().len(), 300);
}

#[test]
fn hosts_of_any_system_are_on_a_map() {
    let host = |name: &str, os: Option<&str>| {
        let label = os.map(|os| ("io.rancher.host.os".into(), Value::text(os)));
        let labels = Value::Map(Map::new(label.into_iter().collect()));
        object("host", &[("uuid", Value::text(name)), ("name", Value::text(name)), ("labels", labels)])
    };
    let hosts =
        [("a", Some("windows")), ("b", Some("Windows")), ("c", Some("freebsd")), ("d", None), ("e", Some("linux"))];
    let context = context(objects::read(hosts.map(|(name, os)| host(name, os))).0);
    let page = hosts::hosts(&context, &Query::default());
    let maps =
        page.blocks.iter().find_map(|block| if let Block::Maps(maps) = block { Some(maps) } else { None }).unwrap();
    let shown: Vec<_> = maps.iter().map(|map| (&*map.id, map.levels.len())).collect();
    assert_eq!(shown, [("map-windows", 2), ("map-linux", 1), ("map-other", 2)]);
    for map in maps {
        let query = Query::parse("hosts", map.names.split_once('?').unwrap().1);
        assert_eq!(hosts::names(&context, &query)["name"].as_array().unwrap().len(), map.levels.len(), "{}", map.id);
    }
}

fn written(page: &Page) -> String {
    let mut html = Html::default();
    html.text(&page.title).text(&page.lead);
    page.write(&mut html);
    html.into_string()
}

#[test]
fn no_view_of_a_large_cluster_is_larger_than_a_browser_likes() {
    let context = context(snapshot(5000, 20));
    let query = Query::default();
    let first = context.world.snapshot.hosts.keys().next().unwrap().clone();
    for (name, page) in [
        ("overview", overview::overview(&context, &overview::Process::default())),
        ("hosts", hosts::hosts(&context, &query)),
        ("host", hosts::host(&context, &query, &first, Some(details(200, "web")))),
        ("services", services::services(&context, &query)),
        ("changes", changes::changes(&context, &query)),
        ("search", search::search(&context, "service")),
    ] {
        let html = written(&page);
        assert!(html.len() <= 130_000, "{name}: {} bytes", html.len());
        assert!(html.matches("</").count() + html.matches("/>").count() <= 2500, "{name}");
    }
    let last = Query::parse("hosts", "page=50");
    assert!(written(&hosts::hosts(&context, &last)).contains("4901–5000 of 5000"));
}

#[test]
fn images_that_a_host_cannot_run_are_first_with_the_reason() {
    let context = context(snapshot(1, 1));
    let host = context.world.snapshot.hosts.keys().next().unwrap().clone();
    let html = written(&hosts::host(&context, &Query::default(), &host, Some(details(150, "web"))));
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text} in {html}"));
    assert!(at("50 of 150 cannot run here · the first 100") < at("cannot run</td><td>web</td>"));
    assert!(at(">web148<") > at("cannot run</td>") && !html.contains(">web147<"), "{html}");
    assert!(html.contains("8081/web"), "{html}");
    let without = written(&hosts::host(&context, &Query::default(), &host, None));
    assert!(!without.contains("cannot run here"), "{without}");
}

#[test]
fn hostile_names_and_labels_are_text_and_secrets_are_not_shown() {
    let evil = "<img src=x onerror=alert(1)>\"'\u{202e}\0]]>";
    let labels = Map::new(vec![(evil.into(), Value::text(evil)), ("my_secret".into(), Value::text("hunter2"))]);
    let fields = [
        ("uuid", Value::text(evil)),
        ("name", Value::text(evil)),
        ("host_uuid", Value::text(evil)),
        ("state", Value::text(evil)),
        ("health_state", Value::text(evil)),
        ("labels", Value::Map(labels)),
    ];
    let rule = Map::new(vec![
        ("source_port".into(), Value::Int(80)),
        ("hostname".into(), Value::text(evil)),
        ("path".into(), Value::text(evil)),
        ("service".into(), Value::text(evil)),
    ]);
    let lb_config = Value::Map(Map::new(vec![("port_rules".into(), Value::list(vec![Value::Map(rule)]))]));
    let service = [
        ("uuid", Value::text(evil)),
        ("name", Value::text(evil)),
        ("stack_name", Value::text(evil)),
        ("kind", Value::text("loadBalancerService")),
        ("lb_config", lb_config),
        ("token", Value::text("hunter2")),
    ];
    let all = [object("container", &fields), object("host", &fields), object("service", &service)];
    let context = context(objects::read(all).0);
    let query = Query::parse("hosts", &format!("q={}", crate::query::part(&evil[..4])));
    let id = context.world.snapshot.services.keys().next().unwrap().clone();
    let stack = serde_json::json!({
        "name": evil, "revision": 1, "state": evil, "detail": evil, "subject": evil, "orphans": [evil],
        "services": [{
            "name": evil, "image": evil, "stage": evil, "why": evil, "wanted": 1, "good": 0, "waits": evil,
            "units": [{ "id": evil, "host": evil, "state": evil, "why": evil, "is_wanted": true }],
        }],
    });
    let stack = || serde_json::from_value::<Stack>(stack.clone()).unwrap();
    for page in [
        stacks::stacks(Ok(Stacks { stacks: vec![stack()], warning: Some(evil.to_owned()) })),
        stacks::stack(&context, Ok(stack())),
        stacks::stack(&context, Err(evil.to_owned())),
        overview::overview(&context, &overview::Process::default()),
        hosts::hosts(&context, &query),
        hosts::host(&context, &query, evil, Some(details(3, evil))),
        services::services(&context, &Query::default()),
        services::service(&context, &query, &id, &[]),
        containers::container(&context, evil, None),
        search::search(&context, "img"),
        search::search(&context, evil),
        search::search(&context, "my_secret=hunter2"),
        names::names(&query, Some(Err(evil.to_owned())), &[]),
    ] {
        let html = written(&page);
        assert!(!html.contains("<img") && !html.contains('\u{202e}') && !html.contains('\0'), "{html}");
        assert!(!html.replace("“my_secret=hunter2”", "").contains("hunter2"), "{html}");
    }
}
