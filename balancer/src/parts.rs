//! The parts of a plan that HAProxy may refuse, and how the guilty ones are found: halves are tried until what is left is one part.

use model::Text;
use model::lb::{HostPattern, LbPlan, Place};

use crate::haproxy::named;

/// A part of a plan, without which the rest can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A certificate.
    Certificate(Text),
    /// A line of `config`, by its number from 1.
    Line(usize, String),
    /// A rule.
    Rule {
        /// The port.
        port: u16,
        /// The hosts that it is for.
        host: HostPattern,
        /// The paths that it is for.
        path: Text,
        /// Its backend.
        backend: Text,
        /// The names that it leads to, for which HAProxy asks DNS.
        names: Vec<Place>,
        /// Where it is written.
        at: String,
    },
}

impl Part {
    /// The parts of a plan. A part stands after those that it needs: rules after certificates, lines after the head of their section.
    pub fn all(plan: &LbPlan) -> Vec<Self> {
        let certificates = plan.default_certificate.iter().chain(&plan.certificates);
        let mut parts: Vec<_> = certificates.cloned().map(Self::Certificate).collect();
        let lines = plan.config.iter().flat_map(|text| text.lines()).enumerate();
        parts.extend(lines.map(|(index, line)| Self::Line(index + 1, line.to_owned())));
        for port in &plan.ports {
            parts.extend(port.routes.iter().map(|route| {
                let backend = &plan.backends[route.backend];
                Self::Rule {
                    port: port.number,
                    host: route.host.clone(),
                    path: route.path.clone(),
                    backend: backend.name.clone(),
                    names: named(backend).map(|member| member.place.clone()).collect(),
                    at: route.at.clone(),
                }
            }));
        }
        parts
    }

    /// The plan with those of its parts, in the order of [`Part::all`], for which `stays` says so.
    pub fn kept(plan: &LbPlan, mut stays: impl FnMut(usize) -> bool) -> LbPlan {
        let mut number = 0;
        let mut next = || {
            number += 1;
            stays(number - 1)
        };
        let mut kept = plan.clone();
        kept.default_certificate = kept.default_certificate.filter(|_| next());
        kept.certificates.retain(|_| next());
        // What is left out leaves its line, so that the others have their numbers.
        let lines = kept
            .config
            .map(|text| text.lines().flat_map(|line| [if next() { line } else { "" }, "\n"]).collect::<String>());
        kept.config = lines.filter(|lines| !lines.trim().is_empty()).map(Into::into);
        for port in &mut kept.ports {
            port.routes.retain(|_| next());
        }
        kept
    }

    /// The plan without these parts.
    pub fn without(plan: &LbPlan, left_out: &[Self]) -> LbPlan {
        let all = Self::all(plan);
        Self::kept(plan, |number| !left_out.contains(&all[number]))
    }

    /// Where it is written; `at` is the path of the balancer's service.
    pub fn at(&self, at: &str) -> String {
        match self {
            Self::Certificate(name) => format!("{at}/lb_config/certs: {name}"),
            Self::Line(number, line) => format!("{at}/lb_config/config: line {number}, `{}`", line.trim()),
            Self::Rule { at, .. } => at.clone(),
        }
    }
}

/// Finds those of some parts with which the rest is refused.
#[derive(Clone, Debug)]
pub struct Bisection {
    good: Vec<bool>,
    /// What is not known yet, the next at the end.
    open: Vec<std::ops::Range<usize>>,
}

impl Bisection {
    /// Begins with so many parts, which are refused together.
    pub fn of(count: usize) -> Self {
        let mut begun = Self { good: vec![false; count], open: Vec::new() };
        begun.divide(0..count);
        begun
    }

    /// What is to be tried next: for each part, whether it is there. `None` at the end.
    pub fn trial(&self) -> Option<Vec<bool>> {
        let range = self.open.last()?;
        let mut tried = self.good.clone();
        tried[range.clone()].fill(true);
        Some(tried)
    }

    /// What was tried is refused or not; gives the part that is guilty, once it is known.
    pub fn judge(&mut self, is_refused: bool) -> Option<usize> {
        let range = self.open.pop()?;
        if !is_refused {
            self.good[range].fill(true);
            return None;
        }
        if range.len() == 1 {
            return Some(range.start);
        }
        self.divide(range);
        None
    }

    fn divide(&mut self, range: std::ops::Range<usize>) {
        let middle = range.start + range.len().div_ceil(2);
        // The first half is tried first: what stands later may need it.
        self.open.extend([middle..range.end, range.start..middle].into_iter().filter(|half| !half.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_guilty_parts_are_found_with_few_tries() {
        for (count, guilty) in
            [(1, vec![0]), (2, vec![1]), (7, vec![0, 3, 6]), (1000, vec![17, 512]), (5, (0..5).collect())]
        {
            let (mut bisection, mut tries, mut found) = (Bisection::of(count), 0, Vec::new());
            while let Some(tried) = bisection.trial() {
                tries += 1;
                let is_refused = guilty.iter().any(|one| tried[*one]);
                found.extend(bisection.judge(is_refused));
            }
            assert_eq!(found, guilty);
            assert!(
                tries <= 2 * guilty.len() * (count.ilog2() as usize + 2),
                "{tries} tries for {guilty:?} of {count}"
            );
        }
    }

    #[test]
    fn two_that_do_not_go_together_leave_the_first() {
        let (mut bisection, mut found) = (Bisection::of(6), Vec::new());
        while let Some(tried) = bisection.trial() {
            found.extend(bisection.judge(tried[1] && tried[4]));
        }
        assert_eq!(found, [4]);
    }

    #[test]
    fn what_is_left_out_leaves_the_numbers_of_lines() {
        let plan = LbPlan {
            certificates: vec!["a".into(), "b".into()],
            config: Some("global\n maxconn 9\n maxconn x\n".into()),
            ..LbPlan::default()
        };
        let left_out = [Part::Certificate("a".into()), Part::Line(2, " maxconn 9".into())];
        let kept = Part::without(&plan, &left_out);
        assert_eq!((kept.certificates, kept.config.as_deref()), (vec!["b".into()], Some("global\n\n maxconn x\n")));
        assert_eq!(Part::all(&plan).len(), 5);
    }
}
