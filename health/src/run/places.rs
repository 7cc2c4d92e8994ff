//! How many checks are made at a time, and of whom: containers that do not answer take no places from those of other hosts.

use std::collections::HashMap;

use model::Text;

/// Most checks at a time, each of which has a socket: three hosts, of each of which all the containers hang that others check, leave as
/// many for the rest.
const PLACES: usize = 4096;

/// The places of checks that are being made. A host has at most as many as are free (dynamic thresholds, as in switches with shared
/// memory): one that takes all that it gets has half of them, two a third each, and one that takes few always finds some.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: usize,
    /// By the uuid of the host.
    of_hosts: HashMap<Text, usize>,
}

/// The place of a check of a container of this host, if it needs one.
#[derive(Debug)]
pub(super) struct Place(Option<Text>);

impl Place {
    /// That of one that needs none.
    pub(super) fn none() -> Self {
        Self(None)
    }
}

impl Places {
    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// A place for a container of this host; `None` if the host has too many.
    pub(super) fn take(&mut self, host: &Text) -> Option<Place> {
        let of_host = self.of_hosts.get(host).copied().unwrap_or_default();
        if of_host >= PLACES - self.taken {
            return None;
        }
        self.taken += 1;
        self.of_hosts.insert(host.clone(), of_host + 1);
        Some(Place(Some(host.clone())))
    }

    /// A check has ended.
    pub(super) fn leave(&mut self, place: Place) {
        let Some(host) = place.0 else { return };
        self.taken -= 1;
        if let Some(of_host) = self.of_hosts.get_mut(&host) {
            *of_host -= 1;
            if *of_host == 0 {
                self.of_hosts.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_takes_all_it_gets_leaves_some_for_others() {
        let mut places = Places::default();
        let take_all =
            |places: &mut Places, host: &Text| -> Vec<Place> { std::iter::from_fn(|| places.take(host)).collect() };
        let own = take_all(&mut places, &"own".into());
        assert_eq!(own.len(), PLACES / 2);
        let names: Vec<Text> = (0..7).map(|number| format!("h{number}").into()).collect();
        let taken: Vec<Vec<Place>> = names.iter().map(|name| take_all(&mut places, name)).collect();
        let counts: Vec<usize> = taken.iter().map(Vec::len).collect();
        assert_eq!(counts, [1024, 512, 256, 128, 64, 32, 16]);
        let place = places.take(&"modest".into()).unwrap();
        assert!(places.take(&names[0]).is_none());
        // What ends makes room, for the one that has many too.
        for place in taken.into_iter().flatten().chain([place]) {
            places.leave(place);
        }
        assert_eq!((places.taken(), places.of_hosts.len()), (PLACES / 2, 1));
        places.leave(Place::none());
        for place in own {
            places.leave(place);
        }
        assert_eq!((places.taken(), places.of_hosts.len()), (0, 0));
    }
}
