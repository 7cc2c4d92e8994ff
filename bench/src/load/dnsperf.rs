//! dnsperf, the generator that others use.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::Failure;
use crate::names::Mix;
use crate::paired::Sample;
use crate::server::Server;

/// The clients it acts as.
const CLIENTS: &str = "4";

/// Queries that wait for an answer.
const OUTSTANDING: &str = "200";

/// Room of its sockets in KiB, so that it does not lose what it is told.
const BUFFER: &str = "4096";

/// Its questions, in a file.
pub(crate) struct Questions(NamedTempFile);

impl Questions {
    pub(crate) fn new(mix: Mix) -> Result<Self, Failure> {
        let mut file = NamedTempFile::new()?;
        file.write_all(mix.lines().as_bytes())?;
        Ok(Self(file))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Longest run in seconds, whatever is answered by then.
const LIMIT: &str = "1";

/// Asks all questions so many times, over `udp` or `tcp`. A run that ends early is repeated once: dnsperf gives up when a
/// server closes a connection with the wrong answer on it, as dnsmasq sometimes does.
pub(crate) fn run(server: &Server, questions: &Questions, transport: &str, times: usize) -> Result<Sample, Failure> {
    let times = times.to_string();
    let once = || ask(server, questions, &["-m", transport, "-n", &times]).map(|(sample, _)| sample);
    once().or_else(|_| once())
}

/// Asks over UDP, at most so many questions a second when there is such a number, and tells how long each answer took.
///
/// dnsperf then writes a line for each, so that it asks less than otherwise; of all servers equally less.
pub(crate) fn time(server: &Server, questions: &Questions, pace: Option<u32>) -> Result<Sample, Failure> {
    let pace = pace.map(|pace| pace.to_string());
    let pace = pace.iter().flat_map(|pace| ["-Q", pace]);
    let (mut sample, text) = ask(server, questions, &["-v"].into_iter().chain(pace).collect::<Vec<_>>())?;
    let times =
        text.lines().filter(|line| line.starts_with('>')).filter_map(|line| line.rsplit(' ').next()?.parse().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let permille = |permille| times.get(times.len() * permille / 1000).map(|seconds| seconds * 1e6);
    sample.latency = permille(500).zip(permille(990));
    Ok(sample)
}

/// Lets it ask; returns what it says, too.
fn ask(server: &Server, questions: &Questions, arguments: &[&str]) -> Result<(Sample, String), Failure> {
    let (ip, port) = (server.address.ip().to_string(), server.address.port().to_string());
    let before = server.cpu()?;
    let output = Command::new("dnsperf")
        .args(["-s", &ip, "-p", &port, "-l", LIMIT, "-c", CLIENTS, "-T", "1"])
        .args(["-q", OUTSTANDING, "-t", "1", "-b", BUFFER, "-d"])
        .arg(questions.path())
        .args(arguments)
        .output()?;
    let cpu = server.cpu()?.saturating_sub(before);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match read(&text, cpu) {
        Some(sample) => Ok((sample, text)),
        None => Err(format!("dnsperf: {text}{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn read(text: &str, cpu: Duration) -> Option<Sample> {
    let number = |label: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(label))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (completed, lost, elapsed) =
        (number("Queries completed:")?, number("Queries lost:")?, number("Run time (s):")?);
    Some(Sample {
        cost: cpu.as_secs_f64() * 1e6 / completed.max(1.0),
        rate: completed / elapsed,
        // By itself it tells the mean only.
        latency: None,
        trouble: if lost > 0.0 { format!("lost {lost}") } else { String::new() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_it_says() {
        let text = "Statistics:\n\n  Queries sent:         1000\n  Queries completed:    990 (99.00%)\n  Queries lost:         \
                    10 (1.00%)\n\n  Run time (s):         2.000000\n  Queries per second:   495.000000\n";
        let sample = read(text, Duration::from_micros(9900)).unwrap();
        assert!((sample.cost - 10.0).abs() < 1e-9 && (sample.rate - 495.0).abs() < 1e-9, "{sample:?}");
        assert_eq!(sample.trouble, "lost 10");
        assert!(read("Error: unable to connect", Duration::ZERO).is_none());
    }
}
