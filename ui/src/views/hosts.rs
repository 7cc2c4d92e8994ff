//! Hosts: a map of all, a table, and each by itself.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use model::Host;

use super::containers::container_row;
use super::forms::filter;
use super::{Context, ROWS_MAX, bytes, counts_cell, has_label, labels_cell, name_of, nothing, paged};
use crate::answers::{HostDetails, JudgedImage, Pool};
use crate::html::shortened;
use crate::page::{Block, Cell, Column, Map, Page, Row, Table, Tone, column, number};
use crate::query::{Query, link, part};
use crate::world::Life;

/// What the map shows.
const MEASURES: [(&str, &str); 4] =
    [("memory", "Memory"), ("cpu", "CPU"), ("containers", "Containers"), ("state", "State")];

/// Most characters of a name on a map.
const NAME_MAX: usize = 100;

/// Containers of a host at which its cell is darkest.
const MANY_CONTAINERS: u32 = 50;

/// The operating system of a host.
fn system(host: &Host) -> &str {
    host.labels().and_then(|labels| labels.text("io.rancher.host.os")).map_or("", |os| os)
}

/// What is neither of the systems that images are for, or not known.
const OTHER: &str = "other";

/// The map that a host is on.
fn map_of(host: &Host) -> &'static str {
    let known = ["windows", "linux"].into_iter().find(|known| system(host).eq_ignore_ascii_case(known));
    known.unwrap_or(OTHER)
}

/// The hosts that a query asks for, by name.
pub(crate) fn selected<'c>(context: &'c Context, query: &Query) -> Vec<&'c Arc<Host>> {
    let (os, state, wanted) = (query.get("os"), query.get("state"), query.get("q").to_lowercase());
    let is_wanted = |host: &&Arc<Host>| {
        (os.is_empty() || map_of(host) == os || system(host) == os)
            && (state.is_empty() || shown_state(host) == state)
            && (wanted.is_empty() || finds(context, host, &wanted))
    };
    context.world.by_name.iter().filter(is_wanted).collect()
}

/// Whether a text is in the name or address of a host, or in a label as `key=value`, `key:value`.
pub(crate) fn finds(context: &Context, host: &Host, wanted: &str) -> bool {
    name_of(host).to_lowercase().contains(wanted)
        || host.address().is_some_and(|address| address.to_string().starts_with(wanted))
        || has_label(context, host.labels(), wanted)
}

fn shown_state(host: &Host) -> &str {
    if host.state().is_empty() { "active" } else { host.state() }
}

fn state_cell(context: &Context, host: &Host) -> Cell {
    let refusal = context.hosts.get(&**host.uuid()).and_then(|summary| summary.refusal.as_deref());
    match shown_state(host) {
        "active" if refusal.is_none() => Cell::new("active").tone(Tone::Good),
        "active" => Cell::new("takes no more").tone(Tone::Off).note(refusal.unwrap_or_default()),
        other => Cell::new(other).tone(Tone::Bad),
    }
}

fn pool(context: &Context, host: &Host, name: &str) -> Option<Pool> {
    context.hosts.get(&**host.uuid())?.pools.get(name).copied()
}

fn pool_cell(pool: Option<Pool>, shown: impl Fn(i64) -> String) -> Cell {
    let Some((pool, share)) = pool.and_then(|pool| Some((pool, pool.share()?))) else { return Cell::quiet("unknown") };
    let promised = if pool.promised == 0 { String::new() } else { format!("{} promised", shown(pool.promised)) };
    Cell::new(format!("{} of {}", shown(pool.used), shown(pool.total))).share(share).note(promised)
}

fn cores(milli: i64) -> String {
    format!("{}.{}", milli / 1000, milli % 1000 / 100)
}

fn columns() -> Vec<Column> {
    let texts = ["Host", "State", "System", "Address", "Zone"].map(column);
    texts.into_iter().chain([number("Containers"), column("Memory"), column("CPU")]).collect()
}

fn row(context: &Context, host: &Host) -> Row {
    let label = |key: &str| host.labels().and_then(|labels| labels.text(key)).map_or("", |value| value);
    let build = context.hosts.get(&**host.uuid()).and_then(|report| report.build.as_deref());
    let isolation =
        [build.map_or(String::new(), |build| format!("build {build}")), label("io.rancher.host.isolation").to_owned()];
    let isolation: Vec<_> = isolation.into_iter().filter(|text| !text.is_empty()).collect();
    let address = host.address().map_or_else(|| Cell::quiet("none"), |address| Cell::new(address.to_string()));
    Row {
        key: host.uuid().to_string(),
        cells: vec![
            Cell::new(name_of(host)).link(link(&["hosts", host.uuid()])),
            state_cell(context, host),
            Cell::new(system(host)).note(isolation.join(", ")),
            address,
            Cell::new(label("zone")),
            counts_cell(context.world.on(host.uuid())),
            pool_cell(pool(context, host, "memoryReservation"), bytes),
            pool_cell(pool(context, host, "cpuReservation"), cores),
        ],
    }
}

/// The digit of a host on the map, see [`crate::page::LEVELS`].
fn level(context: &Context, host: &Host, measure: &str) -> char {
    if shown_state(host) != "active" {
        return '6';
    }
    let counts = context.world.on(host.uuid());
    let share = match measure {
        "state" if counts.of(Life::Unhealthy) > 0 => return '5',
        "state" => Some(20),
        "containers" => u8::try_from(counts.all() * 100 / MANY_CONTAINERS).ok().or(Some(100)),
        "cpu" => pool(context, host, "cpuReservation").and_then(Pool::share),
        _ => pool(context, host, "memoryReservation").and_then(Pool::share),
    };
    share.map_or('7', |share| char::from(b'0' + (share / 20).min(4)))
}

/// All hosts.
pub(crate) fn hosts(context: &Context, query: &Query) -> Page {
    let all = selected(context, query);
    let mut page =
        Page::new("hosts", "Hosts", format!("{} of {} hosts", all.len(), context.world.snapshot.hosts.len()));
    let measure = MEASURES.iter().find(|(name, _)| *name == query.get("show")).map_or("memory", |(name, _)| name);
    let systems = [("", "all"), ("windows", "windows"), ("linux", "linux"), (OTHER, OTHER)];
    page.blocks.push(filter("hosts", query, &[("os", "System", &systems), ("show", "Map shows", &MEASURES)]));
    let mut groups = ["windows", "linux", OTHER].map(|os| (os, String::new(), DefaultHasher::new()));
    for host in &all {
        let own = map_of(host);
        if let Some((_, levels, uuids)) = groups.iter_mut().find(|(os, ..)| *os == own) {
            levels.push(level(context, host, measure));
            host.uuid().hash(uuids);
        }
    }
    let mut maps = Vec::new();
    for (os, levels, uuids) in groups.into_iter().filter(|(_, levels, _)| !levels.is_empty()) {
        let names: Vec<_> = ["os", "state", "q"]
            .iter()
            .map(|key| format!("{key}={}", part(query.get(key))))
            .chain([format!("map={os}")])
            .collect();
        maps.push(Map {
            id: format!("map-{os}"),
            label: format!("{} · {}", if os == OTHER { "other systems, or none named" } else { os }, levels.len()),
            levels,
            hosts: uuids.finish(),
            names: format!("/ui/v1/hosts?{}", names.join("&")),
        });
    }
    page.blocks.push(Block::Maps(maps));
    page.blocks.push(super::forms::legend(measure));
    let (range, pager) = paged(query, all.len());
    let rows = all[range].iter().map(|host| row(context, host)).collect();
    let empty = "No host: change the filter, or see how hosts join in docs/hosts.md.";
    page.blocks.push(Block::Table(Table {
        id: "hosts",
        caption: "Table of hosts".into(),
        columns: columns(),
        rows,
        empty,
    }));
    page.blocks.extend(pager);
    page.command = Some("scheduler hosts".to_owned());
    page
}

/// Images and whether they run on a host, those that do not first.
fn images_table(mut images: Vec<JudgedImage>) -> Table {
    let here = |image: &JudgedImage| match (&image.refusal, &image.entry) {
        (Some(refusal), _) => (0, Cell::new("cannot run").tone(Tone::Bad), Cell::new(refusal)),
        (None, Some(entry)) => {
            let isolation = entry.isolation.as_ref().map(|isolation| format!("{isolation} isolation"));
            let words = [Some(entry.os.clone()), entry.os_version.clone(), isolation];
            let tone = if entry.warning.is_some() { Tone::Waiting } else { Tone::Good };
            let how = Cell::new(words.into_iter().flatten().collect::<Vec<_>>().join(" "));
            (2, Cell::new("runs").tone(tone), how.note(entry.warning.as_deref().unwrap_or_default()))
        }
        (None, None) => (1, Cell::quiet("unknown"), Cell::quiet("its systems are not known")),
    };
    images.sort_by_key(|image| here(image).0);
    let refused = images.iter().filter(|image| image.refusal.is_some()).count();
    let shown = if images.len() > ROWS_MAX { format!(" · the first {ROWS_MAX}") } else { String::new() };
    let caption = format!("Images of placements · {refused} of {} cannot run here{shown}", images.len());
    let rows = images.iter().take(ROWS_MAX).map(|image| {
        let isolation = image.isolation.as_ref().map(|isolation| format!("only with {isolation} isolation"));
        let (_, state, why) = here(image);
        let name = Cell::new(&image.image).note(isolation.unwrap_or_default());
        Row { key: format!("{} {:?}", image.image, image.isolation), cells: vec![name, state, why] }
    });
    let columns = ["Image", "On this host", "What, or why not"].map(column);
    let rows = rows.collect();
    Table { id: "images", caption, columns: columns.into(), rows, empty: "No placement asks for an image." }
}

/// One host, with its details if there is a scheduler that knows them.
pub(crate) fn host(context: &Context, query: &Query, uuid: &str, details: Option<HostDetails>) -> Page {
    let Some(host) = context.world.snapshot.hosts.get(uuid) else {
        return nothing("hosts", "There is no such host, or it has left.");
    };
    let counts = context.world.on(uuid);
    let mut page = Page::new("hosts", name_of(&**host), "");
    let Row { cells, .. } = row(context, host);
    let [_, state, os, address, zone, containers, memory, cpu] = <[Cell; 8]>::try_from(cells).unwrap_or_default();
    let ports = details.iter().flat_map(|details| &details.ports);
    let ports: Vec<_> = ports.map(|port| format!("{}/{}", port.public, port.protocol)).collect();
    page.blocks.push(Block::Facts(
        "facts",
        "About this host".into(),
        vec![
            ("State", state),
            ("System", os),
            ("Address", address),
            ("Zone", zone),
            ("Containers", containers),
            ("Memory", memory),
            ("CPU", cpu),
            ("Disk", pool_cell(pool(context, host, "storageSize"), |mib| bytes(mib << 20))),
            ("Ports taken", if ports.is_empty() { Cell::quiet("none") } else { Cell::new(ports.join("  ")) }),
            ("Labels", labels_cell(host.labels(), &context.hidden)),
            ("Id", Cell::quiet(&**host.uuid())),
        ],
    ));
    let mut own: Vec<_> = context.world.containers_on(host.uuid()).collect();
    own.sort_by_key(|container| (name_of(&***container), container.uuid()));
    let (range, pager) = paged(query, own.len().min(ROWS_MAX * 100));
    let rows = own[range].iter().map(|container| container_row(context, container, None)).collect();
    let caption = format!("Containers · {}", counts.all());
    page.blocks.push(Block::Table(Table {
        id: "containers",
        caption,
        columns: super::containers::columns(),
        rows,
        empty: "No container runs here.",
    }));
    page.blocks.extend(pager);
    page.blocks.extend(details.map(|details| Block::Table(images_table(details.images))));
    page.command = Some("scheduler hosts".to_owned());
    page
}

/// Names and ids of the hosts that a query asks for, for the script of the map.
pub(crate) fn names(context: &Context, query: &Query) -> serde_json::Value {
    let hosts = selected(context, query);
    let hosts: Vec<_> = hosts.into_iter().filter(|host| map_of(host) == query.get("map")).collect();
    let texts = |of: &dyn Fn(&Host) -> String| hosts.iter().map(|host| of(host)).collect::<Vec<_>>();
    let used = |name: &'static str| {
        texts(&move |host| {
            pool(context, host, name).and_then(Pool::share).map_or_else(|| "?".into(), |share| format!("{share} %"))
        })
    };
    serde_json::json!({
        "name": texts(&|host| shortened(name_of(host), NAME_MAX)),
        "link": texts(&|host| link(&["hosts", host.uuid()])),
        "state": texts(&|host| shown_state(host).to_owned()),
        "containers": texts(&|host| context.world.on(host.uuid()).all().to_string()),
        "memory": used("memoryReservation"),
        "cpu": used("cpuReservation"),
    })
}
