//! What `agent doctor` finds out about etcd: members, leader, space, clock.

use std::future::Future;

use etcd::{Endpoint, EtcdArgs, EtcdClient, Member, MemberStatus, members};

use super::{Finding, Outcome};

/// Difference between clocks from which on it misleads, in seconds: logs and certificates show times to people.
/// Nothing in Berth depends on it.
const CLOCK_MAX: i64 = 60;

/// Size of the data from which on the quota may be near, in bytes: half of etcd's default. It does not say its quota.
const SIZE_MAX: i64 = 1 << 30;

/// Asks all members at once.
pub(super) fn look(options: &EtcdArgs, urls: &[Endpoint]) -> impl Future<Output = Vec<Finding>> {
    let client = EtcdClient::new(options.with_members(urls.to_vec()));
    async move {
        match client {
            Ok(client) => findings(&members(&client).await),
            Err(failure) => vec![Finding::new("etcd", Outcome::Bad, failure.to_string(), "correct the --etcd options")],
        }
    }
}

fn findings(members: &[Member]) -> Vec<Finding> {
    let mut findings: Vec<_> = members.iter().flat_map(of_member).collect();
    let said: Vec<_> = members.iter().filter_map(|member| member.status.as_ref().ok()).collect();
    if said.windows(2).any(|pair| pair[0].cluster != pair[1].cluster) {
        let found = "the members belong to different clusters";
        findings.push(Finding::new("etcd", Outcome::Bad, found, "give members of one cluster only"));
    }
    findings
}

fn of_member(Member { endpoint, status }: &Member) -> Vec<Finding> {
    let subject = format!("etcd {endpoint}");
    let status = match status {
        Ok(status) => status,
        Err(failure) => {
            let advice = "start this member, or see that nothing between here and there holds it back";
            return vec![Finding::new(subject, Outcome::Bad, failure.to_string(), advice)];
        }
    };
    let mut findings = vec![state(&subject, status)];
    if !status.alarms.is_empty() {
        let advice = "give etcd space (compact, defragment, a larger quota), then etcdctl alarm disarm";
        findings.push(Finding::new(&*subject, Outcome::Bad, status.alarms.join("; "), advice));
    }
    if status.size >= SIZE_MAX {
        let advice = "see which keys are written most, compact and defragment (docs/etcd.md, \"When etcd is full\")";
        let found = format!(
            "{} MiB; at its quota, 2 GiB unless it was given another, etcd refuses all writes",
            status.size >> 20
        );
        findings.push(Finding::new(format!("space of {subject}"), Outcome::Odd, found, advice));
    }
    findings.extend(status.clock_ahead.map(|ahead| clock(&subject, ahead)));
    if !guards_leases(&status.version) {
        let advice = "update etcd to 3.5.30, 3.6.12 or 3.7, and let hosts alone reach it";
        let found = format!("version {}: any client, even without a user, can keep any lease alive", status.version);
        findings.push(Finding::new(format!("leases of {subject}"), Outcome::Odd, found, advice));
    }
    findings
}

/// Whether this release asks for rights before it renews a lease. A reader of keys, where leases are named, can keep a dead
/// host in the answers of one that does not.
fn guards_leases(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse::<u32>().unwrap_or_default());
    let release = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let patch = numbers.next().unwrap_or_default();
    match release {
        (3, 5) => patch >= 30,
        (3, 6) => patch >= 12,
        later => later >= (3, 7),
    }
}

fn state(subject: &str, status: &MemberStatus) -> Finding {
    let MemberStatus { version, revision, size, .. } = status;
    let role = if status.leads { "leads" } else { "follows" };
    match &status.reads {
        _ if !status.knows_leader => {
            let found = format!("version {version}, knows no leader: nothing can be written");
            Finding::new(subject, Outcome::Bad, found, "more than half of the members have to run and reach each other")
        }
        Err(failure) => {
            let advice = "see --etcd-user, --etcd-cert and the rights under the prefix";
            Finding::new(subject, Outcome::Bad, format!("version {version}, {role}; cannot be read: {failure}"), advice)
        }
        Ok(_) => {
            let size = size >> 20;
            Finding::good(subject, format!("version {version}, {role}, revision {revision}, {size} MiB"))
        }
    }
}

fn clock(subject: &str, ahead: i64) -> Finding {
    let subject = format!("clock of {subject}");
    if ahead.abs() <= CLOCK_MAX {
        return Finding::good(subject, "agrees with this machine's");
    }
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    let found = format!("{} s {side} this machine's", ahead.abs());
    Finding::new(
        subject,
        Outcome::Odd,
        found,
        "set both by NTP (Windows: w32tm /resync); Berth itself does not depend on it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(change: impl FnOnce(&mut MemberStatus)) -> Member {
        let mut status = MemberStatus {
            id: 1,
            cluster: 7,
            version: "3.4.23".into(),
            leads: true,
            knows_leader: true,
            revision: 42,
            size: 3 << 20,
            alarms: Vec::new(),
            members: Vec::new(),
            clock_ahead: Some(1),
            reads: Ok(42),
        };
        change(&mut status);
        Member { endpoint: "http://127.0.0.1:2379".parse().unwrap(), status: Ok(status) }
    }

    #[test]
    fn releases_that_let_anybody_renew_leases_are_known() {
        for (version, guards) in [
            ("3.4.23", false),
            ("3.5.29", false),
            ("3.5.30", true),
            ("3.6.12", true),
            ("3.6.4", false),
            ("3.7.0-rc.0", true),
            ("4.0.0", true),
            ("", false),
        ] {
            assert_eq!(guards_leases(version), guards, "{version}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_member_has_its_way_out() {
        for (member, outcome, expected) in [
            (member(|_| {}), "ok", "leads, revision 42, 3 MiB"),
            (member(|status| status.knows_leader = false), "bad", "more than half"),
            (member(|status| status.alarms = vec!["NOSPACE".into()]), "bad", "disarm"),
            (member(|status| status.size = 1 << 30), "odd", "1024 MiB; at its quota"),
            (member(|status| status.clock_ahead = Some(-3600)), "odd", "3600 s behind"),
            (member(|status| status.clock_ahead = Some(3600)), "odd", "3600 s ahead of"),
        ] {
            let findings = findings(&[member]);
            let lines: Vec<_> =
                findings.iter().map(|f| format!("{} {} {}", f.outcome.word(), f.found, f.advice)).collect();
            assert!(lines.iter().any(|line| line.starts_with(outcome) && line.contains(expected)), "{lines:?}");
        }
        let two = findings(&[member(|_| {}), member(|status| status.cluster = 8)]);
        assert!(two.iter().any(|finding| finding.found.contains("different clusters")));
    }
}
