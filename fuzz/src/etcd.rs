//! Keys of etcd and their values, as a host reads what others have written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use live::etcd::fuzzing::followed;
use model::{Entity as _, Map, objects};

/// The document of the host that follows.
const OWN: &str = r#"{"berth": 1, "host": "own", "hosts": [{"name": "own", "agent_ip": "192.0.2.1"}],
    "containers": [{"name": "mine", "uuid": "mine", "host": "own", "primary_ip": "172.17.0.2", "state": "running"}]}"#;

fuzz_target!(|bytes: &[u8]| {
    let own: Map = serde_json::from_str(OWN).expect("JSON");
    // A path and a value by turns; the byte between them is in no UTF-8 text.
    let mut parts = bytes.split(|byte| *byte == 0xff);
    let puts = std::iter::from_fn(|| Some((parts.next()?, parts.next()?)));
    let snapshot = followed(&own, puts);

    // What others write changes nothing of this host's own containers.
    let mine = snapshot.containers.get("mine").expect("the own container is there");
    assert_eq!(mine.fields().text("primary_ip").map(|text| &**text), Some("172.17.0.2"));
    assert_eq!(snapshot.local_host.as_ref().and_then(|host| host.name()).map(|name| &**name), Some("own"));

    // As it is stored on disk.
    let (again, ..) = objects::read(snapshot.objects());
    assert_eq!(again.fingerprint(), snapshot.fingerprint(), "stored");
});
