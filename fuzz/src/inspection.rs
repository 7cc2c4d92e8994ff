//! What an engine says of a container, until it is published.
#![no_main]

use libfuzzer_sys::fuzz_target;
use live::docker::fuzzing::published;

fuzz_target!(|bytes: &[u8]| {
    let Some((snapshot, defects)) = published(bytes) else { return };
    assert!(snapshot.containers.len() <= 1 && snapshot.hosts.len() == 1);
    // What this host publishes, others take without a word.
    assert!(defects.is_empty(), "{defects:?}");
});
