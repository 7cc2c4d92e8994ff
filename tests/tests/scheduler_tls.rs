//! The scheduler over TLS: answers those who have a certificate of its authority, and nobody else.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use tests::certificates::Authority;
use tests::cluster::{ClusterFolder, shop_text};
use tests::{Executable, Launch};

fn ask(server: &str, certificates: Option<&Path>, words: &[&str]) -> (Option<i32>, String) {
    let launch = Launch::bare(Executable::Scheduler).word(words[0]).word("--server").word(server);
    let launch = match certificates {
        Some(folder) => launch.word("--tls-certs").word(folder),
        None => launch,
    };
    let ended = words[1..].iter().fold(launch, Launch::word).run();
    (ended.code, format!("{}{}", ended.output, ended.errors))
}

#[test]
fn only_who_has_a_certificate_of_the_authority_is_answered() {
    let files = ClusterFolder::new(shop_text());
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let [server, client] = ["server", "client"].map(|name| ours.folder(&files.path("certs"), name));
    let stranger = theirs.folder(&files.path("certs"), "stranger");
    let mut scheduler = Launch::scheduler()
        .with("--source", format!("file:{}", files.file().display()))
        .with("--tls-certs", &server)
        .start();
    scheduler.ready();
    let address = scheduler.address();
    let at = address.to_string();

    let (code, text) = ask(&at, Some(&client), &["hosts"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("linux-1"), "{text}");
    let (code, text) = ask(&at, Some(&client), &["run", "--no-start", "--name", "a", "web"]);
    assert_eq!(code, Some(0), "{text}");

    for (certificates, expected) in [(None, "--tls-certs"), (Some(&*stranger), "certificate")] {
        let (code, text) = ask(&at, certificates, &["hosts"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(expected) && !text.contains("linux-1"), "{text}");
    }
    // Without TLS there is not one byte of an answer.
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET /v1/hosts HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|bytes| bytes == b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    // Who asked wrongly harmed nobody.
    assert_eq!(ask(&at, Some(&client), &["ps"]).0, Some(0));
    scheduler.stop();
}

#[test]
fn a_certificate_places_no_more_than_the_policy_says_of_its_name() {
    let files = ClusterFolder::new(shop_text());
    let authority = Authority::new("ours");
    let server = authority.folder(&files.path("certs"), "server");
    let [ops, ci] = ["ops", "ci"].map(|name| authority.folder_of_client(&files.path("certs"), name));
    let policy = files.path("policy.yml");
    std::fs::write(&policy, "subjects:\n  certificate:ops: {bind_sources: [/srv/a]}\n").unwrap();
    let mut scheduler = Launch::scheduler()
        .with("--source", format!("file:{}", files.file().display()))
        .with("--tls-certs", &server)
        .with("--policy", &policy)
        .start();
    scheduler.ready();
    let at = scheduler.address().to_string();
    let run = |who: &Path, name: &str, volume: &str| {
        ask(&at, Some(who), &["run", "--no-start", "--name", name, "--volume", volume, "web"])
    };
    let (code, text) = run(&ops, "a", "/srv/a:/a");
    assert_eq!(code, Some(0), "{text}");
    for (who, subject, volume) in [(&ci, "certificate:ci", "/srv/a:/a"), (&ops, "certificate:ops", "/etc:/a")] {
        let (code, text) = run(who, "b", volume);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains(&format!("bind_sources do not allow {subject}")) && text.contains("--policy FILE"),
            "{text}"
        );
    }
    scheduler.stop();
}

#[test]
fn a_wrong_certificate_is_named_at_the_start() {
    let files = ClusterFolder::new(shop_text());
    let source = format!("file:{}", files.file().display());
    let launch = |folder: &Path| Launch::scheduler().with("--source", &source).with("--tls-certs", folder).run();
    let folder = Authority::new("ours").folder(&files.path("certs"), "server");
    std::fs::write(folder.join("key.pem"), "no key").unwrap();
    for (folder, file) in [(folder, "key.pem"), (files.path("nowhere"), "ca.pem")] {
        let ended = launch(&folder);
        assert_eq!(ended.code, Some(1), "{}", ended.errors);
        assert!(ended.errors.contains("cannot answer over TLS") && ended.errors.contains(file), "{}", ended.errors);
    }
}
