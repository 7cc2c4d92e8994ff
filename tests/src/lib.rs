//! What is true across crates, over real sockets: the tools with which the tests start, ask and stop the real executables.
//!
//! A tool that cannot do its work panics: in a test that is the failure. Limits of time are multiplied by
//! `BERTH_TIME_SCALE` for slow machines, `BERTH_BINARIES` names a folder of executables to test instead of
//! the ones built here, `BERTH_BUILT` the folder of those built here for all tests of a run, and with `CI=true` nothing may be skipped.
#![expect(clippy::missing_panics_doc, reason = "a test fails by panicking")]

pub mod battery;
pub mod binaries;
pub mod cable;
pub mod certificates;
pub mod claims;
pub mod cluster;
pub mod companion;
pub mod console;
pub mod conversation;
pub mod docker_hosts;
pub mod engine;
pub mod etcd;
pub mod etcd_with_users;
pub mod example;
pub mod followed;
pub mod follower;
pub mod http;
pub mod installed;
pub mod load;
pub mod namespace;
pub mod ports;
pub mod powershell;
pub mod process;
pub mod proxy;
pub mod publication;
pub mod question;
pub mod random;
pub mod registry;
pub mod rust_text;
pub mod schedulers;
pub mod service;
pub mod shared;
pub mod stacked;
pub mod storm;
pub mod successors;
pub mod wait;

pub use companion::Companion;
pub use follower::{Follower, Told};
pub use process::Process;
pub use proxy::Proxy;
pub use question::Question;
pub use service::{Executable, Launch, Service};
pub use wait::{eventually, scaled};

use std::io::Write as _;
use std::path::PathBuf;

/// The root of the repository.
pub fn repository() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package is a folder of the workspace").to_owned()
}

/// A file below `tests/fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// Tells why a test does not do its work; with `CI=true` that is a failure.
pub fn skip(reason: &str) {
    assert!(!in_ci(), "nothing may be skipped here: {reason}");
    tell(&format!("skipped: {reason}"));
}

/// Tells something that whoever reads the run is to see, past the test runner's capture.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Whether this runs where nothing may be skipped.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Whether expectations in files are to be rewritten instead of compared.
pub fn update() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}
