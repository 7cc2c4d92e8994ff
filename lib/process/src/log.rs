//! The log: a bounded queue and a thread of its own, so that a full disk, a stuck reader or a closed pipe
//! costs log lines and nothing else.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use tracing::Level;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt, registry};

use crate::options::{LogFormat, ProcessOptions};

/// Most lines that wait to be written; further ones are dropped.
const QUEUED_LINES_MAX: usize = 4096;

/// The environment variable that sets the level of each module.
const TARGETS: &str = "RUST_LOG";

/// Starts logging; lines that are queued when the guard is dropped are still written.
///
/// `RUST_LOG=info,dns=debug` says more finely what is logged than `--debug`.
///
/// # Errors
///
/// Fails if the log file cannot be opened.
pub(crate) fn start(options: &ProcessOptions) -> Result<WorkerGuard, LogError> {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUED_LINES_MAX);
    let (writer, guard) = match (&options.log, options.log_days) {
        (Some(path), Some(days)) => builder.finish(daily(path, days)?),
        (Some(path), None) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            builder.finish(file.map_err(|error| LogError { path: path.display().to_string(), error })?)
        }
        (None, _) => builder.finish(io::stderr()),
    };
    let level = if options.debug { Level::DEBUG } else { Level::INFO };
    let targets = std::env::var(TARGETS).ok().filter(|text| !text.is_empty()).map(|text| text.parse::<Targets>());
    let (filter, error) = match targets {
        Some(Ok(targets)) => (targets, None),
        Some(Err(error)) => (Targets::new().with_default(level), Some(error)),
        None => (Targets::new().with_default(level), None),
    };
    let colours = options.log.is_none() && io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(move || OneLine(writer.clone())).with_target(false);
    let lines = match options.log_format {
        LogFormat::Text => lines.with_ansi(colours).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // An error means that a test of this process logs already.
    let _ = registry().with(lines.with_filter(filter)).try_init();
    if let Some(error) = error {
        tracing::warn!(%error, "{TARGETS} is ignored; it takes levels of modules: info,dns=debug");
    }
    // The default hook writes to standard error itself, which may hang or panic in turn.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("?"), "{panic}");
    }));
    Ok(guard)
}

/// Files beside `path`, one a day: `agent.log` becomes `agent.2026-11-20.log`.
fn daily(path: &Path, days: u16) -> Result<RollingFileAppender, LogError> {
    let failed = |error| LogError { path: path.display().to_string(), error };
    let part = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let builder = RollingFileAppender::builder().rotation(Rotation::DAILY).max_log_files(days.into());
    let builder = builder.filename_prefix(part(path.file_stem())).filename_suffix(part(path.extension()));
    builder.build(folder).map_err(|error| failed(io::Error::other(error)))
}

/// Writes each event as one line: what others wrote into a name or a key begins no line of its own.
#[derive(Debug)]
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    /// `event` is one whole event with its line feed.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let end = event.len() - usize::from(event.ends_with(b"\n"));
    let (line, feed) = event.split_at(end);
    if !line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return event.into();
    }
    let escaped = line.iter().flat_map(|byte| match byte {
        b'\n' => b"\\n".as_slice(),
        b'\r' => b"\\r",
        other => std::slice::from_ref(other),
    });
    escaped.chain(feed).copied().collect()
}

/// The log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log file {path}: {error}")]
pub(crate) struct LogError {
    path: String,
    #[source]
    error: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_line_feed_forges_no_line() {
        for (event, line) in [
            ("", ""),
            ("usual\n", "usual\n"),
            ("a\nFORGED\r\n b\n", "a\\nFORGED\\r\\n b\n"),
            ("not ended", "not ended"),
        ] {
            let mut written = Vec::new();
            OneLine(&mut written).write_all(event.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), line);
        }
    }
}
