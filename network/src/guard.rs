//! A sudden loss of claims is held: an etcd that was emptied, restored or replaced removes no route.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// So many routes may go at once without a question: an operator who removes a few hosts expects that.
const REMOVED_MAX: usize = 3;

/// Above that, the part of all routes that may go at once, as its divisor: a tenth.
const REMOVED_PART: usize = 10;

/// Time between the two readings that have to agree.
pub const AGREE: Duration = Duration::from_mins(1);

/// After how long a loss is believed that no operator has accepted, in seconds: a person notices within a day that etcd is not
/// the one that it was.
pub const BELIEVED: i64 = 24 * 3600;

/// A loss that is not believed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The subnets that would go.
    pub subnets: BTreeSet<Ipv4Net>,
    /// When it was noticed, in seconds after the beginning of 1970.
    pub since: i64,
}

/// What to do about subnets that are no longer claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Their routes go.
    Believed,
    /// Their routes stay for now.
    Held(Loss),
}

/// Whether the routes to these subnets may go.
///
/// `routes` is how many routes there are. `accepted`: an operator has said that the loss is meant (`agent network accept`).
/// `agreed`: another full reading [`AGREE`] ago had the same loss. `now` is in seconds after the beginning of 1970.
pub fn judge(
    gone: &BTreeSet<Ipv4Net>,
    routes: usize,
    before: Option<&Loss>,
    agreed: bool,
    accepted: bool,
    now: i64,
) -> Removal {
    if gone.len() <= REMOVED_MAX.max(routes / REMOVED_PART) {
        return Removal::Believed;
    }
    // What is lost besides is another loss, which begins now.
    let since = before.filter(|before| before.subnets.is_superset(gone)).map_or(now, |before| before.since);
    if agreed && (accepted || now - since >= BELIEVED) {
        return Removal::Believed;
    }
    Removal::Held(Loss { subnets: gone.clone(), since })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets(count: u8) -> BTreeSet<Ipv4Net> {
        (1..=count).map(|index| format!("10.42.{index}.0/24").parse().unwrap()).collect()
    }

    #[test]
    fn a_sudden_loss_is_believed_after_a_day_or_by_a_word() {
        for (gone, routes, agreed, accepted, age, believed) in [
            (0, 100, false, false, 0, true),
            (3, 3, false, false, 0, true),
            (4, 4, false, false, 0, false),
            (10, 100, false, false, 0, true),
            (11, 100, false, false, 0, false),
            (11, 100, true, false, 0, false),
            (11, 100, false, true, 0, false),
            (11, 100, true, true, 0, true),
            (11, 100, true, false, BELIEVED, true),
            (11, 100, false, false, BELIEVED, false),
        ] {
            let before = Loss { subnets: subnets(gone), since: 1000 };
            let removal = judge(&subnets(gone), routes, Some(&before), agreed, accepted, 1000 + age);
            assert_eq!(removal == Removal::Believed, believed, "{gone} of {routes}, {agreed}, {accepted}, {age}");
        }
    }

    #[test]
    fn a_greater_loss_begins_again() {
        let before = Loss { subnets: subnets(20), since: 0 };
        let since = |gone| match judge(&subnets(gone), 100, Some(&before), true, false, BELIEVED - 1) {
            Removal::Held(loss) => loss.since,
            Removal::Believed => panic!("{gone}"),
        };
        assert_eq!((since(15), since(20), since(21)), (0, 0, BELIEVED - 1));
    }
}
