//! The seeds of the fuzzer of the ledger lead to what they are for.

use scheduler::fuzzing::learned;

#[test]
fn records_are_read_if_they_are_sealed() {
    for name in ["service", "pod"] {
        let seed = std::fs::read(format!("{}/../fuzz/seeds/ledger/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for is_sealed in [true, false] {
            let learned = learned(&seed, is_sealed);
            let error = |id: &str| learned.placements.iter().find(|one| *one.0 == *id).unwrap().1.clone();
            let error_of_p = error("p").unwrap_or_default();
            assert_eq!(error_of_p.is_empty(), is_sealed, "{name}: {error_of_p}");
            assert!(is_sealed || error_of_p.contains("seal"), "{name}: {error_of_p}");
            assert_eq!((error("web"), learned.promised), (None, 7), "{name}");
            assert!(learned.left.iter().map(|id| &**id).eq(["web"]), "{name}: {learned:?}");
        }
    }
}
