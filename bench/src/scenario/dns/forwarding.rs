//! Names of elsewhere: kept ones, and what a dead upstream costs.

use std::net::UdpSocket;
use std::time::Duration;

use super::{PACE, Peer};
use crate::cluster::Cluster;
use crate::load::udp::{FROM, Load};
use crate::names::{Mix, NAMES, Question, ZONE, label, name};
use crate::paired::Spread;
use crate::peer::UNBOUND_FORWARDING;
use crate::report::{Goal, Row};
use crate::scenario::Scene;
use crate::server::Server;
use crate::{Failure, exchange};

/// In ms: an answer from an upstream on this machine takes less, a wait for a dead one more.
const LATE: f64 = 20.0;

impl Scene<'_> {
    /// Names of elsewhere that are kept.
    pub(super) fn forwarded(&mut self) -> Result<(), Failure> {
        let title = "forwarded names, all kept";
        if !self.options.wants(title) {
            return Ok(());
        }
        // The zone of the peers is one that changes, so that its names may be kept for a second only: here they are kept.
        let long = ["--ttl", "3600", "--negative-ttl", "3600"];
        let upstream = self.executables.start_with(self.machine, "dns", &Cluster::of_names(NAMES).document(), &long)?;
        let last = Question::new(&name(NAMES - 1), true);
        exchange::until("the zone", Duration::from_millis(20), || Ok(exchange::answers(upstream.address, &last)))?;
        let address = upstream.address.to_string();
        let berth = self.berth_forwarding(&["--cache-capacity", "40000", "--upstream", &address])?;
        let unbound = UNBOUND_FORWARDING.start(self.machine, Some(upstream.address));
        let questions = Mix::Both.questions();
        let load = Load { questions: &questions, from: &FROM, check: true };
        for server in [Some(&berth), unbound.as_ref().ok()].into_iter().flatten() {
            // Slowly, since nothing is kept yet.
            load.pace(server, PACE / 2, Duration::from_millis(1050))?;
        }
        let duration = self.options.run();
        let peers: [Peer<'_>; 1] = [("unbound", &unbound, Some(Goal::AtLeast(1.4)))];
        self.compare(title, &berth, &peers, |server, _| load.saturate(server, duration))
    }

    /// What an upstream that does not answer costs those who ask, one after the other.
    pub(super) fn dead_upstream(&mut self, upstream: &Result<Server, Failure>) -> Result<(), Failure> {
        let title = "a dead first upstream: time of 200 questions, one after the other";
        let Ok(upstream) = upstream else { return Ok(()) };
        if !self.options.wants(title) {
            return Ok(());
        }
        // Somebody who hears and says nothing: a closed port would be noticed at once.
        let silent = UdpSocket::bind("127.0.0.1:0")?;
        let (dead, alive) = (silent.local_addr()?.to_string(), upstream.address.to_string());
        let mut rows = Vec::new();
        for (subject, upstreams) in [
            ("berth dns, alive", &["--upstream", &*alive][..]),
            ("berth dns, dead and alive", &["--upstream", &*dead, "--upstream", &*alive]),
        ] {
            let server = self.start_forwarding(upstreams)?;
            let times = (2..202).map(|number| {
                let question = Question::new(&name(number), true);
                let (reply, took) = exchange::ask(server.address, &question).ok_or("no answer")?;
                let is_right = question.is_answered_by(&reply);
                if is_right { Ok(took.as_secs_f64() * 1e3) } else { Err(Failure::from("a wrong answer")) }
            });
            let times = times.collect::<Result<Vec<_>, _>>()?;
            let late = times.iter().filter(|took| **took > LATE).count();
            let note = format!(
                "first {:.1}, greatest {:.1} ms; {late} took over {LATE} ms",
                times[0],
                Spread::of(times.clone()).max
            );
            rows.push(Row::figure(subject, Spread::of(times).median).with_note(note));
        }
        // The first may have waited; if others did, the dead one was asked again.
        self.tell("ms", title, "", rows);
        Ok(())
    }

    /// Our server with nothing but upstreams, once one of them answers.
    fn berth_forwarding(&self, arguments: &[&str]) -> Result<Server, Failure> {
        let server = self.start_forwarding(arguments)?;
        let question = Question::new(&name(1), true);
        exchange::until("the upstream", Duration::from_millis(20), || {
            Ok(exchange::answers(server.address, &question))
        })?;
        Ok(server)
    }

    /// Under another domain, so that none of the names is ours.
    fn start_forwarding(&self, arguments: &[&str]) -> Result<Server, Failure> {
        let document = Cluster::of_names(1).document();
        // Its one container has an address of a name of the upstream.
        let arguments = [&["--domain", "berth.example", "--private-upstream", ZONE], arguments].concat();
        let server = self.executables.start_with(self.machine, "dns", &document, &arguments)?;
        // Before it has read that, it knows nothing and forwards nothing.
        let own = Question::new(&format!("{}.shop.berth.example", label(0)), true);
        exchange::until("the own name", Duration::from_millis(5), || Ok(exchange::answers(server.address, &own)))?;
        Ok(server)
    }
}
