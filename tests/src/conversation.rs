//! Conversations: text files of what clients ask and what they are told.
//!
//! ```text
//! # A comment.
//! cluster shop.yml
//! from 127.42.1.11
//! > GET /latest/self/container/name
//! > Accept: application/json
//! < 200 text/plain; charset=utf-8
//! "shop-web-1"
//!
//! > web.shop A
//! < NOERROR
//! web.shop. 1 A 127.42.1.11
//! ```
//!
//! `to metadata|dns|scheduler` chooses who is asked by HTTP (default: metadata); a question that does not begin with
//! a method of HTTP is one for DNS, `> tcp NAME TYPE` one over TCP. An empty line ends an answer. A further `>` line is
//! a header, or the content when it begins with a brace.
//! Clusters are files of `tests/fixtures/clusters` or of `examples`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::http::Request;
use crate::question::Question;
use crate::service::{Launch, Service};
use crate::{fixture, repository};

/// Methods by which a request of HTTP is known.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS"];

/// The text of a conversation with the answers that are given now.
pub fn replay(text: &str) -> String {
    let mut replay = Replay { running: None, from: None, to: "metadata".to_owned(), text: String::new() };
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(question) = line.strip_prefix("> ") {
            let mut headers = Vec::new();
            while let Some(header) = lines.next_if(|line| line.starts_with("> ")) {
                headers.push(header.trim_start_matches("> "));
            }
            // What was expected is replaced by what is told.
            if lines.next_if(|line| line.starts_with('<')).is_some() {
                while lines.next_if(|line| !line.is_empty()).is_some() {}
            }
            replay.ask(question, &headers);
        } else {
            replay.direct(line);
        }
    }
    replay.text
}

struct Replay {
    running: Option<Service>,
    from: Option<String>,
    to: String,
    text: String,
}

impl Replay {
    fn direct(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
        match line.split_once(' ') {
            Some(("cluster", name)) => self.running = Some(Launch::agent(&cluster(name)).start()),
            Some(("from", address)) => self.from = Some(address.to_owned()),
            Some(("to", service)) => service.clone_into(&mut self.to),
            _ => assert!(line.is_empty() || line.starts_with('#'), "what does this line mean? {line}"),
        }
    }

    fn ask(&mut self, question: &str, headers: &[&str]) {
        let running = self.running.as_mut().expect("a conversation names its cluster first");
        running.ready();
        let _ = writeln!(self.text, "> {question}");
        for header in headers {
            let _ = writeln!(self.text, "> {header}");
        }
        let mut words = question.splitn(3, ' ');
        let first = words.next().unwrap_or_default();
        let answer = match METHODS.iter().find(|method| **method == first) {
            Some(method) => {
                let to = running.address_of(&self.to);
                http(Request::new(method, words.next().unwrap_or_default()), headers, self.from.as_deref(), to)
            }
            None => dns(question, self.from.as_deref(), running.address_of("dns")),
        };
        let _ = writeln!(self.text, "< {answer}");
    }
}

fn http(request: Request, headers: &[&str], from: Option<&str>, to: SocketAddr) -> String {
    let request = from.into_iter().fold(request, Request::from);
    let request = headers.iter().fold(request, |request, header| {
        if header.starts_with('{') {
            return request.content(*header);
        }
        let (name, value) = header.split_once(':').expect("a header has a colon");
        request.header(name, value.trim())
    });
    let response = request.ask(to);
    let kind = response.header("content-type").or_else(|| response.header("location")).unwrap_or_default();
    let text = format!("{} {kind}\n{}", response.status, response.text());
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn dns(question: &str, from: Option<&str>, to: SocketAddr) -> String {
    let mut words: Vec<_> = question.split_whitespace().collect();
    let tcp = words.first() == Some(&"tcp");
    words.drain(..usize::from(tcp));
    let [name, kind] = words[..] else { panic!("a question is a name and a type: {question}") };
    let question = from.into_iter().fold(Question::new(name, kind), Question::from);
    let answer = if tcp { question.tcp() } else { question }.ask(to);
    std::iter::once(answer.rcode()).chain(answer.records()).collect::<Vec<_>>().join("\n")
}

fn cluster(name: &str) -> PathBuf {
    let own = fixture("clusters").join(name);
    if own.is_file() { own } else { repository().join("examples").join(name) }
}

/// The conversations in a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}
