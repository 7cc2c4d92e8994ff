//! The service over its own sockets.

use std::time::{Duration, Instant};

use clap::Parser;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Asked, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinHandle;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

struct Running {
    address: SocketAddr,
    snapshots: Arc<Store<Snapshot>>,
    views: Arc<Store<View>>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Failure>>,
}

fn start(line: &str) -> Running {
    let options = Line::parse_from(line.split_whitespace()).options;
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let sockets = Sockets::bind(SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = sockets.address().unwrap();
    let server = Server::new(&options, address, snapshots.clone(), &mut Registry::default()).unwrap();
    let (views, stop) = (server.views(), CancellationToken::new());
    Running { address, snapshots, views, stop: stop.clone(), task: tokio::spawn(server.run(sockets, stop)) }
}

fn query(id: u16, name: &str) -> Message {
    let mut query = Message::new(id, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Asked::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query.set_edns(Edns::new());
    query
}

async fn ask(address: SocketAddr, name: &str) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(address).await.unwrap();
    socket.send(&query(7, name).to_vec().unwrap()).await.unwrap();
    let mut buffer = [0; 4096];
    let length = tokio::time::timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.unwrap().unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn send(stream: &mut TcpStream, query: &Message) {
    let octets = query.to_vec().unwrap();
    stream.write_u16(u16::try_from(octets.len()).unwrap()).await.unwrap();
    stream.write_all(&octets).await.unwrap();
}

async fn receive(stream: &mut TcpStream) -> Message {
    let mut octets = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut octets).await.unwrap();
    Message::from_vec(&octets).unwrap()
}

fn cluster(address: &str) -> Arc<Snapshot> {
    let text = format!("containers: [{{name: web, primary_ip: {address}}}]");
    Arc::new(source::format::read(&text).unwrap().snapshot)
}

#[tokio::test]
async fn the_end_of_a_thread_that_receives_is_the_end_of_the_service() {
    let sockets = Sockets::bind(SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let (options, address) = (Line::parse_from(["dns"]).options, sockets.address().unwrap());
    let snapshots = Arc::new(Store::new(Snapshot::default()));
    let server = Server::new(&options, address, snapshots, &mut Registry::default()).unwrap();
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
        // Whoever is known is denied at once.
        let asked = Instant::now();
        let reply = ask(running.address, "no.rancher.internal.").await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
        assert!(asked.elapsed() < Duration::from_millis(200) || !holds, "{:?}", asked.elapsed());
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
