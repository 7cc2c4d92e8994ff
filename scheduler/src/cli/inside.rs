//! `logs`, `exec`, `inspect`, `restart` and `stop`: containers that were started, by hand.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cli::client::Ask;
use crate::cli::terminal::{pass_on, pass_on_error, print, print_json, warn};
use crate::cli::{Failure, Outcome, client, fine, list, word};

/// `logs`.
#[derive(Args, Debug)]
#[command(
    after_help = "A service is STACK/SERVICE, one of its units STACK/SERVICE/INDEX, a sidekick STACK/SERVICE/SIDEKICK or
STACK/SERVICE/INDEX/SIDEKICK; also the id of a placement, or the name of a container, as `scheduler ps` shows them.

Examples:
  scheduler logs shop/web --tail 100
  scheduler logs shop/web/2 --follow
  scheduler logs shop/web/log"
)]
pub struct Logs {
    /// What to show: STACK/SERVICE[/INDEX][/SIDEKICK], a placement or a container
    #[arg(value_name = "SERVICE")]
    of: String,
    /// Go on with what is written from now on, also after a restart or an update, until nothing of it is left that may run again, or Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines of each container
    #[arg(long, value_name = "NUMBER")]
    tail: Option<u32>,
    #[command(flatten)]
    pub(super) ask: Ask,
}

/// `exec`.
#[derive(Args, Debug)]
#[command(
    after_help = "A service is STACK/SERVICE, one of its units STACK/SERVICE/INDEX, a sidekick STACK/SERVICE/SIDEKICK or
STACK/SERVICE/INDEX/SIDEKICK; also the id of a placement, or the name of a container, as `scheduler ps` shows them.
Of a service, the command runs in the first container of its first unit. It has no terminal and no input, and goes on after
Ctrl-C, as with `docker exec` without --tty. The policy has to allow it (`exec`), which it does not by default. The exit code
is 0 if the command's is 0, else 1.

Examples:
  scheduler exec shop/web -- cat /etc/hostname
  scheduler exec shop/web/2/log -- timeout 60 tail -f /var/log/web.log"
)]
pub struct Exec {
    /// Where it runs: STACK/SERVICE[/INDEX][/SIDEKICK], a placement or a container
    #[arg(value_name = "SERVICE")]
    of: String,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub(super) ask: Ask,
}

/// `inspect`, `restart` and `stop`.
#[derive(Args, Debug)]
pub struct ByHand {
    /// STACK/SERVICE[/INDEX][/SIDEKICK], a placement or a container
    #[arg(value_name = "SERVICE")]
    of: String,
    #[command(flatten)]
    pub(super) ask: Ask,
}

impl Logs {
    pub(super) async fn run(self) -> Outcome {
        let mut body = json!({ "of": self.of, "follow": self.follow });
        if let Some(tail) = self.tail {
            body["tail"] = tail.into();
        }
        let client = client(&self.ask)?;
        let mut names = 0;
        let shown = |line: &Value| {
            if self.ask.json {
                print_json(line);
                return;
            }
            // As wide as the longest name so far, so that lines stand below each other.
            let name = word(&line["container"]);
            names = names.max(name.chars().count());
            let mut bytes = format!("{name:names$} | ").into_bytes();
            bytes.extend(written(line));
            // A piece of a line that is too long stands in one of its own.
            if !bytes.ends_with(b"\n") {
                bytes.push(b'\n');
            }
            pass_on(&bytes);
        };
        let answer = client.ask(Method::POST, "/v1/logs", Some(&body), shown).await.map_err(Failure::NoAnswer)?;
        let is_failed = answer.status == StatusCode::BAD_GATEWAY && answer.body["failed"].is_array();
        let answer = if is_failed { answer.body } else { fine(answer)? };
        for failed in list(&answer["failed"]) {
            let text = |key: &str| word(&failed[key]);
            warn(&format!("{} on {}: {}", text("container"), text("host"), text("error")));
        }
        Ok(list(&answer["failed"]).is_empty())
    }
}

impl Exec {
    pub(super) async fn run(self) -> Outcome {
        let body = json!({ "of": self.of, "command": self.command });
        let client = client(&self.ask)?;
        let shown = |line: &Value| {
            if self.ask.json {
                print_json(line);
            } else if line["stream"] == "stderr" {
                pass_on_error(&written(line));
            } else {
                pass_on(&written(line));
            }
        };
        let answer = fine(client.ask(Method::POST, "/v1/exec", Some(&body), shown).await.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
        }
        if answer["exit_code"] != 0 {
            let (name, host) = (word(&answer["container"]), word(&answer["host"]));
            warn(&format!("in {name} on {host} it ended with code {}", answer["exit_code"]));
        }
        Ok(answer["exit_code"] == 0)
    }
}

impl ByHand {
    pub(super) async fn inspect(self) -> Outcome {
        let body = json!({ "of": self.of });
        let asked = client(&self.ask)?.ask(Method::POST, "/v1/inspect", Some(&body), |_| {}).await;
        let answer = fine(asked.map_err(Failure::NoAnswer)?)?;
        print_json(&answer["containers"]);
        let failed = list(&answer["containers"]).iter().filter(|one| one["error"].is_string());
        Ok(failed.count() == 0)
    }

    pub(super) async fn run(self, path: &str) -> Outcome {
        let client = client(&self.ask)?;
        let tell = |progress: &Value| {
            warn(&format!("{}: {}", word(&progress["container"]), word(&progress["status"])));
        };
        let body = json!({ "of": self.of });
        let answer = fine(client.ask(Method::POST, path, Some(&body), tell).await.map_err(Failure::NoAnswer)?)?;
        if self.ask.json {
            print_json(&answer);
        } else {
            for name in list(&answer["containers"]) {
                print(&format!("{}\n", word(name)));
            }
        }
        Ok(true)
    }
}

/// The bytes of a line that a container wrote.
fn written(line: &Value) -> Vec<u8> {
    let whole = line["line_base64"].as_str().and_then(|bytes| STANDARD.decode(bytes).ok());
    whole.unwrap_or_else(|| format!("{}\n", word(&line["line"])).into_bytes())
}
