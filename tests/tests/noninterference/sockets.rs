//! Metadata that follows a real etcd, and dns that follows it, as they are shipped and over sockets.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use tests::etcd::{Etcd, base64};
use tests::question::Question;
use tests::service::NO_NAME_SERVER;
use tests::{Executable, Launch, Service, eventually, http};

use crate::services::{Answering, tree};

/// Longest wait until what was written is visible.
const SOON: Duration = Duration::from_secs(10);

/// The name whose address says what was written last.
const MARK: &str = "mark.mark.rancher.internal";

pub(crate) struct Sockets {
    etcd: Etcd,
    metadata: SocketAddr,
    dns: SocketAddr,
    _running: [Service; 2],
    written: u32,
}

impl Sockets {
    /// Both services, where etcd can be had.
    pub(crate) fn start() -> Option<Self> {
        let etcd = Etcd::start(1)?;
        let source = format!("etcd:{}", etcd.urls());
        let mut metadata = Launch::served(Executable::Metadata).with("--source", &source).start();
        let address = metadata.address();
        let mut dns = Launch::dns().following(address).env(NO_NAME_SERVER.0, upstream().to_string()).start();
        Some(Self { etcd, metadata: address, dns: dns.address(), _running: [metadata, dns], written: 0 })
    }

    /// Puts and deletes keys in one transaction, and waits until both services show that.
    pub(crate) fn write<'k>(&mut self, keys: impl IntoIterator<Item = (&'k str, Option<&'k [u8]>)>) {
        self.written += 1;
        let [_, a, b, c] = self.written.to_be_bytes();
        let address = format!("10.{a}.{b}.{c}");
        let mark = json!({"services": [{"name": "mark", "stack": "mark", "vip": address}]}).to_string();
        let ops: Vec<_> = keys.into_iter().map(|(path, value)| operation(path, value)).collect();
        let ops = [ops, vec![operation("documents/mark", Some(mark.as_bytes()))]].concat();
        self.etcd.ask("kv/txn", &json!({"success": ops}));
        eventually("what was written is visible", SOON, || {
            let told = Question::a(MARK).ask(self.dns).data() == [address.clone()];
            let vip = http::get("/latest/services/mark/vip").ask(self.metadata);
            (told && vip.text() == address).then_some(())
        });
    }
}

/// The address of a name server that knows no name.
fn upstream() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((length, client)) = socket.recv_from(&mut bytes) {
            // A response with recursion, NXDOMAIN (RFC 1035 section 4.1.1).
            (bytes[2], bytes[3]) = (bytes[2] | 0x80, 0x83);
            let _ = socket.send_to(&bytes[..length], client);
        }
    });
    address
}

/// A key to be put or deleted, as etcd's gateway has it.
fn operation(path: &str, value: Option<&[u8]>) -> Value {
    let key = base64(&format!("{}{path}", etcd::PREFIX));
    match value.map(|value| base64(std::str::from_utf8(value).unwrap())) {
        Some(value) => json!({"requestPut": {"key": key, "value": value}}),
        None => json!({"requestDeleteRange": {"key": key}}),
    }
}

impl Answering for Sockets {
    fn dns(&self, question: &Question, client: &str, tcp: bool) -> Vec<String> {
        let question = question.clone().from(client);
        let answer = if tcp { question.tcp() } else { question }.ask(self.dns);
        [answer.rcode()].into_iter().chain(answer.records()).collect()
    }

    fn http(&self, path: &str, client: &str, headers: &[(&str, String)]) -> Option<(u16, String)> {
        let request = http::get(path).from(client);
        // It has the one line of `Host` that a request may have.
        let headers = headers.iter().filter(|(name, _)| *name != "Host");
        let request = headers.fold(request, |request, (name, value)| request.header(name, value));
        let response = request.ask(self.metadata);
        Some((response.status, response.text()))
    }

    fn tree(&self, client: &str) -> Option<String> {
        let mut tree: Value = serde_json::from_str(&tree(self, client)?).unwrap();
        // It says how far the services are.
        for key in ["services", "stacks"] {
            tree[key].as_array_mut()?.retain(|entity| entity["name"] != "mark");
        }
        Some(tree.to_string())
    }

    fn scheduler(&self, _: &Value, _: &[&str]) -> Option<Value> {
        None
    }
}
