//! Taints of hosts and the tolerations of containers.
//!
//! The predecessor had none; the words are Kubernetes'. A host carries them in one label:
//! `io.berth.taints: "gpu=yes:NoSchedule, old:PreferNoSchedule"`.

use std::fmt;

use model::Text;

/// A property of a host that repels containers which do not tolerate it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taint {
    /// What it is about.
    pub(crate) key: Text,
    /// More exactly; may be empty.
    pub(crate) value: Text,
    /// What it does.
    pub(crate) effect: Effect,
}

/// What a taint does to containers that do not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Repels them.
    #[default]
    NoSchedule,
    /// Only discourages them.
    PreferNoSchedule,
    /// Repels them; those that are there are left alone, since the scheduler ends no containers on its own.
    NoExecute,
}

impl Effect {
    /// The effects and their words.
    pub(crate) const ALL: [(&'static str, Self); 3] = [
        ("NoSchedule", Self::NoSchedule),
        ("PreferNoSchedule", Self::PreferNoSchedule),
        ("NoExecute", Self::NoExecute),
    ];

    /// The effect of this word, ignoring case.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(word.trim())).map(|(_, effect)| *effect)
    }

    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, effect)| *effect == self).map_or("", |(word, _)| word)
    }
}

impl Taint {
    /// The taints of a label: `key[=value][:effect]`, comma-separated; without an effect that is known containers are
    /// repelled.
    pub(crate) fn list(text: &str) -> Vec<Self> {
        let taint = |entry: &str| {
            let entry = entry.trim();
            let (name, effect) = entry.split_once(':').unwrap_or((entry, "NoSchedule"));
            let (key, value) = name.split_once('=').unwrap_or((name, ""));
            let effect = Effect::parse(effect).unwrap_or_default();
            (!key.trim().is_empty()).then(|| Self { key: key.trim().into(), value: value.trim().into(), effect })
        };
        text.split(',').filter_map(taint).collect()
    }

    /// Whether it only discourages.
    pub(crate) fn is_soft(&self) -> bool {
        self.effect == Effect::PreferNoSchedule
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        // What is not said is what most taints do.
        if self.effect != Effect::NoSchedule {
            write!(f, ":{}", self.effect.name())?;
        }
        Ok(())
    }
}

/// A taint that a container does not mind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toleration {
    /// The key of the taint; `None` means all.
    pub(crate) key: Option<Text>,
    /// The value of the taint; `None` means any.
    pub(crate) value: Option<Text>,
    /// What the taint does; `None` means anything.
    pub(crate) effect: Option<Effect>,
}

impl Toleration {
    /// The toleration in `key[=value][:effect]`; without a value it is of any, without an effect of all. `None` when
    /// there is no key, or no such effect.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, effect) = text.split_once(':').map_or((text, None), |(name, effect)| (name, Some(effect)));
        let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value)));
        let effect = effect.map(|word| Effect::parse(word).ok_or(())).transpose().ok()?;
        let key = Some(key.trim()).filter(|key| !key.is_empty())?;
        Some(Self { key: Some(key.into()), value: value.map(|value| value.trim().into()), effect })
    }

    /// Whether it covers `taint`.
    pub(crate) fn covers(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_hold_taints_that_tolerations_cover() {
        let taints = Taint::list(" gpu=yes:NoSchedule, old:PreferNoSchedule,x=1,, ");
        let texts: Vec<_> = taints.iter().map(|taint| format!("{taint} {}", taint.is_soft())).collect();
        assert_eq!(texts, ["gpu=yes false", "old:PreferNoSchedule true", "x=1 false"]);
    }

    #[test]
    fn tolerations_cover_taints_by_key_value_and_effect() {
        for (toleration, taint, covers) in [
            ("gpu=yes", "gpu=yes:NoSchedule", true),
            ("gpu=no", "gpu=yes:NoSchedule", false),
            ("gpu=yes", "gpu:NoSchedule", false),
            ("gpu=", "gpu:NoSchedule", true),
            ("gpu", "gpu=yes", true),
            ("old", "gpu=yes", false),
            ("gpu", "gpu:NoExecute", true),
            ("gpu:NoExecute", "gpu:NoExecute", true),
            ("gpu:NoExecute", "gpu:NoSchedule", false),
            ("gpu=yes:preferNoSchedule", "gpu=yes:PreferNoSchedule", true),
            ("gpu=yes:PreferNoSchedule", "gpu=yes:NoSchedule", false),
            // A mistyped effect repels containers.
            ("gpu:NoSchedule", "gpu:Never", true),
        ] {
            let found = Toleration::parse(toleration).unwrap().covers(&Taint::list(taint)[0]);
            assert_eq!(found, covers, "{toleration} of {taint}");
        }
        let all = Toleration { key: None, value: None, effect: None };
        assert!(Taint::list("a,b=c:NoExecute,d:PreferNoSchedule").iter().all(|taint| all.covers(taint)));
        for text in ["", "=a", ":NoSchedule", "gpu:Never"] {
            assert_eq!(Toleration::parse(text), None, "{text}");
        }
    }
}
