//! What a request says of its hosts: constraints, tolerations, and over which labels it is spread.

use model::Value;

use crate::place::constraint::{self, Constraint, WEIGHT_DEFAULT, WEIGHT_MAX};
use crate::place::fields::Fields;
use crate::place::hosts::label;
use crate::place::invalid::Invalid;
use crate::place::request::limits::{CONSTRAINTS_MAX, COUNT_MAX, LIST_MAX, MEMBERS_MAX, TEXT_MAX};
use crate::place::taint::{Effect, Toleration};

/// How evenly a service is spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    /// The host label (folded) whose values are the domains.
    pub(crate) label: String,
    /// By how many containers the fullest and the emptiest domain may differ.
    pub(crate) max_skew: u32,
}

impl<'a> Fields<'a> {
    pub(super) fn constraints(&self) -> Result<Vec<Constraint>, Invalid> {
        let constraint = |(at, item): (usize, &'a Value)| match item {
            Value::Text(text) if text.len() <= TEXT_MAX => {
                constraint::of_text(text).or_else(|expected| self.wrong(&format!("constraints[{at}]"), item, expected))
            }
            Value::Map(_) => self.entry("constraints", at, item)?.constraint(),
            other => self.wrong(&format!("constraints[{at}]"), other, "text or a map"),
        };
        self.list("constraints", CONSTRAINTS_MAX)?.iter().enumerate().map(constraint).collect()
    }

    fn constraint(&self) -> Result<Constraint, Invalid> {
        self.only(&[&["key", "operator", "soft", "value", "values", "weight"]])?;
        let key = self.text("key")?.ok_or_else(|| Invalid::new(self.at("key"), "missing", "a label key"))?;
        let operator = self.text("operator")?.unwrap_or_else(|| "=".into());
        let mut values = self.texts("values")?;
        match self.get("value") {
            Some(value @ (Value::Int(_) | Value::Float(_) | Value::Bool(_))) => {
                values.extend(label(&(key.clone(), value.clone())).map(|(_, value)| value));
            }
            _ => values.extend(self.text("value")?),
        }
        let weight = self.int("weight", 1, i64::from(WEIGHT_MAX))?.and_then(|weight| u32::try_from(weight).ok());
        let soft = self.truth("soft")? || weight.is_some();
        let constraint = constraint::of_parts(&key, &operator, &values)
            .map_err(|expected| Invalid::new(self.path.clone(), "not a constraint", expected))?;
        Ok(Constraint { weight: soft.then(|| weight.unwrap_or(WEIGHT_DEFAULT)), ..constraint })
    }

    pub(super) fn tolerations(&self) -> Result<Vec<Toleration>, Invalid> {
        let toleration = |(at, item): (usize, &'a Value)| {
            if let Value::Text(text) = item {
                let expected = "KEY, KEY=VALUE, or either with :NoSchedule, :PreferNoSchedule or :NoExecute";
                let parsed = if text.len() <= TEXT_MAX { Toleration::parse(text) } else { None };
                return parsed.map_or_else(|| self.wrong(&format!("tolerations[{at}]"), item, expected), Ok);
            }
            let fields = self.entry("tolerations", at, item)?;
            fields.only(&[&["effect", "key", "operator", "value"]])?;
            let exists = fields.word("operator", &[("Equal", false), ("Exists", true)])?.unwrap_or(false);
            // Most taints have no value, and many write that as an empty one.
            let empty = matches!(fields.get("value"), Some(Value::Text(text)) if text.is_empty());
            let value = if empty { None } else { fields.text("value")? };
            let key = fields.text("key")?;
            let effect = fields.word("effect", &Effect::ALL)?;
            if exists && value.is_some() {
                return Err(Invalid::new(fields.at("value"), "given with Exists", "no value"));
            }
            if key.is_none() && !exists {
                return Err(Invalid::new(fields.at("key"), "missing", "a key, or the operator Exists"));
            }
            let value = if exists { None } else { Some(value.unwrap_or_default()) };
            Ok(Toleration { key, value, effect })
        };
        self.list("tolerations", LIST_MAX)?.iter().enumerate().map(toleration).collect()
    }

    pub(super) fn spread(&self) -> Result<Vec<Spread>, Invalid> {
        let spread = |(at, item): (usize, &'a Value)| {
            if let Value::Text(label) = item
                && (1..=TEXT_MAX).contains(&label.len())
            {
                return Ok(Spread { label: label.to_lowercase(), max_skew: 1 });
            }
            let fields = self.entry("spread", at, item)?;
            fields.only(&[&["label", "max_skew"]])?;
            let label = fields.text("label")?;
            let label = label.ok_or_else(|| Invalid::new(fields.at("label"), "missing", "a host label"))?;
            let max_skew = fields.int("max_skew", 1, COUNT_MAX)?.and_then(|skew| u32::try_from(skew).ok());
            Ok(Spread { label: label.to_lowercase(), max_skew: max_skew.unwrap_or(1) })
        };
        self.list("spread", MEMBERS_MAX)?.iter().enumerate().map(spread).collect()
    }
}
