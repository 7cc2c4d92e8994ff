//! Everything that a snapshot holds, as lines for a follower who has nothing: written one at a time, straight from the
//! entities, since all of them together are twice as large as the snapshot.

use std::sync::Arc;

use model::change_line::Lines;
use model::{Container, Delta, Entity, Host, Map, Network, Service, Snapshot, Stack, Text, Value};
use serde::{Serialize, Serializer};

use crate::change_log::{public, public_objects};

/// The lines that say everything; each is written when it is asked for.
pub(crate) type Whole = Lines<std::vec::IntoIter<Any>>;

/// The lines of a snapshot of this revision.
pub(crate) fn whole(revision: Text, snapshot: &Snapshot) -> Whole {
    let entities: Vec<Any> = (snapshot.containers.values().cloned().map(Any::Container))
        .chain(snapshot.services.values().cloned().map(Any::Service))
        .chain(snapshot.stacks.values().cloned().map(Any::Stack))
        .chain(snapshot.hosts.values().cloned().map(Any::Host))
        .chain(snapshot.networks.values().cloned().map(Any::Network))
        .collect();
    Lines::new(revision, None, entities).with_rest(Some(public_objects(Delta::rest_of(snapshot))))
}

/// An entity of any kind.
#[derive(Debug)]
pub(crate) enum Any {
    Container(Arc<Container>),
    Service(Arc<Service>),
    Stack(Arc<Stack>),
    Host(Arc<Host>),
    Network(Arc<Network>),
}

/// An entity with what the wire keeps in helpers.
#[derive(Serialize)]
struct Folded<'e> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<&'e Map>,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Value>,
    object: &'e Map,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
}

impl Serialize for Any {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = |kind, object| Folded { kind, links: None, members: None, object, position: None };
        match self {
            Self::Container(container) => {
                let links = Some(container.links());
                Folded { links, ..plain(Container::KIND, container.fields()) }.serialize(serializer)
            }
            Self::Service(service) => {
                let members = service.members().iter().cloned().map(Value::Text);
                let (links, members) = (Some(service.links()), Some(Value::list(members)));
                let public = public(service.fields());
                let object = public.as_ref().unwrap_or_else(|| service.fields());
                Folded { links, members, ..plain(Service::KIND, object) }.serialize(serializer)
            }
            Self::Stack(stack) => plain(Stack::KIND, stack.fields()).serialize(serializer),
            Self::Host(host) => plain(Host::KIND, host.fields()).serialize(serializer),
            Self::Network(network) => {
                let position = Some(network.position());
                Folded { position, ..plain(Network::KIND, network.fields()) }.serialize(serializer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::ChangeLine;

    use super::*;

    /// Entities of all kinds, more than go into one line, with what must not be shown.
    fn snapshot(containers: usize) -> Snapshot {
        let mut objects: Vec<String> = (0..containers)
            .map(|number| {
                format!(r#"{{"metadata_kind":"container","uuid":"c{number}","name":"c \"{number}\"","a":null}}"#)
            })
            .collect();
        objects.extend(
            [
                r#"{"metadata_kind":"service","uuid":"s","name":"web","token":"secret","stack_name":"shop"}"#,
                r#"{"metadata_kind":"serviceContainerLink","service_uuid":"s","service_name":"web","container_uuid":"c0"}"#,
                r#"{"metadata_kind":"serviceLink","service_uuid":"s","key":"a/b","value":"c"}"#,
                r#"{"metadata_kind":"containerLink","container_uuid":"c0","key":"a","value":null}"#,
                r#"{"metadata_kind":"stack","uuid":"k","name":"shop"}"#,
                r#"{"metadata_kind":"host","uuid":"h","name":"win-1"}"#,
                r#"{"metadata_kind":"network","uuid":"n1","name":"nat"}"#,
                r#"{"metadata_kind":"network","uuid":"n0","name":"other"}"#,
                r#"{"metadata_kind":"defaultData","version":"7"}"#,
            ]
            .map(str::to_owned),
        );
        let map = |text: &String| serde_json::from_str::<Map>(text).unwrap();
        model::objects::read(objects.iter().map(map)).0
    }

    #[test]
    fn lines_say_the_same_as_a_change_from_nothing() {
        // 20,000 have more than a line.
        for containers in [0, 1, 20_000] {
            let snapshot = snapshot(containers);
            let lines: Vec<_> = whole("r".into(), &snapshot).collect();
            let expected: Vec<_> = ChangeLine::split(&"r".into(), None, Delta::whole(&snapshot)).collect();
            assert_eq!(lines.len(), expected.len(), "{containers}");
            for (line, expected) in lines.iter().zip(expected) {
                let expected = String::from_utf8(expected).unwrap();
                assert_eq!(String::from_utf8_lossy(line), expected.replace("\"secret\"", "null"));
            }
        }
        assert_eq!(whole("r".into(), &Snapshot::default()).count(), 1);
    }
}
