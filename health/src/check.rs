//! One check: asks a container once, and says what came of it.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};

use platform::socket;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::grpc;
use crate::opinion::Outcome;
use crate::response::{Expected, Judge};
use crate::spec::{Probe, Spec};
use crate::target::Target;

/// Bytes that are read at once; a response to a check is mostly shorter.
const READ: usize = 2048;

/// Makes checks. The default one has no authorities: what a check wants verified fails.
#[derive(Clone, Default)]
pub struct Checker(Arc<Connectors>);

/// What checks with TLS use, each made when the first check wants it.
#[derive(Default)]
struct Connectors {
    authorities: Option<Arc<ClientConfig>>,
    any: OnceLock<TlsConnector>,
    verified: OnceLock<TlsConnector>,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

impl Connectors {
    /// One that believes any certificate, or only `verified` ones.
    fn get(&self, verified: bool) -> Result<&TlsConnector, rustls::Error> {
        let connector = if verified { &self.verified } else { &self.any };
        if let Some(connector) = connector.get() {
            return Ok(connector);
        }
        let client = match &self.authorities {
            Some(authorities) if verified => authorities.clone(),
            None if verified => tls::client_of_nobody()?.into(),
            _ => tls::client_of_any_server()?.into(),
        };
        Ok(connector.get_or_init(|| client.into()))
    }
}

impl Checker {
    /// Those that use TLS believe any certificate, but where a check wants it verified: then those of these authorities.
    pub fn new(authorities: Arc<ClientConfig>) -> Self {
        Self(Arc::new(Connectors { authorities: Some(authorities), ..Connectors::default() }))
    }

    /// Asks once at an address, which may differ from the container's own where its port is published.
    ///
    /// # Cancel safety
    ///
    /// May be dropped; the connection is then reset.
    pub async fn check(&self, address: SocketAddr, spec: &Spec) -> Outcome {
        self.ask_at(address, spec, false, 1).await
    }

    /// The same, with time-outs that are `patience` times as long. A container that `is_elsewhere` is on another host: that host says
    /// where, so an address of this host is not asked.
    ///
    /// # Cancel safety
    ///
    /// As for [`Self::check`].
    pub(crate) async fn check_target(&self, target: &Target, patience: u32) -> Outcome {
        self.ask_at(target.address, &target.spec, target.is_elsewhere, patience).await
    }

    async fn ask_at(&self, address: SocketAddr, spec: &Spec, is_elsewhere: bool, patience: u32) -> Outcome {
        let [to_connect, to_respond] = [spec.connect_timeout(), spec.response_timeout].map(|time| time * patience);
        let begun = match socket::probe(address) {
            Ok(stream) => stream,
            Err(error) => return not_begun(&error, is_elsewhere),
        };
        // A container of this machine has mostly answered by now, and nothing has to be waited for.
        let is_connected = socket::is_connected(&begun);
        if is_connected {
            let reached = reached(address, is_elsewhere, || begun.local_addr());
            if reached != Outcome::Pass || spec.probe == Probe::Tcp {
                return reached;
            }
        }
        let sent = if is_connected { sent_at_once(&begun, &spec.probe) } else { 0 };
        let stream = match TcpStream::from_std(begun) {
            Ok(stream) => stream,
            Err(error) => return not_connected(&error),
        };
        if !is_connected {
            match timeout(to_connect, connected(&stream)).await {
                Err(_) => return Outcome::Unreached(format!("connect: no answer for {to_connect:?}")),
                Ok(Err(error)) => return not_connected(&error),
                Ok(Ok(())) => {}
            }
            let reached = reached(address, is_elsewhere, || stream.local_addr());
            if reached != Outcome::Pass {
                return reached;
            }
        }
        match timeout(to_respond, self.exchange(stream, address, &spec.probe, sent)).await {
            Err(_) => Outcome::Fail(format!("connected, no response for {to_respond:?}")),
            Ok(Err(reason)) => Outcome::Fail(reason),
            Ok(Ok(())) => Outcome::Pass,
        }
    }

    /// What is said on a connection after so many bytes of the request.
    async fn exchange(&self, stream: TcpStream, address: SocketAddr, probe: &Probe, sent: usize) -> Result<(), String> {
        let (request, tls, verify, expected) = match probe {
            Probe::Tcp => return Ok(()),
            // In boxes, so that the others are small.
            Probe::Grpc { service } => return Box::pin(grpc::ask(stream, &address.to_string(), service)).await,
            Probe::Http { request, tls, verify, status, body } => {
                (request.bytes(), *tls, verify, Expected { status, body: body.as_deref() })
            }
        };
        if tls {
            let connector = self.0.get(*verify).map_err(|error| format!("TLS: {error}"))?;
            let name = ServerName::IpAddress(address.ip().into());
            let connecting = Box::pin(connector.connect(name, stream));
            let stream = connecting.await.map_err(|error| format!("TLS: {error}"))?;
            Box::pin(ask(stream, &request, expected)).await
        } else {
            ask(stream, request.get(sent..).unwrap_or_default(), expected).await
        }
    }
}

/// What a connection to an address shows by itself, made from its own one.
fn reached(address: SocketAddr, is_elsewhere: bool, own: impl FnOnce() -> io::Result<SocketAddr>) -> Outcome {
    // Only to itself a host has one address at both ends.
    if is_elsewhere && own().is_ok_and(|own| own.ip() == address.ip()) {
        return Outcome::Unsure(format!("{} is an address of this host", address.ip()));
    }
    Outcome::Pass
}

/// Waits until a connection that was begun is made.
async fn connected(stream: &TcpStream) -> io::Result<()> {
    stream.writable().await?;
    stream.take_error()?.map_or(Ok(()), Err)
}

/// How many bytes of the request the system takes without waiting. What is wrong with the connection is seen when more is sent or read.
fn sent_at_once(mut stream: &std::net::TcpStream, probe: &Probe) -> usize {
    let Probe::Http { request, tls: false, .. } = probe else { return 0 };
    stream.write(&request.bytes()).unwrap_or(0)
}

/// Sends the request and reads until the response is judged.
async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
    expected: Expected<'_>,
) -> Result<(), String> {
    let sent = async { stream.write_all(request).await.and(stream.flush().await) };
    sent.await.map_err(|error| format!("the request: {error}"))?;
    let (mut bytes, mut judging) = (Vec::new(), Judge::new(expected));
    loop {
        let read = read(&mut stream, &mut bytes).await;
        // A server may end TLS without a word once it has sent everything.
        let is_end = match read {
            Ok(read) => read == 0,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
            Err(error) => return Err(format!("the response: {error}")),
        };
        if let Some(judged) = judging.judge(&bytes, is_end) {
            return judged;
        }
    }
}

/// Appends what has arrived, and returns how many bytes that is. Those who wait, a thousand at a time, need no memory for what may come.
async fn read(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|context| {
        let mut room = [MaybeUninit::uninit(); READ];
        let mut arrived = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut *stream).poll_read(context, &mut arrived))?;
        bytes.extend_from_slice(arrived.filled());
        Poll::Ready(Ok(arrived.filled().len()))
    })
    .await
}

/// Whether a connection that could not even be begun says something about the container. That this host has no route to a container of
/// another one is its own fault; one of its own that it has no route to is reached by nobody.
fn not_begun(error: &io::Error, is_elsewhere: bool) -> Outcome {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable if is_elsewhere => Outcome::Unsure(format!("connect: {error}")),
        _ => not_connected(error),
    }
}

/// Whether a connection that was not made says something about the container, or about this host. What is unreachable a router said.
fn not_connected(error: &io::Error) -> Outcome {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
    match error.kind() {
        ConnectionRefused => Outcome::Fail("connect: refused".to_owned()),
        ConnectionReset => Outcome::Fail(format!("connect: {error}")),
        HostUnreachable | NetworkUnreachable | TimedOut => Outcome::Unreached(format!("connect: {error}")),
        _ => Outcome::Unsure(format!("connect: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::net::Ipv4Addr;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    fn spec(labels: &[(&str, &str)]) -> Spec {
        let labels = labels.iter().chain(&[("port", "80")]).map(|(name, value)| {
            (format!("{}{name}", model::health::LABEL).as_str().into(), model::Value::text(*value))
        });
        Spec::of_labels(&labels.collect()).unwrap().unwrap()
    }

    fn checker() -> Checker {
        Checker::default()
    }

    /// A server that sends `response` to each connection once it has read a request, and closes.
    async fn server(response: &'static str) -> (TcpListener, SocketAddr, impl AsyncFn(&TcpListener) -> Vec<u8>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async |listener: &TcpListener| {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            request.truncate(length);
            stream.write_all(response.as_bytes()).await.unwrap();
            request
        };
        (listener, address, serve)
    }

    #[tokio::test]
    async fn a_container_of_another_host_is_not_asked_at_an_address_of_this_one() {
        let (listener, address, _) = server("").await;
        let outcome = checker().ask_at(address, &spec(&[]), true, 1).await;
        assert!(matches!(&outcome, Outcome::Unsure(reason) if reason.contains("address of this host")), "{outcome:?}");
        assert_eq!(checker().check(address, &spec(&[])).await, Outcome::Pass);
        drop(listener);
    }

    #[test]
    fn who_has_no_route_to_a_container_says_nothing_of_it_unless_it_is_its_own() {
        let unreachable = io::Error::from(io::ErrorKind::NetworkUnreachable);
        assert!(matches!(not_begun(&unreachable, true), Outcome::Unsure(_)));
        assert!(matches!(not_begun(&unreachable, false), Outcome::Unreached(_)));
        // A router on the way.
        assert!(matches!(not_connected(&unreachable), Outcome::Unreached(_)));
        // A reset is an answer.
        assert!(matches!(not_connected(&io::ErrorKind::ConnectionReset.into()), Outcome::Fail(_)));
        assert!(matches!(not_begun(&io::ErrorKind::AddrNotAvailable.into(), false), Outcome::Unsure(_)));
    }

    #[tokio::test]
    async fn connection_is_enough() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(checker().check(address, &spec(&[])).await, Outcome::Pass);
        drop(listener);
        // Each time, also when many ask at once.
        for _ in 0..100 {
            let (checker, spec) = (checker(), spec(&[]));
            let outcomes = join_all((0..10).map(|_| checker.check(address, &spec))).await;
            assert_eq!(outcomes, vec![Outcome::Fail("connect: refused".into()); 10]);
        }
    }

    #[tokio::test]
    async fn response_says_whether_it_is_well() {
        for (response, labels, expected) in [
            ("HTTP/1.1 204 No Content\r\n\r\n", &[("type", "http")][..], Outcome::Pass),
            ("HTTP/1.0 503 Busy\r\n\r\n", &[("type", "http")], Outcome::Fail("status 503".into())),
            ("HTTP/1.1 200 OK\r\n\r\nready", &[("type", "http"), ("body", "ready")], Outcome::Pass),
            ("", &[("type", "http")], Outcome::Fail("closed without a response".into())),
            ("220 mail\r\n", &[("type", "http")], Outcome::Fail("no HTTP: 220 mail".into())),
        ] {
            let (listener, address, serve) = server(response).await;
            let (checker, spec) = (checker(), spec(labels));
            let (outcome, request) = tokio::join!(checker.check(address, &spec), serve(&listener));
            assert_eq!(outcome, expected, "{response:?}");
            assert_eq!(request, b"OPTIONS / HTTP/1.0\r\n\r\n");
        }
    }

    /// A gRPC server of one connection, which says this status of the service `a.B`, and knows no other one.
    async fn grpc_server(listener: &TcpListener, status: u8) {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            let mut body = request.into_body();
            tokio::spawn(async move {
                let asked = body.data().await.unwrap().unwrap();
                let response = hyper::http::Response::builder().header("content-type", "application/grpc");
                if asked[..] == [0, 0, 0, 0, 5, 0x0a, 3, b'a', b'.', b'B'] {
                    let mut sending = respond.send_response(response.body(()).unwrap(), false).unwrap();
                    sending.send_data(bytes::Bytes::from(vec![0, 0, 0, 0, 2, 8, status]), false).unwrap();
                    let trailers = [("grpc-status".parse().unwrap(), "0".parse().unwrap())];
                    sending.send_trailers(trailers.into_iter().collect()).unwrap();
                } else {
                    respond.send_response(response.header("grpc-status", "5").body(()).unwrap(), true).unwrap();
                }
            });
        }
    }

    #[tokio::test]
    async fn grpc_server_says_whether_a_service_is_well() {
        for (service, status, expected) in [
            ("a.B", 1, Outcome::Pass),
            ("a.B", 2, Outcome::Fail("NOT_SERVING".into())),
            ("", 1, Outcome::Fail("gRPC status 5: it does not know the service".into())),
        ] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let spec = spec(&[("type", "grpc"), ("service", service)]);
            let serving = tokio::spawn(async move { grpc_server(&listener, status).await });
            assert_eq!(checker().check(address, &spec).await, expected, "{service:?} {status}");
            serving.abort();
        }
        // What speaks no HTTP/2.
        let (listener, address, serve) = server("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let (checker, spec) = (checker(), spec(&[("type", "grpc")]));
        let (outcome, _) = tokio::join!(checker.check(address, &spec), serve(&listener));
        assert!(matches!(&outcome, Outcome::Fail(reason) if reason.starts_with("HTTP/2: ")), "{outcome:?}");
    }

    #[tokio::test]
    async fn silent_server_fails_after_the_response_timeout() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let spec = spec(&[("type", "http"), ("response_timeout", "50ms")]);
        let outcome = checker().check(listener.local_addr().unwrap(), &spec).await;
        assert_eq!(outcome, Outcome::Fail("connected, no response for 50ms".into()));
        let outcome = checker().ask_at(listener.local_addr().unwrap(), &spec, false, 3).await;
        assert_eq!(outcome, Outcome::Fail("connected, no response for 150ms".into()));
    }

    #[tokio::test]
    async fn certificate_is_verified_where_the_check_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().self_signed(&key).unwrap();
        let [certificate_file, key_file] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
        std::fs::write(&certificate_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls::server_of_anybody(&certificate_file, &key_file).unwrap()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async || {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                let _ = stream.shutdown().await;
            }
        };
        let unverified = spec(&[("type", "https")]);
        let verified = spec(&[("type", "https"), ("verify", "true")]);
        let (outcome, ()) = tokio::join!(async { checker().check(address, &unverified).await }, serve());
        assert_eq!(outcome, Outcome::Pass);
        let (outcome, ()) = tokio::join!(async { checker().check(address, &verified).await }, serve());
        assert!(matches!(&outcome, Outcome::Fail(reason) if reason.starts_with("TLS: ")), "{outcome:?}");
        let of_server = Arc::new(tls::client_without_certificate(&certificate_file).unwrap());
        let trusting = Checker::new(of_server);
        let (outcome, ()) = tokio::join!(async { trusting.check(address, &verified).await }, serve());
        assert_eq!(outcome, Outcome::Pass);
    }
}
