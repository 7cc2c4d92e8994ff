//! Constraints: what a host or its containers must be like, in the three ways of writing them.
//!
//! The predecessor's labels (`io.rancher.scheduler.affinity:host_label_soft: zone=a`), its environment form
//! (`constraint:zone==~a`), and Berth's own (`zone in (a, b)`). All become the same [`Constraint`].

use std::cmp::Ordering;
use std::fmt;

use model::Text;
use regex_lite::Regex;

/// Start of the predecessor's rules among labels.
pub(crate) const AFFINITY_LABEL_PREFIX: &str = "io.rancher.scheduler.affinity:";

/// Default weight of a soft rule.
pub(crate) const WEIGHT_DEFAULT: u32 = 50;

/// The most that a soft rule weighs, as in Nomad and Kubernetes.
pub(crate) const WEIGHT_MAX: u32 = 100;

/// Longest regular expression, in bytes: the time a match takes grows with it.
const PATTERN_MAX: usize = 256;

/// Memory a compiled regular expression may take.
const PATTERN_SIZE_MAX: usize = 1 << 16;

/// One constraint.
#[derive(Clone, Debug)]
pub(crate) struct Constraint {
    /// What it is about.
    pub(crate) subject: Subject,
    /// How much it weighs when it may be broken; `None` when it may not.
    pub(crate) weight: Option<u32>,
}

/// What a constraint is about.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A label of the host, or another attribute of it.
    Host {
        /// The label.
        attribute: Attribute,
        /// What its value must be like.
        test: Test,
    },
    /// A container label that some container on the host must (not) have.
    ContainerLabel {
        /// The label.
        key: Text,
        /// Its value.
        value: Text,
        /// Whether none may have it.
        not: bool,
    },
    /// A container, by name or uuid, that must (not) be on the host.
    Container {
        /// The name or uuid.
        name: Text,
        /// Whether it must not be.
        not: bool,
    },
    /// Something that cannot hold: an affinity without `=`.
    Never {
        /// The rule as it was written.
        rule: Text,
    },
}

/// The attribute of a host that is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// A label, its key folded.
    Label(String),
    Uuid,
    Name,
    Os,
    Architecture,
}

impl Attribute {
    fn parse(key: &str) -> Self {
        match key.to_lowercase().as_str() {
            "node.id" => Self::Uuid,
            "node.hostname" => Self::Name,
            "node.platform.os" => Self::Os,
            "node.platform.arch" => Self::Architecture,
            key => Self::Label(key.strip_prefix("node.labels.").unwrap_or(key).to_owned()),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Uuid => f.write_str("uuid"),
            Self::Name => f.write_str("name"),
            Self::Os => f.write_str("operating system"),
            Self::Architecture => f.write_str("architecture"),
        }
    }
}

/// What a value must be like. Case does not matter, except to regular expressions.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    /// One of these.
    In(Vec<Text>),
    /// None of these; an absent label passes.
    NotIn(Vec<Text>),
    /// There at all.
    Exists,
    /// Not there.
    Absent,
    /// Ordered like this to the bound.
    Compare(Comparison, Text),
    /// Matched by the expression.
    Matches(Regex),
    /// Not matched by it; an absent label passes.
    MatchesNot(Regex),
}

impl Test {
    /// Whether a host with this value, or without one, passes.
    pub(crate) fn passes(&self, value: Option<&str>) -> bool {
        let is_one = |list: &[Text], value: &str| list.iter().any(|one| same(one, value));
        match (self, value) {
            (Self::In(list), Some(value)) => is_one(list, value),
            (Self::NotIn(list), Some(value)) => !is_one(list, value),
            (Self::Compare(comparison, bound), Some(value)) => comparison.holds(value, bound),
            (Self::Matches(pattern), Some(value)) => pattern.is_match(value),
            (Self::MatchesNot(pattern), Some(value)) => !pattern.is_match(value),
            (Self::Exists, value) => value.is_some(),
            (Self::Absent, value) => value.is_none(),
            (Self::NotIn(_) | Self::MatchesNot(_), None) => true,
            (Self::In(_) | Self::Compare(..) | Self::Matches(_), None) => false,
        }
    }
}

/// Whether two values are the same for a rule.
pub(crate) fn same(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || (!a.is_ascii() && a.to_lowercase() == b.to_lowercase())
}

/// An ordering against a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// `>` or `>=`, not `<` or `<=`.
    pub(crate) above: bool,
    /// `>=` or `<=`.
    pub(crate) or_equal: bool,
    /// Whether the values are versions even when they look like numbers: 4.9 comes before 4.14.
    pub(crate) version: bool,
}

impl Comparison {
    fn compare(self, value: &str, bound: &str) -> Option<Ordering> {
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        match (number(value), number(bound)) {
            (Some(value), Some(bound)) if !self.version => value.partial_cmp(&bound),
            _ => compare_versions(value, bound),
        }
    }

    fn holds(self, value: &str, bound: &str) -> bool {
        match self.compare(value, bound) {
            Some(Ordering::Equal) => self.or_equal,
            Some(Ordering::Greater) => self.above,
            Some(Ordering::Less) => !self.above,
            None => false,
        }
    }
}

/// The order of two versions: numbers between dots, a leading `v` and what follows `+` ignored, and what follows `-`
/// makes it come before. `None` when one is no version.
fn compare_versions(a: &str, b: &str) -> Option<Ordering> {
    fn parse(text: &str) -> Option<(Vec<u64>, Option<&str>)> {
        let text = text.trim();
        let text = text.strip_prefix(['v', 'V']).unwrap_or(text).split('+').next()?;
        let (release, before) = text.split_once('-').map_or((text, None), |(release, before)| (release, Some(before)));
        let mut numbers: Vec<u64> = release.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        while numbers.last() == Some(&0) {
            numbers.pop();
        }
        Some((numbers, before))
    }
    let ((a, a_before), (b, b_before)) = (parse(a)?, parse(b)?);
    Some(a.cmp(&b).then_with(|| match (a_before, b_before) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(b),
    }))
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &[Text]| list.iter().map(|one| &**one).collect::<Vec<_>>().join(", ");
        match self {
            Self::In(one) if one.len() == 1 => write!(f, "= {}", one[0]),
            Self::NotIn(one) if one.len() == 1 => write!(f, "!= {}", one[0]),
            Self::In(many) => write!(f, "in ({})", list(many)),
            Self::NotIn(many) => write!(f, "notin ({})", list(many)),
            Self::Exists => f.write_str("exists"),
            Self::Absent => f.write_str("!exists"),
            Self::Compare(comparison, bound) => {
                let sign = if comparison.above { ">" } else { "<" };
                let version = if comparison.version { "version " } else { "" };
                write!(f, "{version}{sign}{} {bound}", if comparison.or_equal { "=" } else { "" })
            }
            Self::Matches(pattern) => write!(f, "=~ {}", pattern.as_str()),
            Self::MatchesNot(pattern) => write!(f, "!~ {}", pattern.as_str()),
        }
    }
}

/// As a person would state it: `label gpu = yes`.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let must = |not: &bool| if *not { "no container" } else { "a container" };
        match self {
            Self::Host { attribute, test } => write!(f, "{attribute} {test}"),
            Self::ContainerLabel { key, value, not } => write!(f, "{} with label {key}={value}", must(not)),
            Self::Container { name, not } => write!(f, "{} with name or uuid {name}", must(not)),
            Self::Never { rule } => write!(f, "{rule}, which never holds"),
        }
    }
}

/// What was expected where no constraint was found.
pub(crate) type Expected = String;

/// The names that rules may speak of: `${service_name}` and the like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Macros<'a> {
    pub(crate) service: &'a str,
    pub(crate) stack: &'a str,
}

impl Macros<'_> {
    /// The text with the names in place.
    pub(crate) fn expand(&self, text: &str) -> String {
        if !text.contains("${") {
            return text.to_owned();
        }
        // In compose files the dollar is doubled.
        text.replace("$${", "${")
            .replace("${service_name}", self.service)
            .replace("${stack_name}", self.stack)
            // Stacks were called projects once; the macro outlived the word.
            .replace("${project_name}", self.stack)
    }
}

/// The constraints of one of the predecessor's labels, without its prefix: `host_label_soft_ne` and `zone=a,gpu=yes`.
pub(crate) fn of_label(field: &str, value: &str, macros: Macros<'_>) -> Result<Vec<Constraint>, Expected> {
    let field = field.trim().to_lowercase();
    let (rest, not) = field.strip_suffix("_ne").map_or((field.as_str(), false), |rest| (rest, true));
    let (kind, soft) = rest.strip_suffix("_soft").map_or((rest, false), |rest| (rest, true));
    let weight = soft.then_some(WEIGHT_DEFAULT);
    if !matches!(kind, "host_label" | "container_label" | "container") {
        return Err("host_label, container_label or container, then nothing, _ne, _soft or _soft_ne".into());
    }
    let value = macros.expand(value);
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    Ok(parts.map(|part| Constraint { weight, ..affinity(kind, part, not) }).collect())
}

/// The constraint of a variable `constraint:zone==a`, `affinity:container==db` or `affinity:app!=~web`; `None` when the
/// variable is an ordinary one.
pub(crate) fn of_variable(variable: &str, macros: Macros<'_>) -> Option<Constraint> {
    let folded = variable.get(..variable.find(':')?)?.to_lowercase();
    let host = match folded.as_str() {
        "constraint" => true,
        "affinity" => false,
        _ => return None,
    };
    let rest = macros.expand(&variable[folded.len() + 1..]);
    for (operator, not, soft) in [("!=~", true, true), ("==~", false, true), ("!=", true, false), ("==", false, false)]
    {
        let Some((key, value)) = rest.split_once(operator) else { continue };
        // What follows the operator is what an environment's own `=` leaves of `==`.
        let (key, value) = (key.trim(), value.trim());
        let kind = match (host, key) {
            (true, _) => "host_label",
            (false, "container") => "container",
            (false, _) => "container_label",
        };
        let part = if kind == "container" { value.to_owned() } else { format!("{key}={value}") };
        return Some(Constraint { weight: soft.then_some(WEIGHT_DEFAULT), ..affinity(kind, &part, not) });
    }
    None
}

fn affinity(kind: &str, part: &str, not: bool) -> Constraint {
    let pair = part.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
    let never = || Subject::Never { rule: format!("{kind} {part}").into() };
    let subject = match (kind, pair) {
        ("container", _) => Subject::Container { name: part.into(), not },
        ("host_label", Some((key, value))) => {
            let test = if not { Test::NotIn(vec![value.into()]) } else { Test::In(vec![value.into()]) };
            Subject::Host { attribute: Attribute::Label(key.to_lowercase()), test }
        }
        (_, Some((key, value))) => Subject::ContainerLabel { key: key.into(), value: value.into(), not },
        (_, None) => never(),
    };
    Constraint { subject, weight: None }
}

/// The constraint in `KEY OPERATOR VALUE`.
pub(crate) fn of_text(text: &str) -> Result<Constraint, Expected> {
    let expected = || "LABEL OPERATOR VALUE, such as \"zone in (a, b)\"".to_owned();
    let text = text.trim();
    if let Some(key) = text.strip_prefix('!').map(str::trim)
        && is_key(key)
    {
        return of_parts(key, "!exists", &[]);
    }
    let end = text.find(|char: char| char.is_whitespace() || "=!<>".contains(char)).ok_or_else(expected)?;
    let (key, rest) = (&text[..end], text[end..].trim_start());
    let operator = OPERATORS.iter().find(|operator| {
        let after = rest.get(operator.len()..).and_then(|after| after.chars().next());
        rest.get(..operator.len()).is_some_and(|start| start.eq_ignore_ascii_case(operator))
            && (!operator.ends_with(char::is_alphabetic)
                || after.is_none_or(|char| char.is_whitespace() || char == '('))
    });
    let operator = operator.ok_or_else(expected)?;
    let value = rest[operator.len()..].trim();
    let list = value.strip_prefix('(').and_then(|value| value.strip_suffix(')')).unwrap_or(value);
    let values: Vec<Text> = match *operator {
        "in" | "notin" => list.split(',').map(|one| one.trim().into()).collect(),
        _ if value.is_empty() => Vec::new(),
        _ => vec![value.into()],
    };
    of_parts(key, operator, &values)
}

/// The operators, longest first so that none hides another.
const OPERATORS: [&str; 17] = [
    "version >=",
    "version <=",
    "version >",
    "version <",
    "!exists",
    "exists",
    "notin",
    "in",
    "==",
    "!=",
    "=~",
    "!~",
    ">=",
    "<=",
    ">",
    "<",
    "=",
];

/// The constraint of these parts.
pub(crate) fn of_parts(key: &str, operator: &str, values: &[Text]) -> Result<Constraint, Expected> {
    if !is_key(key) {
        return Err("a label key without spaces".into());
    }
    let one = || match values {
        [value] if !value.is_empty() => Ok(value.clone()),
        _ => Err(format!("one value for {operator}")),
    };
    let some = || match values {
        [] => Err(format!("a value for {operator}")),
        values if values.iter().any(|value| value.is_empty()) => Err(format!("no empty value for {operator}")),
        values => Ok(values.to_vec()),
    };
    let pattern = || {
        let text = one()?;
        if text.len() > PATTERN_MAX {
            return Err(format!("a regular expression of at most {PATTERN_MAX} bytes"));
        }
        regex_lite::RegexBuilder::new(&text)
            .size_limit(PATTERN_SIZE_MAX)
            .build()
            .map_err(|error| format!("a regular expression ({error})"))
    };
    let compare = |sign: &str, version| {
        let comparison = Comparison { above: sign.starts_with('>'), or_equal: sign.ends_with('='), version };
        let bound = one()?;
        // A value that cannot be compared would reject every host without a reason.
        if comparison.compare(&bound, &bound).is_none() {
            return Err(format!("a number or a version for {operator}"));
        }
        Ok::<_, Expected>(Test::Compare(comparison, bound))
    };
    let test = match operator.to_lowercase().as_str() {
        "=" | "==" | "in" => Test::In(some()?),
        "!=" | "notin" => Test::NotIn(some()?),
        "exists" if values.is_empty() => Test::Exists,
        "!exists" if values.is_empty() => Test::Absent,
        "exists" | "!exists" => return Err(format!("no value for {operator}")),
        "=~" => Test::Matches(pattern()?),
        "!~" => Test::MatchesNot(pattern()?),
        sign @ (">" | ">=" | "<" | "<=") => compare(sign, false)?,
        other => {
            let sign = other.strip_prefix("version").map(str::trim);
            let Some(sign @ (">" | ">=" | "<" | "<=")) = sign else {
                let list = OPERATORS.iter().filter(|operator| **operator != "==");
                return Err(format!("one of {}", list.copied().collect::<Vec<_>>().join(", ")));
            };
            compare(sign, true)?
        }
    };
    let subject = Subject::Host { attribute: Attribute::parse(key), test };
    Ok(Constraint { subject, weight: None })
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && !key.contains(|char: char| char.is_whitespace() || char.is_control() || "=!<>()".contains(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: &str, value: Option<&str>, expected: bool) {
        let Subject::Host { test, .. } = of_text(rule).unwrap().subject else { panic!("{rule}") };
        assert_eq!(test.passes(value), expected, "{rule} with {value:?}");
    }

    #[test]
    fn operators_judge_values() {
        check("zone=a", Some("A"), true);
        check("zone == a", Some("b"), false);
        check("zone = a", None, false);
        check("zone != a", None, true);
        check("zone!=a", Some("a"), false);
        check("zone in (a, b)", Some("b"), true);
        check("zone in a,b", Some("c"), false);
        check("zone notin (a,b)", Some("c"), true);
        check("gpu exists", Some(""), true);
        check("gpu !exists", Some(""), false);
        check("!gpu", None, true);
        check("cores >= 8", Some("16"), true);
        check("cores > 8", Some("8"), false);
        check("cores < 8.5", Some("8"), true);
        check("kernel >= 4.14", Some("4.9"), true);
        check("kernel version >= 4.14", Some("4.9"), false);
        check("docker >= 17.06.2-ce", Some("17.12.0-ce"), true);
        check("docker < 2.0.0", Some("2.0.0-rc1"), true);
        check("cores >= 8", Some("many"), false);
        check("name =~ ^web-[0-9]+$", Some("web-12"), true);
        check("name !~ ^web", Some("web-12"), false);
        check("node.labels.zone=a", Some("a"), true);
    }

    #[test]
    fn what_is_no_constraint_says_what_was_expected() {
        for (rule, part) in [
            ("", "LABEL OPERATOR VALUE"),
            ("zone", "LABEL OPERATOR VALUE"),
            ("zone like a", "LABEL OPERATOR VALUE"),
            ("zone =", "a value"),
            ("zone exists a", "no value"),
            ("zone in ()", "no empty value"),
            ("zone notin (a,,b)", "no empty value"),
            ("zone in", "no empty value"),
            ("cores >= many", "a number or a version"),
            ("kernel version < new", "a number or a version"),
            ("cores > NaN", "a number or a version"),
            ("name =~ (", "a regular expression"),
            ("= a", "label key"),
        ] {
            let error = of_text(rule).unwrap_err();
            assert!(error.contains(part), "{rule:?}: {error}");
        }
        let long = format!("a =~ {}", "x".repeat(PATTERN_MAX + 1));
        assert!(of_text(&long).unwrap_err().contains("at most"));
        assert!(of_text("a =~ (x{500}){500}").is_err());
    }

    fn check_label(field: &str, value: &str, expected: &str) {
        let macros = Macros { service: "web", stack: "shop" };
        let found = match of_label(field, value, macros) {
            Ok(list) => list
                .iter()
                .map(|one| format!("{}{}", one.subject, if one.weight.is_some() { " (soft)" } else { "" }))
                .collect::<Vec<_>>()
                .join("; "),
            Err(expected) => format!("expected {expected}"),
        };
        assert_eq!(found, expected, "{field}: {value}");
    }

    #[test]
    fn labels_of_the_predecessor_are_rules() {
        check_label("host_label", " size=huge", "label size = huge");
        check_label("host_label_ne", "size=huge,b=c", "label size != huge; label b != c");
        check_label("host_label_soft_ne", "Latency=short", "label latency != short (soft)");
        check_label(
            "container_label_soft",
            "io.rancher.stack_service.name=${stack_name}/$${service_name}",
            "a container with label io.rancher.stack_service.name=shop/web (soft)",
        );
        check_label("container_ne", "db", "no container with name or uuid db");
        check_label("host_label", "huge", "host_label huge, which never holds");
        check_label(
            "volumes",
            "x",
            "expected host_label, container_label or container, then nothing, _ne, _soft or _soft_ne",
        );
    }

    #[test]
    fn variables_of_the_predecessor_are_rules() {
        for (variable, expected) in [
            ("constraint:size==huge", "label size = huge false"),
            ("constraint:size!=huge", "label size != huge false"),
            ("constraint:latency==~short", "label latency = short true"),
            ("constraint:latency!=~long", "label latency != long true"),
            ("affinity:container==db", "a container with name or uuid db false"),
            ("affinity:app!=web", "no container with label app=web false"),
        ] {
            let rule = of_variable(variable, Macros::default()).unwrap();
            assert_eq!(format!("{} {}", rule.subject, rule.weight.is_some()), expected, "{variable}");
        }
        for variable in ["PATH=/bin", "A", "url:http://x", "constraint:x"] {
            assert!(of_variable(variable, Macros::default()).is_none(), "{variable}");
        }
    }
}
