//! `agent label`: labels that operators give a host.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::folder::Rights;
use super::intent;
use super::names::{host_key, host_name};
use super::operator::Operator;

/// Give a host labels, or take them away again
///
/// They count more than those that the host has from its engine, its command line or its files, and are visible in
/// metadata and to the scheduler at once. Labels that begin with io.berth.admin/, and those that the key
/// config/labels.reserved names, count only when they are given this way. Nothing is restarted or moved.
#[derive(clap::Args)]
pub(crate) struct Label {
    /// The host
    #[arg(value_parser = host_name)]
    host: String,

    /// KEY=VALUE to give a label, KEY- to take it away; without any, the labels are printed
    #[arg(value_name = "KEY=VALUE|KEY-", value_parser = intent::change_of_label)]
    changes: Vec<(String, Option<String>)>,

    #[command(flatten)]
    operator: Operator,
}

impl Label {
    pub(crate) fn run(&self) -> ExitCode {
        self.operator.run(Rights::Operator, async |client| {
            let prefix = client.options().prefix.clone();
            let said = if self.changes.is_empty() {
                let (pair, _) = client.get(intent::key(&prefix, &self.host).as_bytes()).await?;
                pair.map(|pair| intent::IntentValue::read(&pair.value)).unwrap_or_default()
            } else {
                intent::change(&client, &self.host, |intent| intent.label(&self.changes)).await?
            };
            let labels = said.labels().map(|(key, value)| format!("{key}={value}\n"));
            let mut text = labels.collect::<Vec<_>>().concat();
            if client.get(host_key(&prefix, &self.host, "host").as_bytes()).await?.0.is_none() {
                let _ = writeln!(text, "note: no host {} is there now; it has these labels when it comes", self.host);
            }
            Ok(text)
        })
    }
}
