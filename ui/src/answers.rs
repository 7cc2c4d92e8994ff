//! What other parts of the process answer, as far as the page shows it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `GET /v1/hosts` of the scheduler, as other parts of the process are answered it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Hosts {
    pub(crate) hosts: Vec<Host>,
}

/// A host as the scheduler sees it.
#[derive(Debug, Deserialize)]
pub(crate) struct Host {
    pub(crate) uuid: String,
    pub(crate) refusal: Option<String>,
    pub(crate) build: Option<String>,
    pub(crate) pools: BTreeMap<String, Pool>,
}

/// `GET /v1/hosts/UUID`, answered to other parts of the process.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct HostDetails {
    pub(crate) ports: Vec<Port>,
    pub(crate) images: Vec<JudgedImage>,
}

/// An amount of a host.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Pool {
    pub(crate) total: i64,
    pub(crate) used: i64,
    pub(crate) promised: i64,
}

impl Pool {
    /// How much is taken, in percent; `None` if there is nothing to take.
    pub(crate) fn share(self) -> Option<u8> {
        let taken = i128::from(self.used) + i128::from(self.promised);
        let share = (taken * 100).checked_div(i128::from(self.total)).filter(|_| self.total > 0)?;
        u8::try_from(share.clamp(0, 100)).ok()
    }
}

/// A taken port.
#[derive(Debug, Deserialize)]
pub(crate) struct Port {
    pub(crate) public: u16,
    pub(crate) protocol: String,
}

/// An image of placements, and whether a host runs it.
#[derive(Debug, Deserialize)]
pub(crate) struct JudgedImage {
    pub(crate) image: String,
    pub(crate) isolation: Option<String>,
    pub(crate) entry: Option<ImageEntry>,
    pub(crate) refusal: Option<String>,
}

/// What a host would run of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageEntry {
    pub(crate) os: String,
    pub(crate) os_version: Option<String>,
    pub(crate) isolation: Option<String>,
    pub(crate) warning: Option<String>,
}

/// How a host is called.
#[derive(Debug, Deserialize)]
pub(crate) struct Named {
    pub(crate) uuid: String,
    pub(crate) name: String,
}

/// `GET /v1/placements`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Placements {
    pub(crate) placements: Vec<Placement>,
    pub(crate) warning: Option<String>,
}

/// A promise, and what became of it.
#[derive(Debug, Deserialize)]
pub(crate) struct Placement {
    pub(crate) id: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) placements: Vec<Placed>,
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) failures: Vec<Failure>,
}

/// A unit with a host.
#[derive(Debug, Deserialize)]
pub(crate) struct Placed {
    pub(crate) host: Named,
    pub(crate) containers: Vec<PlacedContainer>,
}

/// A container of it.
#[derive(Debug, Deserialize)]
pub(crate) struct PlacedContainer {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) detail: Option<String>,
    pub(crate) image_name: Option<String>,
}

/// What an engine said.
#[derive(Debug, Deserialize)]
pub(crate) struct Failure {
    pub(crate) host: Named,
    pub(crate) error: String,
}

/// `GET /v1/stacks`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Stacks {
    pub(crate) stacks: Vec<Stack>,
    pub(crate) warning: Option<String>,
}

/// `GET /v1/stacks/NAME`.
#[derive(Debug, Deserialize)]
pub(crate) struct Stack {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) detail: String,
    pub(crate) subject: String,
    pub(crate) services: Vec<StackService>,
    #[serde(default)]
    pub(crate) orphans: Vec<String>,
}

/// A service of a stack.
#[derive(Debug, Deserialize)]
pub(crate) struct StackService {
    pub(crate) name: String,
    pub(crate) image: Option<String>,
    pub(crate) stage: String,
    pub(crate) why: Option<String>,
    pub(crate) wanted: usize,
    pub(crate) good: usize,
    #[serde(default)]
    pub(crate) waits: String,
    pub(crate) units: Vec<StackUnit>,
}

/// A unit of it.
#[derive(Debug, Deserialize)]
pub(crate) struct StackUnit {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) host: String,
    pub(crate) state: String,
    pub(crate) why: Option<String>,
    pub(crate) is_wanted: bool,
}

/// `POST /v1/explain`.
#[derive(Debug, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) fits: usize,
    pub(crate) hosts: Vec<Judged>,
    pub(crate) reasons: Vec<Reason>,
    #[serde(default)]
    pub(crate) changes: Vec<String>,
}

/// A host and whether it fits.
#[derive(Debug, Deserialize)]
pub(crate) struct Judged {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) fits: bool,
    pub(crate) rank: Option<u64>,
    #[serde(default)]
    pub(crate) reasons: Vec<String>,
}

/// A reason and how many hosts have it.
#[derive(Debug, Deserialize)]
pub(crate) struct Reason {
    #[serde(rename = "reason")]
    pub(crate) text: String,
    pub(crate) count: usize,
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
}

/// `POST /v1/what-if`.
#[derive(Debug, Deserialize)]
pub(crate) struct WhatIf {
    pub(crate) fits: bool,
    pub(crate) hosts: usize,
    #[serde(default)]
    pub(crate) moved: Vec<Move>,
    #[serde(default)]
    pub(crate) stranded: Vec<Stranded>,
    #[serde(default)]
    pub(crate) placed: Vec<PlacedMore>,
    #[serde(default)]
    pub(crate) unplaced: Vec<Unplaced>,
}

/// Containers that would go to another host.
#[derive(Debug, Deserialize)]
pub(crate) struct Move {
    pub(crate) containers: Vec<String>,
    pub(crate) from: Named,
    pub(crate) to: Named,
    pub(crate) gain: Option<f64>,
}

/// Containers that would have no place.
#[derive(Debug, Deserialize)]
pub(crate) struct Stranded {
    pub(crate) containers: Vec<String>,
    pub(crate) from: Named,
    pub(crate) error: String,
}

/// One more container that has a place.
#[derive(Debug, Deserialize)]
pub(crate) struct PlacedMore {
    pub(crate) containers: Vec<String>,
    pub(crate) host: Named,
}

/// Containers more that would have no place.
#[derive(Debug, Deserialize)]
pub(crate) struct Unplaced {
    pub(crate) count: u32,
    pub(crate) error: String,
}

/// `POST /v1/rebalance`.
#[derive(Debug, Deserialize)]
pub(crate) struct Rebalance {
    pub(crate) moves: Vec<Move>,
    pub(crate) imbalance: Imbalance,
}

/// How unequally hosts are used.
#[derive(Debug, Deserialize)]
pub(crate) struct Imbalance {
    pub(crate) before: f64,
    pub(crate) after: f64,
}

/// An error of any of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wrong {
    pub(crate) error: String,
    pub(crate) expected: String,
}

/// `GET /v1/query` of DNS.
#[derive(Debug, Deserialize)]
pub(crate) struct Resolution {
    pub(crate) client: String,
    pub(crate) section: Section,
    pub(crate) steps: Vec<Step>,
    #[serde(default)]
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) answered_by: String,
    pub(crate) forwarding: Option<Forwarding>,
    pub(crate) code: String,
    pub(crate) answers: Vec<Record>,
}

/// What a client sees besides what all see.
#[derive(Debug, Deserialize)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) search: Vec<String>,
}

/// A name that was tried.
#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) section: String,
    pub(crate) search: Option<String>,
    pub(crate) found: serde_json::Value,
}

/// A container that is not in the answer.
#[derive(Debug, Deserialize)]
pub(crate) struct LeftOut {
    pub(crate) container: String,
    pub(crate) host: Option<String>,
    pub(crate) reason: String,
}

/// Who was asked.
#[derive(Debug, Deserialize)]
pub(crate) struct Forwarding {
    pub(crate) upstreams_of: String,
    pub(crate) asked_first_to_last: Vec<String>,
    pub(crate) answered: Option<String>,
}

/// A record of the answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) ttl: u32,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// `GET /v1/upstreams` of DNS.
#[derive(Debug, Deserialize)]
pub(crate) struct Upstream {
    pub(crate) address: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) failures: u32,
}

/// `GET /v1/health`.
#[derive(Debug, Deserialize)]
pub(crate) struct Health {
    pub(crate) uuid: String,
    pub(crate) failed: Option<String>,
    pub(crate) problem: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) check: Option<Check>,
}

/// A check from here.
#[derive(Debug, Deserialize)]
pub(crate) struct Check {
    pub(crate) r#type: String,
    pub(crate) address: String,
    pub(crate) last: Option<CheckResult>,
}

/// What came of it.
#[derive(Debug, Deserialize)]
pub(crate) struct CheckResult {
    pub(crate) outcome: String,
    pub(crate) reason: Option<String>,
}
