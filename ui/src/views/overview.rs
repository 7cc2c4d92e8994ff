//! The first view: what is wrong, then how much there is.

use model::Entity as _;
use source::Reasons;

use super::{Context, life_cell, name_of};
use crate::answers::Upstream;
use crate::page::{Block, Cell, Page, Row, Table, Tone, column};
use crate::query::link;
use crate::world::{Life, state};

/// Most problems that are listed.
const PROBLEMS_MAX: usize = 50;

/// What the process says of itself.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) reasons: Reasons,
    pub(crate) warnings: Reasons,
    pub(crate) upstreams: Vec<Upstream>,
}

pub(crate) fn overview(context: &Context, process: &Process) -> Page {
    let world = &context.world;
    let snapshot = &world.snapshot;
    let (rows, count) = problems(context, process);
    let lead = match count {
        0 => "Nothing is wrong.".to_owned(),
        1 => "One thing needs attention.".to_owned(),
        count => format!("{count} things need attention."),
    };
    let mut page = Page::new("overview", "Overview", lead);
    let totals = world.totals;
    let number = |count: usize, path: &str| Cell::new(count.to_string()).link(link(&[path]));
    let ready = if process.reasons.is_empty() {
        Cell::new("ready").tone(Tone::Good)
    } else {
        Cell::new("not ready").tone(Tone::Bad)
    };
    let with = |life: Life, tone: Tone| {
        let count = totals.of(life);
        Cell::new(count.to_string()).tone(if count == 0 { Tone::Quiet } else { tone })
    };
    page.blocks.push(Block::Tiles(
        "tiles",
        vec![
            ("This process", ready),
            ("Hosts", number(snapshot.hosts.len(), "hosts")),
            ("Services", number(snapshot.services.len(), "services")),
            ("Running", Cell::new(totals.of(Life::Running).to_string())),
            ("Unhealthy", with(Life::Unhealthy, Tone::Bad)),
            ("Starting", with(Life::Starting, Tone::Waiting)),
            ("Stopped", with(Life::Stopped, Tone::Off)),
        ],
    ));
    let caption =
        if count > PROBLEMS_MAX { format!("Problems: {PROBLEMS_MAX} of {count}") } else { "Problems".to_owned() };
    let columns = vec![column("What"), column("Where"), column("Why")];
    let empty = "No problems: every host is active and every container is well.";
    page.blocks.push(Block::Table(Table { id: "problems", caption, columns, rows, empty }));
    page.blocks.push(Block::Table(super::changes::table(context, 8, "Latest changes", |_| true)));
    page.command = Some("agent doctor".to_owned());
    page
}

/// The first problems, and how many there are.
fn problems(context: &Context, process: &Process) -> (Vec<Row>, usize) {
    let world = &context.world;
    let mut rows = Vec::new();
    let bad = |text: &str| Cell::new(text).tone(Tone::Bad);
    let mut add = |key: String, cells: Vec<Cell>| rows.push(Row { key, cells });
    for (part, reason) in process.reasons.iter() {
        add(format!("reason {part}"), vec![bad("Not ready"), Cell::new(*part), Cell::new(reason)]);
    }
    for (part, reason) in process.warnings.iter() {
        add(
            format!("warning {part}"),
            vec![Cell::new("Warning").tone(Tone::Waiting), Cell::new(*part), Cell::new(reason)],
        );
    }
    for upstream in process.upstreams.iter().filter(|upstream| upstream.state == "failing") {
        let why = format!("no answer {} times in a row: it is asked last", upstream.failures);
        add(
            format!("upstream {}", upstream.address),
            vec![bad("Upstream fails"), Cell::new(&upstream.address), Cell::new(why)],
        );
    }
    let away = world.snapshot.hosts.values().filter(|host| !matches!(host.state(), "active" | ""));
    let mut away: Vec<_> = away.collect();
    away.sort_by_key(|host| name_of(&***host));
    for host in away {
        let name = Cell::new(name_of(&**host)).link(link(&["hosts", host.uuid()]));
        add(format!("host {}", host.uuid()), vec![bad("Host is not active"), name, Cell::new(host.state())]);
    }
    let below: Vec<_> = world
        .snapshot
        .services
        .values()
        .filter_map(|service| Some((service, super::services::below_scale(world, service)?)))
        .collect();
    let count = below.len();
    for (service, why) in below.into_iter().take(PROBLEMS_MAX) {
        let name = format!("{}/{}", service.stack_name().map_or("", |name| name), name_of(&**service));
        let name = Cell::new(name).link(link(&["services", service.id()]));
        add(format!("service {}", service.id()), vec![bad("Service below its scale"), name, Cell::new(why)]);
    }
    let all = rows.len() - count.min(PROBLEMS_MAX) + count + world.unhealthy.len();
    let containers = world.unhealthy.iter().filter_map(|uuid| world.snapshot.containers.get(uuid));
    for container in containers.take(PROBLEMS_MAX.saturating_sub(rows.len())) {
        let name = Cell::new(name_of(&**container)).link(link(&["containers", container.uuid()]));
        let why = model::health::failed(container).map_or_else(
            || format!("{} on {}", state(container), host_name(context, container)),
            |why| why.to_string(),
        );
        let what = life_cell(Life::Unhealthy, "Container is unhealthy");
        rows.push(Row { key: format!("container {}", container.uuid()), cells: vec![what, name, Cell::new(why)] });
    }
    rows.truncate(PROBLEMS_MAX);
    (rows, all)
}

/// The name of the host of a container.
pub(crate) fn host_name(context: &Context, container: &model::Container) -> String {
    let Some(uuid) = container.host_uuid() else { return "no host".to_owned() };
    context.world.snapshot.hosts.get(uuid).map_or(uuid, |host| name_of(&**host)).to_string()
}
