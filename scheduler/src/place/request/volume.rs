//! Volumes with names among what a request mounts. ◇

/// Shortest name that engines take for a volume; one letter is a drive.
const NAME_MIN: usize = 2;

/// The volume of the engine in `data:/data:ro`; `None` for a folder of the host, and for a volume without a name.
pub(crate) fn named_volume(mount: &str) -> Option<&str> {
    // Folders begin with a slash or a drive, and a path alone is a volume without a name.
    let (name, target) = mount.split_once(':')?;
    (name.len() >= NAME_MIN && !name.starts_with(['/', '\\']) && !target.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_names_and_folders_paths() {
        for (mount, name) in [
            ("data:/data", Some("data")),
            ("data:/data:ro", Some("data")),
            ("data:C:\\data", Some("data")),
            ("/data", None),
            ("/srv:/data:ro", None),
            ("C:\\srv:C:\\data", None),
            ("c:\\data", None),
            ("\\\\.\\pipe\\a:\\\\.\\pipe\\a", None),
            ("data", None),
            ("data:", None),
            ("", None),
        ] {
            assert_eq!(named_volume(mount), name, "{mount}");
        }
    }
}
