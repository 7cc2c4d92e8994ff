use super::*;

/// A world and its clock, told what happens in lines.
struct Told {
    world: World,
    now: Duration,
    revision: i64,
    pairs: BTreeMap<String, Pair>,
}

const LEASE: u64 = 15;
const GRACE: u64 = RETURN_GRACE.as_secs();

impl Told {
    fn new() -> Self {
        let world = World::new("/p/".into(), Duration::from_secs(LEASE));
        Self { world, now: Duration::ZERO, revision: 1, pairs: BTreeMap::new() }
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
        self.world.put(&pair, self.now, Some(1_000_000));
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
        self.world.delete(format!("/p/{path}").as_bytes(), self.revision, self.now);
        self
    }

    /// etcd is wiped: nothing of what was put is there, nobody is told.
    fn wipe(&mut self) -> &mut Self {
        self.pairs.clear();
        self.revision = 1;
        self
    }

    fn list(&mut self, again: bool) -> &mut Self {
        let pairs: Vec<_> = self.pairs.values().cloned().collect();
        let mut reader = self.world.reader();
        reader.page(pairs, again);
        self.world.list(reader, again, self.now);
        self
    }

    /// So many seconds later.
    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self.world.expire(self.now);
        self
    }

    /// What is told: parts with the names of their containers, `-part` when it is gone, and its defects.
    fn tells(&mut self, expected: &str) -> &mut Self {
        let told = self.world.take().into_iter().map(|change| {
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
        assert_eq!(told.collect::<Vec<_>>().join(" "), expected);
        self
    }
}

#[test]
fn a_host_is_told_once_it_is_there() {
    let mut told = Told::new();
    told.container("a", "x").tells("").host("a").tells("hosts/a:x");
    told.container("a", "y")
        .container("a", "z")
        .tells("hosts/a:x,y,z")
        .delete("hosts/a/containers/y")
        .tells("hosts/a:x,z");
    told.container("a", "x").tells("");
    told.put("documents/d", r#"{"containers":[{"name":"c"}]}"#)
        .tells("documents/d:c")
        .delete("documents/d")
        .tells("-documents/d");
}

#[test]
fn a_host_in_parts_is_told_when_it_is_whole() {
    let mut told = Told::new();
    told.put("hosts/a/host", r#"{"name":"a","published":{"partial":true}}"#).container("a", "x").tells("");
    told.host("a").tells("hosts/a:x");
    // Its lease ran out, and it publishes in parts again: what was shown stays until all is there.
    told.delete("hosts/a/containers/x").delete("hosts/a/host").tells("");
    told.put("hosts/a/host", r#"{"name":"a","published":{"partial":true}}"#).tells("").at(100).tells("");
    told.container("a", "x").container("a", "y").host("a").tells("hosts/a:x,y");
}

#[test]
fn a_host_goes_after_a_grace_and_returns_within_it_unnoticed() {
    let mut told = Told::new();
    told.host("a").container("a", "x").tells("hosts/a:x");
    told.delete("hosts/a/containers/x").delete("hosts/a/host").tells("").at(GRACE - 1).tells("");
    told.host("a").container("a", "x").tells("").at(GRACE + 10).tells("");
    told.delete("hosts/a/containers/x").delete("hosts/a/host").tells("").at(2 * GRACE + 9).tells("");
    told.at(2 * GRACE + 10).tells("-hosts/a").at(1000).tells("");
    told.host("a").tells("hosts/a:");
    told.put("hosts/a/host", r#"{"name":"a","published":{"leaving":true}}"#)
        .tells("-hosts/a")
        .delete("hosts/a/host")
        .tells("");
}

#[test]
fn nobody_goes_while_etcd_is_away() {
    let mut told = Told::new();
    told.host("a").host("b").tells("hosts/a: hosts/b:").delete("hosts/a/host").tells("");
    told.world.pause();
    told.at(10_000).tells("");
    let now = told.now;
    told.world.resume(now);
    told.at(10_000 + GRACE - 1).tells("").at(10_000 + GRACE).tells("-hosts/a");
}

#[test]
fn who_is_missing_in_a_list_goes_after_its_lease() {
    let mut told = Told::new();
    told.host("a").container("a", "x").host("b").tells("hosts/a:x hosts/b:");
    told.put("hosts/c/host", r#"{"name":"c","published":{"lease":30}}"#).tells("hosts/c:");
    told.wipe().pair("hosts/b/host", r#"{"name":"b"}"#);
    told.list(false).tells("").at(LEASE + GRACE - 1).tells("").at(LEASE + GRACE).tells("-hosts/a");
    told.at(30 + GRACE).tells("-hosts/c").at(1000).tells("");
}

#[test]
fn a_list_is_taken_whole() {
    let mut told = Told::new();
    told.host("a").container("a", "x").container("a", "y").tells("hosts/a:x,y");
    // Missed by the watch: one went, one came, one changed.
    told.pairs.remove("hosts/a/containers/x");
    told.pair("hosts/a/containers/z", r#"{"name":"z"}"#);
    told.list(true).tells("hosts/a:y,z").list(true).tells("");
    // The same keys and revisions in another history.
    told.pairs.get_mut("hosts/a/containers/z").unwrap().value = br#"{"name":"z","state":"stopped"}"#.to_vec();
    told.list(true).tells("").list(false).tells("hosts/a:y,z");
}

#[test]
fn hosts_of_a_first_list_come_resolved() {
    let mut told = Told::new();
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
        told.pair(path, value);
    }
    let mut reader = told.world.reader();
    // However small the pages are.
    for pair in told.pairs.values() {
        reader.page(vec![pair.clone()], false);
    }
    told.world.list(reader, false, told.now);
    let changes = told.world.take();
    let resolved: Vec<_> = changes.iter().map(|change| (&*change.part, change.resolved.is_some())).collect();
    // Those with something wrong are left to who reports it, and behind the last one nothing said that it was complete.
    let expected = [("hosts/a", true), ("hosts/b", false), ("hosts/d", false), ("hosts/e", true), ("hosts/f", false)];
    assert_eq!(resolved, expected);
    for change in changes {
        if let Some(resolved) = change.resolved {
            assert_eq!(crate::merge::Resolved::of(&change.document.unwrap()).unwrap(), resolved);
        }
    }
    // Where the last good value stays, the document is another one than what was read.
    told.pair("hosts/a/containers/x%2F1", r#"{"name":"x/1","primary_ip":"1.2.3"}"#);
    told.pair("hosts/a/containers/x-1", r#"{"name":"x-1"}"#);
    told.pair("hosts/e/host", r#"{"name":"e","agent_ip":"192.0.2.1"}"#);
    let pairs: Vec<_> = told.pairs.values().cloned().collect();
    let mut reader = told.world.reader();
    reader.page(pairs, false);
    told.world.list(reader, false, told.now);
    let changes = told.world.take();
    let resolved: Vec<_> = changes.iter().map(|change| (&*change.part, change.resolved.is_some())).collect();
    assert_eq!(resolved, [("hosts/a", false), ("hosts/e", true)]);
}

#[test]
fn empty_after_non_empty_is_not_believed_until_it_is_confirmed() {
    let mut told = Told::new();
    told.list(false).tells("");
    assert_eq!(told.world.suspicious(), None);
    told.host("a").container("a", "x").host("b").tells("hosts/a:x hosts/b:");
    told.wipe().list(false).tells("").at(10_000).tells("");
    assert_eq!(told.world.suspicious(), Some(2));
    // Something appears: who does not follow has had its time.
    told.host("c").at(10_000 + LEASE).tells("hosts/c:");
    assert_eq!(told.world.suspicious(), None);
    told.host("b").at(10_000 + LEASE + GRACE).tells("-hosts/a");
    // And once more, confirmed.
    told.wipe().list(false).tells("").put("empty", "").tells("-hosts/b -hosts/c");
    assert_eq!(told.world.suspicious(), None);
    told.host("a").tells("hosts/a:").wipe().pair("empty", "");
    told.list(false).tells("-hosts/a");
}

#[test]
fn what_was_kept_on_disk_obeys_the_same_rules() {
    let document: Map = serde_json::from_str(r#"{"containers":[{"name":"x"}]}"#).unwrap();
    let kept = || {
        let mut told = Told::new();
        for id in [PartId::Host("a".into()), PartId::Document("d".into())] {
            told.world.restore(id, document.clone());
        }
        assert_eq!(told.world.restored().len(), 2);
        told
    };
    kept().list(false).at(10_000).tells("");
    kept().host("b").list(false).tells("hosts/b:").at(LEASE + GRACE).tells("-documents/d -hosts/a");
    kept()
        .put("documents/d", r#"{"containers":[{"name":"x"}]}"#)
        .list(false)
        .tells("")
        .at(LEASE + GRACE)
        .tells("-hosts/a");
}

#[test]
fn a_broken_value_leaves_the_last_good_one() {
    let mut told = Told::new();
    told.host("a").container("a", "x").tells("hosts/a:x");
    told.put("hosts/a/containers/x", "{broken").tells(
        "hosts/a:x(hosts/a/containers/x: no JSON: key must be a string at line 1 column 2; the last good value stays (ignored))",
    );
    told.put("hosts/a/containers/x", r#"{"name":"x","primary_ip":"1.2.3"}"#).tells(
        r#"hosts/a:x(hosts/a/containers/x: containers/x/primary_ip: "1.2.3" is no IP address (left out); the last good value stays (ignored))"#,
    );
    told.container("a", "x").tells("hosts/a:x");
    told.put("hosts/a/containers/y", "[]")
        .tells("hosts/a:x(hosts/a/containers/y: expected a map of fields, found a list (left out))");
    told.put("hosts/a/host", r#"{"berth":2,"name":"a"}"#).put("hosts/a/containers/y", r#"{"name":"y"}"#).tells(
        "hosts/a:x,y(hosts/a/host: of format 2, this program reads format 1; update it; the last good value stays (ignored))",
    );
    told.put("hosts/b/host", r#"{"berth":2,"name":"b"}"#)
        .container("b", "z")
        .tells("-hosts/b(hosts/b/host: of format 2, this program reads format 1; update it (left out))");
}

#[test]
fn what_belongs_to_nobody_is_reported_and_harms_nobody() {
    let mut told = Told::new();
    told.put("other", "x")
        .put("hosts/a/pods/p", "x")
        .host("a")
        .tells("-foreign(/p/hosts/a/pods/p: no key of ours (left out))(/p/other: no key of ours (left out)) hosts/a:");
    told.delete("hosts/a/pods/p").tells("-foreign(/p/other: no key of ours (left out))");
    told.pairs.remove("other");
    told.list(true).tells("-foreign");
    for number in 0..150 {
        told.put(&format!("x{number}"), "");
    }
    let changes = told.world.take();
    assert_eq!(changes[0].defects.len(), FOREIGN_MAX + 1);
}

#[test]
fn what_schedulers_promise_each_other_is_nobodys_here() {
    let mut told = Told::new();
    told.host("a").tells("hosts/a:");
    let keys = told.world.keys();
    for path in ["ledger/hosts/a", "ledger/placements/web-1", "ledger/freed", "ledger/"] {
        let pair = told.pair(path, r#"{"berth":1}"#);
        assert!(!told.world.has_missed(&Pair { version: 7, ..pair.clone() }));
        told.world.put(&pair, told.now, None);
    }
    assert!(!told.world.has_changes());
    assert_eq!(told.world.keys(), keys);
    let pairs: Vec<_> = told.pairs.values().cloned().collect();
    assert!(told.world.differing(&pairs, told.revision).is_empty());
    told.list(true).tells("").delete("ledger/hosts/a").tells("");
    // Alone in etcd, it says nothing of hosts that were there.
    told.pairs.remove("hosts/a/host");
    told.list(true).tells("");
    assert_eq!(told.world.suspicious(), Some(1));
    told.put("ledger", "").tells("-foreign(/p/ledger: no key of ours (left out))");
}

#[test]
fn a_clock_that_is_off_is_reported_when_it_can_be_known() {
    // The clock of the follower stands at 1000000: 1970-01-12T13:46:40Z.
    let mut told = Told::new();
    let host = |at: &str| format!(r#"{{"name":"a","published":{{"at":"{at}"}}}}"#);
    told.put("hosts/a/host", &host("1970-01-12T13:47:40Z")).tells("hosts/a:");
    told.put("hosts/a/host", &host("1970-01-12T14:46:40Z"))
        .tells("hosts/a:(hosts/a/published/at: its clock is 3600 s ahead of ours (ignored))");
    told.put("hosts/a/host", &host("1970-01-12T13:45:39Z"))
        .tells("hosts/a:(hosts/a/published/at: its clock is 61 s behind ours (ignored))");
    told.put("hosts/a/host", &host("soon")).tells("hosts/a:");
    told.pair("hosts/a/host", &host("1970-01-01T00:00:00Z"));
    told.list(true).tells("");
}

#[test]
fn differences_to_the_keys_of_etcd_are_found() {
    let mut told = Told::new();
    told.host("a")
        .container("a", "x")
        .container("a", "y")
        .put("other", "")
        .tells("-foreign(/p/other: no key of ours (left out)) hosts/a:x,y");
    let differing = |told: &Told| {
        let pairs: Vec<_> = told.pairs.values().cloned().collect();
        let keys = told.world.differing(&pairs, told.revision);
        let mut keys: Vec<_> = keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(differing(&told), "");
    told.pair("hosts/a/containers/x", r#"{"name":"x"}"#);
    told.pair("hosts/b/host", r#"{"name":"b"}"#);
    told.pairs.remove("hosts/a/containers/y");
    assert_eq!(differing(&told), "/p/hosts/a/containers/x /p/hosts/a/containers/y /p/hosts/b/host");
    let told_contradicts = |told: &Told| {
        let pairs: Vec<_> = told.pairs.values().cloned().collect();
        told.world.contradicts(&pairs, told.revision)
    };
    assert!(!told_contradicts(&told));
    told.pairs.get_mut("hosts/a/host").unwrap().mod_revision = 1;
    assert!(told_contradicts(&told));
    // What came after the list was made is no difference.
    let pairs: Vec<_> = told.pairs.values().cloned().collect();
    told.container("c", "late");
    assert!(!told.world.differing(&pairs, told.revision - 1).contains(&b"/p/hosts/c/containers/late"[..]));
}

#[test]
fn what_is_older_than_what_is_known_changes_nothing() {
    let mut told = Told::new();
    told.host("a").container("a", "x").tells("hosts/a:x");
    let (now, old) = (told.now, told.revision - 5);
    told.world.delete(b"/p/hosts/a/containers/x", old, now);
    let pair =
        Pair { key: b"/p/hosts/a/containers/x".to_vec(), value: b"{}".to_vec(), mod_revision: old, ..Pair::default() };
    told.world.put(&pair, now, None);
    told.tells("");
}

#[test]
fn a_gap_in_the_versions_of_a_key_is_a_missed_change() {
    let mut told = Told::new();
    let path = "hosts/a/containers/x";
    let mut check = |version, missed| {
        let pair = Pair { version, ..told.pair(path, r#"{"name":"x"}"#) };
        assert_eq!(told.world.has_missed(&pair), missed, "{version}");
        told.world.put(&pair, told.now, None);
    };
    for (version, missed) in [(1, false), (2, false), (4, true), (5, false), (1, false), (3, true)] {
        check(version, missed);
    }
    for path in ["other", "empty"] {
        let pair = Pair { version: 7, ..told.pair(path, "") };
        assert!(!told.world.has_missed(&pair));
    }
    let unknown = Pair { version: 2, ..told.pair("documents/d", "{}") };
    assert!(told.world.has_missed(&unknown));
}
