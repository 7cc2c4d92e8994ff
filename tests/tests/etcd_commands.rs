//! What a person asks of etcd through the agent: what dead hosts left, and what is wrong.

use serde_json::{Value, json};
use tests::etcd::Etcd;
use tests::service::Ended;
use tests::wait::seconds;
use tests::{Executable, Launch};

fn agent(words: &[&str]) -> Ended {
    words.iter().fold(Launch::bare(Executable::Agent), Launch::word).run()
}

#[test]
fn dead_keys_are_told_and_removed() {
    let Some(etcd) = Etcd::start(1) else { return };
    etcd.put("/berth/v1/hosts/gone/containers/x", r#"{"name": "x"}"#);
    etcd.put("/berth/v1/documents/kept", r#"{"services": [{"name": "web", "stack": "shop"}]}"#);
    let urls = etcd.urls();
    let told = agent(&["prune", "--etcd", &urls, "--dry-run"]);
    assert_eq!(told.code, Some(0), "{}", told.errors);
    assert!(
        told.output.contains("/berth/v1/hosts/gone/containers/x") && told.output.contains("1 keys would be removed")
    );
    let removed = agent(&["prune", "--etcd", &urls, "--json"]);
    let removed: Value = serde_json::from_str(&removed.output).unwrap_or_default();
    assert_eq!(removed["removed"][0]["key"], "/berth/v1/hosts/gone/containers/x", "{removed}");
    let again = agent(&["prune", "--etcd", &urls]);
    assert!(again.output.starts_with("0 keys removed, 0 hosts are there"), "{}", again.output);
    let away = agent(&["prune", "--etcd", "http://127.0.0.1:1"]);
    assert_eq!(away.code, Some(1));
    assert!(away.errors.contains("http://127.0.0.1:1"), "{}", away.errors);
    assert_eq!(agent(&["prune"]).code, Some(2));
}

/// A claim that was written long ago, whose host is not there, is listed; those of hosts that are there, and those that are
/// newer, are not. All of them stay.
#[test]
fn old_claims_of_hosts_that_are_gone_are_listed_and_stay() {
    let Some(etcd) = Etcd::start(1) else { return };
    let claim = |host: &str, third: u8, at: &str, announced: Option<&str>| {
        let key = format!("/berth/v1/claims/subnet/10.42.{third}.0-24");
        etcd.put(&key, &json!({ "host": host, "at": at }).to_string());
        if let Some(at) = announced {
            let value = json!({ "subnet": format!("10.42.{third}.0/24"), "via": "10.44.0.1", "at": at });
            etcd.put(&format!("/berth/v1/claims/host/{host}"), &value.to_string());
        }
    };
    let (old, new) = ("2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z");
    claim("gone", 1, old, Some(old));
    claim("living", 2, old, Some(old));
    claim("invited", 3, new, None);
    claim("moved", 4, old, Some(new));
    etcd.put("/berth/v1/claims/subnet/10.42.5.0-24", r#"{"host": "by-hand"}"#);
    etcd.put("/berth/v1/claims/subnet/10.42.6.0-24", r#"{"freed": true, "host": "freed", "until": 1}"#);
    etcd.put("/berth/v1/hosts/living/host", r#"{"name": "living"}"#);
    etcd.put("/berth/v1/hosts/gone/containers/x", r#"{"name": "x"}"#);
    let urls = etcd.urls();
    let listed = agent(&["prune", "--claims", "--older", "30d", "--etcd", &urls, "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.errors);
    let report: Value = serde_json::from_str(&listed.output).unwrap();
    assert_eq!(report, json!({ "claims": [{ "host": "gone", "subnet": "10.42.1.0/24", "at": old }], "hosts": 1 }));
    let again = agent(&["prune", "--claims", "--older", "30d", "--etcd", &urls]).output;
    assert!(
        again.starts_with("gone has 10.42.1.0/24 since 2020-01-01T00:00:00Z and is not there\n1 claims"),
        "{again}"
    );
    assert!(agent(&["prune", "--etcd", &urls, "--dry-run"]).output.contains("hosts/gone/containers/x"));
    assert_eq!(agent(&["prune", "--claims", "--etcd", &urls]).code, Some(2));
    assert_eq!(agent(&["prune", "--older", "30d", "--etcd", &urls]).code, Some(2));
}

#[test]
fn an_etcd_without_users_is_not_invited_to_in_silence() {
    let Some(etcd) = Etcd::start(1) else { return };
    let urls = etcd.urls();
    let told = agent(&["invite", "plain", "--etcd", &urls, "--label", "zone=a,b", "--ttl", "60s"]);
    assert_eq!(told.code, Some(0), "{}", told.errors);
    assert!(told.output.contains("this etcd has no users"), "{}", told.output);
    let token = told.output.lines().find_map(|line| line.trim().strip_prefix("agent join ")).unwrap_or_default();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let state = folder.path().join("state").display().to_string();
    // There is no engine, and nothing else is wrong.
    let joined = agent(&["join", token, "--docker=unix:///nowhere/docker.sock", "--state-dir", &state]);
    assert!(joined.code == Some(1) && joined.errors.starts_with("error: engine: "), "{}", joined.errors);
    assert_eq!(joined.errors.lines().count(), 2, "{}", joined.errors);
    assert_eq!(agent(&["label", "plain", "--etcd", &urls]).output.lines().next(), Some("zone=a,b"));
    assert!(agent(&["rotate", "plain", "--etcd", &urls]).errors.contains("plain: it is not there now"));
    assert_eq!(agent(&["invite", "a/b", "--etcd", &urls]).code, Some(2));
    assert!(agent(&["join"]).errors.contains("<TOKEN>"));
}

#[test]
fn the_doctor_looks_at_every_member() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let urls = etcd.urls();
    let look = || {
        // Loopback, so that nothing but this machine is asked.
        let ended =
            agent(&["doctor", "--json", "--metadata", "127.0.0.1:1", "--dns", "127.0.0.1:1", "--etcd", &urls]).output;
        let report: Value = serde_json::from_str(&ended).unwrap_or_default();
        let findings = report["findings"].as_array().cloned().unwrap_or_default();
        let of_etcd =
            |finding: &Value| finding["subject"].as_str().is_some_and(|subject| subject.contains("etcd http"));
        findings.into_iter().filter(of_etcd).map(|finding| finding.to_string()).collect::<Vec<_>>()
    };
    let found = look();
    assert_eq!(found.iter().filter(|line| line.contains("leads")).count(), 1, "{found:#?}");
    assert_eq!(found.iter().filter(|line| line.contains("follows")).count(), 2, "{found:#?}");
    assert_eq!(found.iter().filter(|line| line.contains("agrees with this machine")).count(), 3, "{found:#?}");
    etcd.kill(0);
    // The others may have to find a new leader first.
    tests::eventually("one member is bad", seconds(30), || {
        let found = look();
        let bad: Vec<_> = found.iter().filter(|line| line.contains("\"bad\"")).collect();
        (bad.len() == 1 && bad[0].contains("start this member")).then_some(())
    });
}
