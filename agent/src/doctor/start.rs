//! The line that starts Berth for containers, with the sources that are used here.

use std::fmt::Write as _;
use std::path::PathBuf;

use etcd::{Endpoint, EtcdArgs};
use live::Origin;
use live::config::Engine;

use super::{Doctor, on_windows};
use crate::FOR_CONTAINERS;

/// A source as it was written.
///
/// # Errors
///
/// What was expected.
pub(super) fn source(text: &str) -> Result<String, String> {
    text.parse::<Origin>().map(|_| text.to_owned())
}

impl Doctor {
    /// The members of etcd that are used here.
    pub(super) fn members(&self) -> Vec<Endpoint> {
        match self.source.as_deref().map(str::parse) {
            Some(Ok(Origin::Etcd(members))) if self.members.is_empty() => members,
            _ => self.members.clone(),
        }
    }

    /// The engine that is used here.
    pub(super) fn engine(&self) -> Engine {
        match (self.docker.engine.clone(), self.source.as_deref().map(str::parse)) {
            (Some(engine), _) | (None, Some(Ok(Origin::Docker(engine)))) => engine,
            _ => Engine::Local,
        }
    }

    /// What to type to have containers served; `engine` says whether this machine has a Docker Engine.
    pub(super) fn start(&self, members: &[Endpoint], engine: bool) -> String {
        let mut line = if on_windows() { "agent service install --" } else { "agent up" }.to_owned();
        line += &self.sources(members, engine);
        for (flag, address, usual) in
            [("--metadata", self.metadata, FOR_CONTAINERS[0]), ("--dns", self.dns, FOR_CONTAINERS[1])]
        {
            if address != usual {
                let _ = write!(line, " {flag} {address}");
            }
        }
        if on_windows() {
            format!("as administrator: {line}; then: agent service start")
        } else {
            format!("as root: {line}")
        }
    }

    fn sources(&self, members: &[Endpoint], engine: bool) -> String {
        const SERVE: &str = "--serve-containers";
        let docker = match self.engine() {
            // One that was named is meant, also while it does not answer.
            _ if !engine && self.docker.engine.is_none() => String::new(),
            Engine::Local => " --docker".to_owned(),
            at @ Engine::At(_) => format!(" --docker={at}"),
        };
        let given = self.source.as_deref().filter(|_| self.members.is_empty());
        if members.is_empty() {
            return match given {
                Some(source) => format!(" {SERVE} --source {source}"),
                None if docker.is_empty() => format!(" FILE {SERVE}"),
                None => format!("{docker} {SERVE}"),
            };
        }
        let members: Vec<_> = members.iter().map(ToString::to_string).collect();
        format!("{docker} {SERVE} --source etcd:{}{}{}", members.join(","), options(&self.etcd), of_this_host(engine))
    }
}

/// What a host that publishes its containers gives besides (docs/etcd.md); words in capitals are to be filled in.
fn of_this_host(engine: bool) -> &'static str {
    match (engine, on_windows()) {
        (true, false) => " --public-ip ADDRESS --state-dir /var/lib/berth",
        // The service has its own folder.
        (true, true) => " --public-ip ADDRESS",
        (false, _) => "",
    }
}

/// The flags that etcd is spoken to with, but for the usual ones.
fn options(etcd: &EtcdArgs) -> String {
    let usual = EtcdArgs::default();
    let path = |path: Option<&PathBuf>| path.map(|path| path.display().to_string());
    let flags = [
        ("prefix", (etcd.prefix != usual.prefix).then(|| etcd.prefix.clone())),
        ("lease", (etcd.lease != usual.lease).then(|| etcd.lease.to_string())),
        ("ca", path(etcd.ca.as_ref())),
        ("cert", path(etcd.cert.as_ref())),
        ("key", path(etcd.key.as_ref())),
        ("user", etcd.user.clone()),
        ("password-file", path(etcd.password_file.as_ref())),
    ];
    let flags = flags.into_iter().filter_map(|(flag, value)| Some(format!(" --etcd-{flag} {}", value?)));
    flags.collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        doctor: Doctor,
    }

    #[test]
    fn what_to_type_has_the_sources_that_are_used_and_no_file_beside_them() {
        let two = "http://192.0.2.1:2379,http://192.0.2.2:2379";
        for (line, engine, expected) in [
            (String::new(), true, " --docker --serve-containers".to_owned()),
            (String::new(), false, " FILE --serve-containers".to_owned()),
            (format!("--etcd {two}"), true, format!(" --docker --serve-containers --source etcd:{two}")),
            (format!("--etcd {two}"), false, format!(" --serve-containers --source etcd:{two}")),
            (format!("--source etcd:{two}"), true, format!(" --docker --serve-containers --source etcd:{two}")),
            ("--source file:a.yml".to_owned(), true, " --serve-containers --source file:a.yml".to_owned()),
            ("--docker=unix:///e".to_owned(), true, " --docker=unix:///e --serve-containers".to_owned()),
            ("--docker=unix:///e".to_owned(), false, " --docker=unix:///e --serve-containers".to_owned()),
            (
                format!("--docker=unix:///e --etcd {two}"),
                true,
                format!(" --docker=unix:///e --serve-containers --source etcd:{two}"),
            ),
            ("--source docker".to_owned(), false, " --serve-containers --source docker".to_owned()),
            (
                "--etcd https://192.0.2.1:2379 --etcd-ca ca.pem --etcd-prefix /x/ --etcd-user u --etcd-password-file p"
                    .to_owned(),
                true,
                " --docker --serve-containers --source etcd:https://192.0.2.1:2379 --etcd-prefix /x/ --etcd-ca ca.pem \
                 --etcd-user u --etcd-password-file p"
                    .to_owned(),
            ),
            ("--dns 192.0.2.9:53".to_owned(), true, " --docker --serve-containers --dns 192.0.2.9:53".to_owned()),
        ] {
            let doctor = Line::parse_from(["doctor"].into_iter().chain(line.split_whitespace())).doctor;
            let told = doctor.start(&doctor.members(), engine).replace(of_this_host(true), "");
            let verb = if on_windows() { "agent service install --" } else { "agent up" };
            assert!(
                told.contains(&format!("{verb}{expected}")) && !told.contains(&format!("{expected} ")),
                "{line}: {told}"
            );
        }
    }

    #[test]
    fn the_engine_that_is_named_is_looked_at() {
        for (line, expected) in [
            ("", "local"),
            ("--docker", "local"),
            ("--docker=unix:///e", "unix:///e"),
            ("--source docker:unix:///e", "unix:///e"),
            ("--source docker", "local"),
            ("--source etcd:http://192.0.2.1:2379 --docker=unix:///e", "unix:///e"),
        ] {
            let doctor = Line::parse_from(["doctor"].into_iter().chain(line.split_whitespace())).doctor;
            assert_eq!(doctor.engine().to_string(), expected, "{line}");
        }
    }
}
