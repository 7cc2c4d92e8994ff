//! Tenants: which stacks belong to which hosts, and whose hosts at balancers, as the document `owners` says.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use model::lb::HostPattern;
use model::{Map, Text, Value};

/// The part that says so. It is no cluster document.
pub(crate) const OWNERS_PART: &str = "documents/owners";

/// The list of a tenant's hosts at balancers.
const HOSTNAMES: &str = "hostnames";

/// The stacks that have owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owners {
    /// By the stack's name, in lower case.
    tenants: HashMap<String, Arc<Tenant>>,
    /// The names of the tenants of each host.
    of_hosts: HashMap<Text, BTreeSet<Text>>,
    /// The hosts at balancers that only labels of a tenant's stacks name.
    hostnames: Vec<(HostPattern, Arc<Tenant>)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Tenant {
    name: Text,
    hosts: BTreeSet<Text>,
}

impl Owners {
    /// The owners in `{"tenants": {"red": {"hosts": ["a"], "stacks": ["shop"], "hostnames": ["shop.example"]}}}`, where
    /// `hostnames` may be missing.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub(crate) fn parse(document: &Map) -> Result<Self, String> {
        if let Some((key, _)) = document.iter().find(|(key, _)| !matches!(&**key, "berth" | "tenants")) {
            return Err(format!("unknown key {key}, expected tenants"));
        }
        let tenants = document.map("tenants").ok_or("expected tenants, a map of names to hosts and stacks")?;
        let mut owners = Self::default();
        for (name, tenant) in tenants {
            let wrong = || {
                format!("tenants/{name}: expected hosts and stacks, two lists of names, and hostnames if there are any")
            };
            let has_others = |map: &Map| map.iter().any(|(key, _)| !matches!(&**key, "hosts" | "stacks" | HOSTNAMES));
            let tenant = tenant.as_map().filter(|map| !has_others(map)).ok_or_else(wrong)?;
            let names = |list: &str| -> Result<Vec<Text>, String> {
                let list = tenant.get(list).and_then(Value::as_list).ok_or_else(wrong)?;
                let filled = |name: &Value| name.as_text().filter(|name| !name.is_empty()).cloned();
                list.iter().map(|name| filled(name).ok_or_else(wrong)).collect()
            };
            let hosts: BTreeSet<Text> = names("hosts")?.into_iter().collect();
            for host in &hosts {
                owners.of_hosts.entry(host.clone()).or_default().insert(name.clone());
            }
            let owner = Arc::new(Tenant { name: name.clone(), hosts });
            for stack in names("stacks")? {
                if let Some(other) = owners.tenants.insert(stack.to_lowercase(), owner.clone()) {
                    return Err(format!("the stack {stack} has two owners: {} and {name}", other.name));
                }
            }
            let hostnames = if tenant.get(HOSTNAMES).is_some() { names(HOSTNAMES)? } else { Vec::new() };
            for hostname in hostnames {
                let pattern = HostPattern::parse(&hostname).map_err(|problem| format!("tenants/{name}: {problem}"))?;
                if pattern == HostPattern::Any {
                    return Err(format!("tenants/{name}: {hostname} is all hosts, expected some"));
                }
                if let Some((other, of)) = owners.hostnames.iter().find(|(other, _)| other.overlaps(&pattern))
                    && of.name != *name
                {
                    return Err(format!("the host {pattern} has two owners: {} ({other}) and {name}", of.name));
                }
                owners.hostnames.push((pattern, owner.clone()));
            }
        }
        Ok(owners)
    }

    /// Whether nothing has an owner: then all hosts are one tenant.
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty() && self.hostnames.is_empty()
    }

    /// The tenant who has some of these hosts at balancers, unless the stack is that one's.
    pub(crate) fn hostname_of_other(&self, hosts: &HostPattern, stack: Option<&Text>) -> Option<&Text> {
        let owner = stack.and_then(|stack| self.tenants.get(&stack.to_lowercase()));
        let mut others =
            self.hostnames.iter().filter(|(_, tenant)| owner.is_none_or(|owner| owner.name != tenant.name));
        others.find(|(pattern, _)| pattern.overlaps(hosts)).map(|(_, tenant)| &tenant.name)
    }

    /// What the hosts of the same tenants as a host have in common; `None` if it belongs to none.
    pub(crate) fn tenant_of(&self, host: &str) -> Option<Text> {
        let tenants = self.of_hosts.get(host)?;
        Some(tenants.iter().map(|name| &**name).collect::<Vec<_>>().join("\0").into())
    }

    /// The owner of a stack, unless `host` is one of the owner's hosts.
    pub(crate) fn refuses(&self, stack: &str, host: &str) -> Option<&Text> {
        if self.is_empty() {
            return None;
        }
        let owner = self.tenants.get(&stack.to_lowercase())?;
        (!owner.hosts.contains(host)).then_some(&owner.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_at_balancers_are_for_the_stacks_of_their_owner() {
        let owners = r#"{"tenants": {"red": {"hosts": ["a"], "stacks": ["Shop"], "hostnames": ["Shop.example", "*.red.example"]},
            "blue": {"hosts": ["b"], "stacks": ["data"]}}}"#;
        let owners = Owners::parse(&serde_json::from_str(owners).unwrap()).unwrap();
        for (hosts, stack, other) in [
            ("shop.example", Some("SHOP"), None),
            ("shop.example", Some("data"), Some("red")),
            ("shop.example.", Some("free"), Some("red")),
            ("SHOP.example", None, Some("red")),
            ("*.example", Some("free"), Some("red")),
            ("www.red.example", Some("data"), Some("red")),
            ("shop.*", Some("data"), Some("red")),
            ("www.example", Some("data"), None),
        ] {
            let (hosts, stack) = (HostPattern::parse(&hosts.into()).unwrap(), stack.map(Text::from));
            let found = owners.hostname_of_other(&hosts, stack.as_ref());
            assert_eq!(found.map(|name| &**name), other, "{hosts} {stack:?}");
        }
    }

    #[test]
    fn an_owned_stack_is_refused_to_other_hosts() {
        let parse = |json: &str| Owners::parse(&serde_json::from_str(json).unwrap());
        let owners = parse(r#"{"berth": 1, "tenants": {"red": {"hosts": ["a"], "stacks": ["Shop"]}}}"#).unwrap();
        for (stack, host, owner) in [("shop", "a", None), ("SHOP", "b", Some("red")), ("free", "b", None)] {
            assert_eq!(owners.refuses(stack, host).map(|name| &**name), owner, "{stack} {host}");
        }
        assert_eq!(["a", "b"].map(|host| owners.tenant_of(host)), [Some("red".into()), None]);
        for (json, problem) in [
            ("{}", "expected tenants"),
            (r#"{"tenants": {}, "stacks": []}"#, "unknown key stacks"),
            (r#"{"tenants": {"red": {"hosts": ["a"]}}}"#, "tenants/red: expected"),
            (r#"{"tenants": {"red": {"hosts": ["a"], "stacks": "shop"}}}"#, "tenants/red: expected"),
            (r#"{"tenants": {"red": {"hosts": [5], "stacks": []}}}"#, "tenants/red: expected"),
            (
                r#"{"tenants": {"red": {"hosts": ["a"], "stacks": ["s"]}, "blue": {"hosts": ["b"], "stacks": ["S"]}}}"#,
                "two owners",
            ),
            (r#"{"tenants": {"red": {"hosts": [], "stacks": [], "hostnames": ["*"]}}}"#, "all hosts"),
            (r#"{"tenants": {"red": {"hosts": [], "stacks": [], "hostnames": ["a b"]}}}"#, "is no host"),
            (
                r#"{"tenants": {"red": {"hosts": [], "stacks": [], "hostnames": ["*.example"]},
                    "blue": {"hosts": [], "stacks": [], "hostnames": ["www.example"]}}}"#,
                "the host",
            ),
        ] {
            let found = parse(json).unwrap_err();
            assert!(found.contains(problem), "{json}: {found}");
        }
    }
}
