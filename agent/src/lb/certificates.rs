//! Certificates for HAProxy, from a folder of this host: checked, and copied to where only HAProxy's user reads them.
//!
//! They never leave the host. A pair that does not fit is not copied, so that HAProxy goes on with the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use model::Text;

/// Largest file, in bytes: a chain of four certificates has a hundredth of it.
const FILE_MAX: u64 = 1 << 20;

/// Certificates in a folder, by name.
#[derive(Debug)]
pub(crate) struct CertificateFolder {
    from: PathBuf,
    to: PathBuf,
    /// What HAProxy has.
    copied: BTreeMap<Text, String>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Names of those that HAProxy can read.
    pub(crate) usable: BTreeSet<Text>,
    /// Those that are others than before, with their text.
    pub(crate) renewed: Vec<(PathBuf, String)>,
    /// What is wrong.
    pub(crate) problems: Vec<String>,
}

impl CertificateFolder {
    pub(crate) fn new(from: PathBuf, to: PathBuf) -> Self {
        Self { from, to, copied: BTreeMap::new() }
    }

    /// Where HAProxy reads them, `NAME.pem`.
    pub(crate) fn copies(&self) -> &Path {
        &self.to
    }

    /// Looks at those of these names, and copies what has changed.
    pub(crate) fn look(&mut self, names: &BTreeSet<Text>) -> Found {
        let mut found = Found::default();
        for name in names {
            let copy = self.to.join(format!("{name}.pem"));
            let before = self.copied.get(name).cloned().or_else(|| read(&copy).ok());
            match self.copy(name, &copy, before.as_deref()) {
                Ok(Some(text)) => {
                    if before.is_some() {
                        found.renewed.push((copy, text.clone()));
                    }
                    self.copied.insert(name.clone(), text);
                }
                Ok(None) => {}
                Err(problem) if before.is_some() => {
                    found.problems.push(format!("certificate {name}: {problem}; the one before is served"));
                }
                Err(problem) => {
                    found.problems.push(format!("certificate {name}: {problem}"));
                    continue;
                }
            }
            if let Some(before) = before {
                self.copied.entry(name.clone()).or_insert(before);
            }
            found.usable.insert(name.clone());
        }
        found
    }

    /// Copies one that is another than before, and gives its text.
    fn copy(&self, name: &str, copy: &Path, before: Option<&str>) -> Result<Option<String>, String> {
        let single = self.from.join(format!("{name}.pem"));
        let text = if single.exists() {
            read(&single)?
        } else {
            let pair = self.from.join(name);
            format!("{}\n{}", read(&pair.join("fullchain.pem"))?, read(&pair.join("privkey.pem"))?)
        };
        // HAProxy's socket takes an empty line for the end.
        let text: String = text.lines().filter(|line| !line.trim().is_empty()).flat_map(|line| [line, "\n"]).collect();
        if before == Some(&*text) {
            return Ok(None);
        }
        let candidate = self.to.join(format!("{name}.candidate"));
        let written = platform::file::replace_private(&candidate, text.as_bytes()).map_err(|error| error.to_string());
        let checked = written
            .and_then(|_| tls::server_of_anybody(&candidate, &candidate).map(drop).map_err(|bad| bad.problem))
            .and_then(|()| {
                platform::file::replace_private(copy, text.as_bytes()).map(drop).map_err(|error| error.to_string())
            });
        let _ = std::fs::remove_file(&candidate);
        checked.map(|()| Some(text))
    }
}

fn read(path: &Path) -> Result<String, String> {
    let file = platform::file::open_regular(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    if text.len() as u64 > FILE_MAX {
        return Err(format!("{} has more than {FILE_MAX} bytes", path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["a.example.org".into()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_pair_that_does_not_fit_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir_all(from.join("b")).unwrap();
        platform::file::create_private_folder(&to).unwrap();
        let ((chain, key), (other, other_key)) = (pair(), pair());
        std::fs::write(from.join("a.pem"), format!("{chain}\n{key}")).unwrap();
        std::fs::write(from.join("b/fullchain.pem"), &chain).unwrap();
        std::fs::write(from.join("b/privkey.pem"), &other_key).unwrap();
        let names: BTreeSet<Text> = ["a", "b", "c"].map(Into::into).into();
        let mut certificates = CertificateFolder::new(from.clone(), to.clone());
        let found = certificates.look(&names);
        assert_eq!(found.usable, BTreeSet::from(["a".into()]), "{:?}", found.problems);
        assert_eq!((found.renewed.len(), found.problems.len()), (0, 2));
        std::fs::write(from.join("a.pem"), format!("{other}{key}")).unwrap();
        let found = certificates.look(&names);
        assert!(found.usable.contains("a") && found.renewed.is_empty());
        assert!(std::fs::read_to_string(to.join("a.pem")).unwrap().starts_with(chain.trim_end()));
        std::fs::write(from.join("a.pem"), format!("{other}{other_key}")).unwrap();
        assert_eq!(certificates.look(&names).renewed.len(), 1);
        // As after a restart.
        let found = CertificateFolder::new(from, to).look(&names);
        assert!(found.usable.contains("a") && found.renewed.is_empty());
    }
}
