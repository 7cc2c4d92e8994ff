//! The placement request: a unit of containers, how often, and what its place must be like.
//!
//! An error names the field that is wrong and what it should have been; an unknown field is wrong too, since
//! it would silently not be honoured.

pub(crate) mod engine;
pub(crate) mod file;
pub(crate) mod health_check;
pub(crate) mod limits;
pub(crate) mod member;
pub(crate) mod networks;
pub(crate) mod rules;
pub(crate) mod volume;

use std::collections::{HashMap, HashSet};

use model::health::{BadCheck, LABEL};
use model::{Fingerprint, Map, Text, Value};

use crate::ledger::stack::StackUnit;
use crate::place::constraint::{Constraint, Macros};
use crate::place::fields::Fields;
use crate::place::hosts::STORAGE;
use crate::place::invalid::Invalid;
use crate::place::inventory::key::{Kind, key};
use crate::place::request::limits::{ATTEMPTS_MAX, CONSTRAINTS_MAX, COUNT_MAX, MEMBERS_MAX};
use crate::place::request::member::{MEMBER_FIELDS, Member, STACK_FIELDS};
use crate::place::request::rules::Spread;
use crate::place::room::PortGroup;
use crate::place::strategy::Strategy;
use crate::place::taint::Toleration;
use crate::place::windows::Isolation;
use crate::subject::Subject;

/// Label that asks for one unit on every host.
pub(crate) const GLOBAL_LABEL: &str = "io.rancher.scheduler.global";

/// Label with the host on which the unit has to be.
pub(crate) const REQUESTED_HOST_LABEL: &str = "io.rancher.service.requested.host.id";

/// On how many hosts starting is tried by default.
const ATTEMPTS_DEFAULT: u32 = 3;

/// What is to be placed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the wire, and none depends on another")]
pub struct Request {
    /// Names the request, so that asking again gives the same answer.
    pub(crate) id: Option<Text>,
    /// Whether nothing is to be reserved.
    pub(crate) dry_run: bool,
    /// Whether the answer is to say everything about every host.
    pub(crate) explain: bool,
    /// Whether fewer replicas than asked for are worse than none.
    pub(crate) atomic: bool,
    pub(crate) count: u32,
    /// Whether there is to be one unit on every host.
    pub(crate) global: bool,
    /// Whether the containers are to be started, not only their room reserved.
    pub(crate) start: bool,
    /// On how many hosts starting is tried, one after another.
    pub(crate) attempts: u32,
    /// Who asks.
    pub(crate) subject: Subject,
    /// Which unit of a stack it is, as the scheduler itself says.
    pub(crate) unit: Option<StackUnit>,
    /// The stack of the unit.
    pub(crate) stack: Option<Text>,
    /// `stack/service` of the unit.
    pub(crate) service: Option<Text>,
    /// Under which key the service's containers are found.
    pub(crate) service_key: Option<Fingerprint>,
    /// The host on which it has to be, even if checks fail.
    pub(crate) requested_host: Option<Text>,
    /// Which of the hosts that fit is best; `None` as the scheduler was started.
    pub(crate) strategy: Option<Strategy>,
    /// How the containers are to be isolated; `None` as suits the host.
    pub(crate) isolation: Option<Isolation>,
    /// What hosts must be like.
    pub(crate) constraints: Vec<Constraint>,
    /// Which taints do not matter.
    pub(crate) tolerations: Vec<Toleration>,
    /// Over which label's values the service is spread.
    pub(crate) spread: Vec<Spread>,
    /// The containers of the unit, the primary one first.
    pub(crate) members: Vec<Member>,
    /// Stands for the content of the request.
    pub(crate) fingerprint: Fingerprint,
    /// The request as it was written.
    pub(crate) asked: Map,
}

/// The way to a field of the container at `at`: of the request, or of a sidekick.
fn member_field(at: usize, field: &str) -> String {
    at.checked_sub(1).map_or_else(|| field.to_owned(), |at| format!("sidekicks[{at}].{field}"))
}

impl Request {
    /// The request in this value, which a client asks now. What ledgers of before may have and is wrong is refused too.
    pub(crate) fn parse_new(value: &Value) -> Result<Self, Invalid> {
        let request = Self::parse(value)?;
        for key in ["stack", "service"] {
            // It is addressed as STACK/SERVICE.
            if let Some(name) = Fields::of(value)?.text(key)?.filter(|name| name.contains('/')) {
                let expected = "a name without '/'";
                return Err(Invalid::new(key, format!("found {name:?}"), expected));
            }
        }
        for (at, member) in request.members.iter().enumerate() {
            let field = |bad: &BadCheck| member_field(at, &format!("labels.{LABEL}{}", bad.field));
            member.on_failure().map_err(|bad| {
                let (problem, expected) = bad.reason.rsplit_once("expected ").unwrap_or(("", &bad.reason));
                Invalid::new(field(&bad), problem.trim_end_matches(", "), expected)
            })?;
        }
        Ok(request)
    }

    /// Refuses files: their contents are sealed for stacks alone.
    pub(crate) fn without_files(self) -> Result<Self, Invalid> {
        let Some(at) = self.members.iter().position(|member| !member.run.files.is_empty()) else { return Ok(self) };
        let expected = "none: only stacks (PUT /v1/stacks/NAME) bring contents";
        Err(Invalid::new(member_field(at, "files"), "given", expected))
    }

    /// The request in this value.
    pub fn parse(value: &Value) -> Result<Self, Invalid> {
        let fields = Fields::of(value)?;
        let map = fields.map;
        fields.only(&[REQUEST_FIELDS, MEMBER_FIELDS, STACK_FIELDS])?;
        let stack = fields.text("stack")?;
        let service = fields.text("service")?;
        let macros =
            Macros { service: service.as_deref().unwrap_or_default(), stack: stack.as_deref().unwrap_or_default() };
        let mut members = vec![fields.clone()];
        for (at, sidekick) in fields.list("sidekicks", MEMBERS_MAX - 1)?.iter().enumerate() {
            members.push(fields.entry("sidekicks", at, sidekick)?);
        }
        for sidekick in &members[1..] {
            sidekick.only(&[MEMBER_FIELDS, STACK_FIELDS])?;
            if sidekick.text("name")?.is_none() {
                return Err(Invalid::new(sidekick.at("name"), "missing", "the name of the sidekick"));
            }
        }
        let mut constraints = Vec::new();
        let mut request = Self {
            id: fields.id("id")?,
            dry_run: fields.truth("dry_run")?,
            explain: fields.truth("explain")?,
            atomic: fields.truth("atomic")?,
            count: fields.int("count", 1, COUNT_MAX)?.and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
            global: fields.truth("global")?,
            start: fields.truth("start")?,
            attempts: fields
                .int("attempts", 1, ATTEMPTS_MAX)?
                .and_then(|attempts| u32::try_from(attempts).ok())
                .unwrap_or(ATTEMPTS_DEFAULT),
            subject: Subject::default(),
            unit: None,
            stack: stack.clone(),
            service: service.as_ref().map(|service| format!("{}/{service}", macros.stack).into()),
            service_key: None,
            requested_host: fields.text("requested_host")?,
            strategy: fields.word("strategy", &[("spread", Strategy::Spread), ("binpack", Strategy::Binpack)])?,
            isolation: fields
                .word(
                    "isolation",
                    &[("default", None), ("process", Some(Isolation::Process)), ("hyperv", Some(Isolation::Hyperv))],
                )?
                .flatten(),
            tolerations: fields.tolerations()?,
            spread: fields.spread()?,
            members: members.iter().map(|fields| fields.member(macros, &mut constraints)).collect::<Result<_, _>>()?,
            constraints: Vec::new(),
            fingerprint: Fingerprint::of(map),
            asked: map.clone(),
        };
        constraints.extend(fields.constraints()?);
        if constraints.len() > CONSTRAINTS_MAX {
            let problem = format!("{} constraints, those of labels included", constraints.len());
            return Err(Invalid::new("constraints", problem, format!("at most {CONSTRAINTS_MAX}")));
        }
        request.constraints = constraints;
        if request.service.is_none() {
            let named = |(key, _): &&(Text, Text)| key.eq_ignore_ascii_case(crate::place::inventory::SERVICE_LABEL);
            request.service = request.members[0].labels.iter().find(named).map(|(_, value)| value.clone());
        }
        request.heed_labels();
        request.add_labels(macros);
        request.add_keys();
        request.check_unit(&members)?;
        request.check_start(&members)?;
        Ok(request)
    }

    /// What one unit takes, in the predecessor's order of asking, equal pools summed.
    pub fn amounts(&self) -> Vec<(Text, i64)> {
        let mut amounts: Vec<(Text, i64)> = Vec::new();
        // The predecessor asks for disk last, after all containers.
        let all = || self.members.iter().flat_map(|member| &member.amounts);
        let last = |pool: &str| pool == STORAGE;
        for (pool, amount) in all().filter(|(pool, _)| !last(pool)).chain(all().filter(|(pool, _)| last(pool))) {
            match amounts.iter_mut().find(|(known, _)| known == pool) {
                Some((_, sum)) => *sum = sum.saturating_add(*amount),
                None => amounts.push((pool.clone(), *amount)),
            }
        }
        amounts
    }

    /// The ports of its containers, which are called like this.
    pub(crate) fn port_groups(&self, names: &[Text]) -> Vec<PortGroup> {
        let publishing = self.members.iter().zip(names).filter(|(member, _)| !member.ports.is_empty());
        publishing.map(|(member, name)| PortGroup { owner: name.clone(), ports: member.ports.clone() }).collect()
    }

    /// Checks what is needed to start the containers.
    fn check_start(&self, fields: &[Fields<'_>]) -> Result<(), Invalid> {
        let without = self.members.iter().zip(fields).find(|(member, _)| self.start && member.image.is_none());
        match without {
            Some((_, fields)) => Err(Invalid::new(fields.at("image"), "missing", "the image to start")),
            None => Ok(()),
        }
    }

    fn heed_labels(&mut self) {
        for (key, value) in self.members.iter().flat_map(|member| &member.labels) {
            if key.eq_ignore_ascii_case(GLOBAL_LABEL) && value.eq_ignore_ascii_case("true") {
                self.global = true;
            } else if key.eq_ignore_ascii_case(REQUESTED_HOST_LABEL) && self.requested_host.is_none() {
                self.requested_host = Some(value.clone());
            }
        }
    }

    /// Adds the labels that the predecessor's server gave to every container, so that rules may speak of them.
    fn add_labels(&mut self, macros: Macros<'_>) {
        if macros.service.is_empty() || macros.stack.is_empty() {
            return;
        }
        for (at, member) in self.members.iter_mut().enumerate() {
            let path = match &member.name {
                Some(sidekick) if at > 0 => format!("{}/{}/{sidekick}", macros.stack, macros.service),
                _ => format!("{}/{}", macros.stack, macros.service),
            };
            for (key, value) in [
                ("io.rancher.stack.name", macros.stack),
                ("io.rancher.project.name", macros.stack),
                (crate::place::inventory::SERVICE_LABEL, path.as_str()),
                ("io.rancher.project_service.name", path.as_str()),
            ] {
                if !member.labels.iter().any(|(known, _)| known.eq_ignore_ascii_case(key)) {
                    member.labels.push((key.into(), value.into()));
                }
            }
        }
    }

    /// Looks up once under which keys others find these containers: hashing takes longer than finding a host.
    fn add_keys(&mut self) {
        self.service_key = self.service.as_ref().map(|service| key(Kind::Service, &[service]));
        if self.service_key.is_none() && (self.count > 1 || self.global || !self.spread.is_empty()) {
            // Replicas without a service are spread over hosts all the same.
            self.service_key = Some(key(Kind::Service, &[&self.fingerprint.to_string()]));
        }
        for member in &mut self.members {
            member.image_key = member.image.as_ref().map(|image| key(Kind::Image, &[image]));
            member.keys = member.labels.iter().map(|(label, value)| key(Kind::Label, &[label, value])).collect();
            member.keys.extend(member.image_key);
        }
    }

    /// Checks that files with contents can be put where they are to be, before anything stops for them.
    fn check_files(&self, fields: &[Fields<'_>], names: &HashMap<String, usize>) -> Result<(), Invalid> {
        for (at, member) in self.members.iter().enumerate().filter(|(_, member)| !member.run.files.is_empty()) {
            if member.run.engine.is_read_only() {
                let problem = "its file system is read-only";
                return Err(Invalid::new(
                    fields[at].at("files"),
                    problem,
                    "files of the hosts, mounted, or no read_only",
                ));
            }
            let mounts = mounts(&self.members, at, names);
            for (number, file) in member.run.files.iter().enumerate() {
                if let Some(problem) = file::clash(&file.target, mounts.iter().map(String::as_str)) {
                    let field = fields[at].at(&format!("files[{number}].target"));
                    return Err(Invalid::new(field, problem, "a path outside of what is mounted"));
                }
            }
        }
        Ok(())
    }

    /// Checks what concerns several containers of the unit, and forgets places beside each other.
    fn check_unit(&mut self, fields: &[Fields<'_>]) -> Result<(), Invalid> {
        let mut names = HashMap::new();
        for (at, member) in self.members.iter().enumerate() {
            if let Some(name) = &member.name
                && names.insert(name.to_lowercase(), at).is_some()
            {
                return Err(Invalid::new(fields[at].at("name"), format!("{name} is named twice"), "a name of its own"));
            }
        }
        let mut wanted = HashSet::new();
        for (at, port) in
            self.members.iter().enumerate().flat_map(|(at, member)| member.ports.iter().map(move |port| (at, port)))
        {
            if port.public != 0 && !wanted.insert((port.address, port.public, port.protocol)) {
                let problem = format!("Port {port} requested more than once.");
                return Err(Invalid::new(fields[at].at("ports"), problem, "each public port once per unit"));
            }
        }
        for (at, member) in self.members.iter().enumerate() {
            let is_inside = |name: &&Text| names.contains_key(&name.to_lowercase());
            if let Some(name) = member.run.start_after.iter().find(|name| !is_inside(name)) {
                let problem = format!("{name} is no container of the unit");
                return Err(Invalid::new(fields[at].at("start_after"), problem, "names of others in it"));
            }
        }
        let before = |member: &Member| {
            let used = member.beside.iter().chain(&member.run.start_after);
            used.filter_map(|name| names.get(&name.to_lowercase()).copied()).collect()
        };
        let within: Vec<Vec<usize>> = self.members.iter().map(before).collect();
        if let Some(at) = first_in_circle(&within) {
            let problem = "the containers of the unit wait for each other";
            let shares = |name: &Text| names.contains_key(&name.to_lowercase());
            let run = &self.members[at].run;
            let field = if !run.start_after.is_empty() {
                "start_after"
            } else if run.network_from.as_ref().is_some_and(shares) {
                "network_from"
            } else {
                "volumes_from"
            };
            let expected = "no circle of start_after, volumes_from and network_from";
            return Err(Invalid::new(fields[at].at(field), problem, expected));
        }
        self.check_files(fields, &names)?;
        for member in &mut self.members {
            member.beside.retain(|name| !names.contains_key(&name.to_lowercase()));
        }
        Ok(())
    }
}

/// The mounts of a container of the unit, with those that it has from others of it.
fn mounts(members: &[Member], at: usize, names: &HashMap<String, usize>) -> Vec<String> {
    let (mut all, mut from) = (Vec::new(), vec![at]);
    // Each once, though several may be reached on many ways.
    let mut next = 0;
    while let Some(at) = from.get(next).copied() {
        let run = &members[at].run;
        all.extend(run.volumes.iter().map(|volume| volume::mount_point(volume)));
        all.extend(run.engine.tmpfs().map(ToOwned::to_owned));
        for name in &run.volumes_from {
            let name = name.split(':').next().unwrap_or_default().to_lowercase();
            from.extend(names.get(&name).filter(|other| !from.contains(other)).copied());
        }
        next += 1;
    }
    all
}

/// The first container from which following `within` never ends.
fn first_in_circle(within: &[Vec<usize>]) -> Option<usize> {
    let mut left: Vec<usize> = (0..within.len()).collect();
    loop {
        let before = left.len();
        let waiting = left.clone();
        left.retain(|at| within[*at].iter().any(|other| waiting.contains(other)));
        if left.is_empty() {
            return None;
        }
        if left.len() == before {
            return left.first().copied();
        }
    }
}

/// Fields of the request as a whole.
const REQUEST_FIELDS: &[&str] = &[
    "atomic",
    "attempts",
    "constraints",
    "count",
    "dry_run",
    "explain",
    "global",
    "id",
    "isolation",
    "requested_host",
    "service",
    "sidekicks",
    "spread",
    "stack",
    "start",
    "strategy",
    "tolerations",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Request, Invalid> {
        Request::parse(&serde_json::from_str(json).unwrap())
    }

    fn check(json: &str, field: &str, expected: &str) {
        let invalid = parse(json).unwrap_err();
        assert_eq!(invalid.field, field, "{json}: {invalid}");
        assert!(invalid.to_string().contains(expected), "{json}: {invalid}");
    }

    #[test]
    fn only_stacks_bring_contents() {
        let parse = |json: &str| Request::parse(&serde_json::from_str(json).unwrap()).and_then(Request::without_files);
        assert!(parse(r#"{"sidekicks":[{"name":"a"}]}"#).is_ok());
        let wrong = parse(r#"{"files":[{"target":"/a","content":"x"}]}"#).unwrap_err();
        assert_eq!(wrong.field, "files");
        let wrong = parse(r#"{"sidekicks":[{"name":"a","files":[{"target":"/a","sealed":"x"}]}]}"#).unwrap_err();
        assert_eq!(wrong.field, "sidekicks[0].files");
    }

    #[test]
    fn no_new_request_has_a_slash_in_the_name_of_its_stack_or_service() {
        for (json, field) in [(r#"{"stack":"a/b"}"#, "stack"), (r#"{"stack":"a","service":"b/c"}"#, "service")] {
            let value = serde_json::from_str(json).unwrap();
            let invalid = Request::parse_new(&value).unwrap_err();
            assert_eq!(invalid.field, field);
            assert!(invalid.to_string().contains("without '/'"), "{invalid}");
            // A ledger may have one.
            assert!(Request::parse(&value).is_ok());
        }
    }

    #[test]
    fn labels_of_checks_are_refused_in_new_requests_alone() {
        let value: Value = serde_json::from_str(
            r#"{"image":"i","sidekicks":[{"name":"s","image":"i","labels":{"io.berth.health.strategy":"reboot"}}]}"#,
        )
        .unwrap();
        let invalid = Request::parse_new(&value).unwrap_err();
        let expected = "sidekicks[0].labels.io.berth.health.strategy";
        assert_eq!((&*invalid.field, &*invalid.problem), (expected, "\"reboot\""));
        assert!(invalid.to_string().contains("expected none, restart, recreate or recreateOnQuorum"), "{invalid}");
        assert!(Request::parse(&value).is_ok());
    }

    #[test]
    fn wrong_fields_are_named() {
        check("[]", "", "a map");
        check(r#"{"imagee":"x"}"#, "imagee", "unknown field");
        check(r#"{"count":0}"#, "count", "from 1 to 10000");
        check(r#"{"count":"many"}"#, "count", "whole number");
        check(r#"{"id":"a b"}"#, "id", "letters");
        check(r#"{"resources":{"memory":-1}}"#, "resources.memory", "from 0");
        check(r#"{"resources":{"memory":"5 apples"}}"#, "resources.memory", "512MiB");
        check(r#"{"resources":{"memory":9007199254740992}}"#, "resources.memory", "from 0");
        check(r#"{"resources":{"memory":"9999999999999g"}}"#, "resources.memory", "from 0");
        check(
            r#"{"resources":{"instanceReservation":2}}"#,
            "resources.instanceReservation",
            "each container takes one",
        );
        check(r#"{"ports":["80:80","x"]}"#, "ports[1]", "a port such as");
        check(r#"{"ports":[{"public":70000,"private":1}]}"#, "ports[0].public", "65535");
        check(r#"{"ports":[{"public":1}]}"#, "ports[0].private", "missing");
        check(r#"{"ports":[{"private":1,"ip":"x"}]}"#, "ports[0].ip", "an address");
        check(r#"{"constraints":["zone"]}"#, "constraints[0]", "OPERATOR");
        check(r#"{"constraints":[{"key":"a","operator":"like","value":"x"}]}"#, "constraints[0]", "one of");
        check(r#"{"constraints":[{"key":"a","value":"x","weight":101}]}"#, "constraints[0].weight", "100");
        check(
            r#"{"labels":{"io.rancher.scheduler.affinity:moon":"x"}}"#,
            "labels.io.rancher.scheduler.affinity:moon",
            "host_label",
        );
        check(r#"{"labels":{"a":[]}}"#, "labels.a", "text");
        check(r#"{"strategy":"best"}"#, "strategy", "spread or binpack");
        check(
            r#"{"image":{"platforms":[{"os":"windows","os_version":"ltsc"}]}}"#,
            "image.platforms[0].os_version",
            "10.0.20348",
        );
        check(r#"{"sidekicks":[{}]}"#, "sidekicks[0].name", "missing");
        check(r#"{"sidekicks":[{"name":"a","count":2}]}"#, "sidekicks[0].count", "unknown field");
        check(r#"{"name":"a","sidekicks":[{"name":"A"}]}"#, "sidekicks[0].name", "twice");
        check(r#"{"tolerations":[{}]}"#, "tolerations[0].key", "missing");
        check(r#"{"name":"a","start_after":["b"]}"#, "start_after", "no container of the unit");
        check(r#"{"name":"a","sidekicks":[{"name":"b","start_after":"B"}]}"#, "sidekicks[0].start_after", "no circle");
        check(r#"{"volume_options":[]}"#, "volume_options", "a map");
        check(r#"{"volumes":["a1:/a"],"volume_options":{"a1":5}}"#, "volume_options.a1", "a map of options");
        check(r#"{"volumes":["a1:/a"],"volume_options":{"a1":{"o":5}}}"#, "volume_options.a1.o", "text");
        check(r#"{"volumes":["a1:/a"],"volume_options":{"b1":{"o":"x"}}}"#, "volume_options.b1", "`volumes`");
        check(r#"{"spread":[{"label":"zone","max_skew":0}]}"#, "spread[0].max_skew", "from 1");
        check(
            r#"{"ports":["5555:80"],"sidekicks":[{"name":"a","ports":["5555:81"]}]}"#,
            "sidekicks[0].ports",
            "Port 5555/tcp requested more than once.",
        );
        check(
            r#"{"name":"a","volumes_from":["b"],"sidekicks":[{"name":"b","network_from":"a"}]}"#,
            "volumes_from",
            "wait for each other",
        );
        check(r#"{"name":"a","network_from":"a"}"#, "network_from", "wait for each other");
        check(r#"{"name":"a","volumes_from":"a:ro"}"#, "volumes_from", "wait for each other");
        for relative in ["./x:/x", "~/x:/x", "x/y:/x", "..:/x", r"x\\y:/x"] {
            check(&format!(r#"{{"volumes":["{relative}"]}}"#), "volumes[0]", "an absolute path");
        }
        for fine in ["/x:/x:ro", "data:/x", "/x", r"C:\\x:C:\\y", r"\\\\.\\pipe\\a:\\\\.\\pipe\\a"] {
            parse(&format!(r#"{{"volumes":["{fine}"]}}"#)).unwrap();
        }
    }

    #[test]
    fn absurd_requests_are_refused_by_named_limits() {
        let many = |count: usize, item: &str| vec![item; count].join(",");
        check(&format!(r#"{{"constraints":[{}]}}"#, many(10_000, "\"a=b\"")), "constraints", "at most 256");
        check(&format!(r#"{{"ports":[{}]}}"#, many(10_000, "\"80:80\"")), "ports", "at most 256");
        check(&format!(r#"{{"sidekicks":[{}]}}"#, many(40, r#"{"name":"x"}"#)), "sidekicks", "at most 31");
        let rule = format!(r#"{{"labels":{{"io.rancher.scheduler.affinity:host_label":"{}"}}}}"#, many(300, "a=b"));
        check(&rule, "constraints", "at most 256");
        check(&format!(r#"{{"name":"{}"}}"#, "x".repeat(200)), "name", "128");
    }

    #[test]
    fn amounts_come_in_the_order_of_the_predecessor() {
        let amounts = |json: &str| -> Vec<String> {
            parse(json).unwrap().amounts().iter().map(|(pool, amount)| format!("{pool} {amount}")).collect()
        };
        assert_eq!(amounts("{}"), ["instanceReservation 1"]);
        assert_eq!(
            amounts(
                r#"{"resources":{"storage_mb":7,"milli_cpu":500,"memory":"5MiB"},"sidekicks":[{"name":"a","resources":{"memory":1,"gpu":1}}]}"#
            ),
            ["memoryReservation 5242881", "cpuReservation 500", "instanceReservation 2", "gpu 1", "storageSize 7"]
        );
    }

    #[test]
    fn the_description_knows_all_fields() {
        let openapi: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
        let schemas = openapi.as_map().unwrap().map("components").unwrap().map("schemas").unwrap();
        let fields = |schema| -> Vec<String> {
            let properties = schemas.map(schema).unwrap().map("properties").unwrap();
            properties.iter().map(|(key, _)| key.to_string()).collect()
        };
        let mut all = [REQUEST_FIELDS, MEMBER_FIELDS].concat();
        all.sort_unstable();
        assert_eq!(fields("PlacementRequest"), all);
        assert_eq!(fields("Sidekick"), MEMBER_FIELDS);
    }

    #[test]
    fn labels_ask_for_global_and_for_a_host() {
        let request =
            parse(r#"{"labels":{"io.rancher.scheduler.global":true,"io.rancher.service.requested.host.id":3}}"#)
                .unwrap();
        assert!(request.global);
        assert_eq!(request.requested_host.as_deref(), Some("3"));
    }
}
