//! A file that a container gets before it is started. ◇

use model::{Text, Value};

use crate::place::fields::Fields;
use crate::place::invalid::Invalid;
use crate::place::request::limits::LIST_MAX;

/// Its fields.
const FIELDS: &[&str] = &["content", "content_base64", "gid", "mode", "sealed", "target", "uid"];

/// Largest number of a user or a group on Linux.
const ID_MAX: i64 = u32::MAX as i64 - 1;

/// Rights of a file that says nothing of them: everybody in the container may read it.
const MODE: u32 = 0o444;

/// A file for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PutFile {
    /// Its path in the container.
    pub(crate) target: Text,
    /// Its contents, as the schedulers of the ledger can open them; `None` in the request of a client, which is sealed before it is read.
    pub(crate) sealed: Option<Text>,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mode: u32,
}

impl Fields<'_> {
    /// The files of a container.
    pub(super) fn files(&self) -> Result<Vec<PutFile>, Invalid> {
        let mut files: Vec<PutFile> = Vec::new();
        for (at, item) in self.list("files", LIST_MAX)?.iter().enumerate() {
            let fields = self.entry("files", at, item)?;
            let file = PutFile::read(&fields)?;
            if files.iter().any(|other| other.target == file.target) {
                return Err(Invalid::new(
                    fields.at("target"),
                    format!("{} is there twice", file.target),
                    "each path once",
                ));
            }
            files.push(file);
        }
        Ok(files)
    }
}

impl PutFile {
    fn read(fields: &Fields<'_>) -> Result<Self, Invalid> {
        fields.only(&[FIELDS])?;
        let target = fields.text("target")?;
        let target = target.ok_or_else(|| Invalid::new(fields.at("target"), "missing", "the path in the container"))?;
        if !is_path(&target) {
            let expected = "an absolute path in the container, /run/secrets/NAME; on Windows below C:";
            return fields.wrong("target", &Value::Text(target), expected);
        }
        // Its length is that of the contents, which were measured.
        let sealed = fields.get("sealed").and_then(Value::as_text).cloned();
        if sealed.is_none() && ["content", "content_base64"].iter().all(|key| fields.get(key).is_none()) {
            return Err(Invalid::new(fields.at("content"), "missing", "the contents, or content_base64"));
        }
        let id = |key: &str| Ok::<_, Invalid>(fields.int(key, 0, ID_MAX)?.and_then(|id| u64::try_from(id).ok()));
        let mode = match fields.get("mode") {
            None => MODE,
            Some(value) => {
                let octal = |text: &str| u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
                match value.as_str().and_then(octal) {
                    Some(mode) => mode,
                    None => return fields.wrong("mode", value, "octal digits in quotes, \"0400\""),
                }
            }
        };
        Ok(Self { target, sealed, uid: id("uid")?.unwrap_or_default(), gid: id("gid")?.unwrap_or_default(), mode })
    }
}

/// What engines mount into containers themselves.
const MOUNTED: [&str; 6] = ["/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/sys"];

/// Why a file cannot be put at a path of a container with these mounts: a mount would hide it or keep it after the container's end,
/// and a file in place of a folder would take the folder's mounts with it.
pub(super) fn clash<'a>(target: &str, mounts: impl Iterator<Item = &'a str>) -> Option<String> {
    let below = |path: &str, folder: &str| {
        path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    mounts.chain(MOUNTED).find_map(|mount| {
        let mount = if mount.len() > 1 { mount.trim_end_matches('/') } else { mount };
        if below(target, mount) {
            return Some(format!("{target} is in what is mounted at {mount}"));
        }
        below(mount, target).then(|| format!("{mount} is mounted below {target}"))
    })
}

/// Whether a path is absolute and leads nowhere else.
fn is_path(path: &str) -> bool {
    let is_plain = |part: &str| {
        !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']) && !part.contains(char::is_control)
    };
    path.strip_prefix('/').is_some_and(|parts| parts.split('/').all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &serde_json::Value) -> Result<Vec<PutFile>, Invalid> {
        let value: Value = serde_json::from_value(serde_json::json!({ "files": [json] })).unwrap();
        Fields::of(&value).unwrap().files()
    }

    #[test]
    fn a_file_has_a_path_contents_and_rights() {
        let plain = read(&serde_json::json!({ "target": "/run/secrets/pw", "sealed": "x" })).unwrap();
        let expected =
            PutFile { target: "/run/secrets/pw".into(), sealed: Some("x".into()), uid: 0, gid: 0, mode: 0o444 };
        assert_eq!(plain, [expected]);
        let own = read(&serde_json::json!({ "target": "/a", "sealed": "x", "uid": 5, "gid": 6, "mode": "0400" }));
        let own = own.unwrap();
        assert_eq!((own[0].uid, own[0].gid, own[0].mode), (5, 6, 0o400));
        for (json, field) in [
            (serde_json::json!({ "target": "/a" }), "content"),
            (serde_json::json!({ "sealed": "x" }), "target"),
            (serde_json::json!({ "target": "a", "sealed": "x" }), "target"),
            (serde_json::json!({ "target": "/", "sealed": "x" }), "target"),
            (serde_json::json!({ "target": "/a/../b", "sealed": "x" }), "target"),
            (serde_json::json!({ "target": "/a/", "sealed": "x" }), "target"),
            (serde_json::json!({ "target": "/C:/a", "sealed": "x" }), "target"),
            (serde_json::json!({ "target": "/a", "sealed": "x", "mode": 400 }), "mode"),
            (serde_json::json!({ "target": "/a", "sealed": "x", "mode": "4755" }), "mode"),
            (serde_json::json!({ "target": "/a", "sealed": "x", "uid": -1 }), "uid"),
            (serde_json::json!({ "target": "/a", "sealed": "x", "owner": "me" }), "owner"),
        ] {
            assert_eq!(read(&json).unwrap_err().field, format!("files[0].{field}"), "{json}");
        }
        let twice: Value = serde_json::from_value(serde_json::json!({ "files": [
            { "target": "/a", "sealed": "x" }, { "target": "/a", "sealed": "y" }] }))
        .unwrap();
        assert_eq!(Fields::of(&twice).unwrap().files().unwrap_err().field, "files[1].target");
    }

    #[test]
    fn a_file_is_neither_in_a_mount_nor_above_one() {
        let clashes = |target: &str| clash(target, ["/srv/data", "/run/"].into_iter()).is_some();
        let bad = ["/srv/data", "/srv/data/x", "/srv", "/run", "/run/secrets/x", "/dev/shm/x", "/etc", "/etc/hosts"];
        assert!(bad.iter().all(|target| clashes(target)));
        assert!(!["/srv/data2", "/srv/d", "/running", "/etc/passwd", "/a"].iter().any(|target| clashes(target)));
    }
}
