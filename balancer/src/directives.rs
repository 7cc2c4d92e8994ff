//! `config` of an `lb_config`: lines of HAProxy's own language, of which a closed list counts.
//!
//! They come from a document, which may be written by people who may not do everything on the balancer's host. So nothing
//! counts that reads files or variables, runs programs, opens sockets or changes where requests are led, and words consist of
//! characters that HAProxy does not expand.

use std::collections::{BTreeMap, BTreeSet};

use model::Defect;
use model::printable::printable;

/// What counts in `global`.
const GLOBAL: [&str; 6] = [
    "hard-stop-after",
    "maxconn",
    "ssl-default-bind-ciphers",
    "ssl-default-bind-ciphersuites",
    "ssl-default-bind-options",
    "tune.bufsize",
];

/// What counts in `defaults`, in a frontend and in a backend: its first words.
const OF_PROXIES: [&str; 39] = [
    "balance first",
    "balance hdr(",
    "balance leastconn",
    "balance random",
    "balance roundrobin",
    "balance source",
    "balance static-rr",
    "balance uri",
    "fullconn",
    "http-request add-header",
    "http-request del-header",
    "http-request deny",
    "http-request set-header",
    "http-response add-header",
    "http-response del-header",
    "http-response set-header",
    "http-reuse",
    "maxconn",
    "option abortonclose",
    "option clitcpka",
    "option dontlognull",
    "option forwardfor",
    "option http-buffer-request",
    "option http-keep-alive",
    "option http-server-close",
    "option httpclose",
    "option httplog",
    "option redispatch",
    "option srvtcpka",
    "option tcp-smart-connect",
    "option tcpka",
    "option tcplog",
    "rate-limit sessions",
    "redirect scheme",
    "retries",
    "timeout",
    "compression algo",
    "compression offload",
    "compression type",
];

/// The lines that count, by section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    pub(crate) global: Vec<String>,
    pub(crate) defaults: Vec<String>,
    pub(crate) frontends: BTreeMap<u16, Vec<String>>,
    /// Ports that expect the PROXY protocol.
    pub(crate) accept_proxy: BTreeSet<u16>,
    pub(crate) backends: BTreeMap<String, Vec<String>>,
}

enum Section {
    Global,
    Defaults,
    Frontend(u16),
    Backend(String),
    Other,
}

impl Directives {
    /// Reads `config`; `at` is the path of its `lb_config`.
    pub(crate) fn read(text: &str, at: &str, defects: &mut Vec<Defect>) -> Self {
        let mut read = Self::default();
        let mut section = Section::Other;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let mut refuse = |problem: &str| {
                let problem = format!("line {}, `{}`: {problem}", number + 1, printable(line, 60));
                defects.push(Defect::ignored(format!("{at}/config"), problem));
            };
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["global"] => section = Section::Global,
                ["defaults", ..] => section = Section::Defaults,
                ["frontend", port] if port.parse::<u16>().is_ok() => {
                    section = Section::Frontend(port.parse().unwrap_or_default());
                }
                ["backend", name] => section = Section::Backend(name.to_owned()),
                ["frontend" | "backend" | "listen" | "userlist" | "peers" | "resolvers" | "program" | "cache", ..] => {
                    section = Section::Other;
                    refuse("expected global, defaults, `frontend PORT` or `backend NAME`");
                }
                _ => {
                    if !line.bytes().all(is_plain) {
                        refuse("quotes, variables, expressions and comments are not taken");
                        continue;
                    }
                    let line = words.join(" ");
                    let known: &[&str] = if matches!(section, Section::Global) { &GLOBAL } else { &OF_PROXIES };
                    let counts = |known: &&str| {
                        line.strip_prefix(*known)
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' ') || known.ends_with('('))
                    };
                    match &section {
                        Section::Frontend(port) if line == "accept-proxy" => {
                            read.accept_proxy.insert(*port);
                        }
                        Section::Other => refuse("it stands in no section"),
                        _ if !known.iter().any(counts) => {
                            refuse("it is none of the directives that a document may use");
                        }
                        _ if !is_harmless(&words) => {
                            refuse("with these words, it is none of the directives that a document may use");
                        }
                        Section::Global => read.global.push(line),
                        Section::Defaults => read.defaults.push(line),
                        Section::Frontend(port) => read.frontends.entry(*port).or_default().push(line),
                        Section::Backend(name) => read.backends.entry(name.clone()).or_default().push(line),
                    }
                }
            }
        }
        read
    }

    /// The lines of a section, as they are written.
    pub(crate) fn written(lines: Option<&Vec<String>>) -> String {
        lines.into_iter().flatten().flat_map(|line| ["    ", line, "\n"]).collect()
    }
}

/// Largest buffer of a connection, in bytes: each of 4,096 may have two.
const BUFFER_MAX: u32 = 128 << 10;

/// Whether the words of a directive that counts do no more than it is there for: a refusal may send a file of the host.
fn is_harmless(words: &[&str]) -> bool {
    // The conditions that HAProxy knows by itself; others would need braces.
    let end = words.iter().position(|word| matches!(*word, "if" | "unless")).unwrap_or(words.len());
    match words[..end] {
        _ if words[end..].contains(&"-f") => false,
        ["http-request", "deny"] => true,
        ["http-request", "deny", "deny_status" | "status", code] => code.parse::<u16>().is_ok(),
        ["http-request", "deny", ..] => false,
        ["tune.bufsize", bytes] => bytes.parse::<u32>().is_ok_and(|bytes| bytes <= BUFFER_MAX),
        _ => true,
    }
}

/// What HAProxy reads as it is: no quotes, backslashes, variables, expressions, comments or control characters.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" \t-_.:/=,;()*+@!<>".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_a_status_and_nothing_else() {
        for (line, counts) in [
            ("http-request deny", true),
            ("http-request deny deny_status 429", true),
            ("http-request deny status 403 if METH_POST", true),
            ("http-request deny status 200 content-type text/plain file /etc/shadow", false),
            ("http-request deny status 200 content-type text/plain lf-file /etc/shadow", false),
            ("http-request deny errorfile /etc/shadow", false),
            ("http-request deny errorfiles x", false),
            ("http-request deny status 200 string x", false),
            ("http-request deny if -f /etc/shadow", false),
            ("http-request set-header X-A b if -f /etc/shadow", false),
        ] {
            let mut defects = Vec::new();
            let read = Directives::read(&format!("frontend 80\n{line}\n"), "lb_config", &mut defects);
            assert_eq!(read.frontends.contains_key(&80), counts, "{line}");
            assert_eq!(defects.is_empty(), counts, "{line}: {defects:?}");
        }
        let mut defects = Vec::new();
        let read = Directives::read("global\ntune.bufsize 250000000\ntune.bufsize 65536\n", "lb_config", &mut defects);
        assert_eq!((read.global, defects.len()), (vec!["tune.bufsize 65536".to_owned()], 1));
    }

    #[test]
    fn what_reads_files_runs_programs_or_leads_elsewhere_does_not_count() {
        let text = "global\n  maxconn 100\n  user root\n  lua-load /tmp/x\ndefaults\n  timeout server 5m\nfrontend 80\n  accept-proxy\n\
                    bind *:22\n  use_backend b2\n http-request set-header X-A b\n http-request set-header X-A %[env(KEY)]\n\
                    http-request lua.x\n acl a src -f /etc/shadow\nbackend shop\n balance leastconn\n balance\n server s1 192.0.2.1:1\n\
                    timeout server \"$X\"\n external-check command /bin/sh\nprogram x\n command /bin/sh\nlisten y\n  bind :1\n# fine\n";
        let mut defects = Vec::new();
        let read = Directives::read(text, "lb_config", &mut defects);
        assert_eq!(
            (read.global, read.defaults),
            (vec!["maxconn 100".to_owned()], vec!["timeout server 5m".to_owned()])
        );
        assert_eq!(read.frontends[&80], ["http-request set-header X-A b"]);
        assert_eq!(read.backends["shop"], ["balance leastconn"]);
        assert_eq!(read.accept_proxy, BTreeSet::from([80]));
        assert_eq!(defects.len(), 15, "{defects:?}");
        assert!(defects[0].problem.starts_with("line 3, `user root`: "), "{}", defects[0].problem);
    }
}
