//! Rehearsals: where several requests would be placed one after the other, with some units gone. Nothing is promised.
//!
//! Whether an update can start the new unit first is a rehearsal in which no unit is gone; where that does not fit, one
//! in which the old ones are gone says whether it can stop them first, and what else is in the way if it cannot.

use std::time::Duration;

use model::Text;

use crate::place::answer::Placement;
use crate::place::refusal::Refusal;
use crate::place::request::Request;
use crate::place::{Placer, decided};

/// One request of a rehearsal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rehearsed<'a> {
    pub(crate) id: &'a Text,
    pub(crate) request: &'a Request,
    /// Units, by the id of their placement and their index, whose room and ports are free from here on.
    pub(crate) gone: &'a [(Text, usize)],
}

impl Placer {
    /// Where these requests would be placed, one after the other; each sees what the ones before were given. A request
    /// without enough room says why, and takes nothing from the next ones if it is atomic or finds no place at all.
    ///
    /// # Errors
    ///
    /// As [`Placer::place`].
    pub(crate) fn rehearse(&self, requests: &[Rehearsed<'_>], now: Duration) -> Result<Vec<Placement>, Refusal> {
        // The ledger is free again before the long work begins.
        let gone = || requests.iter().flat_map(|request| request.gone).map(|(id, _)| id);
        let mut book = self.with(now, |book| Ok(book.scratch_with(gone())))?;
        let mut answers = Vec::with_capacity(requests.len());
        for Rehearsed { id, request, gone } in requests {
            book.take_away(gone);
            let request = Request { dry_run: true, ..(*request).clone() };
            let (replicas, unplaced, explanation) = self.place_all(&mut book, &request, id)?;
            let answer = decided(&request, id, &replicas, unplaced, explanation);
            if answer.state == "unplaceable" {
                super::forget_all(&mut book, &replicas);
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use source::Store;

    use super::*;
    use crate::place::inventory::Inventory;
    use crate::place::strategy::{Order, Strategy};

    const NOW: Duration = Duration::from_secs(1000);

    fn request(id: &str, count: u32) -> Request {
        let value = json!({ "id": id, "image": "i", "count": count, "ports": ["80:80"], "stack": "shop", "service": "web",
            "resources": { "memory": 5 } });
        Request::parse(&serde_json::from_value(value).unwrap()).unwrap()
    }

    fn inventory(containers: &serde_json::Value) -> Arc<Inventory> {
        let host = |name: &str| json!({ "name": name, "uuid": name, "memory": 8 });
        let cluster = json!({ "berth": 1, "hosts": [host("a"), host("b")], "containers": containers });
        let (snapshot, _) = model::document::resolve_value(&serde_json::from_value(cluster).unwrap()).unwrap();
        Arc::new(Inventory::new(&Arc::new(snapshot)))
    }

    #[test]
    fn an_update_fits_only_where_old_units_are_gone_and_nothing_is_promised() {
        let inventories = Arc::new(Store::new(Inventory::default()));
        inventories.publish(inventory(&json!([])));
        let placer = Placer::new(inventories.clone(), Order::default(), Strategy::default());
        placer.place_request(&request("old", 2), "old", NOW).unwrap();
        let (one, two) = (Text::from("new-1"), Text::from("new-2"));
        let (first, second) = (request("new-1", 1), request("new-2", 1));
        let gone = [("old".into(), 0), ("old".into(), 1)];
        let states = |gone: [&[(Text, usize)]; 2]| -> Vec<(&'static str, Vec<Text>)> {
            let steps = [
                Rehearsed { id: &one, request: &first, gone: gone[0] },
                Rehearsed { id: &two, request: &second, gone: gone[1] },
            ];
            let hosts = |answer: Placement| answer.placements.into_iter().map(|unit| unit.host.uuid).collect();
            placer.rehearse(&steps, NOW).unwrap().into_iter().map(|answer| (answer.state, hosts(answer))).collect()
        };
        let host = |at: usize| placer.placement("old", NOW).unwrap().placements[at].host.uuid.clone();
        let none = || ("unplaceable", Vec::new());
        let check = || {
            assert_eq!(states([&[], &[]]), [none(), none()], "start first");
            assert_eq!(states([&gone[..1], &[]]), [("placed", vec![host(0)]), none()]);
            assert_eq!(states([&gone[..1], &gone[1..]]), [("placed", vec![host(0)]), ("placed", vec![host(1)])]);
            assert_eq!(states([&[], &gone[1..]]), [none(), ("placed", vec![host(1)])]);
            assert_eq!(placer.placements(NOW).unwrap().len(), 1);
        };
        check();
        // The same when the cluster shows them.
        let known = placer.placement("old", NOW).unwrap();
        let shown = known.placements.iter().map(|unit| {
            let name = &unit.containers[0].name;
            json!({ "name": **name, "uuid": format!("c-{name}"), "host": &*unit.host.name, "state": "running",
                "memory_reservation": 5, "ports": ["80:80"], "labels": { "io.berth.placement": &**name } })
        });
        inventories.publish(inventory(&json!(shown.collect::<Vec<_>>())));
        check();
        let settled = placer.placement("old", NOW).unwrap();
        assert!(settled.placements.iter().all(|unit| unit.containers[0].state == "settled"), "{settled:?}");
    }
}
