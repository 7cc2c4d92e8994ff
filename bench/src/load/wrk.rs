//! wrk, for requests over HTTP.

use std::process::Command;
use std::time::Duration;

use crate::Failure;
use crate::paired::Sample;
use crate::server::Server;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests<'a> {
    pub(crate) path: &'a str,
    /// Connections at the same time.
    pub(crate) connections: usize,
    /// Header lines besides `Host`.
    pub(crate) headers: &'a [&'a str],
}

/// Asks for as many whole seconds as hold `duration`, on `port` of the server.
pub(crate) fn run(server: &Server, port: u16, requests: Requests<'_>, duration: Duration) -> Result<Sample, Failure> {
    let seconds = duration.as_secs_f64().ceil();
    let url = format!("http://127.0.0.1:{port}{}", requests.path);
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "--latency", &format!("-d{seconds}s"), &format!("-c{}", requests.connections)]);
    for header in requests.headers {
        wrk.args(["-H", header]);
    }
    let before = server.cpu()?;
    let output = wrk.arg(url).output()?;
    let cpu = server.cpu()?.saturating_sub(before);
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text, cpu).ok_or_else(|| format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
}

fn read(text: &str, cpu: Duration) -> Option<Sample> {
    let after = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let (count, rest) = text.lines().find_map(|line| line.trim().split_once(" requests in "))?;
    let elapsed = microseconds(rest.split(',').next()?)? / 1e6;
    let count: u64 = count.parse().ok()?;
    let mut sample = Sample::new(cpu, count, Duration::from_secs_f64(elapsed));
    sample.latency = microseconds(after("50%")?).zip(microseconds(after("99%")?));
    let refused = after("Non-2xx or 3xx responses:").map(|count| format!("{count} refused"));
    let broken = after("Socket errors:").map(|errors| format!("errors: {errors}"));
    if let Some(trouble) = refused.or(broken) {
        sample.trouble = trouble;
    }
    Some(sample)
}

/// Reads `235.00us`, `1.45ms`, `2.00s`, `1.02m`.
fn microseconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_alphabetic())?;
    let factor = match &text[unit..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 6e7,
        _ => return None,
    };
    Some(text[..unit].parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_it_says() {
        let text = "Running 1s test @ http://127.0.0.1:80/\n  1 threads and 64 connections\n  Latency Distribution\n     \
                    50%  235.00us\n     75%  280.00us\n     99%    1.45ms\n  1000 requests in 2.00s, 14.40MB read\n";
        let sample = read(text, Duration::from_millis(10)).unwrap();
        assert_eq!(sample.latency, Some((235.0, 1450.0)));
        assert!((sample.cost - 10.0).abs() < 1e-9 && (sample.rate - 500.0).abs() < 1e-9, "{sample:?}");
        assert_eq!(sample.trouble, "");
        let refused = format!("{text}  Non-2xx or 3xx responses: 7\n");
        assert_eq!(read(&refused, Duration::ZERO).unwrap().trouble, "7 refused");
        assert!(read("unable to connect", Duration::ZERO).is_none());
    }
}
