//! Taints of hosts and the tolerations of containers.
//!
//! The predecessor had none; the words are Kubernetes'. A host carries them in one label:
//! `io.berth.taints: "gpu=yes:NoSchedule, old:PreferNoSchedule"`.

use std::fmt;

use model::Text;

/// Something about a host that keeps containers away which do not tolerate it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// What it is about.
    pub key: Text,
    /// More exactly; may be empty.
    pub value: Text,
    /// Whether it only discourages.
    pub soft: bool,
}

impl Taint {
    /// The taints of a label: `key[=value][:effect]`, comma-separated; without an effect containers are kept away.
    pub fn list(text: &str) -> Vec<Self> {
        let taint = |entry: &str| {
            let entry = entry.trim();
            let (name, effect) = entry.split_once(':').unwrap_or((entry, "NoSchedule"));
            let (key, value) = name.split_once('=').unwrap_or((name, ""));
            let soft = effect.trim().eq_ignore_ascii_case("PreferNoSchedule");
            (!key.trim().is_empty()).then(|| Self { key: key.trim().into(), value: value.trim().into(), soft })
        };
        text.split(',').filter_map(taint).collect()
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        Ok(())
    }
}

/// A taint that a container does not mind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    /// The key of the taint; `None` means all.
    pub key: Option<Text>,
    /// The value of the taint; `None` means any.
    pub value: Option<Text>,
}

impl Toleration {
    /// Whether it covers `taint`.
    pub fn covers(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_hold_taints_that_tolerations_cover() {
        let taints = Taint::list(" gpu=yes:NoSchedule, old:PreferNoSchedule,x=1,, ");
        let texts: Vec<_> = taints.iter().map(|taint| format!("{taint} {}", taint.soft)).collect();
        assert_eq!(texts, ["gpu=yes false", "old true", "x=1 false"]);
        let toleration = |key: Option<&str>, value: Option<&str>| Toleration {
            key: key.map(Text::from),
            value: value.map(Text::from),
        };
        assert!(toleration(Some("gpu"), Some("yes")).covers(&taints[0]));
        assert!(!toleration(Some("gpu"), Some("no")).covers(&taints[0]));
        assert!(toleration(Some("old"), None).covers(&taints[1]));
        assert!(toleration(None, None).covers(&taints[2]));
    }
}
