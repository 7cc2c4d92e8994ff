//! Contents of a cluster file, in all its forms.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{ChangeLine, Delta, Snapshot, Value, objects};

/// What becomes of a value in a file or on the wire.
fn written(value: &Value) -> Value {
    let text = serde_json::to_vec(value).expect("a value is JSON");
    serde_json::from_slice(&text).expect("what was written can be read")
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = source::format::text(bytes.to_vec()) else { return };
    // What the reader of usual JSON takes, a complete one takes for the same.
    if let Some(value) = model::json::read(&text) {
        assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value), "usual JSON");
    }
    let Ok(reading) = source::format::read(&text) else { return };
    for defect in &reading.defects {
        let _ = defect.to_string();
    }
    let snapshot = reading.snapshot;

    // As it is kept on disk.
    let kept = snapshot.objects().map(|object| written(&Value::Map(object)).as_map().cloned().expect("a map"));
    let (again, ..) = objects::read(kept);
    assert_eq!(again.fingerprint(), snapshot.fingerprint(), "kept");

    // As it goes to followers.
    let lines = ChangeLine::split(&"1".into(), None, Delta::whole(&snapshot));
    let mut followed = Snapshot::default();
    for line in lines {
        let line: Value = serde_json::from_slice(&line).expect("a line is JSON");
        let line = ChangeLine::from_value(&line).expect("a line is one");
        let ChangeLine::Change { delta, .. } = line else { panic!("a heartbeat") };
        followed = delta.apply(&followed).expect("it applies");
    }
    assert_eq!(followed.fingerprint(), snapshot.fingerprint(), "followed");
});
