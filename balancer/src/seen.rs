//! What HAProxy says of its servers (management guide, `show servers state` and `show stat`).

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

/// Bits of `srv_admin_state` that mean maintenance: by command, inherited, by an address that is unknown, by its name.
const MAINTENANCE: u8 = 0x01 | 0x02 | 0x20 | 0x40;

/// Bits of `srv_admin_state` that mean draining: by command, inherited.
const DRAIN: u8 = 0x08 | 0x10;

/// A server of a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName {
    /// Its backend.
    pub backend: String,
    /// Its own name.
    pub server: String,
}

/// What a server is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenServer {
    /// Where it leads, unless that is a name.
    pub place: Option<SocketAddr>,
    /// Its share.
    pub weight: u16,
    /// `srv_admin_state`.
    pub admin: u8,
}

impl SeenServer {
    /// Whether it takes no clients at all.
    pub fn is_in_maintenance(&self) -> bool {
        self.admin & MAINTENANCE != 0
    }

    /// Whether it takes no new clients.
    pub fn is_draining(&self) -> bool {
        self.admin & DRAIN != 0
    }
}

/// The servers in an answer to `show servers state`; lines of another form are left out.
pub fn servers(answer: &str) -> HashMap<ServerName, SeenServer> {
    let lines = answer.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| server(&line.split(' ').collect::<Vec<_>>())).collect()
}

fn server(fields: &[&str]) -> Option<(ServerName, SeenServer)> {
    let address: Option<IpAddr> = fields.get(4)?.parse().ok();
    let port: u16 = fields.get(18)?.parse().ok()?;
    let seen = SeenServer {
        place: address.map(|address| (address, port).into()),
        admin: fields.get(6)?.parse().ok()?,
        weight: fields.get(7)?.parse().ok()?,
    };
    Some((ServerName { backend: (*fields.get(1)?).to_owned(), server: (*fields.get(3)?).to_owned() }, seen))
}

/// The sessions of each server in an answer to `show stat -1 4 -1`.
pub fn sessions(answer: &str) -> BTreeMap<ServerName, u64> {
    let lines = answer.lines().filter(|line| !line.starts_with('#'));
    let sessions = lines.filter_map(|line| {
        let mut fields = line.split(',');
        let name = ServerName { backend: fields.next()?.to_owned(), server: fields.next()?.to_owned() };
        Some((name, fields.nth(2)?.parse().ok()?))
    });
    sessions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_haproxy_2_6_are_read() {
        let state = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight\n\
                     3 b1 1 s1 127.0.0.9 2 4 5 1 0 1 0 0 8 0 0 0 - 99 - 0 0 - - 0\n\
                     3 b1 2 s2 127.0.0.1 2 8 3 3 0 1 0 2 0 0 0 0 - 28081 - 0 0 - - 0\n\
                     3 b1 3 s3 127.0.0.1 0 5 1 1 7 1 0 0 8 0 0 0 - 1 - 0 0 - - 0\n\nx\n3 b1\n";
        let seen = servers(state);
        let of = |server: &str| seen[&ServerName { backend: "b1".into(), server: server.into() }];
        assert_eq!(seen.len(), 3);
        assert_eq!(of("s1"), SeenServer { place: Some(([127, 0, 0, 9], 99).into()), weight: 5, admin: 4 });
        assert_eq!(
            (of("s1").is_in_maintenance(), of("s2").is_draining(), of("s3").is_in_maintenance()),
            (false, true, true)
        );
        let stat = "# pxname,svname,qcur,qmax,scur,smax\nb1,s1,0,0,3,4,\nb1,s2,0,0,0,1,\n\n";
        let sessions: Vec<_> = sessions(stat).into_iter().map(|(name, count)| (name.server, count)).collect();
        assert_eq!(sessions, [("s1".to_owned(), 3), ("s2".to_owned(), 0)]);
    }
}
