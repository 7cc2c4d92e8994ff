//! Upstreams that answer, lie and keep silent, played on loopback.

use std::collections::HashSet;

use clap::Parser;
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::rdata::{A, CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::flight::{PATIENCE, PENALTY_MAX};
use super::judge::{Heard, NEGATIVE_TTL, TTL_MAX, judge};
use super::*;
use crate::cache::FAILURE_LIFETIME;
use crate::reply::Question;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn forwarder(line: &str, upstreams: Vec<SocketAddr>) -> Forwarder {
    let line = format!("dns --recurser-timeout 0.5 {line}");
    Forwarder::new(&Line::parse_from(line.split_whitespace()).options, upstreams, Arc::new(Store::new(View::default())))
}

const ADDRESS: Client = Client { address: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), is_proven: true };

const CLIENT: Asking = Asking { recursion_desired: true, dnssec_ok: false, checking_disabled: false };

fn forward(name: &str, kind: RecordType) -> Forward {
    let name = Name::from_ascii(name).unwrap();
    let question = Question { folded: Folded::of(&name), name, kind };
    Forward { question, upstreams: Arc::new([]), aliases: Vec::new(), fallback: None }
}

async fn resolve(forwarder: &Forwarder, forward: &Forward) -> Reply {
    match forwarder.begin(forward, CLIENT, ADDRESS) {
        Begun::Known(reply) => reply,
        Begun::Waiting(waiting) => waiting.reply(forward).await,
        Begun::Unproven => panic!("no place without a proof"),
    }
}

fn shown(reply: &Reply) -> String {
    let records: Vec<_> =
        reply.answers.iter().map(|record| format!(" {} {} {}", record.name, record.ttl, record.data)).collect();
    format!("{:?}{}", reply.code, records.concat())
}

/// The reply that this query would like to have.
fn good(query: &Message) -> Message {
    let mut reply = query.clone();
    reply.metadata.message_type = MessageType::Response;
    reply.metadata.recursion_available = true;
    let name = query.queries[0].name.clone();
    reply.answers = vec![Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 1)))];
    reply
}

/// An upstream that answers a datagram with these, in order; gives how often it was asked.
async fn upstream(
    answer: impl Fn(Message) -> Vec<Message> + Send + Sync + 'static,
) -> (SocketAddr, watch::Receiver<usize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            count.send_modify(|count| *count += 1);
            for reply in answer(Message::from_vec(&buffer[..length]).unwrap()) {
                socket.send_to(&reply.to_vec().unwrap(), client).await.unwrap();
            }
        }
    });
    (address, counted)
}

#[tokio::test]
async fn equal_questions_in_flight_are_one_and_the_answer_is_kept() {
    let (address, asked) = upstream(|query| vec![good(&query)]).await;
    let forwarder = forwarder("", vec![address]);
    let (lower, upper) = (forward("www.example.org.", RecordType::A), forward("WWW.Example.org.", RecordType::A));
    let (one, two) = tokio::join!(resolve(&forwarder, &lower), resolve(&forwarder, &upper));
    assert_eq!(shown(&one), "NoError www.example.org. 60 192.0.2.1");
    assert!(two.answers[0].name.eq_case(&upper.question.name), "{}", two.answers[0].name);
    assert_eq!(resolve(&forwarder, &lower).await.code, ResponseCode::NoError);
    assert_eq!(*asked.borrow(), 1);
}

#[tokio::test]
async fn a_reply_is_believed_only_about_its_question() {
    let (address, _) = upstream(|query| {
        let evil = |change: &dyn Fn(&mut Message)| {
            let mut reply = good(&query);
            reply.answers[0].data = RData::A(A::new(6, 6, 6, 6));
            change(&mut reply);
            reply
        };
        let other = || Query::query(Name::from_ascii("evil.example.org.").unwrap(), RecordType::A);
        let mut last = good(&query);
        let victim = Name::from_ascii("victim.example.org.").unwrap();
        last.answers.push(Record::from_rdata(victim, 60, RData::A(A::new(6, 6, 6, 6))));
        vec![
            evil(&|reply| reply.metadata.id = reply.metadata.id.wrapping_add(1)),
            evil(&|reply| reply.queries = vec![other()]),
            evil(&|reply| reply.queries = Vec::new()),
            evil(&|reply| reply.queries[0].query_type = RecordType::AAAA),
            evil(&|reply| reply.metadata.message_type = MessageType::Query),
            last,
        ]
    })
    .await;
    let forwarder = forwarder("", vec![address]);
    let reply = resolve(&forwarder, &forward("www.example.org.", RecordType::A)).await;
    assert_eq!(shown(&reply), "NoError www.example.org. 60 192.0.2.1");
}

/// Accepts one connection and sends the good reply to its query.
async fn reply_over_tcp(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let length = stream.read_u16().await.unwrap();
    let mut query = vec![0; usize::from(length)];
    stream.read_exact(&mut query).await.unwrap();
    let reply = good(&Message::from_vec(&query).unwrap()).to_vec().unwrap();
    stream.write_u16(u16::try_from(reply.len()).unwrap()).await.unwrap();
    stream.write_all(&reply).await.unwrap();
}

/// Nine guesses: the last one would be right.
#[tokio::test]
async fn nobody_guesses_an_id_by_sending_many_replies() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).await.unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        let mut evil = good(&Message::from_vec(&buffer[..length]).unwrap());
        evil.answers[0].data = RData::A(A::new(6, 6, 6, 6));
        let right = evil.metadata.id;
        for guess in (0..9).rev() {
            evil.metadata.id = right.wrapping_add(guess);
            socket.send_to(&evil.to_vec().unwrap(), client).await.unwrap();
        }
        reply_over_tcp(&listener).await;
    });
    let reply = resolve(&forwarder("", vec![address]), &forward("www.example.org.", RecordType::A)).await;
    assert_eq!(shown(&reply), "NoError www.example.org. 60 192.0.2.1");
}

#[tokio::test]
async fn no_port_and_no_id_of_a_question_follows_from_others() {
    const QUESTIONS: u16 = 64;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let forwarder = forwarder("", vec![socket.local_addr().unwrap()]);
    let asking = async {
        for number in 0..QUESTIONS {
            resolve(&forwarder, &forward(&format!("www{number}.example.org."), RecordType::A)).await;
        }
    };
    let answering = async {
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        for _ in 0..QUESTIONS {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..length]).unwrap();
            seen.push((client.port(), query.metadata.id));
            socket.send_to(&good(&query).to_vec().unwrap(), client).await.unwrap();
        }
        seen
    };
    let ((), seen) = tokio::join!(asking, answering);
    let (ports, ids): (Vec<u16>, Vec<u16>) = seen.into_iter().unzip();
    for numbers in [ports, ids] {
        let all: HashSet<_> = numbers.iter().collect();
        // Of 64 random numbers out of 28,000 ports, a few may be equal.
        assert!(all.len() > 56, "{numbers:?}");
        let steps: HashSet<_> = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(steps.len() > 32, "{numbers:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_noticed_at_once() {
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (alive, _) = upstream(|query| vec![good(&query)]).await;
    let forwarder = forwarder("", vec![gone, alive]);
    let begun = Instant::now();
    assert_eq!(resolve(&forwarder, &forward("www.example.org.", RecordType::A)).await.code, ResponseCode::NoError);
    let look = forwarder.look();
    let (_, known) = look.upstreams.iter().find(|(address, _)| *address == gone).unwrap();
    // It did not answer before the other one was asked, rather than being overtaken by it.
    assert_eq!(known.known().unanswered, 1, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn one_client_does_not_take_the_places_of_all() {
    let (silent, _) = upstream(|_| Vec::new()).await;
    let forwarder = forwarder("", vec![silent]);
    let begin = |number: usize, client| {
        let forward = forward(&format!("www{number}.example.org."), RecordType::A);
        forwarder.begin(&forward, CLIENT, client)
    };
    let waiting: Vec<_> = (0..WAITING_PER_CLIENT_MAX).map(|number| begin(number, ADDRESS)).collect();
    assert!(waiting.iter().all(|begun| matches!(begun, Begun::Waiting(_))));
    let Begun::Known(refused) = begin(WAITING_PER_CLIENT_MAX, ADDRESS) else { panic!("one more waits") };
    assert_eq!((refused.code, refused.extended_error), (ResponseCode::ServFail, Some(reason::NOT_READY)));
    let other = Client { address: "192.0.2.2".parse().unwrap(), ..ADDRESS };
    assert!(matches!(begin(0, other), Begun::Waiting(_)));
    // Who leaves its questions behind has their places as long as they are asked.
    drop(waiting);
    assert!(matches!(begin(WAITING_PER_CLIENT_MAX, ADDRESS), Begun::Known(_)));
    forwarder.finish().await;
    assert!(
        matches!(begin(1, ADDRESS), Begun::Known(reply) if reply.extended_error == Some(reason::NO_REACHABLE_AUTHORITY))
    );
    assert_eq!((forwarder.look().refused, forwarder.look().waiting), (2, 0));
}

#[tokio::test]
async fn forged_addresses_do_not_take_the_places_of_those_that_are_proven() {
    let (silent, _) = upstream(|_| Vec::new()).await;
    let forwarder = forwarder("", vec![silent]);
    let begin = |number: usize, client: u8, is_proven: bool| {
        let forward = forward(&format!("www{number}.example.org."), RecordType::A);
        forwarder.begin(&forward, CLIENT, Client { address: [192, 0, 2, client].into(), is_proven })
    };
    let waits = |begun: &Begun| matches!(begun, Begun::Waiting(_));
    let forged = (0..=255).flat_map(|client| (0..UNPROVEN_PER_CLIENT_MAX).map(move |number| (number, client)));
    let forged: Vec<_> = forged.map(|(number, client)| begin(number, client, false)).collect();
    assert_eq!(forged.iter().filter(|begun| waits(begun)).count(), UNPROVEN_MAX);
    assert!(forged.iter().all(|begun| matches!(begun, Begun::Waiting(_) | Begun::Unproven)));
    // Those whose addresses were forged have their whole share.
    let own: Vec<_> = (0..WAITING_PER_CLIENT_MAX).map(|number| begin(number, 1, true)).collect();
    assert!(own.iter().all(waits));
    assert_eq!(forwarder.look().refused, 0);
}

#[tokio::test]
async fn an_answer_of_an_upstream_does_not_lead_to_this_host_or_a_container() {
    let (address, asked) = upstream(|query| {
        let mut reply = good(&query);
        let bytes = if query.queries[0].name.to_ascii().starts_with("web.") { [10, 42, 0, 7] } else { [127, 0, 0, 1] };
        let name = query.queries[0].name.clone();
        reply.answers.push(Record::from_rdata(name, 60, RData::A(A(bytes.into()))));
        vec![reply]
    })
    .await;
    let options = "dns --private-upstream corp.example --private-upstream lab.example";
    let options = Line::parse_from(options.split_whitespace()).options;
    let snapshots = Arc::new(Store::new(model::Snapshot::default()));
    let views = Arc::new(Store::new(View::default()));
    let content = crate::view::Content::Snapshots(snapshots.clone());
    let server = "192.0.2.53:53".parse().unwrap();
    let metrics = Arc::new(crate::metrics::Metrics::new(server, &options.domain));
    let _derived = tokio::spawn(content.follow((&options).into(), views.clone(), metrics));
    let mut watcher = views.watch();
    let text = "containers: [{name: web, primary_ip: 10.42.0.7}]";
    snapshots.publish(Arc::new(source::format::read(text).unwrap().snapshot));
    timeout(Duration::from_secs(5), watcher.changed()).await.unwrap();
    let forwarder = Forwarder::new(&options, vec![address], views);
    for (name, lies) in [("www.example.org.", "127.0.0.1"), ("web.example.org.", "10.42.0.7")] {
        // From the upstream, and from what is kept.
        for _ in 0..2 {
            let reply = resolve(&forwarder, &forward(name, RecordType::A)).await;
            assert_eq!((shown(&reply), reply.extended_error), ("NoError".to_owned(), Some(reason::BLOCKED)), "{name}");
            assert_eq!(reply.dropped, Some(lies.parse().unwrap()));
        }
    }
    assert_eq!((*asked.borrow(), forwarder.look().rebinding), (2, 2));
    for name in ["www.corp.example.", "web.lab.example.", "lab.example."] {
        assert_eq!(resolve(&forwarder, &forward(name, RecordType::A)).await.answers.len(), 2, "{name}");
    }
}

#[tokio::test]
async fn a_silent_upstream_is_asked_last_from_then_on() {
    let (silent, asked) = upstream(|_| Vec::new()).await;
    let (lively, _) = upstream(|query| vec![good(&query)]).await;
    let forwarder = forwarder("", vec![silent, lively]);
    let begun = Instant::now();
    for index in 0..10 {
        let reply = resolve(&forwarder, &forward(&format!("n{index}.example.org."), RecordType::A)).await;
        assert_eq!(reply.code, ResponseCode::NoError);
    }
    // A busy machine may let one of the later questions wait for long enough to ask both.
    assert!(*asked.borrow() < 5 && begun.elapsed() < PATIENCE * 5, "{} in {:?}", *asked.borrow(), begun.elapsed());
}

#[tokio::test]
async fn an_upstream_that_is_back_is_asked_first_again() {
    let (sender, silent) = watch::channel(true);
    let answering = move |query: Message| if *silent.borrow() { Vec::new() } else { vec![good(&query)] };
    let ((first, asked), (second, _)) = tokio::join!(upstream(answering), upstream(|query| vec![good(&query)]));
    let forwarder = forwarder("", vec![first, second]);
    let question = |index: usize| forward(&format!("n{index}.example.org."), RecordType::A);
    assert_eq!(resolve(&forwarder, &question(0)).await.code, ResponseCode::NoError);
    sender.send(false).unwrap();
    let before = *asked.borrow();
    // The second one answers until the first one was tried in passing, once its penalty is over.
    let found = async {
        for index in 1.. {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(resolve(&forwarder, &question(index)).await.code, ResponseCode::NoError);
            if *asked.borrow() >= before + 5 {
                break;
            }
        }
    };
    timeout(PENALTY_MAX, found).await.unwrap();
}

#[tokio::test]
async fn refusals_move_on_to_the_next_one() {
    for code in [ResponseCode::ServFail, ResponseCode::Refused] {
        let (refusing, _) = upstream(move |query| {
            let mut reply = good(&query);
            reply.answers.clear();
            reply.metadata.response_code = code;
            vec![reply]
        })
        .await;
        let (lively, _) = upstream(|query| vec![good(&query)]).await;
        let question = forward("www.example.org.", RecordType::A);
        let reply = resolve(&forwarder("", vec![refusing, lively]), &question).await;
        assert_eq!(reply.code, ResponseCode::NoError);
        let reply = resolve(&forwarder("", vec![refusing]), &question).await;
        assert_eq!(reply.code, code);
    }
}

#[tokio::test]
async fn nobody_is_asked_who_is_not_configured() {
    let (address, asked) = upstream(|query| vec![good(&query)]).await;
    let question = forward("www.example.org.", RecordType::A);
    for forwarder in [forwarder("", Vec::new()), forwarder("--never-recurse-to 127.0.0.1", vec![address])] {
        let reply = resolve(&forwarder, &question).await;
        assert_eq!((reply.code, reply.extended_error), (ResponseCode::Refused, Some(reason::PROHIBITED)));
    }
    let own = forwarder("", vec![address]);
    own.listens_on(vec![address]);
    assert_eq!(resolve(&own, &question).await.code, ResponseCode::Refused);
    let not_desired =
        forwarder("", vec![address]).begin(&question, Asking { recursion_desired: false, ..CLIENT }, ADDRESS);
    assert!(matches!(not_desired, Begun::Known(reply) if reply.code == ResponseCode::Refused));
    assert_eq!(*asked.borrow(), 0);
}

#[tokio::test]
async fn domains_may_have_upstreams_of_their_own() {
    let answering = |last: u8| {
        upstream(move |query| {
            let mut reply = good(&query);
            reply.answers[0].data = RData::A(A::new(192, 0, 2, last));
            vec![reply]
        })
    };
    let ((public, _), (corp, _), (lab, _)) = tokio::join!(answering(1), answering(2), answering(3));
    let line = format!("--private-upstream corp.example={corp} --private-upstream lab.corp.example={lab}");
    let forwarder = forwarder(&line, vec![public]);
    for (name, last) in [("www.example.", 1), ("corp.example.", 2), ("A.Corp.example.", 2), ("a.lab.corp.example.", 3)]
    {
        let own = Forward { upstreams: Arc::new([public]), ..forward(name, RecordType::A) };
        let reply = resolve(&forwarder, &own).await;
        assert_eq!(reply.answers[0].data.to_string(), format!("192.0.2.{last}"), "{name}");
    }
}

#[tokio::test]
async fn a_truncated_reply_is_fetched_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).await.unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        let mut reply = good(&Message::from_vec(&buffer[..length]).unwrap());
        reply.answers.clear();
        reply.metadata.truncation = true;
        socket.send_to(&reply.to_vec().unwrap(), client).await.unwrap();
        reply_over_tcp(&listener).await;
    });
    let reply = resolve(&forwarder("", vec![address]), &forward("www.example.org.", RecordType::A)).await;
    assert_eq!(shown(&reply), "NoError www.example.org. 60 192.0.2.1");
}

#[tokio::test]
async fn an_old_answer_is_served_while_upstreams_are_away() {
    let (sender, silent) = watch::channel(false);
    let (address, _) = upstream(move |query| {
        let mut reply = good(&query);
        reply.answers[0].ttl = 1;
        if *silent.borrow() { Vec::new() } else { vec![reply] }
    })
    .await;
    let forwarder = forwarder("", vec![address]);
    let question = forward("www.example.org.", RecordType::A);
    assert_eq!(shown(&resolve(&forwarder, &question).await), "NoError www.example.org. 1 192.0.2.1");
    sender.send(true).unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let reply = resolve(&forwarder, &question).await;
    assert_eq!(shown(&reply), "NoError www.example.org. 30 192.0.2.1");
    assert_eq!(reply.extended_error, Some(3));
    // From now on nobody waits for it, also when it is time to ask again.
    tokio::time::sleep(FAILURE_LIFETIME).await;
    assert!(
        matches!(forwarder.begin(&question, CLIENT, ADDRESS), Begun::Known(reply) if reply.extended_error == Some(3))
    );
    let unknown = resolve(&forwarder, &forward("other.example.org.", RecordType::A)).await;
    assert_eq!(unknown.code, ResponseCode::ServFail);
}

#[tokio::test]
async fn aliases_come_first_and_a_fallback_replaces_a_failure() {
    let (address, _) = upstream(|query| {
        let mut reply = good(&query);
        if query.queries[0].name.to_ascii().starts_with("no") {
            reply.answers.clear();
            reply.metadata.response_code = ResponseCode::NXDomain;
        }
        vec![reply]
    })
    .await;
    let forwarder = forwarder("", vec![address]);
    let asked = Name::from_ascii("out.rancher.internal.").unwrap();
    let alias = |target: &str| Forward {
        aliases: vec![Record::from_rdata(asked.clone(), 1, RData::CNAME(CNAME(Name::from_ascii(target).unwrap())))],
        ..forward(target, RecordType::A)
    };
    let reply = resolve(&forwarder, &alias("www.example.org.")).await;
    assert_eq!(shown(&reply), "NoError out.rancher.internal. 1 www.example.org. www.example.org. 60 192.0.2.1");
    let reply = resolve(&forwarder, &alias("no.example.org.")).await;
    assert_eq!(shown(&reply), "NXDomain out.rancher.internal. 1 no.example.org.");
    let own = Record::from_rdata(asked.clone(), 1, RData::A(A::new(192, 0, 2, 9)));
    let fallback = Reply { answers: vec![own], ..Reply::empty(ResponseCode::NoError) };
    let reply = resolve(&forwarder, &Forward { fallback: Some(fallback), ..alias("no.example.org.") }).await;
    assert_eq!(shown(&reply), "NoError out.rancher.internal. 1 192.0.2.9");
}

/// What is kept of a reply with these records, and for how long.
fn judged(kind: RecordType, code: ResponseCode, answers: Vec<Record>, authority: Vec<Record>) -> (String, u32) {
    let key = Key {
        name: Folded::parse("www.example.org").unwrap(),
        kind,
        upstreams: Arc::new([]),
        dnssec_ok: false,
        checking_disabled: false,
    };
    let mut message = Message::response(1, OpCode::Query);
    message.metadata.response_code = code;
    message.metadata.recursion_available = true;
    (message.answers, message.authorities) = (answers, authority);
    match judge(message, 100, &key) {
        Heard::Good(answer) => (shown(&answer.reply), answer.lifetime),
        Heard::Bad(code) => (format!("bad {code:?}"), 0),
    }
}

#[test]
fn lifetimes_follow_the_shortest_record_and_the_soa() {
    let name = |text| Name::from_ascii(text).unwrap();
    let address = |owner, ttl| Record::from_rdata(name(owner), ttl, RData::A(A::new(192, 0, 2, 1)));
    let alias = |owner, target, ttl| Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(target))));
    let soa = |owner, ttl, minimum| {
        Record::from_rdata(name(owner), ttl, RData::SOA(SOA::new(name("ns."), name("h."), 1, 1, 1, 1, minimum)))
    };
    let ok = |records| judged(RecordType::A, ResponseCode::NoError, records, Vec::new());
    assert_eq!(
        ok(vec![address("t.example.org.", 5), alias("www.example.org.", "t.example.org.", 900)]),
        ("NoError www.example.org. 900 t.example.org. t.example.org. 5 192.0.2.1".to_owned(), 5)
    );
    assert_eq!(ok(vec![address("www.example.org.", 0x8000_0001)]).1, 0);
    assert_eq!(ok(vec![address("www.example.org.", 0x7fff_ffff)]).1, TTL_MAX);
    assert_eq!(ok(vec![address("bank.example.org.", 60)]), ("NoError".to_owned(), NEGATIVE_TTL));
    let looped = ok(vec![alias("www.example.org.", "www.example.org.", 60)]);
    assert_eq!(looped, ("NoError www.example.org. 60 www.example.org.".to_owned(), NEGATIVE_TTL));
    // Who asks for everything gets what the upstream gives of this name.
    let any = judged(
        RecordType::ANY,
        ResponseCode::NoError,
        vec![
            address("www.example.org.", 60),
            address("bank.example.org.", 9),
            alias("www.example.org.", "t.example.org.", 30),
        ],
        Vec::new(),
    );
    assert_eq!(any, ("NoError www.example.org. 60 192.0.2.1 www.example.org. 30 t.example.org.".to_owned(), 30));
    let no = |authority| judged(RecordType::A, ResponseCode::NXDomain, Vec::new(), authority).1;
    assert_eq!(no(vec![soa("example.org.", 3600, 2)]), 2);
    assert_eq!(no(vec![soa("example.org.", 2, 3600)]), 2);
    assert_eq!(no(vec![soa("elsewhere.", 3600, 3600)]), NEGATIVE_TTL);
    assert_eq!(no(Vec::new()), NEGATIVE_TTL);
    assert_eq!(judged(RecordType::A, ResponseCode::Refused, Vec::new(), Vec::new()).0, "bad Refused");
}
