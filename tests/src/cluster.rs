//! Cluster files for tests: the example, and documents in which every value carries the revision it belongs to.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::repository;

/// The client in the documents of [`stamped`].
pub const CLIENT: &str = "127.42.9.1";

/// Names of hosts and members in the documents of [`stamped`]: enough for a mixture to show.
const PARTS: std::ops::RangeInclusive<u16> = 1..=5;

/// The example cluster of the README.
pub fn shop() -> PathBuf {
    repository().join("examples/shop.yml")
}

/// The text of the example cluster.
pub fn shop_text() -> String {
    std::fs::read_to_string(shop()).expect("the example is there")
}

/// The same as the file of one host, which then is `self/host` for everybody.
pub fn shop_text_for(host: &str) -> String {
    let text = shop_text();
    let line = text.lines().find(|line| line.starts_with("# host: ")).expect("the example says how to name a host");
    text.replace(line, &format!("host: {host}"))
}

/// A document of which whatever is answered shows the revision: labels and names say `rev0007`, addresses 10.0.7.x.
///
/// The service is `web.all`, the client of it [`CLIENT`].
pub fn stamped(revision: u16) -> String {
    let [high, low] = revision.to_be_bytes();
    let stamp = stamp(revision);
    let mut text = format!(
        "# {stamp}\nberth: 1\nenvironment: {{ name: {stamp} }}\nhost: {stamp}-host-1\nversion: {stamp}\nhosts:\n"
    );
    let labels = format!("labels: {{ stamp: {stamp} }}");
    // Writing to a string cannot fail.
    for part in PARTS {
        let address = format!("agent_ip: 192.0.2.{part}, memory: 8GiB, milli_cpu: 8000");
        let _ = writeln!(text, "- {{ name: {stamp}-host-{part}, {address}, {labels} }}");
    }
    let _ = writeln!(text, "services:\n- {{ name: web, stack: all, {labels}, metadata: {{ at: {stamp} }} }}");
    let host = format!("host: {stamp}-host");
    let _ = writeln!(text, "containers:\n- {{ name: {stamp}-client, {host}-1, primary_ip: {CLIENT}, {labels} }}");
    for part in PARTS {
        let address = format!("{host}-{part}, primary_ip: 10.{high}.{low}.{part}");
        let _ = writeln!(text, "- {{ name: {stamp}-web-{part}, service: all/web, {address}, {labels} }}");
    }
    text + "...\n"
}

/// The mark of a revision in the documents of [`stamped`].
pub fn stamp(revision: u16) -> String {
    format!("rev{revision:05}")
}

/// The revisions that a text shows, by marks and by addresses.
pub fn revisions(text: &str) -> BTreeSet<u16> {
    let marks = text.match_indices("rev").filter_map(|(at, _)| text.get(at + 3..at + 8)?.parse().ok());
    let words = text.split(|char: char| !char.is_ascii_digit() && char != '.');
    let addresses = words.filter_map(|word| {
        let bytes = word.parse::<std::net::Ipv4Addr>().ok()?.octets();
        (bytes[0] == 10).then(|| u16::from_be_bytes([bytes[1], bytes[2]]))
    });
    marks.chain(addresses).collect()
}

/// Replaces a file in one step.
pub fn replace(path: &Path, contents: impl AsRef<[u8]>) {
    let aside = path.with_extension("aside");
    std::fs::write(&aside, contents).expect("a folder of a test can be written");
    std::fs::rename(&aside, path).expect("a file of a test can be renamed");
}

/// A folder with a cluster file in it.
#[derive(Debug)]
pub struct ClusterFolder {
    folder: tempfile::TempDir,
}

impl ClusterFolder {
    /// A new folder with these contents in the file.
    pub fn new(contents: impl AsRef<[u8]>) -> Self {
        let folder = Self::empty();
        std::fs::write(folder.file(), contents).expect("a folder of a test can be written");
        folder
    }

    /// A new folder without the file.
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().expect("there is room for a folder") }
    }

    /// The cluster file. Its name says nothing about its form.
    pub fn file(&self) -> PathBuf {
        self.path("cluster")
    }

    /// Another file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the cluster file in one step.
    pub fn replace(&self, contents: impl AsRef<[u8]>) {
        replace(&self.file(), contents);
    }

    /// Writes the cluster file in place.
    pub fn write(&self, contents: impl AsRef<[u8]>) {
        std::fs::write(self.file(), contents).expect("a folder of a test can be written");
    }

    /// Removes the cluster file, whatever it is.
    pub fn remove(&self) {
        let file = self.file();
        let removed = if file.is_dir() && !file.is_symlink() {
            std::fs::remove_dir_all(&file)
        } else {
            std::fs::remove_file(&file)
        };
        assert!(removed.is_ok() || !file.exists(), "{removed:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_from_a_stamped_document_shows_its_revision() {
        assert_eq!(revisions(&stamped(7)), BTreeSet::from([7]));
        assert_eq!(revisions("rev00300 10.1.44.5 192.0.2.1 rev0030"), BTreeSet::from([300]));
        assert_eq!(revisions("10.0.1.1 10.0.2.1"), BTreeSet::from([1, 2]));
    }
}
