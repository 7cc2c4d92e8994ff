//! A source of our own: a stream of changes (`GET /v1/changes`) as a metadata service has it, for services to follow.
//!
//! So a change costs the service nothing but the change, and the moment at which it leaves is known.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use model::{ChangeLine, Delta, Map, Text, Value};

use crate::Failure;
use crate::cluster::{Cluster, uuid};

/// Who follows takes the stream for broken after a longer silence.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// A stream for one follower.
pub(crate) struct Feed {
    pub(crate) address: SocketAddr,
    lines: Sender<String>,
    /// The container that changes, as it goes over the wire.
    changing: Map,
    revision: u64,
}

impl Feed {
    /// Listens, and sends the whole cluster to the first who asks; container `number` is the one that will change.
    pub(crate) fn start(cluster: &Cluster, number: usize) -> Result<Self, Failure> {
        let snapshot = cluster.snapshot()?;
        let delta = Delta::whole(&snapshot);
        let wanted = uuid(4, number);
        let is_wanted =
            |map: &&Map| map.map("object").and_then(|object| object.text("uuid")).is_some_and(|id| **id == *wanted);
        let changing = delta.put.iter().find(is_wanted).cloned().ok_or("no such container")?;
        let (sender, receiver) = channel();
        for line in ChangeLine::split(&revision(0), None, delta) {
            sender.send(String::from_utf8(line)?.trim_end().to_owned())?;
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            // A follower that goes away ends the thread; what is then sent is lost, and the scenario notices.
            let _ = listener.accept().map_err(Failure::from).and_then(|(stream, _)| serve(&stream, &receiver));
        });
        Ok(Self { address, lines: sender, changing, revision: 0 })
    }

    /// Changes one label and the address of the container, and returns when that left.
    pub(crate) fn change(&mut self, turn: &str, address: &str) -> Result<Instant, Failure> {
        let from = revision(self.revision);
        self.revision += 1;
        let object = self.changing.map("object").ok_or("no object")?;
        let labels = object.map("labels").ok_or("no labels")?.with([("turn".into(), Value::text(turn))]);
        let object = object.with([
            ("labels".into(), Value::Map(labels)),
            ("primary_ip".into(), Value::text(address)),
            ("ips".into(), Value::list([Value::text(address)])),
        ]);
        let put = vec![self.changing.with([("object".into(), Value::Map(object))])];
        let delta = Delta { put, ..Delta::default() };
        let line = ChangeLine::Change { revision: revision(self.revision), from: Some(from), delta, more: false };
        let line = serde_json::to_string(&line.to_value())?;
        let now = Instant::now();
        self.lines.send(line)?;
        Ok(now)
    }
}

fn revision(number: u64) -> Text {
    format!("bench-{number}").into()
}

fn serve(stream: &TcpStream, lines: &Receiver<String>) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    for line in BufReader::new(stream).lines() {
        if line?.is_empty() {
            break;
        }
    }
    let mut writer = BufWriter::new(stream);
    writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n")?;
    let mut current = String::new();
    loop {
        match lines.recv_timeout(HEARTBEAT) {
            Ok(line) => {
                writeln!(writer, "{line}")?;
                current = line;
            }
            Err(RecvTimeoutError::Timeout) => {
                let line: Value = serde_json::from_str(&current)?;
                let revision = line.as_map().and_then(|line| line.text("revision")).ok_or("no revision")?.clone();
                writeln!(
                    writer,
                    "{}",
                    serde_json::to_string(&ChangeLine::Heartbeat { revision, live_clients: false }.to_value())?
                )?;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        writer.flush()?;
    }
}
