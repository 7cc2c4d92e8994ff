//! The log: a bounded queue and a thread of its own, so that a full disk, a stuck reader or a closed pipe
//! costs log lines and nothing else.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::path::Path;

use tracing::Level;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::EnvFilter;

use crate::options::{LogFormat, ProcessOptions};

/// Most lines that wait to be written; further ones are dropped.
const QUEUED_LINES_MAX: usize = 4096;

/// Starts logging; lines that are queued when the guard is dropped are still written.
///
/// `RUST_LOG` says more finely what is logged than `--debug`.
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
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let colours = options.log.is_none() && io::stderr().is_terminal();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // An error means that a test of this process logs already.
    let _ = match options.log_format {
        LogFormat::Text => subscriber.with_ansi(colours).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
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

/// The log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log file {path}: {error}")]
pub(crate) struct LogError {
    path: String,
    #[source]
    error: io::Error,
}
