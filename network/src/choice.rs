//! Which subnet a host tries to get.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use model::name_hash;

use crate::claim::Owner;
use crate::config::Config;

/// The subnets that a host may take, in the order in which it tries them: its `last` one first, then from a place on that
/// its name determines, so that many hosts that join at once seldom try the same.
///
/// `now` is in seconds after the beginning of 1970.
pub fn candidates<'c>(
    config: &'c Config,
    taken: &'c BTreeMap<Ipv4Net, Owner>,
    host: &str,
    last: Option<Ipv4Net>,
    now: i64,
) -> impl Iterator<Item = Ipv4Net> + use<'c> {
    let owner = host.to_owned();
    let is_free = move |subnet: &Ipv4Net| match taken.get(subnet) {
        None => true,
        Some(Owner::Host(_)) => false,
        // Caches that lead to a host's own subnet lead right.
        Some(Owner::Freed { host, until }) => *until <= now || **host == *owner,
    };
    let count = config.count();
    let start = u32::try_from(name_hash(host) % u64::from(count)).unwrap_or_default();
    let all = (0..count).map(move |step| (start + step) % count);
    let given = all.filter(|index| config.is_given(*index)).map(|index| config.subnet(index));
    let last = last.filter(|subnet| config.fits(*subnet));
    last.into_iter().chain(given.filter(move |subnet| Some(*subnet) != last)).filter(is_free)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::Allocate;

    fn config() -> Config {
        Config::new("10.42.0.0/16".parse().unwrap(), 24, vec!["10.42.0.0/20".parse().unwrap()], Allocate::Itself)
            .unwrap()
    }

    #[test]
    fn every_free_subnet_is_tried_once() {
        let config = config();
        let free: Vec<_> = candidates(&config, &BTreeMap::new(), "win-1", None, 0).collect();
        let different: BTreeSet<_> = free.iter().collect();
        assert_eq!((free.len(), different.len()), (239, 239));
        assert!(free.iter().all(|subnet| config.fits(*subnet)));
        let again: Vec<_> = candidates(&config, &BTreeMap::new(), "win-1", None, 0).collect();
        assert_eq!(free, again);
    }

    #[test]
    fn hosts_that_join_at_once_seldom_try_the_same() {
        let config = Config::new("10.0.0.0/8".parse().unwrap(), 24, Vec::new(), Allocate::Itself).unwrap();
        let first = |number| candidates(&config, &BTreeMap::new(), &format!("host-{number}"), None, 0).next().unwrap();
        let different: BTreeSet<_> = (0..5000).map(first).collect();
        assert!(different.len() > 4500, "{}", different.len());
    }

    #[test]
    fn what_another_one_has_or_had_a_moment_ago_is_not_tried() {
        let config = config();
        let last: Ipv4Net = "10.42.77.0/24".parse().unwrap();
        for (owner, is_first) in [
            (None, true),
            (Some(Owner::Host("b".into())), false),
            (Some(Owner::Freed { host: "b".into(), until: 101 }), false),
            (Some(Owner::Freed { host: "b".into(), until: 100 }), true),
            (Some(Owner::Freed { host: "a".into(), until: 101 }), true),
        ] {
            let taken = owner.clone().map(|owner| (last, owner)).into_iter().collect();
            let tried: Vec<_> = candidates(&config, &taken, "a", Some(last), 100).collect();
            assert_eq!((tried[0] == last, tried.contains(&last)), (is_first, is_first), "{owner:?}");
        }
        let elsewhere: Ipv4Net = "10.43.1.0/24".parse().unwrap();
        assert!(candidates(&config, &BTreeMap::new(), "a", Some(elsewhere), 0).all(|subnet| subnet != elsewhere));
    }
}
