//! A client of a running scheduler: what the subcommands ask it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt;
use http_client::HttpError;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::Value;
use tls::Certificates;

use crate::start::credentials::{REQUEST_HEADER, RequestCredentials};
use crate::token;

/// Longest answer that is read, in bytes: 5,000 hosts with all their fields are a tenth of it.
const ANSWER_MAX: usize = 256 << 20;

/// Longest wait for a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Longest silence of a scheduler that works on an answer; pulling an image reports progress all the while.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// Which scheduler is asked, and how.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Ask {
    /// Address of the running scheduler
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SCHEDULER", default_value = "127.0.0.1:8254", value_parser = server_address)]
    pub(crate) server: SocketAddr,

    /// File with the bearer token that the scheduler wants [default: its own token, if this user may read that]
    #[arg(long, value_name = "FILE", env = "BERTH_SCHEDULER_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Folder with ca.pem, cert.pem and key.pem, for a scheduler that answers only over TLS
    #[arg(long, value_name = "DIR", env = "BERTH_SCHEDULER_TLS_CERTS")]
    pub(crate) tls_certs: Option<PathBuf>,

    /// Let tokens and credentials go over plain HTTP to another machine
    #[arg(long, env = "BERTH_INSECURE")]
    pub(crate) insecure: bool,

    /// Print JSON instead of a table; a failure is an object with `error`
    #[arg(long)]
    pub(crate) json: bool,
}

/// Speaks to a scheduler.
#[derive(Debug)]
pub(crate) struct Client {
    http: http_client::Client<HttpsConnector<HttpConnector>>,
    /// Before the path.
    root: String,
    server: SocketAddr,
    /// Whether secrets may go over a network in plain text.
    insecure: bool,
    /// The token that was given, or the scheduler's own, once it has named that.
    token: OnceLock<String>,
    /// Credentials for registries that go with each request.
    registries: Option<HeaderValue>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Client {
    /// A client as the arguments say.
    ///
    /// # Errors
    ///
    /// When the token or the certificates cannot be read, or the token would go over a network in plain text.
    pub(crate) fn new(ask: &Ask) -> Result<Self, String> {
        let given = ask.token_file.as_deref().map(given_token).transpose()?;
        let is_given = given.is_some();
        let token = given.map_or_else(OnceLock::new, OnceLock::from);
        let (scheme, tls) = match &ask.tls_certs {
            // Never spoken, since the scheme says so.
            None => ("http", tls::client_of_nobody().map_err(|error| error.to_string())?),
            Some(folder) => {
                let client = Certificates::in_folder(folder).and_then(|certificates| certificates.client());
                ("https", client.map_err(|error| error.to_string())?)
            }
        };
        let http = http_client::Client::new(tls::connector(http_client::connector(CONNECT_TIME), tls));
        let (server, root) = (ask.server, format!("{scheme}://{}", ask.server));
        let client = Self { http, root, server, insecure: ask.insecure, token, registries: None };
        if is_given {
            client.check_secrecy("the token")?;
        }
        Ok(client)
    }

    /// Who is asked.
    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// Fails if what is sent would go over a network in plain text.
    fn check_secrecy(&self, what: &str) -> Result<(), String> {
        if self.insecure || self.root.starts_with("https") || self.server.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(format!(
            "{what} would go to the scheduler at {} in plain text: use --tls-certs, ask on its own host, or give --insecure if \
             the network is trusted",
            self.server
        ))
    }

    /// The same, with credentials for registries in each request.
    ///
    /// # Errors
    ///
    /// When they would go over a network in plain text.
    pub(crate) fn bearing(mut self, credentials: &RequestCredentials) -> Result<Self, String> {
        self.check_secrecy("credentials")?;
        let mut header = HeaderValue::try_from(credentials.header()).map_err(|error| error.to_string())?;
        header.set_sensitive(true);
        self.registries = Some(header);
        Ok(self)
    }

    /// Sends a request; `tell` is called with each line of progress.
    ///
    /// # Errors
    ///
    /// Fails if there is no answer, or contents of files would go over a network in plain text.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        mut tell: impl FnMut(&Value),
    ) -> Result<Answer, String> {
        if body.is_some_and(has_files) {
            self.check_secrecy("contents of secrets and configs")?;
        }
        let local = self.token.get().is_none() && self.server.ip().to_canonical().is_loopback();
        if local && (method != Method::GET || path.starts_with("/v1/stacks")) {
            // What changes something needs the token, a request that is refused for want of it is in the audit log; and what logs say of
            // a stack is not shown without it.
            let found = self.ask_once(&Method::GET, "/v1/token", None, &mut |_| ()).await?;
            let token = found.body["token_file"]
                .as_str()
                .and_then(|file| process::token::offered(Path::new(file), token::OWN_FILE).ok());
            if let Some(token) = token {
                self.token.get_or_init(|| token);
            }
        }
        let answer = self.ask_once(&method, path, body, &mut tell).await?;
        let file = answer.body["token_file"].as_str().filter(|_| answer.status == StatusCode::UNAUTHORIZED);
        let local = local && self.token.get().is_none();
        let Some(file) = file.filter(|_| local) else { return Ok(answer) };
        let token = process::token::offered(Path::new(file), token::OWN_FILE).map_err(|error| {
            format!(
                "the scheduler at {} wants its token, and {file} cannot be used: {error}; only the user that the scheduler \
                 runs as may read it: type this as that user, in its container if it has one, or give --token-file",
                self.server
            )
        })?;
        self.token.get_or_init(|| token);
        self.ask_once(&method, path, body, &mut tell).await
    }

    async fn ask_once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        tell: &mut impl FnMut(&Value),
    ) -> Result<Answer, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.root));
        request = request.header("accept", "application/x-ndjson").header("content-type", "application/json");
        if let Some(token) = self.token.get() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(credentials) = &self.registries {
            request = request.header(REQUEST_HEADER, credentials);
        }
        // Asked again, what has an id is started once.
        let is_nameless = path == "/v1/placements" && body.is_some_and(|body| body["id"].is_null());
        let advice = if is_nameless { "`scheduler ps` shows whether it was done" } else { "type the same again" };
        let ended = || format!("the scheduler ended before it answered; {advice}");
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let asked = tokio::time::timeout(SILENCE_MAX, self.http.send(request, body));
        let mut response = asked.await.map_err(|_| self.silent())?.map_err(|error| {
            let why = match (&error, self.root.starts_with("https")) {
                (HttpError::Unreached(problem), true) if problem.contains("certificate") => {
                    "; is --tls-certs of the authority of its certificate?"
                }
                (HttpError::Unreached(_), _) => "; is it running? (--server says where)",
                (_, false) => "; does it answer only over TLS? (--tls-certs)",
                (_, true) => "",
            };
            format!("no answer from the scheduler at {}: {error}{why}", self.server)
        })?;
        let streaming = response.headers().get("content-type").is_some_and(|kind| kind == "application/x-ndjson");
        let mut bytes = Vec::new();
        let mut last = None;
        while let Some(piece) = self.piece(&mut response, &ended).await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > ANSWER_MAX {
                return Err(format!("the answer is longer than {ANSWER_MAX} bytes"));
            }
            while streaming && let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                let line: Value = serde_json::from_slice(&line).map_err(|_| {
                    format!("the scheduler at {} sent a line of progress that is not JSON", self.server)
                })?;
                match line.get("progress") {
                    // A sign of life.
                    Some(Value::Object(progress)) if progress.is_empty() => {}
                    Some(progress) => tell(progress),
                    None => last = Some(line),
                }
            }
        }
        if !streaming {
            let body = serde_json::from_slice(&bytes).map_err(|_| {
                let (server, status) = (self.server, response.status());
                format!("what answers at {server} is no scheduler of Berth: {status} with a body that is not JSON")
            })?;
            return Ok(Answer { status: response.status(), body });
        }
        let mut last = last.ok_or_else(ended)?;
        let status = last["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let status = status.and_then(|status| StatusCode::from_u16(status).ok()).ok_or("an answer without status")?;
        Ok(Answer { status, body: last["answer"].take() })
    }

    async fn piece(
        &self,
        response: &mut Response<hyper::body::Incoming>,
        ended: impl FnOnce() -> String,
    ) -> Result<Option<Bytes>, String> {
        let frame = tokio::time::timeout(SILENCE_MAX, response.frame()).await.map_err(|_| self.silent())?;
        match frame {
            None => Ok(None),
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(_)) => Err(ended()),
        }
    }

    fn silent(&self) -> String {
        format!("no answer from the scheduler at {} within {} s", self.server, SILENCE_MAX.as_secs())
    }
}

/// The only token in a file, which may stand behind a name.
fn given_token(path: &Path) -> Result<String, String> {
    let mut tokens = token::read(path).map_err(|error| error.to_string())?;
    match tokens.pop() {
        Some(only) if tokens.is_empty() => Ok(only.token),
        _ => Err(format!("{} holds several tokens: give a file with one of them", path.display())),
    }
}

/// The address of a running scheduler.
pub(crate) fn server_address(text: &str) -> Result<SocketAddr, String> {
    let found = process::listen_address(text);
    found.map_err(|_| format!("{text:?} is no address of a scheduler that can be found; expected HOST:PORT"))
}

/// Whether a stack brings contents of files.
fn has_files(body: &Value) -> bool {
    let of = |key: &str| body[key].as_array().into_iter().flatten().any(has_files);
    body["files"].as_array().is_some_and(|files| !files.is_empty()) || of("services") || of("sidekicks")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(server: &str, insecure: bool) -> Ask {
        Ask { server: server.parse().unwrap(), token_file: None, tls_certs: None, insecure, json: false }
    }

    #[tokio::test]
    async fn no_contents_of_files_are_sent_in_plain_text_to_another_machine() {
        let file = json!([{ "target": "/a", "content_base64": "eA==" }]);
        let of = |service: Value| json!({ "services": [{ "service": "db" }, service] });
        let (own, of_sidekick) = (of(json!({ "files": file })), of(json!({ "sidekicks": [{ "files": file }] })));
        for body in [&own, &of_sidekick, &json!({ "files": file })] {
            // An address of documentation: nothing would answer, so any other error is that it was tried.
            let client = Client::new(&ask("192.0.2.1:8254", false)).unwrap();
            let refused = client.ask(Method::PUT, "/v1/stacks/shop", Some(body), |_| {}).await.unwrap_err();
            assert!(refused.starts_with("contents of secrets and configs would go to"), "{body}: {refused}");
        }
        let none = of(json!({ "files": [] }));
        assert!(has_files(&own) && has_files(&of_sidekick) && !has_files(&none));
        for (server, insecure) in [("192.0.2.1:8254", true), ("127.0.0.1:8254", false), ("[::1]:8254", false)] {
            assert_eq!(Client::new(&ask(server, insecure)).unwrap().check_secrecy("it"), Ok(()), "{server}");
        }
    }
}
