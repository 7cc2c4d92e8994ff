//! What a request mounts: volumes with names, their driver options, and where each appears. ◇

use model::{Text, Value};

use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::request::limits::LIST_MAX;

/// Shortest name that engines take for a volume; one letter is a drive.
const NAME_MIN: usize = 2;

/// Options whose values say where a volume is; others may be passwords.
const OPTIONS_SHOWN: [&str; 2] = ["device", "type"];

/// The volume of the engine in `data:/data:ro`; `None` for a folder of the host, and for a volume without a name.
pub(crate) fn named_volume(mount: &str) -> Option<&str> {
    // Folders begin with a slash or a drive, and a path alone is a volume without a name.
    let (name, target) = mount.split_once(':')?;
    (name.len() >= NAME_MIN && !name.starts_with(['/', '\\']) && !target.is_empty()).then_some(name)
}

/// Where a volume such as `/srv/data:/data:ro` appears in the container, with slashes and without the drive, as targets of files are.
pub(crate) fn mount_point(volume: &str) -> String {
    let target = match fields(volume)[..] {
        [_, target, ..] if target.contains(['/', '\\']) => target,
        [only, ..] => only,
        [] => "",
    };
    let drive = drive_length(target).map_or(0, |length| length - 1);
    target[drive..].replace('\\', "/")
}

/// The fields of a volume where the colon of a drive separates nothing.
pub(crate) fn fields(volume: &str) -> Vec<&str> {
    let (mut fields, mut rest) = (Vec::new(), volume);
    loop {
        let skipped = drive_length(rest).unwrap_or(0);
        let Some(at) = rest[skipped..].find(':') else {
            fields.push(rest);
            return fields;
        };
        fields.push(&rest[..skipped + at]);
        rest = &rest[skipped + at + 1..];
    }
}

/// The length of a drive and its separator at the beginning, behind `\\?\` too.
pub(crate) fn drive_length(text: &str) -> Option<usize> {
    let skipped = if text.starts_with("\\\\?\\") || text.starts_with("//?/") { 4 } else { 0 };
    let bytes = text.as_bytes().get(skipped..skipped + 3)?;
    (bytes[0].is_ascii_alphabetic() && bytes[1] == b':' && matches!(bytes[2], b'/' | b'\\')).then_some(skipped + 3)
}

/// Options that are passed to the driver of a volume when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeOptions {
    /// The volume, as the engine calls it.
    pub(crate) volume: Text,
    /// The options by name.
    pub(crate) options: Vec<(Text, Text)>,
}

impl VolumeOptions {
    /// What they let a container reach, as a policy calls each: a folder of the host, a server, a device.
    pub(crate) fn privileges(&self) -> impl Iterator<Item = String> + '_ {
        self.options.iter().map(|(key, value)| {
            let is_shown = OPTIONS_SHOWN.iter().any(|shown| key.eq_ignore_ascii_case(shown));
            if is_shown { format!("volume_options={key}={value}") } else { format!("volume_options={key}") }
        })
    }
}

impl Fields<'_> {
    /// The options of volumes among these, by their names.
    pub(super) fn volume_options(&self, volumes: &[Text]) -> Result<Vec<VolumeOptions>, Invalid> {
        const KEY: &str = "volume_options";
        let map = match self.get(KEY) {
            None => return Ok(Vec::new()),
            Some(Value::Map(map)) if map.len() <= LIST_MAX => map,
            Some(other) => return self.wrong(KEY, other, format!("a map of at most {LIST_MAX} volumes")),
        };
        let all = Fields { path: self.at(KEY), map };
        let mut found = Vec::new();
        for (volume, value) in map {
            if !volumes.iter().any(|mount| named_volume(mount) == Some(&**volume)) {
                return Err(Invalid::new(all.at(volume), "not mounted", "the name of one of `volumes`"));
            }
            let Value::Map(map) = value else { return all.wrong(volume, value, "a map of options") };
            let below = Fields { path: all.at(volume), map };
            let option = |(key, _): &(Text, Value)| Ok((key.clone(), below.text(key)?.unwrap_or_default()));
            found.push(VolumeOptions {
                volume: volume.clone(),
                options: map.iter().map(option).collect::<Result<_, Invalid>>()?,
            });
        }
        Ok(found)
    }
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

    #[test]
    fn a_volume_appears_where_it_says() {
        for (volume, expected) in [
            ("/data", "/data"),
            ("/data:ro", "/data"),
            ("data:/srv/data:ro", "/srv/data"),
            ("/a:/b", "/b"),
            ("C:\\data", "/data"),
            ("data:C:\\data", "/data"),
            ("C:\\a:C:\\b\\c:ro", "/b/c"),
            ("c:/a:c:/b:ro", "/b"),
        ] {
            assert_eq!(mount_point(volume), expected, "{volume}");
        }
    }
}
