//! What a balancer does: its rules in their order, and where each leads.

use model::Service;
use model::lb::{LbPlan, Viewpoint};

use super::{Context, ROWS_MAX};
use crate::page::{Block, Cell, Page, Row, Table, Tone, column, number};

/// Adds the rules of a balancer, seen from this host, to its page.
pub(crate) fn add(context: &Context, page: &mut Page, service: &Service) {
    let plan = LbPlan::of(&context.world.snapshot, service, &Viewpoint::default());
    for defect in plan.defects.iter().take(ROWS_MAX) {
        page.blocks.push(Block::Note(Tone::Bad, format!("{}: {}", defect.path, defect.problem)));
    }
    let routes = plan.ports.iter().flat_map(|port| port.routes.iter().map(move |route| (port, route)));
    let rows = routes.clone().take(ROWS_MAX).map(|(port, route)| {
        let backend = plan.backends.get(route.backend);
        let (name, count) = backend.map_or(("", 0), |backend| (&*backend.name, backend.members.len()));
        let tone = if count == 0 { Tone::Bad } else { Tone::Good };
        Row {
            key: format!("{} {} {}", port.number, route.host, route.path),
            cells: vec![
                Cell::new(port.number.to_string()).note(port.protocol.name()),
                Cell::new(route.host.to_string()),
                Cell::new(&*route.path),
                Cell::new(name),
                Cell::new(count.to_string()).tone(tone),
                Cell::quiet(&route.at),
            ],
        }
    });
    let columns = vec![
        column("Port"),
        column("Host"),
        column("Path begins with"),
        column("Leads to"),
        number("Members"),
        column("Written in"),
    ];
    let caption = format!("Rules, the first one that matches counts · {}", routes.clone().count());
    let empty = "No rule: no port is served.";
    page.blocks.push(Block::Table(Table { id: "rules", caption, columns, rows: rows.collect(), empty }));
    let members = plan.backends.iter().flat_map(|backend| {
        let in_it = backend.members.iter().map(|member| {
            let weight = format!("weight {}", member.weight);
            (&backend.name, &member.name, Cell::new(member.place.to_string()).tone(Tone::Good).note(weight))
        });
        let left_out = backend.left_out.iter().map(|left| {
            let tone = if left.draining.is_some() { Tone::Waiting } else { Tone::Off };
            (&backend.name, &left.name, Cell::new(&*left.reason).tone(tone))
        });
        in_it.chain(left_out)
    });
    let rows = members.clone().take(ROWS_MAX).map(|(backend, name, place)| Row {
        key: format!("{backend} {name} {}", place.text),
        cells: vec![Cell::quiet(&**backend), Cell::new(&**name), place],
    });
    let columns = ["Of", "Container", "At, or why it is left out"].map(column).to_vec();
    let caption = format!("Members and who is left out · {}", members.clone().count());
    let empty = "No container.";
    page.blocks.push(Block::Table(Table { id: "members", caption, columns, rows: rows.collect(), empty }));
}
