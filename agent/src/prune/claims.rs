//! `agent prune --claims`: the subnets of hosts that are not there.

use std::fmt::Write as _;

use etcd::EtcdClient;
use live::etcd::hosts_there;
use model::printable::printable_json;
use network::registry::Listed;
use process::Failure;
use serde_json::json;

use crate::enroll::{now, seconds, written};

/// A length of time such as `12h` or `30d`, in seconds.
pub(super) fn age(text: &str) -> Result<i64, String> {
    let seconds = seconds(text).and_then(|seconds| i64::try_from(seconds).ok());
    seconds.ok_or_else(|| "expected a number of s, m, h or d, such as 30d".to_owned())
}

/// The claims that are older than this, in seconds, and whose host has no key of its own; they all stay.
///
/// A claim says when it was written, and nothing says since when a host is gone: it may be off for a minute. So a person decides.
pub(super) async fn list(client: &EtcdClient, older: i64, json: bool) -> Result<String, Failure> {
    // Before the hosts: one that joins meanwhile is there then.
    let claims = Listed::read(client).await?.written();
    let there = hosts_there(client).await?;
    let before = now().saturating_sub(older);
    let old: Vec<_> = claims
        .into_iter()
        .map(|(host, subnet, at)| (host, subnet, at.as_deref().and_then(live::moment::read)))
        // A claim without a time says nothing of its age.
        .filter(|(host, _, at)| !there.contains(host) && at.is_some_and(|at| at < before))
        .collect();
    if json {
        let claims: Vec<_> = old
            .iter()
            .map(|(host, subnet, at)| json!({ "host": &**host, "subnet": subnet.to_string(), "at": at.map(written) }))
            .collect();
        return Ok(printable_json(&format!("{:#}\n", json!({ "claims": claims, "hosts": there.len() }))));
    }
    let mut text = String::new();
    for (host, subnet, at) in &old {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{host} has {subnet} since {} and is not there", at.map(written).unwrap_or_default());
    }
    let _ = writeln!(text, "{} claims of hosts that are not there, {} hosts are there", old.len(), there.len());
    if !old.is_empty() {
        text.push_str("nothing is given back by age alone: agent network release HOST does that for a host that is gone for good\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn ages_have_a_unit() {
        assert_eq!(["90s", "30m", "12h", "30d"].map(|text| age(text).unwrap()), [90, 1800, 43_200, 2_592_000]);
        assert!(["", "30", "d", "-1d", "1w", "1é"].iter().all(|text| age(text).is_err()));
    }
}
