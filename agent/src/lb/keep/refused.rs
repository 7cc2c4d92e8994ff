//! What HAProxy cannot do of a plan: it is left out alone, where it can be, and is tried again later.

use std::collections::BTreeSet;
use std::time::Duration;

use balancer::{Bisection, Configuration, How, Part, Slots};
use model::Text;
use model::lb::LbPlan;
use process::Failure;
use tokio::time::Instant;
use tracing::warn;

use super::super::certificates::Found;
use super::{CHECK_INTERVAL, Keeper};

/// Most configurations that HAProxy checks to find the parts that it refuses, and the longest time for that: meanwhile members are
/// not followed. Of 1,000 rules ten guilty ones take 200.
const BISECTION_MAX: usize = 400;
const BISECTION_TIME: Duration = Duration::from_secs(30);

/// Time after which what HAProxy refused is tried again: it may be for the files of its host, which change.
const REFUSED_AGAIN: Duration = Duration::from_mins(10);

impl Keeper {
    /// Takes out of a plan what HAProxy cannot do now: certificates that it cannot read, ports that it cannot listen on, lines
    /// that it refuses.
    pub(super) fn usable(&mut self, plan: &mut LbPlan, at: &str) -> Found {
        let names: BTreeSet<Text> = plan.certificates.iter().chain(&plan.default_certificate).cloned().collect();
        let mut found = self.certificates.as_mut().map(|folder| folder.look(&names)).unwrap_or_default();
        plan.certificates.retain(|name| found.usable.contains(name));
        plan.default_certificate = plan.default_certificate.take().filter(|name| found.usable.contains(name));
        let has_certificates = !found.usable.is_empty();
        self.blocked.retain(|_, (_, tried)| tried.elapsed() < CHECK_INTERVAL);
        plan.ports.retain(|port| {
            let problem = match self.blocked.get(&port.number) {
                Some((why, _)) => why.clone(),
                None if port.protocol.ends_tls() && !has_certificates => {
                    format!(
                        "{at}/lb_config/certs: port {} ends TLS and there is no certificate for it (--certs)",
                        port.number
                    )
                }
                None => return true,
            };
            found.problems.push(problem);
            false
        });
        if !self.refused_parts.is_empty() {
            let all = Part::all(plan);
            self.refused_parts.retain(|(part, _, found)| all.contains(part) && found.elapsed() < REFUSED_AGAIN);
            let left_out: Vec<_> = self.refused_parts.iter().map(|(part, ..)| part.clone()).collect();
            if !left_out.is_empty() {
                *plan = Part::without(plan, &left_out);
            }
            found.problems.extend(self.refused_parts.iter().map(|(_, why, _)| why.clone()));
        }
        found
    }

    /// Whether a failure is about one port, which is left out from now on.
    pub(super) fn is_blocked(&mut self, failure: &Failure) -> bool {
        let text = failure.to_string();
        let Some(port) = blocked_port(&text) else { return false };
        self.follows = false;
        self.blocked.insert(port, (format!("port {port} is left out for a minute: {text}"), Instant::now()));
        true
    }

    /// Finds the parts of a plan that HAProxy refuses, so that they alone are left out from now on. Gives whether any were found.
    pub(super) async fn bisect(&mut self, plan: &LbPlan, at: &str, slots: &Slots) -> Result<bool, Failure> {
        let parts = Part::all(plan);
        let (mut bisection, begun, mut tries) = (Bisection::of(parts.len()), Instant::now(), 0);
        let mut refused = Vec::new();
        while let Some(kept) = bisection.trial() {
            tries += 1;
            if tries > BISECTION_MAX || begun.elapsed() > BISECTION_TIME {
                warn!(tries, "HAProxy refuses too much to find out what it is");
                return Ok(false);
            }
            let kept = Part::kept(plan, |number| kept[number]);
            let text = Configuration::of(&kept, at, &self.options, slots).text;
            let checked = self.check(&text).await;
            if let Some(guilty) = bisection.judge(checked.is_err()) {
                let part = parts[guilty].clone();
                let failure = checked.err().map(|failure| failure.to_string()).unwrap_or_default();
                let why = format!("{}: it is left out, since HAProxy refuses {failure}", part.at(at));
                refused.push((part, why, Instant::now()));
            }
        }
        if refused.is_empty() {
            return Ok(false);
        }
        self.metrics.applied(How::Refused, self.begun.elapsed());
        self.refused_parts.extend(refused);
        Ok(true)
    }

    /// Not tried again until it changes.
    pub(super) fn refuse(&mut self, skeleton: String, why: String) -> Failure {
        self.metrics.applied(How::Refused, self.begun.elapsed());
        self.refused = Some((skeleton, why.clone(), Instant::now()));
        why.into()
    }

    /// Has HAProxy check a configuration.
    pub(super) async fn check(&self, text: &str) -> Result<(), Failure> {
        let candidate = self.configuration.with_file_name("candidate.cfg");
        let written = platform::file::replace_private(&candidate, text.as_bytes());
        written.map_err(|error| format!("{}: {error}", candidate.display()))?;
        let checked = self.proxy.check(&candidate).await;
        let _ = std::fs::remove_file(&candidate);
        checked
    }
}

/// The port that a failure of HAProxy is about: `Starting frontend berth_80: cannot bind socket …`.
fn blocked_port(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("frontend berth_")?;
    rest.split_once(": cannot bind").and_then(|(port, _)| port.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_found_in_what_haproxy_says() {
        let said = "[ALERT]    (7) : Starting frontend berth_8080: cannot bind socket (Address already in use) [127.0.0.1:8080]";
        assert_eq!(blocked_port(said), Some(8080));
        assert_eq!(blocked_port("frontend berth_x: cannot bind"), None);
    }
}
