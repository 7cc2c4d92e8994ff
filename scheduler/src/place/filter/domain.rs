//! The domains over which a service is spread: the values of a host label.

use model::Fingerprint;

use crate::place::bits::Bits;
use crate::place::constraint::Attribute;
use crate::place::room::Room;

/// How many of the service's containers there are per value of a label.
pub(super) struct Domains<'a> {
    counts: Vec<(&'a str, u32)>,
    least: u32,
}

impl<'a> Domains<'a> {
    pub(super) fn new(room: &Room<'a>, label: &str, service: Option<&Fingerprint>, among: &Bits) -> Self {
        let hosts = room.inventory.hosts();
        let mut counts = Vec::new();
        for (value, having) in hosts.values(label) {
            let mut counting = having.clone();
            counting.intersect(among);
            if !counting.is_empty() {
                let own = service.into_iter().flat_map(|service| room.occurrences(service));
                let sum = own.filter(|(host, _)| having.contains(*host)).map(|(_, count)| count).sum();
                counts.push((&**value, sum));
            }
        }
        let least = counts.iter().map(|(_, count)| *count).min().unwrap_or(0);
        Self { counts, least }
    }

    /// Whether one more may go to this host.
    ///
    /// # Errors
    ///
    /// Why not, and what would have to change.
    pub(super) fn allow(&self, room: &Room<'_>, label: &str, host: u32, max_skew: u32) -> Result<(), (String, String)> {
        let facts = room.inventory.hosts().facts(host);
        let value = facts.attribute(&Attribute::Label(label.to_owned()));
        let missing = || (format!("spread over {label}, which the host has not"), format!("the label {label}"));
        let value = value.ok_or_else(missing)?;
        let count = self.counts.iter().find(|(known, _)| *known == value).map_or(0, |(_, count)| *count);
        if count + 1 > self.least + max_skew {
            let least = self.least;
            return Err((
                format!(
                    "spread over {label}: {value} has {count}, another has {least}, and they may differ by {max_skew}"
                ),
                format!("a larger max_skew than {max_skew} over {label}"),
            ));
        }
        Ok(())
    }
}
