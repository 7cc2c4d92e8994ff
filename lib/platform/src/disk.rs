//! Room on the disk that has a folder.

#[cfg_attr(unix, path = "disk/unix.rs")]
#[cfg_attr(windows, path = "disk/windows.rs")]
mod system;

use std::io;
use std::path::Path;

/// Bytes of a disk, or of the part of it that we may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// Free for us.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

impl DiskRoom {
    /// The room of the disk that has this folder. Blocks while the disk does not answer, as one of the network may.
    ///
    /// # Errors
    ///
    /// Fails if there is no such folder, or we may not look.
    pub fn of(folder: &Path) -> io::Result<Self> {
        system::room(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_the_room_of_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let room = DiskRoom::of(folder.path()).unwrap();
        assert!(0 < room.total && room.free <= room.total, "{room:?}");
        let missing = DiskRoom::of(&folder.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
