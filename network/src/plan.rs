//! From what is claimed and what is there to the steps of this host, each with its reason.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use platform::route::{Link, RouteChange, RouteTable};

use crate::claim::{Claims, NETWORK, Via};
use crate::config::{Config, overlap};
use crate::firewall::Firewall;
use crate::guard::{self, Loss, Removal};
use crate::routes;
use crate::step::{NetworkSpec, Step};
use crate::verdict::{Here, Judged, Verdict, judge};

/// The label of a network that Berth made.
pub const NETWORK_LABEL: &str = "io.berth.network";

/// The interface of the containers' network.
pub const BRIDGE: &str = "berth0";

/// Where containers ask for metadata and names, unless Berth was given other addresses.
const SERVICES: [Ipv4Addr; 2] = [Ipv4Addr::new(169, 254, 169, 250), Ipv4Addr::new(169, 254, 169, 251)];

/// The setting by which a host passes on packets for others.
pub const FORWARDING: &str = "net.ipv4.ip_forward";

/// The first engine that drops what comes for a container from elsewhere, unless the network says otherwise.
const PROTECTING_ENGINE: u32 = 28;

/// What is there.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The name of this host.
    pub host: String,
    /// Interfaces and routes.
    pub table: RouteTable,
    /// Whether packets for others are passed on; `None` where the system has no such setting.
    pub forwarding: Option<String>,
    /// The interfaces that pass packets on, by index, on Windows, where each has its own switch.
    pub windows: Option<BTreeSet<u32>>,
    /// The container engine, if there is one and it answers.
    pub engine: Option<Engine>,
    /// Why the engine does not answer.
    pub engine_failure: Option<String>,
    /// The table of the firewall, by its digest; `None` if there is none.
    pub firewall: Option<String>,
    /// Rules of ours in the engine's chain; `None` if it has no such chain.
    pub rules: Option<Vec<Vec<String>>>,
}

/// A container engine.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    /// First number of its version.
    pub version: u32,
    /// Its networks.
    pub networks: Vec<EngineNetwork>,
}

/// A network of the container engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineNetwork {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Whether Berth made it.
    pub ours: bool,
    /// Its subnets.
    pub subnets: Vec<Ipv4Net>,
    /// How many containers are on it, stopped ones included.
    pub containers: usize,
}

/// What is known of losses, and the time.
#[derive(Clone, Debug, Default)]
pub struct Doubt {
    /// The loss that is held already.
    pub before: Option<Loss>,
    /// Whether a full reading some time ago had the same loss.
    pub agreed: bool,
    /// Whether the claims are what a state directory had, so that they may lack what was claimed last.
    pub restored: bool,
    /// Seconds after the beginning of 1970.
    pub now: i64,
}

/// The steps of this host.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What is to be done, in this order.
    pub steps: Vec<Step>,
    /// What becomes of the route to each host.
    pub judged: Vec<Judged>,
    /// What is wrong and what to do about it; nothing here stops the steps.
    pub findings: Vec<String>,
    /// The subnet of this host.
    pub subnet: Option<Ipv4Net>,
    /// The loss of claims that is held.
    pub loss: Option<Loss>,
}

impl Plan {
    /// Whether its steps replace the interface, as making the network does on Windows: what is wanted is then to be looked at
    /// again.
    pub fn replaces_interface(&self, facts: &Facts) -> bool {
        facts.windows.is_some() && self.steps.iter().any(|step| matches!(step, Step::Network(_)))
    }
}

/// The steps from what is there to what the claims want. `recreate`: an empty network of another subnet may go.
pub fn plan(claims: &Claims, facts: &Facts, doubt: &Doubt, recreate: bool) -> Plan {
    let mut plan = Plan::default();
    plan.findings.extend(claims.defects.iter().map(|(key, wrong)| format!("the key {key} is ignored: {wrong}")));
    let own: Vec<_> = facts.table.routes.iter().filter(|route| route.marked).copied().collect();
    let config = match claims.config() {
        Ok(config) => config,
        Err(why) => {
            plan.loss.clone_from(&doubt.before);
            if doubt.restored && claims.config.is_none() {
                // It is not known yet.
                return plan;
            }
            let stay = format!("{why}; {} routes stay as they are", own.len());
            plan.findings.push(if own.is_empty() { why } else { stay });
            return plan;
        }
    };
    plan.subnet = claims.subnet_of_host(&facts.host);
    let here = Here { host: &facts.host, containers: Some(BRIDGE), table: &facts.table };
    plan.judged = judge(config, claims.peers(), here);

    // A subnet that was not given back is missed, not gone.
    let missed: BTreeSet<Ipv4Net> =
        own.iter().map(|route| route.prefix).filter(|prefix| !claims.subnets.contains_key(prefix)).collect();
    let accepted = claims.accepted_until.is_some_and(|until| doubt.now <= until);
    let removal = guard::judge(&missed, own.len(), doubt.before.as_ref(), doubt.agreed, accepted, doubt.now);
    if let Removal::Held(loss) = removal {
        plan.findings.push(format!(
            "{} of {} subnets are no longer claimed in etcd, all at once; their routes stay. If they were removed on purpose, \
             type: agent network accept. If etcd was emptied or restored: agent network restore",
            missed.len(),
            own.len()
        ));
        plan.judged.extend(missed.iter().map(|subnet| Judged {
            host: "?".into(),
            subnet: *subnet,
            via: None,
            link: None,
            verdict: Verdict::Held("its claim is missing".to_owned()),
        }));
        plan.loss = Some(loss);
    }
    let forwards = plan.subnet.is_some() || !plan.judged.is_empty();
    if let Some(before) = facts.forwarding.as_ref().filter(|value| forwards && *value == "0") {
        plan.steps.push(Step::Sysctl { name: FORWARDING.to_owned(), before: before.clone(), after: "1".to_owned() });
    }
    if let Some(forwarding) = facts.windows.as_ref().filter(|_| forwards) {
        let off = links_to_hosts(&plan, claims, facts).into_iter().filter(|link| !forwarding.contains(&link.index));
        plan.steps.extend(off.cloned().map(Step::Forwarding));
    }
    if let Some(failure) = &facts.engine_failure {
        plan.findings.push(format!("the containers' network stays as it is until the engine answers: {failure}"));
    }
    if let (Some(subnet), Some(engine)) = (plan.subnet, &facts.engine) {
        containers(&mut plan, config, subnet, engine, claims, facts, recreate);
    }
    for change in routes::changes(&plan.judged, &own) {
        match change {
            // The kernel would overwrite the route of another program that stands before ours.
            RouteChange::Replace { route, .. } if !facts.table.is_replaceable(&route) => plan.findings.push(format!(
                "the route to {} cannot be moved: another program has put one with the same metric before it; remove that one",
                route.prefix
            )),
            change => plan.steps.push(Step::Route(change)),
        }
    }
    if doubt.restored {
        // What is there may follow from a later claim, which etcd will say.
        plan.steps.retain(|step| match step {
            Step::Firewall(_) => facts.firewall.is_none(),
            Step::Route(change) => matches!(change, RouteChange::Add(_)),
            Step::Unrule { .. } => false,
            _ => true,
        });
        plan.loss.clone_from(&doubt.before);
    }
    plan
}

/// The containers' network of this host, and what lets packets in and out.
fn containers(
    plan: &mut Plan,
    config: &Config,
    subnet: Ipv4Net,
    engine: &Engine,
    claims: &Claims,
    facts: &Facts,
    recreate: bool,
) {
    let named = engine.networks.iter().find(|network| network.name == NETWORK);
    let mut instead_of = None;
    match named {
        Some(network) if !network.ours => {
            plan.findings.push(format!(
                "the engine has a network {NETWORK} that Berth did not make, so containers get no network of the cluster: \
                 remove it with `docker network rm {NETWORK}`"
            ));
            return;
        }
        Some(network) if network.subnets == [subnet] => {}
        Some(network) if recreate && network.containers == 0 => instead_of = Some(network.id.clone()),
        Some(network) => {
            let has = network.subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let what = match network.containers {
                0 => "no container is on it, so `agent network apply --recreate` replaces it".to_owned(),
                count => format!("{count} containers are on it: stop them, then type: agent network apply --recreate"),
            };
            plan.findings.push(format!("the network {NETWORK} has {has}, wanted {subnet}: {what}"));
            return;
        }
        None => {}
    }
    let made = named.is_some() && instead_of.is_none();
    if !made {
        let others = engine.networks.iter().filter(|network| network.name != NETWORK);
        let clash = others.flat_map(|network| network.subnets.iter().map(move |subnet| (&network.name, subnet)));
        if let Some((name, other)) = clash.into_iter().find(|(_, other)| overlap(**other, subnet)) {
            plan.findings.push(format!(
                "the subnet {subnet} of this host overlaps the engine's network {name} ({other}), so its containers' network \
                 cannot be made: remove that network, or give this host another subnet"
            ));
            return;
        }
        let link = way_out(claims, facts);
        let link = link.and_then(|index| facts.table.links.iter().find(|link| link.index == index));
        let (driver, options) = if facts.windows.is_some() {
            let Some(link) = link else {
                plan.findings.push(
                    "no interface has the address through which the others reach this host, so the containers' network cannot \
                     be made: give --public-ip"
                        .to_owned(),
                );
                return;
            };
            ("l2bridge", windows_options(config, link))
        } else {
            ("bridge", linux_options(engine, link))
        };
        plan.steps.push(Step::Network(NetworkSpec { driver, subnet, gateway: gateway(subnet), options, instead_of }));
    }
    if facts.windows.is_some() {
        let address = Ipv4Net::new(gateway(subnet), subnet.prefix_len()).unwrap_or(subnet);
        let is_there = facts.table.links.iter().any(|link| link.addresses.contains(&address));
        let link = way_out(claims, facts).and_then(|index| facts.table.links.iter().find(|link| link.index == index));
        // Making the network replaces the interface: the address goes onto the new one, at the next look.
        if let Some(link) = link.filter(|_| made && !is_there) {
            plan.steps.push(Step::Address { link: link.clone(), address });
        }
        return;
    }
    let links: BTreeSet<String> =
        links_to_hosts(plan, claims, facts).into_iter().map(|link| link.name.clone()).collect();
    if let Some(rules) = &facts.rules {
        let wanted: Vec<_> = links.iter().map(|link| rule(config.cidr, subnet, link)).collect();
        let missing = wanted.iter().filter(|words| !rules.contains(words)).cloned();
        plan.steps.extend(missing.map(|words| Step::Rule { words }));
        let needless = rules.iter().filter(|words| !wanted.contains(words)).cloned();
        plan.steps.extend(needless.map(|words| Step::Unrule { words }));
    }
    let hosts = claims.peers().filter_map(|peer| match peer.via {
        Via::Address(via) => Some(via),
        _ => None,
    });
    let firewall = Firewall { cidr: config.cidr, subnet, bridge: BRIDGE.to_owned(), links, hosts: hosts.collect() };
    if facts.firewall.as_ref() != Some(&firewall.digest()) {
        plan.steps.push(Step::Firewall(firewall));
    }
}

/// The address of the host among its containers: the first one of a subnet, which has four at least.
pub fn gateway(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()) + 1)
}

/// Options of the engine's bridge on Linux.
fn linux_options(engine: &Engine, link: Option<&Link>) -> Vec<(String, String)> {
    let mut options = vec![
        ("com.docker.network.bridge.name".to_owned(), BRIDGE.to_owned()),
        ("com.docker.network.bridge.enable_ip_masquerade".to_owned(), "false".to_owned()),
    ];
    if let Some(link) = link {
        options.push(("com.docker.network.driver.mtu".to_owned(), link.mtu.to_string()));
    }
    if engine.version >= PROTECTING_ENGINE {
        options.push(("com.docker.network.bridge.gateway_mode_ipv4".to_owned(), "nat-unprotected".to_owned()));
    }
    options
}

/// Options of the engine's switch on Windows (moby, `daemon/libnetwork/drivers/windows`): addresses are translated towards the
/// rest of the world, but not for what has to know containers by their addresses.
fn windows_options(config: &Config, link: &Link) -> Vec<(String, String)> {
    let hosts = link.addresses.iter().map(Ipv4Net::trunc).filter(|network| network.prefix_len() < 32);
    let exceptions = std::iter::once(config.cidr).chain(hosts).map(|network| network.to_string());
    let own = SERVICES.map(|address| format!("{address}/32"));
    let exceptions = exceptions.chain(own).collect::<Vec<_>>().join(",");
    // A switch on this adapter renames it.
    let adapter = link.name.strip_prefix("vEthernet (").and_then(|name| name.strip_suffix(')')).unwrap_or(&link.name);
    [
        ("interface", adapter.to_owned()),
        ("enable_outboundnat", "true".to_owned()),
        ("outboundnat_exceptions", exceptions),
        ("dnsservers", SERVICES[1].to_string()),
    ]
    .map(|(name, value)| (format!("com.docker.network.windowsshim.{name}"), value))
    .to_vec()
}

/// The interfaces towards the other hosts.
fn links_to_hosts<'f>(plan: &Plan, claims: &Claims, facts: &'f Facts) -> Vec<&'f Link> {
    let wanted: BTreeSet<u32> = plan.judged.iter().filter_map(|peer| peer.link).chain(way_out(claims, facts)).collect();
    facts.table.links.iter().filter(|link| wanted.contains(&link.index)).collect()
}

/// The rule that lets containers of other hosts in where the engine's firewall drops what it does not know.
fn rule(cidr: Ipv4Net, subnet: Ipv4Net, link: &str) -> Vec<String> {
    let (cidr, subnet) = (cidr.to_string(), subnet.to_string());
    let words =
        ["DOCKER-USER", "-s", &cidr, "-d", &subnet, "-i", link, "-m", "comment", "--comment", "berth", "-j", "ACCEPT"];
    words.map(str::to_owned).to_vec()
}

/// The interface that the others reach this host through.
fn way_out(claims: &Claims, facts: &Facts) -> Option<u32> {
    let via = claims.hosts.get(&*facts.host)?.as_ref().ok()?.via?;
    let has = |link: &&Link| link.addresses.iter().any(|address| address.addr() == via);
    facts.table.links.iter().find(has).map(|link| link.index)
}

#[cfg(test)]
mod tests {
    use model::Map;
    use platform::route::{METRIC, Route};

    use super::*;
    use crate::claim::{HostClaim, Owner};
    use crate::step::Described;

    fn claims(count: u8) -> Claims {
        let mut keys = vec![("config/network".to_owned(), r#"{"cidr": "10.42.0.0/16"}"#.to_owned())];
        for host in 1..=count {
            keys.push((format!("claims/subnet/10.42.{host}.0-24"), format!(r#"{{"host": "h{host}"}}"#)));
            keys.push((
                format!("claims/host/h{host}"),
                format!(r#"{{"subnet": "10.42.{host}.0/24", "via": "192.0.2.{host}"}}"#),
            ));
        }
        let maps: Vec<(String, Map)> =
            keys.into_iter().map(|(key, json)| (key, serde_json::from_str(&json).unwrap())).collect();
        Claims::of(maps.iter().map(|(key, map)| (&**key, map)))
    }

    fn facts() -> Facts {
        let link = |index, name: &str, address: &str| Link {
            index,
            name: name.to_owned(),
            id: name.to_owned(),
            up: true,
            mtu: 1450,
            metric: 0,
            addresses: vec![address.parse().unwrap()],
        };
        Facts {
            host: "h1".to_owned(),
            table: RouteTable { links: vec![link(2, "eth0", "192.0.2.1/24")], routes: Vec::new() },
            forwarding: Some("0".to_owned()),
            windows: None,
            engine: Some(Engine { version: 20, networks: Vec::new() }),
            engine_failure: None,
            firewall: None,
            rules: Some(Vec::new()),
        }
    }

    /// What is there once the steps are done.
    fn done(mut facts: Facts, plan: &Plan) -> Facts {
        for step in &plan.steps {
            match step {
                Step::Sysctl { after, .. } => facts.forwarding = Some(after.clone()),
                Step::Forwarding(link) => drop(facts.windows.as_mut().unwrap().insert(link.index)),
                Step::Address { link, address } => {
                    let link = facts.table.links.iter_mut().find(|known| known.index == link.index);
                    link.unwrap().addresses.push(*address);
                }
                Step::Network(spec) => {
                    let network = EngineNetwork {
                        name: NETWORK.to_owned(),
                        id: "0a".to_owned(),
                        ours: true,
                        subnets: vec![spec.subnet],
                        containers: 0,
                    };
                    let networks = &mut facts.engine.as_mut().unwrap().networks;
                    networks.retain(|network| network.name != NETWORK);
                    networks.push(network);
                }
                Step::Rule { words } => facts.rules.as_mut().unwrap().push(words.clone()),
                Step::Unrule { words } => facts.rules.as_mut().unwrap().retain(|rule| rule != words),
                Step::Firewall(firewall) => facts.firewall = Some(firewall.digest()),
                Step::Route(RouteChange::Add(route)) => facts.table.routes.push(*route),
                Step::Route(RouteChange::Remove(route)) => facts.table.routes.retain(|other| other != route),
                Step::Route(RouteChange::Replace { route, via, link }) => {
                    facts.table.routes.retain(|other| other != route);
                    facts.table.routes.push(Route::marked(route.prefix, *via, *link));
                }
            }
        }
        facts
    }

    fn described(plan: &Plan, facts: &Facts) -> Vec<String> {
        plan.steps.iter().map(|step| Described(step, &facts.table).to_string()).collect()
    }

    #[test]
    fn after_its_steps_nothing_is_left_to_do() {
        let (claims, facts) = (claims(3), facts());
        let plan = plan(&claims, &facts, &Doubt::default(), false);
        assert_eq!(
            described(&plan, &facts),
            [
                "set net.ipv4.ip_forward from 0 to 1",
                "create the network berth with 10.42.1.0/24",
                "insert the rule DOCKER-USER -s 10.42.0.0/16 -d 10.42.1.0/24 -i eth0 -m comment --comment berth -j ACCEPT",
                "write the firewall's table berth for 10.42.1.0/24",
                "add the route 10.42.2.0/24 via 192.0.2.2 dev eth0",
                "add the route 10.42.3.0/24 via 192.0.2.3 dev eth0",
            ]
        );
        assert!(plan.findings.is_empty(), "{:?}", plan.findings);
        let facts = done(facts, &plan);
        let again = super::plan(&claims, &facts, &Doubt::default(), false);
        assert!(again.steps.is_empty() && again.findings.is_empty(), "{again:?}");
    }

    #[test]
    fn on_windows_the_network_is_a_switch_and_its_gateway_an_address_of_the_host() {
        let (claims, mut facts) = (claims(3), facts());
        facts.windows = Some(BTreeSet::new());
        facts.forwarding = None;
        facts.table.links[0].name = "vEthernet (Ethernet 2)".to_owned();
        let first = plan(&claims, &facts, &Doubt::default(), false);
        assert_eq!(
            described(&first, &facts),
            [
                "have vEthernet (Ethernet 2) pass packets on",
                "create the network berth with 10.42.1.0/24",
                "add the route 10.42.2.0/24 via 192.0.2.2 dev vEthernet (Ethernet 2)",
                "add the route 10.42.3.0/24 via 192.0.2.3 dev vEthernet (Ethernet 2)",
            ]
        );
        let Step::Network(spec) = &first.steps[1] else { panic!("{first:?}") };
        let options: Vec<_> = spec.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(spec.driver, "l2bridge");
        assert_eq!(
            options,
            [
                "com.docker.network.windowsshim.interface=Ethernet 2",
                "com.docker.network.windowsshim.enable_outboundnat=true",
                "com.docker.network.windowsshim.outboundnat_exceptions=10.42.0.0/16,192.0.2.0/24,169.254.169.250/32,169.254.169.251/32",
                "com.docker.network.windowsshim.dnsservers=169.254.169.251",
            ]
        );
        let facts = done(facts, &first);
        let second = plan(&claims, &facts, &Doubt::default(), false);
        assert_eq!(described(&second, &facts), ["put the gateway 10.42.1.1/24 on vEthernet (Ethernet 2)"]);
        let facts = done(facts, &second);
        let third = plan(&claims, &facts, &Doubt::default(), false);
        assert!(third.steps.is_empty() && third.findings.is_empty(), "{third:?}");
    }

    #[test]
    fn a_network_that_cannot_be_made_is_told_and_routes_are_set_all_the_same() {
        let claims = claims(2);
        let network = |name: &str, ours, subnet: &str, containers| EngineNetwork {
            name: name.to_owned(),
            id: "0a1b2c".to_owned(),
            ours,
            subnets: vec![subnet.parse().unwrap()],
            containers,
        };
        for (there, recreate, part, steps) in [
            (network("berth", false, "10.42.1.0/24", 0), false, "did not make", 2),
            (network("berth", true, "10.42.9.0/24", 0), false, "--recreate", 2),
            (network("berth", true, "10.42.9.0/24", 12), true, "12 containers are on it", 2),
            (network("other", false, "10.42.1.128/25", 0), false, "overlaps the engine's network other", 2),
            (network("berth", true, "10.42.9.0/24", 0), true, "", 5),
            (network("other", false, "10.99.1.0/24", 0), false, "", 5),
        ] {
            let mut facts = facts();
            facts.engine.as_mut().unwrap().networks.push(there.clone());
            let plan = plan(&claims, &facts, &Doubt::default(), recreate);
            assert_eq!(plan.steps.len(), steps, "{there:?}: {:?}", described(&plan, &facts));
            assert!(plan.findings.iter().all(|finding| finding.contains(part)), "{:?}", plan.findings);
            assert_eq!(plan.findings.is_empty(), part.is_empty(), "{there:?}");
        }
    }

    #[test]
    fn an_emptied_etcd_removes_no_route_and_what_is_given_back_goes_at_once() {
        let mut facts = facts();
        facts = done(facts.clone(), &plan(&claims(9), &facts, &Doubt::default(), false));
        assert_eq!(facts.table.routes.len(), 8);
        let empty = Claims { config: claims(0).config, ..Claims::default() };
        for (name, claims, removed) in [
            ("emptied", Claims::default(), 0),
            ("without claims", empty, 0),
            ("restored to an older state", claims(2), 0),
            ("two removed by hand", claims(7), 2),
        ] {
            let plan = plan(&claims, &facts, &Doubt { now: 5, ..Doubt::default() }, false);
            let gone = plan.steps.iter().filter(|step| matches!(step, Step::Route(RouteChange::Remove(_)))).count();
            assert_eq!(gone, removed, "{name}: {:?}", described(&plan, &facts));
            assert_eq!(plan.findings.is_empty(), removed > 0, "{name}: {:?}", plan.findings);
        }
        let mut freed = claims(9);
        for owner in freed.subnets.values_mut().skip(1) {
            *owner = Owner::Freed { host: "h".into(), until: 9 };
        }
        let plan = plan(&freed, &facts, &Doubt::default(), false);
        assert_eq!(plan.steps.iter().filter(|step| matches!(step, Step::Route(RouteChange::Remove(_)))).count(), 8);
    }

    #[test]
    fn what_a_state_directory_lacks_is_not_taken_back() {
        let facts = facts();
        let facts = done(facts.clone(), &plan(&claims(9), &facts, &Doubt::default(), false));
        // Two hosts have come since it was stored, and one has moved.
        let mut stored = claims(7);
        let moved = HostClaim { subnet: "10.42.5.0/24".parse().unwrap(), via: Some(Ipv4Addr::new(192, 0, 2, 99)) };
        stored.hosts.insert("h5".into(), Ok(moved));
        for (restored, steps) in [(true, 0), (false, 4)] {
            let doubt = Doubt { restored, ..Doubt::default() };
            let plan = plan(&stored, &facts, &doubt, false);
            assert_eq!(plan.steps.len(), steps, "{:?}", described(&plan, &facts));
        }
        let mut empty = self::facts();
        empty.forwarding = None;
        let plan = plan(&stored, &empty, &Doubt { restored: true, ..Doubt::default() }, false);
        assert_eq!(plan.steps.iter().filter(|step| matches!(step, Step::Route(RouteChange::Add(_)))).count(), 6);
    }

    #[test]
    fn routes_of_others_are_in_no_step() {
        let mut facts = facts();
        let via = Ipv4Addr::new(192, 0, 2, 200);
        let foreign =
            |prefix: &str, metric| Route { metric, marked: false, ..Route::marked(prefix.parse().unwrap(), via, 2) };
        facts.table.routes =
            vec![foreign("10.42.2.0/24", METRIC), foreign("10.42.3.0/24", 0), foreign("10.42.77.0/24", METRIC)];
        let plan = plan(&claims(4), &facts, &Doubt::default(), false);
        let changes: Vec<_> = plan
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Route(change) => Some(*change),
                _ => None,
            })
            .collect();
        assert!(changes.iter().all(|change| matches!(change, RouteChange::Add(route) if route.marked)), "{changes:?}");
        assert_eq!(changes.len(), 2);
    }
}
