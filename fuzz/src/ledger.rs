//! Records of the ledger in etcd, as a scheduler learns them from others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scheduler::fuzzing::learned;

fuzz_target!(|bytes: &[u8]| {
    for is_sealed in [true, false] {
        let learned = learned(bytes, is_sealed);
        for (id, error) in &learned.placements {
            let error = error.as_deref().unwrap_or_default();
            assert!(!error.contains("panicked"), "{id}: {error}");
            // What nobody has sealed does not count.
            assert!(is_sealed || **id != *"p" || error.contains("seal"), "{error}");
        }
        // It harms no other placement, and nothing of it is left.
        assert!(learned.placements.iter().any(|(id, error)| **id == *"web" && error.is_none()), "{learned:?}");
        assert!(learned.left.iter().eq([&"web".into()]) && learned.promised == 7, "{learned:?}");
    }
});
