//! The service over its own sockets.

use std::time::{Duration, Instant};

use clap::Parser;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Asked, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use model::CLIENT_KNOWN_WITHIN;
use process::Listeners;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::connection_end::Ends;
use crate::metrics::Transport;
use crate::shared::{Batch, Handled};
use crate::tcp;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

struct Running {
    address: SocketAddr,
    snapshots: Arc<Store<Snapshot>>,
    views: Arc<Store<View>>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Failure>>,
}

fn start(line: &str) -> Running {
    start_for(line, "private")
}

fn start_for(line: &str, clients: &str) -> Running {
    let clients = Clients::new(&[clients.parse().unwrap()]);
    let options = Line::parse_from(line.split_whitespace()).options;
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let sockets = Sockets::bind(SocketAddr::from(([127, 0, 0, 1], 0)).into(), &mut Listeners::default()).unwrap();
    let address = sockets.address().unwrap();
    let server = Server::new(&options, clients, address, snapshots.clone(), &mut Registry::default()).unwrap();
    let (views, shared, stop) = (server.views(), server.shared.clone(), CancellationToken::new());
    Running { address, snapshots, views, shared, stop: stop.clone(), task: tokio::spawn(server.run(sockets, stop)) }
}

fn query(id: u16, name: &str) -> Message {
    let mut query = Message::new(id, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Asked::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query.set_edns(Edns::new());
    query
}

async fn ask(address: SocketAddr, name: &str) -> Message {
    ask_from("127.0.0.1", address, name).await
}

async fn ask_from(client: &str, address: SocketAddr, name: &str) -> Message {
    let socket = UdpSocket::bind((client, 0)).await.unwrap();
    socket.connect(address).await.unwrap();
    socket.send(&query(7, name).to_vec().unwrap()).await.unwrap();
    let mut buffer = [0; 4096];
    let length = tokio::time::timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.unwrap().unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), query: &Message) {
    let bytes = query.to_vec().unwrap();
    stream.write_u16(u16::try_from(bytes.len()).unwrap()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
}

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Message {
    let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut bytes).await.unwrap();
    Message::from_vec(&bytes).unwrap()
}

fn cluster(address: &str) -> Arc<Snapshot> {
    let text = format!("containers: [{{name: web, primary_ip: {address}}}]");
    Arc::new(source::format::read(&text).unwrap().snapshot)
}

#[tokio::test]
async fn the_end_of_a_thread_that_receives_is_the_end_of_the_service() {
    let sockets = Sockets::bind(SocketAddr::from(([127, 0, 0, 1], 0)).into(), &mut Listeners::default()).unwrap();
    let (options, address) = (Line::parse_from(["dns"]).options, sockets.address().unwrap());
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let server = Server::new(&options, Clients::default(), address, snapshots, &mut Registry::default()).unwrap();
    let (mut parts, threads) = (Parts::new(CancellationToken::new()), CancellationToken::new());
    for socket in sockets.udp {
        udp::serve(socket, server.shared.clone(), &threads, &TaskTracker::new(), &mut parts).unwrap();
    }
    // They end, although the service was not stopped.
    threads.cancel();
    let watched = tokio::time::timeout(Duration::from_secs(5), parts.watch()).await.unwrap();
    assert_eq!(watched.unwrap_err().to_string(), "dns-udp ended by itself");
}

/// Publishes, and waits until it is served.
async fn publish(running: &Running, address: &str) {
    let mut watcher = running.views.watch();
    running.snapshots.publish(cluster(address));
    tokio::time::timeout(Duration::from_secs(5), watcher.changed()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_there_is_data_nothing_is_denied() {
    let running = start("dns --upstream 127.0.0.1:1");
    assert_eq!(ask(running.address, "web.rancher.internal.").await.metadata.response_code, ResponseCode::ServFail);
    publish(&running, "10.0.0.1").await;
    let reply = ask(running.address, "web.rancher.internal.").await;
    assert_eq!(reply.answers[0].data.to_string(), "10.0.0.1");
    publish(&running, "10.0.0.2").await;
    let reply = ask(running.address, "web.rancher.internal.").await;
    assert_eq!(reply.answers[0].data.to_string(), "10.0.0.2");
    let missing = ask(running.address, "no.rancher.internal.").await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    running.stop.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_appears_is_answered_at_once_to_clients_that_are_not_known_either() {
    let running = start("dns --upstream 127.0.0.1:1");
    running.snapshots.set_live_clients(true);
    publish(&running, "10.0.0.1").await;
    // A busy machine may be slow, but not each time.
    let mut fastest = Duration::MAX;
    for turn in 0..20 {
        let start = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let text = format!("containers: [{{name: new{turn}, primary_ip: 10.0.0.2}}]");
            running.snapshots.publish(Arc::new(source::format::read(&text).unwrap().snapshot));
        };
        let (asked, name) = (Instant::now(), format!("new{turn}.rancher.internal."));
        let (reply, ()) = tokio::join!(ask(running.address, &name), start);
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
        fastest = fastest.min(asked.elapsed());
    }
    assert!(fastest < CLIENT_KNOWN_WITHIN / 2, "{fastest:?}");
    running.stop.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_container_asks_before_its_engine_reported_it_is_not_denied() {
    for holds in [true, false] {
        let expected = if holds { ResponseCode::NoError } else { ResponseCode::NXDomain };
        let running = start("dns --upstream 127.0.0.1:1");
        running.snapshots.set_live_clients(holds);
        publish(&running, "10.0.0.1").await;
        let start = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let text = "containers: [{name: new, primary_ip: 127.0.0.1}]";
            running.snapshots.publish(Arc::new(source::format::read(text).unwrap().snapshot));
        };
        let (reply, ()) = tokio::join!(ask(running.address, "new.rancher.internal."), start);
        assert_eq!(reply.metadata.response_code, expected, "{holds}");
        // A client that is known is not held. A busy machine may be slow, but not each time.
        let mut fastest = Duration::MAX;
        for _ in 0..20 {
            let asked = Instant::now();
            let reply = ask(running.address, "no.rancher.internal.").await;
            assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
            fastest = fastest.min(asked.elapsed());
        }
        assert!(fastest < CLIENT_KNOWN_WITHIN, "{fastest:?}");
        running.stop.cancel();
        running.task.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_question_does_not_hold_the_others_of_its_connection() {
    // An upstream that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap();
    let running = start(&format!("dns --recurser-timeout 0.3 --upstream {upstream}"));
    publish(&running, "10.0.0.1").await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    for (id, name) in [(1, "www.example.org."), (2, "web.rancher.internal."), (3, "web.")] {
        send(&mut stream, &query(id, name)).await;
    }
    stream.shutdown().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let reply = receive(&mut stream).await;
        ids.push((reply.metadata.id, reply.metadata.response_code));
    }
    assert_eq!(ids, [(2, ResponseCode::NoError), (3, ResponseCode::NoError), (1, ResponseCode::ServFail)]);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    running.stop.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_in_flight_are_answered_before_the_end() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let upstream = silent.local_addr().unwrap();
    let running = start(&format!("dns --recurser-timeout 0.3 --upstream {upstream}"));
    publish(&running, "10.0.0.1").await;
    let (address, stop) = (running.address, running.stop.clone());
    let asking = tokio::spawn(async move { ask(address, "www.example.org.").await });
    // The question arrived when it is passed on.
    silent.readable().await.unwrap();
    stop.cancel();
    assert_eq!(asking.await.unwrap().metadata.response_code, ResponseCode::ServFail);
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_question_that_has_arrived_when_the_service_stops_is_answered() {
    let running = start("dns");
    publish(&running, "10.0.0.1").await;
    // Which of the two is seen first is not the same each time.
    for _ in 0..20 {
        let (mut client, connection) = duplex(4096);
        send(&mut client, &query(7, "web.rancher.internal.")).await;
        let ends = Ends { stop: CancellationToken::new(), pressure: watch::channel(()).1 };
        ends.stop.cancel();
        let from = (SocketAddr::from(([127, 0, 0, 1], 1)), Transport::Tcp);
        let served = tokio::spawn(tcp::Connection::new(connection, from, running.shared.clone()).serve(ends));
        assert_eq!(receive(&mut client).await.answers.len(), 1);
        served.await.unwrap().unwrap();
    }
    running.task.abort();
}

async fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(client.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}

/// Starts an upstream that sends each query back as its reply, changed by `fill`, unless that returns false.
async fn upstream(fill: impl Fn(&mut Message) -> bool + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let mut reply = Message::from_vec(&buffer[..length]).unwrap();
            reply.metadata.message_type = MessageType::Response;
            if fill(&mut reply) {
                socket.send_to(&reply.to_vec().unwrap(), client).await.unwrap();
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_holds_all_it_can_leaves_the_others_their_answers() {
    platform::limits::raise_descriptor_limit();
    // An upstream that is silent about some names.
    let upstream = upstream(|reply| !reply.queries[0].name.to_ascii().starts_with("hang")).await;
    let running = start(&format!("dns --upstream {upstream}"));
    publish(&running, "10.0.0.1").await;
    let datagrams = UdpSocket::bind(("127.0.0.2", 0)).await.unwrap();
    let mut connections = Vec::new();
    for _ in 0..300 {
        connections.push(connect_from("127.0.0.2", running.address).await);
    }
    let mut number = 0;
    let mut next = || {
        number += 1;
        query(1, &format!("hang{number}.example.org."))
    };
    for connection in &mut connections[..3] {
        for _ in 0..100 {
            send(connection, &next()).await;
        }
    }
    while running.shared.forwarder.look().refused == 0 || running.shared.forwarder.look().unproven == 0 {
        datagrams.send_to(&next().to_vec().unwrap(), running.address).await.unwrap();
        tokio::task::yield_now().await;
    }
    // Over UDP, over TCP, and about the cluster.
    for name in ["www.example.org.", "web.rancher.internal."] {
        let reply = ask_from("127.0.0.3", running.address, name).await;
        assert_eq!((reply.metadata.response_code, reply.metadata.truncation), (ResponseCode::NoError, false), "{name}");
        let mut stream = connect_from("127.0.0.3", running.address).await;
        send(&mut stream, &query(2, name)).await;
        assert_eq!(receive(&mut stream).await.metadata.response_code, ResponseCode::NoError, "{name}");
    }
    // Of its connections, those over its share are closed.
    let mut closed = 0;
    for connection in &mut connections[3..] {
        closed += usize::from(connection.try_read(&mut [0]).is_ok_and(|read| read == 0));
    }
    assert!(closed >= 300 - 256, "{closed}");
    // A client that proves its address by a cookie has a place.
    let hung = query(3, "hang.example.org.");
    let mut cookie = vec![1; 8];
    for code in [ResponseCode::BADCOOKIE, ResponseCode::ServFail] {
        let mut query = hung.clone();
        let option = EdnsOption::Unknown(10, cookie.clone());
        query.edns.as_mut().unwrap().options_mut().insert(option);
        let socket = UdpSocket::bind(("127.0.0.2", 0)).await.unwrap();
        socket.send_to(&query.to_vec().unwrap(), running.address).await.unwrap();
        let mut buffer = [0; 4096];
        let length = tokio::time::timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.unwrap().unwrap();
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(reply.metadata.response_code, code);
        if let Some(EdnsOption::Unknown(10, given)) = reply.edns.unwrap().option(EdnsCode::Cookie) {
            cookie.clone_from(given);
        }
    }
    running.task.abort();
}

/// The same bytes arrive from both: what the name leads to depends on links of the client, also behind an alias.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_client_is_answered_is_not_sent_to_another() {
    let upstream = upstream(|reply| {
        let name = reply.queries[0].name.clone();
        reply.answers.push(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 25))));
        true
    })
    .await;
    let running = start(&format!("dns --upstream {upstream}"));
    let text = "
containers:
  - {name: evil, primary_ip: 127.0.0.2, service: evil/web}
  - {name: linked, primary_ip: 127.0.0.3, service: good/web}
services:
  - {name: mail, stack: outside, kind: externalService, hostname: mail.example.org}
  - {name: fake, stack: evil, vip: 10.0.0.66}
  - {name: relay, stack: good, vip: 10.0.0.25}
  - {name: web, stack: evil, links: {evil/fake: mail.example.org}}
  - {name: web, stack: good, links: {good/relay: mail.example.org}}
";
    let mut watcher = running.views.watch();
    running.snapshots.publish(Arc::new(source::format::read(text).unwrap().snapshot));
    tokio::time::timeout(Duration::from_secs(5), watcher.changed()).await.unwrap();
    let clients = [("127.0.0.2", "10.0.0.66"), ("127.0.0.3", "10.0.0.25"), ("127.0.0.4", "192.0.2.25")];
    for name in ["mail.outside.rancher.internal.", "mail.example.org."] {
        // Each comes after each other one.
        for at in [0, 1, 2, 1, 0, 2, 0] {
            let (client, address) = clients[at];
            let reply = ask_from(client, running.address, name).await;
            let last = reply.answers.last().map(|record| record.data.to_string());
            assert_eq!(last.as_deref(), Some(address), "{name} for {client}");
            let mut stream = connect_from(client, running.address).await;
            send(&mut stream, &query(7, name)).await;
            let reply = receive(&mut stream).await;
            let last = reply.answers.last().map(|record| record.data.to_string());
            assert_eq!(last.as_deref(), Some(address), "{name} for {client} over TCP");
        }
    }
    running.task.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_known_too_late_is_not_sent_by_datagram() {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let running = start(&format!("dns --recurser-timeout 10 --upstream {}", socket.local_addr().unwrap()));
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let mut reply = Message::from_vec(&buffer[..length]).unwrap();
            let name = reply.queries[0].name.clone();
            reply.metadata.message_type = MessageType::Response;
            reply.answers.push(Record::from_rdata(name.clone(), 60, RData::A(A::new(192, 0, 2, 1))));
            let socket = socket.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if !name.to_ascii().starts_with("hang") {
                    socket.send_to(&reply.to_vec().unwrap(), client).await.unwrap();
                }
            });
        }
    });
    publish(&running, "10.0.0.1").await;
    let shared = running.shared.clone();
    let late = |name: &str, transport| {
        let message = query(7, name).to_vec().unwrap();
        let view = shared.load();
        let client = (SocketAddr::from(([127, 0, 0, 1], 1)), transport);
        let mut batch = Batch::of(&view, &shared.clients);
        shared.handle(&mut batch, &message, client, &shared.metrics.tally(), &mut [0; 1232])
    };
    for (name, transport, code) in [
        ("one.example.org.", Transport::Udp, None),
        ("two.example.org.", Transport::Tcp, Some(ResponseCode::NoError)),
        // That there is no answer is said.
        ("hang.example.org.", Transport::Udp, Some(ResponseCode::ServFail)),
    ] {
        let Handled::Wait(later) = late(name, transport) else { panic!("{name} does not wait") };
        let bytes = later.reply(&shared).await;
        let reply = Message::from_vec(&bytes).ok();
        assert_eq!(reply.map(|reply| reply.metadata.response_code), code, "{name}");
    }
    // It is there when the client asks again.
    assert!(matches!(late("one.example.org.", Transport::Udp), Handled::Send { .. }));
    assert_eq!(shared.metrics.late.get(), 1);
    running.task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_no_network_that_is_served_is_refused_in_no_more_bytes_than_it_sent() {
    let running = start_for("dns --upstream 127.0.0.1:1", "127.0.0.2");
    // A container is served wherever its address is.
    publish(&running, "127.0.0.4").await;
    for (client, code) in [
        ("127.0.0.1", ResponseCode::Refused),
        ("127.0.0.2", ResponseCode::NoError),
        ("127.0.0.3", ResponseCode::Refused),
        ("127.0.0.4", ResponseCode::NoError),
    ] {
        let reply = ask_from(client, running.address, "web.rancher.internal.").await;
        assert_eq!(reply.metadata.response_code, code, "{client}");
        let mut stream = connect_from(client, running.address).await;
        send(&mut stream, &query(2, "web.rancher.internal.")).await;
        assert_eq!(receive(&mut stream).await.metadata.response_code, code, "{client}");
    }
    let mut query = query(3, "web.rancher.internal.");
    query.edns.as_mut().unwrap().options_mut().insert(EdnsOption::Unknown(10, vec![1; 8]));
    let (message, client) = (query.to_vec().unwrap(), SocketAddr::from(([192, 0, 2, 1], 1)));
    let handled = {
        let view = running.shared.load();
        let mut batch = Batch::of(&view, &running.shared.clients);
        let tally = running.shared.metrics.tally();
        running.shared.handle(&mut batch, &message, (client, Transport::Udp), &tally, &mut [0; 1232])
    };
    assert!(matches!(handled, Handled::Send { bytes, .. } if bytes <= message.len()), "{handled:?}");
    running.task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_address_is_sent_no_more_than_the_rate_of_its_network() {
    let running = start_for("dns --responses-per-second 1", "192.0.2.0/24");
    publish(&running, "192.0.2.4").await;
    let shared = &running.shared;
    let begun = Instant::now();
    // How many of many responses are whole, truncated and missing, and the last one that was truncated.
    let ask = |client: [u8; 4], transport: Transport, cookie: Vec<u8>| {
        let mut query = query(1, "web.rancher.internal.");
        query.edns.as_mut().unwrap().options_mut().insert(EdnsOption::Unknown(10, cookie));
        let (message, mut counts, mut last) = (query.to_vec().unwrap(), [0_u64; 3], None);
        for _ in 0..100 {
            let (view, mut room) = (shared.load(), [0; 1232]);
            let (mut batch, from) = (Batch::of(&view, &shared.clients), (SocketAddr::from((client, 9)), transport));
            match shared.handle(&mut batch, &message, from, &shared.metrics.tally(), &mut room) {
                Handled::Send { bytes, .. } => {
                    let reply = Message::from_vec(&room[..bytes]).unwrap();
                    counts[usize::from(reply.metadata.truncation)] += 1;
                    if reply.metadata.truncation {
                        assert!(reply.answers.is_empty());
                        last = Some(reply);
                    }
                }
                Handled::Ignore => counts[2] += 1,
                Handled::Wait(_) => panic!("it waits"),
            }
        }
        (counts, last)
    };
    let no_cookie = vec![1; 8];
    let ([whole, truncated, dropped], last) = ask([192, 0, 2, 1], Transport::Udp, no_cookie.clone());
    // The test itself takes time, in which more may be sent.
    let seconds = begun.elapsed().as_secs();
    assert!((1..=2 + seconds).contains(&whole) && truncated.abs_diff(dropped) <= 1, "{whole} {truncated} {dropped}");
    let limited = shared.metrics.limited.each_ref().map(prometheus_client::metrics::counter::Counter::get);
    assert_eq!(limited, [dropped, truncated]);
    // Who shows by the cookie of such a response, or by a connection, that the address is its own is not limited; nor are
    // containers of this host and the host itself.
    let Some(EdnsOption::Unknown(_, cookie)) = last.unwrap().edns.unwrap().option(EdnsCode::Cookie).cloned() else {
        panic!("no cookie")
    };
    for (client, transport, cookie) in [
        ([192, 0, 2, 1], Transport::Udp, cookie),
        ([192, 0, 2, 1], Transport::Tcp, no_cookie.clone()),
        ([192, 0, 2, 4], Transport::Udp, no_cookie.clone()),
        ([127, 0, 0, 1], Transport::Udp, no_cookie.clone()),
    ] {
        assert_eq!(ask(client, transport, cookie).0, [100, 0, 0], "{client:?} {transport:?}");
    }
    // Failures are as short as their queries, and no other answer could be had over TCP.
    let ([whole, truncated, dropped], _) = ask([198, 51, 100, 1], Transport::Udp, no_cookie);
    assert!(truncated == 0 && dropped > 30 && whole > 30, "{whole} {truncated} {dropped}");
    running.task.abort();
}
