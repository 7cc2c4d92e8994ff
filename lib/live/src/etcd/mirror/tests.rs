use super::*;

/// A mirror and its clock, driven by lines.
struct Scene {
    mirror: KeyMirror,
    now: Duration,
    revision: i64,
    pairs: BTreeMap<String, Pair>,
}

const LEASE: u64 = 15;
const GRACE: u64 = RETURN_GRACE.as_secs();

impl Scene {
    fn new() -> Self {
        let mirror = KeyMirror::new("/p/".into(), Duration::from_secs(LEASE));
        Self { mirror, now: Duration::ZERO, revision: 1, pairs: BTreeMap::new() }
    }

    fn pair(&mut self, path: &str, value: &str) -> Pair {
        self.revision += 1;
        let pair = Pair {
            key: format!("/p/{path}").into_bytes(),
            value: value.into(),
            mod_revision: self.revision,
            ..Pair::default()
        };
        self.pairs.insert(path.to_owned(), pair.clone());
        pair
    }

    fn put(&mut self, path: &str, value: &str) -> &mut Self {
        let pair = self.pair(path, value);
        self.mirror.put(&pair, self.now, Some(1_000_000));
        self
    }

    fn host(&mut self, name: &str) -> &mut Self {
        self.put(&format!("hosts/{name}/host"), &format!(r#"{{"name":"{name}"}}"#))
    }

    fn container(&mut self, host: &str, name: &str) -> &mut Self {
        self.put(&format!("hosts/{host}/containers/{name}"), &format!(r#"{{"name":"{name}"}}"#))
    }

    fn delete(&mut self, path: &str) -> &mut Self {
        self.revision += 1;
        self.pairs.remove(path);
        self.mirror.delete(format!("/p/{path}").as_bytes(), self.revision, self.now);
        self
    }

    /// etcd is wiped without an event.
    fn wipe(&mut self) -> &mut Self {
        self.pairs.clear();
        self.revision = 1;
        self
    }

    fn list(&mut self, again: bool) -> &mut Self {
        let pairs: Vec<_> = self.pairs.values().cloned().collect();
        let mut reader = self.mirror.reader();
        reader.page(pairs, again);
        self.mirror.list(reader, again, self.now);
        self
    }

    /// So many seconds later.
    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self.mirror.expire(self.now);
        self
    }

    /// What is published: parts with the names of their containers, `-part` when it is gone, and its defects.
    fn shows(&mut self, expected: &str) -> &mut Self {
        let scene = self.mirror.take().into_iter().map(|change| {
            let defects: Vec<_> = change.defects.iter().map(|defect| format!("({defect})")).collect();
            let text = match change.document {
                Some(document) => {
                    let list = document.list("containers").iter();
                    let names: Vec<_> =
                        list.map(|value| value.as_map().unwrap().text("name").unwrap().to_string()).collect();
                    format!("{}:{}", change.part, names.join(","))
                }
                None => format!("-{}", change.part),
            };
            text + &defects.concat()
        });
        assert_eq!(scene.collect::<Vec<_>>().join(" "), expected);
        self
    }
}

#[test]
fn a_host_is_shown_once_it_is_there() {
    let mut scene = Scene::new();
    scene.container("a", "x").shows("").host("a").shows("hosts/a:x");
    scene
        .container("a", "y")
        .container("a", "z")
        .shows("hosts/a:x,y,z")
        .delete("hosts/a/containers/y")
        .shows("hosts/a:x,z");
    scene.container("a", "x").shows("");
    scene
        .put("documents/d", r#"{"containers":[{"name":"c"}]}"#)
        .shows("documents/d:c")
        .delete("documents/d")
        .shows("-documents/d");
}

#[test]
fn a_host_in_parts_is_shown_when_it_is_whole() {
    let mut scene = Scene::new();
    scene.put("hosts/a/host", r#"{"name":"a","published":{"partial":true}}"#).container("a", "x").shows("");
    scene.host("a").shows("hosts/a:x");
    // Its lease ran out, and it publishes in parts again: what was shown stays until all is there.
    scene.delete("hosts/a/containers/x").delete("hosts/a/host").shows("");
    scene.put("hosts/a/host", r#"{"name":"a","published":{"partial":true}}"#).shows("").at(100).shows("");
    scene.container("a", "x").container("a", "y").host("a").shows("hosts/a:x,y");
}

#[test]
fn a_host_goes_after_a_grace_and_returns_within_it_unnoticed() {
    let mut scene = Scene::new();
    scene.host("a").container("a", "x").shows("hosts/a:x");
    scene.delete("hosts/a/containers/x").delete("hosts/a/host").shows("").at(GRACE - 1).shows("");
    scene.host("a").container("a", "x").shows("").at(GRACE + 10).shows("");
    scene.delete("hosts/a/containers/x").delete("hosts/a/host").shows("").at(2 * GRACE + 9).shows("");
    scene.at(2 * GRACE + 10).shows("-hosts/a").at(1000).shows("");
    scene.host("a").shows("hosts/a:");
    scene
        .put("hosts/a/host", r#"{"name":"a","published":{"leaving":true}}"#)
        .shows("-hosts/a")
        .delete("hosts/a/host")
        .shows("");
}

#[test]
fn nobody_goes_while_etcd_is_away() {
    let mut scene = Scene::new();
    scene.host("a").host("b").shows("hosts/a: hosts/b:").delete("hosts/a/host").shows("");
    scene.mirror.pause();
    scene.at(10_000).shows("");
    let now = scene.now;
    scene.mirror.resume(now);
    scene.at(10_000 + GRACE - 1).shows("").at(10_000 + GRACE).shows("-hosts/a");
}

#[test]
fn who_is_missing_in_a_list_goes_after_its_lease() {
    let mut scene = Scene::new();
    scene.host("a").container("a", "x").host("b").shows("hosts/a:x hosts/b:");
    scene.put("hosts/c/host", r#"{"name":"c","published":{"lease":30}}"#).shows("hosts/c:");
    scene.wipe().pair("hosts/b/host", r#"{"name":"b"}"#);
    scene.list(false).shows("").at(LEASE + GRACE - 1).shows("").at(LEASE + GRACE).shows("-hosts/a");
    scene.at(30 + GRACE).shows("-hosts/c").at(1000).shows("");
}

#[test]
fn a_list_is_taken_whole() {
    let mut scene = Scene::new();
    scene.host("a").container("a", "x").container("a", "y").shows("hosts/a:x,y");
    // Missed by the watch: one went, one came, one changed.
    scene.pairs.remove("hosts/a/containers/x");
    scene.pair("hosts/a/containers/z", r#"{"name":"z"}"#);
    scene.list(true).shows("hosts/a:y,z").list(true).shows("");
    // The same keys and revisions in another history.
    scene.pairs.get_mut("hosts/a/containers/z").unwrap().value = br#"{"name":"z","state":"stopped"}"#.to_vec();
    scene.list(true).shows("").list(false).shows("hosts/a:y,z");
}

#[test]
fn hosts_of_a_first_list_come_resolved() {
    let mut scene = Scene::new();
    for (path, value) in [
        // In another order than their names have.
        ("hosts/a/containers/x%2F1", r#"{"name":"x/1","service":"s/w","primary_ip":"10.42.0.1"}"#),
        ("hosts/a/containers/x-1", r#"{"name":"x-1","host":"nowhere","berth":1}"#),
        ("hosts/a/host", r#"{"name":"a","environment":{"name":"e"}}"#),
        ("hosts/a/services/s/w", r#"{"name":"w","stack":"s"}"#),
        ("hosts/b/containers/y", "{broken"),
        ("hosts/b/host", r#"{"name":"b"}"#),
        ("hosts/c/containers/z", r#"{"name":"z"}"#),
        ("hosts/c/host", r#"{"name":"c","published":{"partial":true}}"#),
        ("hosts/d/host", r#"{"name":"d","memory":"much"}"#),
        ("hosts/e/host", r#"{"name":"e"}"#),
        ("hosts/f/host", r#"{"name":"f"}"#),
    ] {
        scene.pair(path, value);
    }
    let mut reader = scene.mirror.reader();
    // However small the pages are.
    for pair in scene.pairs.values() {
        reader.page(vec![pair.clone()], false);
    }
    scene.mirror.list(reader, false, scene.now);
    let changes = scene.mirror.take();
    let resolved: Vec<_> = changes.iter().map(|change| (&*change.part, change.resolved.is_some())).collect();
    // Those with a defect are left to the one that reports it, and nothing said that the last one was complete.
    let expected = [("hosts/a", true), ("hosts/b", false), ("hosts/d", false), ("hosts/e", true), ("hosts/f", false)];
    assert_eq!(resolved, expected);
    for change in changes {
        if let Some(resolved) = change.resolved {
            assert_eq!(crate::merge::Resolved::of(&change.part, &change.document.unwrap()).unwrap(), resolved);
        }
    }
    // Where the last good value stays, the document is another one than what was read.
    scene.pair("hosts/a/containers/x%2F1", r#"{"name":"x/1","primary_ip":"1.2.3"}"#);
    scene.pair("hosts/a/containers/x-1", r#"{"name":"x-1"}"#);
    scene.pair("hosts/e/host", r#"{"name":"e","agent_ip":"192.0.2.1"}"#);
    let pairs: Vec<_> = scene.pairs.values().cloned().collect();
    let mut reader = scene.mirror.reader();
    reader.page(pairs, false);
    scene.mirror.list(reader, false, scene.now);
    let changes = scene.mirror.take();
    let resolved: Vec<_> = changes.iter().map(|change| (&*change.part, change.resolved.is_some())).collect();
    assert_eq!(resolved, [("hosts/a", false), ("hosts/e", true)]);
}

#[test]
fn empty_after_non_empty_is_not_believed_until_it_is_confirmed() {
    let mut scene = Scene::new();
    scene.list(false).shows("");
    assert_eq!(scene.mirror.suspicious(), None);
    scene.host("a").container("a", "x").host("b").shows("hosts/a:x hosts/b:");
    scene.wipe().list(false).shows("").at(10_000).shows("");
    assert_eq!(scene.mirror.suspicious(), Some(2));
    // Something appears: what does not follow has had its time.
    scene.host("c").at(10_000 + LEASE).shows("hosts/c:");
    assert_eq!(scene.mirror.suspicious(), None);
    scene.host("b").at(10_000 + LEASE + GRACE).shows("-hosts/a");
    // And once more, confirmed.
    scene.wipe().list(false).shows("").put("empty", "").shows("-hosts/b -hosts/c");
    assert_eq!(scene.mirror.suspicious(), None);
    scene.host("a").shows("hosts/a:").wipe().pair("empty", "");
    scene.list(false).shows("-hosts/a");
}

#[test]
fn what_was_kept_on_disk_obeys_the_same_rules() {
    let document: Map = serde_json::from_str(r#"{"containers":[{"name":"x"}]}"#).unwrap();
    let restored = || {
        let mut scene = Scene::new();
        for id in [PartId::Host("a".into()), PartId::Document("d".into())] {
            scene.mirror.restore(id, document.clone());
        }
        assert_eq!(scene.mirror.restored().len(), 2);
        scene
    };
    restored().list(false).at(10_000).shows("");
    restored().host("b").list(false).shows("hosts/b:").at(LEASE + GRACE).shows("-documents/d -hosts/a");
    restored()
        .put("documents/d", r#"{"containers":[{"name":"x"}]}"#)
        .list(false)
        .shows("")
        .at(LEASE + GRACE)
        .shows("-hosts/a");
}

#[test]
fn a_broken_value_leaves_the_last_good_one() {
    let mut scene = Scene::new();
    scene.host("a").container("a", "x").shows("hosts/a:x");
    scene.put("hosts/a/containers/x", "{broken").shows(
        "hosts/a:x(hosts/a/containers/x: no JSON from line 1, column 2 on; the last good value stays (ignored))",
    );
    scene.put("hosts/a/containers/x", r#"{"name":"x","primary_ip":"1.2.3"}"#).shows(
        r#"hosts/a:x(hosts/a/containers/x: containers/x/primary_ip: "1.2.3" is no IP address (left out); the last good value stays (ignored))"#,
    );
    scene.container("a", "x").shows("hosts/a:x");
    scene
        .put("hosts/a/containers/y", "[]")
        .shows("hosts/a:x(hosts/a/containers/y: expected a map of fields, found a list (left out))");
    scene.put("hosts/a/host", r#"{"berth":2,"name":"a"}"#).put("hosts/a/containers/y", r#"{"name":"y"}"#).shows(
        "hosts/a:x,y(hosts/a/host: of format 2, this program reads format 1; update it; the last good value stays (ignored))",
    );
    scene
        .put("hosts/b/host", r#"{"berth":2,"name":"b"}"#)
        .container("b", "z")
        .shows("-hosts/b(hosts/b/host: of format 2, this program reads format 1; update it (left out))");
}

#[test]
fn a_host_makes_nobody_hold_more_than_it_may_have() {
    let mut scene = Scene::new();
    let large = |name: &str, bytes: usize| format!(r#"{{"name":"{name}","note":"{}"}}"#, "x".repeat(bytes));
    let part = HOST_BYTES_MAX / 20;
    scene.host("a").container("a", "small");
    for number in 0..19 {
        scene.put(&format!("hosts/a/containers/c{number:02}"), &large(&format!("c{number:02}"), part - 20));
    }
    let shown = |scene: &mut Scene| {
        let changes = scene.mirror.take();
        let containers =
            |document: &Map| document.get("containers").map_or(0, |list| list.as_list().map_or(0, <[_]>::len));
        let defects: Vec<_> = changes.iter().flat_map(|change| &change.defects).map(ToString::to_string).collect();
        let count = changes.iter().filter_map(|change| change.document.as_ref()).map(containers).max();
        (count.unwrap_or_default(), defects)
    };
    assert_eq!(shown(&mut scene), (20, Vec::new()));
    // Neither one more nor a longer one, by itself or in a list; others are unharmed.
    scene.put("hosts/a/containers/more", &large("more", part)).put("hosts/b/host", r#"{"name":"b"}"#);
    scene.put("hosts/a/containers/c00", &large("c00", 2 * part));
    let (count, defects) = shown(&mut scene);
    assert_eq!(count, 20);
    assert!(defects.len() == 2 && defects.iter().all(|defect| defect.contains("at most 16 MiB")), "{defects:?}");
    // What is left out is no change that was missed.
    let mut again = scene.pair("hosts/a/containers/more", &large("more", part));
    again.version = 2;
    assert!(!scene.mirror.has_missed(&again));
    scene.list(false);
    let (count, defects) = shown(&mut scene);
    assert!(count < 20 && defects.iter().any(|defect| defect.contains("at most 16 MiB")), "{count} {defects:?}");
    // There is room again.
    scene.delete("hosts/a/containers/c00").put("hosts/a/containers/last", &large("last", part / 2));
    assert!(shown(&mut scene).1.iter().all(|defect| !defect.contains("last")));
}

#[test]
fn what_belongs_to_nobody_is_reported_and_harms_nobody() {
    let mut scene = Scene::new();
    scene
        .put("other", "x")
        .put("hosts/a/pods/p", "x")
        .host("a")
        .shows("-foreign(/p/hosts/a/pods/p: no key of ours (left out))(/p/other: no key of ours (left out)) hosts/a:");
    scene.delete("hosts/a/pods/p").shows("-foreign(/p/other: no key of ours (left out))");
    scene.pairs.remove("other");
    scene.list(true).shows("-foreign");
    for number in 0..150 {
        scene.put(&format!("x{number}"), "");
    }
    let changes = scene.mirror.take();
    assert_eq!(changes[0].defects.len(), FOREIGN_MAX + 1);
}

#[test]
fn what_schedulers_promise_each_other_is_nobodys_here() {
    let mut scene = Scene::new();
    scene.host("a").shows("hosts/a:");
    let keys = scene.mirror.keys();
    for path in ["ledger/hosts/a", "ledger/placements/web-1", "ledger/freed", "ledger/"] {
        let pair = scene.pair(path, r#"{"berth":1}"#);
        assert!(!scene.mirror.has_missed(&Pair { version: 7, ..pair.clone() }));
        scene.mirror.put(&pair, scene.now, None);
    }
    assert!(!scene.mirror.has_changes());
    assert_eq!(scene.mirror.keys(), keys);
    let pairs: Vec<_> = scene.pairs.values().cloned().collect();
    assert!(scene.mirror.differing(&pairs, scene.revision).is_empty());
    scene.list(true).shows("").delete("ledger/hosts/a").shows("");
    // Alone in etcd, it says nothing of hosts that were there.
    scene.pairs.remove("hosts/a/host");
    scene.list(true).shows("");
    assert_eq!(scene.mirror.suspicious(), Some(1));
    scene.put("ledger", "").shows("-foreign(/p/ledger: no key of ours (left out))");
}

#[test]
fn a_clock_that_is_off_is_reported_when_it_can_be_known() {
    // The clock of the follower stands at 1000000: 1970-01-12T13:46:40Z.
    let mut scene = Scene::new();
    let host = |at: &str| format!(r#"{{"name":"a","published":{{"at":"{at}"}}}}"#);
    scene.put("hosts/a/host", &host("1970-01-12T13:47:40Z")).shows("hosts/a:");
    scene
        .put("hosts/a/host", &host("1970-01-12T14:46:40Z"))
        .shows("hosts/a:(hosts/a/published/at: its clock is 3600 s ahead of ours (ignored))");
    scene
        .put("hosts/a/host", &host("1970-01-12T13:45:39Z"))
        .shows("hosts/a:(hosts/a/published/at: its clock is 61 s behind ours (ignored))");
    scene.put("hosts/a/host", &host("soon")).shows("hosts/a:");
    scene.pair("hosts/a/host", &host("1970-01-01T00:00:00Z"));
    scene.list(true).shows("");
}

#[test]
fn differences_to_the_keys_of_etcd_are_found() {
    let mut scene = Scene::new();
    scene
        .host("a")
        .container("a", "x")
        .container("a", "y")
        .put("other", "")
        .shows("-foreign(/p/other: no key of ours (left out)) hosts/a:x,y");
    let differing = |scene: &Scene| {
        let pairs: Vec<_> = scene.pairs.values().cloned().collect();
        let keys = scene.mirror.differing(&pairs, scene.revision);
        let mut keys: Vec<_> = keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(differing(&scene), "");
    scene.pair("hosts/a/containers/x", r#"{"name":"x"}"#);
    scene.pair("hosts/b/host", r#"{"name":"b"}"#);
    scene.pairs.remove("hosts/a/containers/y");
    assert_eq!(differing(&scene), "/p/hosts/a/containers/x /p/hosts/a/containers/y /p/hosts/b/host");
    let contradicts = |scene: &Scene| {
        let pairs: Vec<_> = scene.pairs.values().cloned().collect();
        scene.mirror.contradicts(&pairs, scene.revision)
    };
    assert!(!contradicts(&scene));
    scene.pairs.get_mut("hosts/a/host").unwrap().mod_revision = 1;
    assert!(contradicts(&scene));
    // What came after the list was made is no difference.
    let pairs: Vec<_> = scene.pairs.values().cloned().collect();
    scene.container("c", "late");
    assert!(!scene.mirror.differing(&pairs, scene.revision - 1).contains(&b"/p/hosts/c/containers/late"[..]));
}

#[test]
fn what_is_older_than_what_is_known_changes_nothing() {
    let mut scene = Scene::new();
    scene.host("a").container("a", "x").shows("hosts/a:x");
    let (now, old) = (scene.now, scene.revision - 5);
    scene.mirror.delete(b"/p/hosts/a/containers/x", old, now);
    let pair =
        Pair { key: b"/p/hosts/a/containers/x".to_vec(), value: b"{}".to_vec(), mod_revision: old, ..Pair::default() };
    scene.mirror.put(&pair, now, None);
    scene.shows("");
}

#[test]
fn a_gap_in_the_versions_of_a_key_is_a_missed_change() {
    let mut scene = Scene::new();
    let path = "hosts/a/containers/x";
    let mut check = |version, missed| {
        let pair = Pair { version, ..scene.pair(path, r#"{"name":"x"}"#) };
        assert_eq!(scene.mirror.has_missed(&pair), missed, "{version}");
        scene.mirror.put(&pair, scene.now, None);
    };
    for (version, missed) in [(1, false), (2, false), (4, true), (5, false), (1, false), (3, true)] {
        check(version, missed);
    }
    for path in ["other", "empty"] {
        let pair = Pair { version: 7, ..scene.pair(path, "") };
        assert!(!scene.mirror.has_missed(&pair));
    }
    let unknown = Pair { version: 2, ..scene.pair("documents/d", "{}") };
    assert!(scene.mirror.has_missed(&unknown));
}
