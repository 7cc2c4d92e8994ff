//! What the fuzzer of requests (`fuzz/src/path.rs`) and the test of noninterference (`tests/tests/noninterference.rs`)
//! call; no part of the service.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::Snapshot;
use process::{Clients, Networks};
use prometheus_client::registry::Registry;

use crate::config::Options;
use crate::http::head::Heads;
use crate::http::service::{Ends, Reply, Service, Visitor};
use crate::http::session::KEY_BYTES;
use crate::path::{Method, Route, route};

/// The service without its sockets.
#[derive(Debug)]
pub struct Answerer(Service);

impl Answerer {
    /// One that shows this snapshot; `live` as for [`crate::Server::with_live_clients`].
    pub fn new(options: &Options, live: bool, snapshot: &Arc<Snapshot>) -> Self {
        let clients = Clients::new(&[Networks::private()]);
        let service = Service::new(options, clients, [7; KEY_BYTES], &mut Registry::default());
        // With other threads, a test of very many small answers mostly waits for these.
        let service = Service { in_place: true, ..service };
        service.live.store(live, Ordering::Relaxed);
        let answerer = Self(service);
        answerer.show(snapshot);
        answerer
    }

    /// Shows this snapshot from now on.
    pub fn show(&self, snapshot: &Arc<Snapshot>) {
        if let Some(next) = self.0.views.load_full().next(snapshot) {
            self.0.views.publish(Arc::new(next));
        }
    }

    /// The status and the body of the response to the head of a request of this client; `None` if it is no request, or has
    /// a response without end.
    pub async fn answer(&self, peer: IpAddr, head: &[u8]) -> Option<(u16, String)> {
        let mut heads = Heads::default();
        heads.buffer().extend_from_slice(head);
        let asked = heads.take()?.ok()?.asked();
        let ends = Ends { peer, port: 40_000, local: ([169, 254, 169, 250], 80).into() };
        let visitor = Visitor::new(ends, None);
        match self.0.reply(&visitor, self.0.outcome(&visitor, &asked)).await {
            Reply::Answer(answer) => Some((answer.status, answer.body)),
            Reply::Pieces(pieces, _) => Some((200, String::from_utf8(pieces.concat()).ok()?)),
            Reply::Changes(_) => None,
        }
    }
}

/// The targets in bytes that come `size` at a time, and where in all of them each head ends; up to one that is refused.
pub fn heads(bytes: &[u8], size: usize) -> Vec<(usize, Vec<u8>)> {
    let mut heads = Heads::default();
    let (mut found, mut read) = (Vec::new(), 0);
    for part in bytes.chunks(size.max(1)) {
        heads.buffer().extend_from_slice(part);
        read += part.len();
        while let Some(head) = heads.take() {
            let Ok(head) = head else { return found };
            let (last, target) = (head.terms.has_body, head.asked().target.to_vec());
            found.push((read - heads.buffer().len(), target));
            if last {
                return found;
            }
        }
    }
    found
}

/// Where a request for this target is sent to instead, if anywhere.
pub fn redirect(target: &[u8]) -> Option<String> {
    // The other methods have routes of their own, which are tried for what they are: no panic.
    let _ = [Method::Options, Method::Other].map(|method| route(method, target));
    match route(Method::Read, target) {
        Ok(Route::Clean(to)) => Some(to),
        _ => None,
    }
}
