//! Admin pages of the service: what it knows of its upstreams, and why a client gets what it gets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Query as Parameters, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::answer;
use crate::edns::Extra;
use crate::explain::{Section as Place, Step, Steps, What};
use crate::forward::{Asking, Begun, Client, Known};
use crate::name::{Folded, wire_of};
use crate::query::{Query, Reading};
use crate::reply::{Forward, Reply};
use crate::shared::{Seen, Shared};
use crate::write::{TCP_ANSWER_MAX, write};
use crate::zone::{LeftOut, Scope, Zone};

/// The header of a query that wants recursion.
const QUERY_HEADER: &[u8] = &[0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];

/// The routes: `GET /v1/upstreams` and `GET /v1/query`.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new().route("/v1/upstreams", get(upstreams)).route("/v1/query", get(query)).with_state(shared)
}

/// An upstream as the page shows it.
#[derive(Serialize)]
struct Upstream {
    address: SocketAddr,
    /// Who sends questions there: `all`, `DOMAIN` or `client`.
    used_for: Vec<String>,
    /// `unknown` until it was asked, `healthy`, or `failing`: then it is asked last.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usual_ms: Option<f64>,
    /// After which time the next one is asked too.
    #[serde(skip_serializing_if = "Option::is_none")]
    patience_ms: Option<f64>,
    /// Failures in a row.
    failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_last_for_ms: Option<f64>,
    asked: u64,
    unanswered: u64,
    answers: BTreeMap<&'static str, u64>,
}

impl Upstream {
    fn new(address: SocketAddr, known: Option<&Known<'_>>) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let state = match known {
            Some(known) if known.avoided.is_some() => "failing",
            Some(known) if known.usual.is_some() => "healthy",
            _ => "unknown",
        };
        Self {
            address,
            used_for: Vec::new(),
            state,
            usual_ms: known.and_then(|known| known.usual).map(ms),
            patience_ms: known.map(|known| ms(known.patience)),
            failures: known.map_or(0, |known| known.failures),
            asked_last_for_ms: known.and_then(|known| known.avoided).map(ms),
            asked: known.map_or(0, |known| known.asked),
            unanswered: known.map_or(0, |known| known.unanswered),
            answers: known.map(|known| known.answers.by_code().collect()).unwrap_or_default(),
        }
    }
}

async fn upstreams(State(shared): State<Arc<Shared>>) -> Json<Vec<Upstream>> {
    let forwarder = &shared.forwarder;
    let look = forwarder.look();
    let mut named: BTreeMap<SocketAddr, Vec<String>> = BTreeMap::new();
    for address in forwarder.configured() {
        named.entry(*address).or_default().push("all".to_owned());
    }
    for (domain, addresses) in forwarder.private() {
        for address in addresses {
            named.entry(*address).or_default().push(domain.to_string());
        }
    }
    for (address, _) in &look.upstreams {
        named.entry(*address).or_insert_with(|| vec!["client".to_owned()]);
    }
    let upstreams = named.into_iter().map(|(address, used_for)| {
        let known = look.upstreams.iter().find(|(known, _)| *known == address).map(|(_, upstream)| upstream.known());
        Upstream { used_for, ..Upstream::new(address, known.as_ref()) }
    });
    Json(upstreams.collect())
}

/// What is asked.
#[derive(Deserialize)]
struct Asked {
    name: String,
    #[serde(rename = "type", default = "address_type")]
    kind: String,
    client: Option<IpAddr>,
}

fn address_type() -> String {
    RecordType::A.to_string()
}

/// Why a client gets what it gets.
#[derive(Serialize)]
struct Explanation {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    client: IpAddr,
    /// What the client sees besides the names that all see.
    section: Section,
    steps: Vec<Step>,
    /// Containers of the name without an address that this host reaches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
    /// Who gave the answer: `zone`, `cache`, `upstream`, `refused`, `not_served` or `not_ready`.
    answered_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarding: Option<Forwarding>,
    code: String,
    answers: Vec<Line>,
    authority: Vec<Line>,
    additional: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extended_error: Option<u16>,
}

#[derive(Serialize)]
struct Section {
    /// The client's address when it has a section of its own, otherwise `default`.
    name: String,
    search: Vec<String>,
    links: usize,
}

/// Where questions about names of others go.
#[derive(Serialize)]
struct Forwarding {
    /// `client`, `answers`, `configured`, or a domain that has upstreams of its own.
    upstreams_of: String,
    asked_first_to_last: Vec<SocketAddr>,
    /// Who gave the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered: Option<SocketAddr>,
    /// The address in its answer for which that was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<IpAddr>,
}

/// A record.
#[derive(Serialize)]
struct Line {
    name: String,
    ttl: u32,
    #[serde(rename = "type")]
    kind: String,
    data: String,
}

impl Line {
    fn all(records: &[Record]) -> Vec<Self> {
        let line = |record: &Record| Self {
            name: record.name.to_string(),
            ttl: record.ttl,
            kind: record.record_type().to_string(),
            data: record.data.to_string(),
        };
        records.iter().map(line).collect()
    }
}

async fn query(State(shared): State<Arc<Shared>>, Parameters(asked): Parameters<Asked>) -> Response {
    let refuse = |problem: String| (StatusCode::BAD_REQUEST, Json(json!({ "error": problem }))).into_response();
    let folded = match Folded::parse(&asked.name) {
        Ok(folded) => folded,
        Err(error) => return refuse(format!("name: {error}")),
    };
    let kind = asked.kind.to_uppercase();
    let number = kind.strip_prefix("TYPE").unwrap_or(&kind).parse::<u16>().map(RecordType::from);
    let Ok(kind) = number.or_else(|_| kind.parse()) else {
        return refuse(format!("type: {:?} is none", asked.kind));
    };
    let client = asked.client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    // As it is spelled, where it can be.
    let name = Name::from_ascii(&asked.name).map(|mut name| {
        name.set_fqdn(true);
        name
    });
    let name = name.ok().filter(|name| Folded::of(name) == folded).unwrap_or_else(|| folded.name());
    let explanation = explain(&shared, client, (name, kind)).await;
    Json(explanation).into_response()
}

async fn explain(shared: &Shared, client: IpAddr, (name, kind): (Name, RecordType)) -> Explanation {
    let mut explanation = Explanation {
        name: name.to_string(),
        kind: kind.to_string(),
        client,
        section: Section { name: "default".to_owned(), search: Vec::new(), links: 0 },
        steps: Vec::new(),
        left_out: Vec::new(),
        answered_by: "not_ready",
        forwarding: None,
        code: code(ResponseCode::ServFail),
        answers: Vec::new(),
        authority: Vec::new(),
        additional: Vec::new(),
        extended_error: None,
    };
    let message = message(&name, kind);
    let Reading::Query(query) = Query::read(&message) else {
        // As a client that asks for such a type.
        explanation.answered_by = "refused";
        explanation.code = code(ResponseCode::Refused);
        return explanation;
    };
    let forward = match shared.load().zone() {
        None => return explanation,
        Some(zone) => {
            let Seen { is_served, scope } = Seen::new(Some(zone), &shared.clients, client);
            explanation.see(zone, scope);
            if !is_served {
                explanation.answered_by = "not_served";
                explanation.code = code(ResponseCode::Refused);
                return explanation;
            }
            let mut steps = Steps::default();
            let answer = answer(zone, scope, Folded::from_wire(query.name).wire(), kind, &mut steps);
            explanation.take_steps(zone, scope, steps);
            let turn = shared.responder.next_turn();
            let mut room = vec![0; usize::from(TCP_ANSWER_MAX)];
            let extra = Extra { connected: true, ..Extra::default() };
            if let Some(written) = write(&query, zone, &answer, || turn, extra, &mut room) {
                explanation.answered_by = "zone";
                if let Ok(message) = Message::from_vec(&room[..written.bytes]) {
                    explanation.code = code(written.code);
                    explanation.answers = Line::all(&message.answers);
                    explanation.authority = Line::all(&message.authorities);
                    explanation.additional = Line::all(&message.additionals);
                }
            }
            let own = scope.is_some_and(|scope| !scope.upstreams.is_empty());
            let upstreams_of = match (own, zone.upstreams.is_empty()) {
                (true, _) => "client",
                (false, false) => "answers",
                (false, true) => "configured",
            };
            Forward::of(&query, &answer, turn).map(|forward| (forward, upstreams_of))
        }
    };
    if let Some((forward, upstreams_of)) = forward {
        let private = shared.forwarder.private_domain(forward.question.folded.wire());
        let upstreams_of = private.map_or_else(|| upstreams_of.to_owned(), |(domain, _)| domain.to_string());
        let asked = shared.forwarder.upstreams(&forward.question.folded, &forward.upstreams);
        let asking = Asking { recursion_desired: true, dnssec_ok: false, checking_disabled: false };
        let client = Client { address: client, is_proven: true };
        let (reply, by) = match shared.forwarder.begin(&forward, asking, client) {
            Begun::Known(reply) => {
                let by = if reply.upstream.is_some() { "cache" } else { "refused" };
                (reply, by)
            }
            Begun::Waiting(waiting) => (waiting.reply(&forward).await, "upstream"),
            // A request for this page is proof enough of its address.
            Begun::Unproven => (Reply::empty(ResponseCode::ServFail), "refused"),
        };
        explanation.answered_by = by;
        let (answered, dropped) = (reply.upstream, reply.dropped);
        let asked_first_to_last = asked.to_vec();
        explanation.forwarding = Some(Forwarding { upstreams_of, asked_first_to_last, answered, dropped });
        explanation.code = code(reply.code);
        explanation.answers = Line::all(&reply.answers);
        explanation.authority = Line::all(&reply.authority);
        explanation.extended_error = reply.extended_error;
    }
    explanation
}

impl Explanation {
    /// What the client sees.
    fn see(&mut self, zone: &Zone, scope: Option<&Scope>) {
        let own = scope.map_or(&[][..], |scope| &scope.search);
        let others = zone.search.iter().filter(|suffix| !own.contains(suffix));
        self.section = Section {
            name: scope.map_or_else(|| "default".to_owned(), |_| self.client.to_canonical().to_string()),
            search: own.iter().chain(others).map(ToString::to_string).collect(),
            links: scope.map_or(0, |scope| scope.links.iter().map(|links| links.len()).sum()),
        };
    }

    /// The names that were tried, and which containers are left out there.
    fn take_steps(&mut self, zone: &Zone, scope: Option<&Scope>, Steps(steps): Steps) {
        let at = steps.iter().filter(|step| !matches!(step.found, What::Nothing | What::FullNameOnly));
        let at = at.filter_map(|step| Some((step.section, Folded::parse(&step.name).ok()?)));
        self.left_out = at
            .flat_map(|(section, name)| zone.left_out(scope.filter(|_| section == Place::Client), name.wire()))
            .collect();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        for one in &mut self.left_out {
            one.for_s = one.since.map(|since| now.saturating_sub(since));
        }
        self.steps = steps;
    }
}

/// The query of a client that asks for records of a name.
fn message(name: &Name, kind: RecordType) -> Vec<u8> {
    let fixed = [u16::from(kind), u16::from(DNSClass::IN)].map(u16::to_be_bytes).concat();
    [QUERY_HEADER, &wire_of(name), &fixed].concat()
}

/// A code as the standards write it.
fn code(code: ResponseCode) -> String {
    match code {
        ResponseCode::NoError => "NOERROR".to_owned(),
        other => format!("{other:?}").to_uppercase(),
    }
}
