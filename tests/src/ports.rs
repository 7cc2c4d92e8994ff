//! Ports for programs that want to be told one. What can be given port 0, and says what it got, needs none of this.
//!
//! A port is let go before its user binds it, since there is no handing over a bound socket to these programs. In between
//! another process may be given the same one: the kernel gives away ports of its own accord in turn, so that one which
//! was just drawn is the last to be drawn again.

use std::net::TcpListener;

/// Where rows of ports are looked for: below those that systems give away by themselves (Linux from 32768 on), so that
/// only another test can take one, and above those that are known for a service.
const ROWS: std::ops::Range<u16> = 21_000..31_000;

/// A port of loopback that nobody uses.
pub fn free() -> u16 {
    some(1)[0]
}

/// So many ports of loopback that nobody uses.
pub fn some(count: usize) -> Vec<u16> {
    // Held until all are drawn, so that no port is drawn twice.
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    held.iter().map(|port| port.local_addr().expect("it is bound").port()).collect()
}

/// The first of as many ports in a row that nobody uses. Who asks at the same time is given the same ones: the caller
/// holds something [`Exclusive`](crate::shared::Exclusive).
pub fn in_a_row(count: u16) -> u16 {
    for first in ROWS.step_by(count.into()) {
        let ports = (first..first + count).map(|port| TcpListener::bind(("127.0.0.1", port)));
        if ports.collect::<Result<Vec<_>, _>>().is_ok() {
            return first;
        }
    }
    panic!("no {count} free ports in a row");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_or_while_it_is_used() {
        let ports: std::collections::BTreeSet<_> = some(50).into_iter().collect();
        assert_eq!(ports.len(), 50);
        // Tests beside this one are given the same ones.
        let used = || {
            let first = in_a_row(3);
            Some((first, TcpListener::bind(("127.0.0.1", first + 1)).ok()?))
        };
        let (first, _used) = std::iter::from_fn(|| Some(used())).flatten().next().expect("it does not end");
        assert!(in_a_row(3) > first + 1);
    }
}
