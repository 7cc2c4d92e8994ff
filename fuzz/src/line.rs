//! Lines of a stream of changes, as a follower applies them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{ChangeLine, Snapshot, Value};

fuzz_target!(|bytes: &[u8]| {
    let mut snapshot = Snapshot::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(value) = serde_json::from_slice::<Value>(line) else { return };
        let Ok(ChangeLine::Change { delta, .. }) = ChangeLine::from_value(&value) else { continue };
        let Ok(next) = delta.apply(&snapshot) else { return };
        snapshot = next;
        let _ = snapshot.fingerprint();
    }
    for object in snapshot.objects() {
        serde_json::to_vec(&object).expect("an object is JSON");
    }
});
