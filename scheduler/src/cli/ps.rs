//! `ps`: what was promised and started, and how it is now.

use clap::Args;
use hyper::Method;
use process::table::table;

use crate::cli::client::Ask;
use crate::cli::placements::placement_rows;
use crate::cli::terminal::{print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine, list};
use crate::place::request::limits::ID_MAX;

/// `ps`.
#[derive(Args, Debug)]
pub struct Ps {
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Ps {
    pub(super) async fn run(self) -> Outcome {
        let answer = client(&self.ask)?.ask(Method::GET, "/v1/placements?refresh=true", None, |_| {}).await;
        let answer = fine(answer.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
        } else {
            if let Some(warning) = answer["warning"].as_str() {
                warn(warning);
            }
            print(&table(&placement_rows(list(&answer["placements"])), ID_MAX));
        }
        Ok(true)
    }
}
