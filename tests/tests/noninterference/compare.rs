//! What of an answer may differ after another tenant did something: what is the other tenant's, where it may have anything.

use std::collections::BTreeSet;

use model::METADATA_NAME;
use serde_json::{Map, Value};

use crate::world::{BLUE, OWNED, RED, STOLEN, World};

/// The domain of the cluster.
const DOMAIN: &str = ".rancher.internal";

/// Fields of a service that all parts share, where a stack is open to everybody.
const SHARED: [&str; 7] = ["containers", "scale", "sidekicks", "create_index", "ports", "expose", "links"];

/// How much of an answer is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Allowed {
    /// Nothing: it stays as it was.
    Nothing,
    /// What is added, to what is open to everybody.
    More,
    /// Anything: whose name it is depends on what nobody owns.
    Anything,
}

/// The rights of blue in answers to a client.
pub(crate) struct Rights<'w> {
    pub(crate) world: &'w World,
    /// Whether the client finds names of stacks that are open to everybody.
    pub(crate) in_free: bool,
    /// Whether the address is that of a container on the host that is asked, and whether a name is.
    pub(crate) local: Vec<(String, String)>,
}

impl Rights<'_> {
    /// How much of the answer to a question of DNS may be another's.
    pub(crate) fn of_name(&self, name: &str) -> Allowed {
        let name = name.to_lowercase();
        let (relative, within) = name.strip_suffix(DOMAIN).map_or((&*name, false), |relative| (relative, true));
        if relative == METADATA_NAME {
            return Allowed::Nothing;
        }
        if let Some(target) = self.world.targets.get(relative) {
            let own = if self.world.early { Allowed::Anything } else { Allowed::More };
            return own.max(self.of_name(target));
        }
        if let Some(address) = relative.strip_suffix(".in-addr.arpa") {
            let mut bytes: Vec<_> = address.split('.').collect();
            bytes.reverse();
            let address = bytes.join(".");
            let is_local = self.local.iter().any(|(_, local)| *local == address);
            // Each host has these, so that those of others stand for nobody.
            let is_bridge = self.world.asked.is_some() && address.starts_with("172.17.0.");
            return if is_local || is_bridge || !self.is_word(&address) { Allowed::Nothing } else { Allowed::Anything };
        }
        if let Some(host) = relative.strip_suffix(".hosts.dns") {
            return if RED.contains(&host) { Allowed::Nothing } else { Allowed::Anything };
        }
        if relative == "ns.dns" {
            return Allowed::Nothing;
        }
        let Some((front, stack)) = relative.rsplit_once('.') else { return self.of_container(relative) };
        let is_stack = ["shop", "data", "free", "dev", "com", "evil", "outside"].contains(&stack);
        match (is_stack && self.world.is_free(stack), within) {
            // A container's own name with a dot is found by its full name.
            _ if within && self.is_word(relative) => self.of_container(relative),
            (true, true) => self.in_open(),
            // Only who is in the stack, or shares a network with it, finds it so.
            (true, false) if self.in_free || self.world.is_documented(stack) => self.in_open(),
            _ if self.in_free && (self.is_word(front) || self.is_word(&name)) => self.in_open(),
            _ => Allowed::Nothing,
        }
    }

    /// The same of a path of metadata: one by the name of a container leads to that of this host first.
    pub(crate) fn of_path(&self, path: &str) -> Allowed {
        if path.contains("/self/stack/") && self.world.early && self.in_free {
            return Allowed::Anything;
        }
        let Some((name, _)) = path.strip_prefix("/latest/containers/").and_then(|rest| rest.split_once('/')) else {
            return Allowed::Nothing;
        };
        let is_local = self.world.asked.is_some() && self.local.iter().any(|(local, _)| local == name);
        if is_local || !self.is_word(name) { Allowed::Nothing } else { Allowed::Anything }
    }

    /// The same of what is called like a container, short or in full.
    pub(crate) fn of_container(&self, name: &str) -> Allowed {
        let is_local = self.local.iter().any(|(local, _)| local == name);
        match self.is_word(name) {
            // It may be a link to what is open to everybody.
            false if self.in_free && self.world.early || self.has_links_of_all() => Allowed::Anything,
            false if self.in_free => Allowed::More,
            false => Allowed::Nothing,
            true if is_local && self.world.asked.is_some() => {
                if self.in_free && self.world.may_be_free(name) {
                    // Its own stack comes first, and there anybody may have a service of that name.
                    Allowed::Anything
                } else if self.in_free {
                    self.in_open()
                } else {
                    Allowed::Nothing
                }
            }
            true => Allowed::Anything,
        }
    }

    /// The same of what is open to everybody: what was there stays, unless it may be another's from the beginning.
    fn in_open(&self) -> Allowed {
        if self.world.early || self.has_links_of_all() { Allowed::Anything } else { Allowed::More }
    }

    /// Whether the client has links that any host says: of an open service, where its own host does not speak.
    fn has_links_of_all(&self) -> bool {
        self.in_free && self.world.asked.is_none()
    }

    fn is_word(&self, word: &str) -> bool {
        self.world.words.contains(word)
    }
}

/// Whether the answer to a question of DNS is as it was, but for what is allowed.
///
/// An open service that was there gets no address that leads to a container of the host that is asked.
pub(crate) fn is_same_answer(
    before: &[String],
    after: &[String],
    allowed: Allowed,
    local: &[(String, String)],
    world: &World,
) -> bool {
    let is_plain = |record: &String| record.starts_with("web.free.") || record.starts_with("cache.free.");
    let leads_here = |record: &String| local.iter().any(|(_, address)| record.ends_with(&format!(" A {address}")));
    let was_there = before.len() > 1;
    let is_new_here = |record: &String| is_plain(record) && leads_here(record) && !before.contains(record);
    if was_there && after.iter().any(|record| is_new_here(record) && !world.was_alias_first(record)) {
        return false;
    }
    let is_its_own = |record: &str| {
        let address = record.rsplit(' ').next().unwrap_or_default();
        BLUE.iter().any(|own| address.starts_with(own)) || world.words.contains(address)
    };
    let is_stolen = |record: &String| STOLEN.iter().any(|stolen| record.contains(stolen));
    match allowed {
        Allowed::Nothing => before == after,
        _ if after.iter().any(is_stolen) => false,
        // The code comes first: a name that did not exist may be blue's, or that of what an alias leads to.
        Allowed::More => {
            let (was, now) = (&before[1..], &after[1..]);
            was.iter().all(|record| now.contains(record))
                && (was.is_empty()
                    || now.iter().all(|record| was.contains(record) || !record.contains(" A ") || is_its_own(record)))
        }
        Allowed::Anything => true,
    }
}

/// What of a tree is not as it was, but for what is another's.
pub(crate) fn harm(before: &Value, after: &Value, world: &World) -> Option<String> {
    let is_blue_host = |host: &&Value| host["name"] == world.blue;
    let uuids: BTreeSet<&str> =
        list(after, "hosts").iter().filter(is_blue_host).filter_map(|host| host["uuid"].as_str()).collect();
    let is_asked = |host: &&Value| world.asked.is_some_and(|asked| host["name"] == *asked);
    let asked = list(before, "hosts").iter().find(is_asked).and_then(|host| host["uuid"].as_str());
    let compare = Comparison { world, uuids, asked };
    let (Value::Object(fields), Value::Object(now)) = (before, after) else {
        return different("all of it", before, after);
    };
    for (key, value) in fields {
        let harm = match &**key {
            "version" => None,
            "containers" | "hosts" => {
                let (all, left) = (list(before, key), compare.without_blue(list(after, key)));
                // What nobody owns may have been blue's before.
                let is_known = |entity: &&Value| !(world.early && compare.is_free(entity));
                let all: Vec<_> = all.iter().filter(is_known).collect();
                let left: Vec<_> = left.iter().filter(is_known).collect();
                let harm = all.iter().zip(&left).find_map(|(before, after)| different(key, before, after));
                harm.or_else(|| {
                    (all.len() != left.len()).then(|| format!("{} {key} are now {}", all.len(), left.len()))
                })
            }
            "networks" if world.early => None,
            "networks" => {
                let gone = list(before, key).iter().find(|network| !list(after, key).contains(network));
                gone.map(|network| format!("the network {network} is another"))
            }
            "services" => compare.services(list(before, key), list(after, key)),
            "stacks" => compare.stacks(list(before, key), list(after, key)),
            "self" => compare.own(value, &now["self"]),
            _ => different(key, value, &now.get(key).cloned().unwrap_or_default()),
        };
        if harm.is_some() {
            return harm;
        }
    }
    None
}

struct Comparison<'w> {
    world: &'w World,
    /// The uuids of blue's host.
    uuids: BTreeSet<&'w str>,
    /// The uuid of the host that is asked.
    asked: Option<&'w str>,
}

impl Comparison<'_> {
    fn is_blue(&self, entity: &Value) -> bool {
        let is = |key: &str| entity[key].as_str().is_some_and(|uuid| self.uuids.contains(uuid));
        is("host_uuid") || (entity.get("agent_ip").is_some() && is("uuid"))
    }

    fn without_blue(&self, entities: &[Value]) -> Vec<Value> {
        entities.iter().filter(|entity| !self.is_blue(entity)).cloned().collect()
    }

    fn services(&self, before: &[Value], after: &[Value]) -> Option<String> {
        for service in before {
            let same = after.iter().find(|other| other["uuid"] == service["uuid"] && other["name"] == service["name"]);
            let Some(now) = same else {
                // What nobody owns may have been blue's before.
                if self.world.early && self.is_free(service) {
                    continue;
                }
                return Some(format!("the service {} is gone", service["name"]));
            };
            let harm = self.service(service, now);
            if harm.is_some() {
                return harm;
            }
        }
        let is_new = |service: &&Value| {
            !before.iter().any(|other| other["uuid"] == service["uuid"] && other["name"] == service["name"])
        };
        after.iter().filter(is_new).find_map(|service| {
            let text = service.to_string();
            let stolen = STOLEN.iter().find(|stolen| text.contains(**stolen));
            let others = list(service, "containers").iter().find(|member| !self.is_blue(member));
            match (self.is_free(service), stolen, others.filter(|_| !self.world.early)) {
                (true, None, None) => None,
                wrong => Some(format!("a new service, {wrong:?}: {service}")),
            }
        })
    }

    /// Whether something is of a stack that is open to everybody.
    fn is_free(&self, entity: &Value) -> bool {
        entity["stack_name"].as_str().is_some_and(|stack| self.world.is_free(stack))
    }

    fn service(&self, before: &Value, after: &Value) -> Option<String> {
        if !self.is_free(before) {
            return different("a service of red", before, after);
        }
        if self.world.early {
            return None;
        }
        let (fields, now) = (before.as_object()?, after.as_object()?);
        // A token that is shown because there are no containers yet is shown no more.
        let is_hidden = |key: &str| key == "token" && now.get(key) == Some(&Value::Null);
        let is_other =
            |key: &&String| !SHARED.contains(&key.as_str()) && !is_hidden(key) && fields.get(*key) != now.get(*key);
        if let Some(key) = fields.keys().chain(now.keys()).find(is_other) {
            return Some(format!("{key} of a service: {before} is now {after}"));
        }
        let members = |service: &Value| {
            let mut members = self.without_blue(list(service, "containers"));
            members.sort_by_key(|member| member["uuid"].to_string());
            members
        };
        // A host's own containers have the links that this host says.
        let is_here = |member: &Value| self.asked.is_some_and(|asked| member["host_uuid"] == *asked);
        if list(before, "containers").iter().any(is_here) && before["links"] != after["links"] {
            return Some(format!("links of an own service: {before} is now {after}"));
        }
        if members(before) != members(after) {
            return Some(format!("containers of a service: {before} is now {after}"));
        }
        // Members are counted; of the rest each host adds its own and nothing goes.
        let added = list(after, "containers").len() - members(after).len();
        let counted = |service: &Value| service["scale"].as_u64().unwrap_or_default();
        let all = list(after, "containers").len() as u64;
        if before["scale"] != after["scale"] && counted(after) != all {
            return Some(format!("scale of a service with {added} containers of another: {before} is now {after}"));
        }
        let index = |service: &Value| service["create_index"].as_i64().unwrap_or(i64::MAX);
        if index(after) > index(before) {
            return Some(format!("a service is younger: {before} is now {after}"));
        }
        let lost = ["ports", "expose", "sidekicks"].iter().find_map(|key| {
            let lost = list(before, key).iter().find(|one| !list(after, key).contains(one))?;
            Some(format!("{lost} of the {key} of {before} is gone"))
        });
        lost.or_else(|| {
            lost_key(&before["links"], &after["links"]).map(|key| format!("the link {key} of {before} is another"))
        })
    }

    fn stacks(&self, before: &[Value], after: &[Value]) -> Option<String> {
        let name = |stack: &Value| stack["name"].as_str().unwrap_or_default().to_lowercase();
        for stack in before.iter().filter(|stack| !self.world.early || !self.world.is_free(&name(stack))) {
            let Some(now) = after.iter().find(|now| now["uuid"] == stack["uuid"]) else {
                return Some(format!("the stack {} is gone", stack["name"]));
            };
            let harm = self.stack(stack, now);
            if harm.is_some() {
                return harm;
            }
        }
        let is_taken = |stack: &&Value| {
            let is_new = !before.iter().any(|other| other["uuid"] == stack["uuid"]);
            is_new && self.world.owned && OWNED.contains(&&*name(stack))
        };
        after.iter().find(is_taken).map(|stack| format!("a new stack of red: {stack}"))
    }

    fn stack(&self, before: &Value, after: &Value) -> Option<String> {
        if !self.world.is_free(before["name"].as_str().unwrap_or_default()) {
            return different("a stack of red", before, after);
        }
        if self.world.early {
            return None;
        }
        let without = |stack: &Value| {
            let mut stack = stack.as_object().cloned().unwrap_or_default();
            stack.remove("services");
            Value::Object(stack)
        };
        different("a stack", &without(before), &without(after))
            .or_else(|| self.services(list(before, "services"), list(after, "services")))
    }

    /// What a client sees of itself.
    fn own(&self, before: &Value, after: &Value) -> Option<String> {
        let nothing = Map::new();
        let (fields, now) = (before.as_object().unwrap_or(&nothing), after.as_object().unwrap_or(&nothing));
        let is_other = |key: &&String| fields.contains_key(*key) != now.contains_key(*key);
        if let Some(key) = fields.keys().chain(now.keys()).find(is_other) {
            return Some(format!("self/{key}: {before} is now {after}"));
        }
        let harm = |(key, value): (&String, &Value)| match &**key {
            "service" => self.service(value, &now[key]),
            "stack" => self.stack(value, &now[key]),
            "container" if self.world.early && self.is_free(value) => None,
            _ => different(&format!("self/{key}"), value, &now[key]),
        };
        fields.iter().find_map(harm)
    }
}

/// A list of a map; nothing where there is none.
fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn different(what: &str, before: &Value, after: &Value) -> Option<String> {
    let other = |(key, value): (&String, &Value)| {
        (after.get(key) != Some(value)).then(|| format!("{key} was {value} and is {}", after[key]))
    };
    let fields = before.as_object().into_iter().flatten().filter_map(other).collect::<Vec<_>>().join(", ");
    (before != after).then(|| format!("{what}: {fields} in {before}, now {after}"))
}

/// A key that has another value now.
fn lost_key<'v>(before: &'v Value, after: &Value) -> Option<&'v String> {
    before.as_object()?.iter().find(|(key, value)| after.get(key) != Some(value)).map(|(key, _)| key)
}
