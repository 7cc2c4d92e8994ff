//! The conversations in `fixtures/conversations`; `UPDATE=1` writes down what is answered now.

use tests::{conversation, fixture, update};

#[test]
fn conversations_go_as_written() {
    let files = conversation::files(&fixture("conversations"));
    assert!(!files.is_empty());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let told = conversation::replay(&text);
        if update() {
            std::fs::write(&path, told).unwrap();
        } else {
            assert_eq!(told, text, "{}", path.display());
        }
    }
}
