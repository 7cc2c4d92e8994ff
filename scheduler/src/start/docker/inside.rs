//! What people do inside a container: read its log, run a command.

use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::RestartPolicyNameEnum;
use bollard::query_parameters::{InspectContainerOptions, LogsOptionsBuilder};
use futures_util::{Stream, StreamExt};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{ASK_TIME, DockerEngine, EngineError, START_TIME};

/// Longest silence of an engine that sends a log which ends.
const LOG_SILENCE: Duration = Duration::from_secs(30);

/// Longest line that is passed on as one, in bytes; engines themselves divide those of 16 KiB.
const LINE_MAX: usize = 32 << 10;

/// Where a line of output was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// Which lines of a log are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPart {
    /// Only so many of the last ones.
    pub(crate) tail: Option<u32>,
    /// None of before the second in which this is, a time since 1970 by the engine's clock; zero leaves out none.
    pub(crate) since: Duration,
    /// Also those that are added from now on, until the container ends.
    pub(crate) follow: bool,
}

/// What an engine says of a container whose log has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// When it was started again, since 1970 by its engine's clock; `None` if it does not run.
    pub(crate) started_again: Option<Duration>,
    /// When it ended, or was started again since: what it writes is read on from there.
    pub(crate) at: Duration,
    /// Whether its engine leaves it so.
    pub(crate) for_good: bool,
}

impl DockerEngine {
    /// Sends lines of a container's log until they end or the receiver is gone.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn read_log<T>(
        &self,
        container: &str,
        LogPart { tail, since, follow }: LogPart,
        (lines, as_line): (&mpsc::Sender<T>, impl Fn(OutputStream, &[u8]) -> T),
    ) -> Result<(), EngineError> {
        let tail = tail.map_or_else(|| "all".to_owned(), |lines| lines.to_string());
        let since = i32::try_from(since.as_secs()).unwrap_or(i32::MAX);
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).follow(follow).tail(&tail).since(since);
        let options = options.build();
        let docker = self.engine.client().await?;
        let log = docker.logs(container, Some(options));
        self.passed_on(log, (!follow).then_some(LOG_SILENCE), (lines, as_line)).await
    }

    /// Runs a command in a container and sends what it writes; returns its exit code. It goes on when the receiver is gone.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn run_in<T>(
        &self,
        container: &str,
        command: &[String],
        (lines, as_line): (&mpsc::Sender<T>, impl Fn(OutputStream, &[u8]) -> T),
    ) -> Result<Option<i64>, EngineError> {
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command.to_vec()),
            ..CreateExecOptions::default()
        };
        let created =
            self.ask(START_TIME, |docker| async move { docker.create_exec(container, options).await }).await?;
        let id = created.id.as_str();
        let begin = Some(StartExecOptions::default());
        let started = self.ask(START_TIME, |docker| async move { docker.start_exec(id, begin).await }).await?;
        // Some engines take the end of the input for the end of the client.
        if let StartExecResults::Attached { output, input: _input } = started {
            self.passed_on(output, None, (lines, as_line)).await?;
        }
        let found = self.ask(ASK_TIME, |docker| async move { docker.inspect_exec(id).await }).await?;
        Ok(found.exit_code)
    }

    /// Whether a container whose log has ended runs again, or may.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn ended(&self, container: &str) -> Result<Ended, EngineError> {
        let none = None::<InspectContainerOptions>;
        let found = self.ask(ASK_TIME, |docker| async move { docker.inspect_container(container, none).await }).await?;
        let state = found.state.unwrap_or_default();
        let time = |text: &Option<String>| {
            let time = OffsetDateTime::parse(text.as_deref()?, &Rfc3339).ok()?;
            Duration::try_from(time - OffsetDateTime::UNIX_EPOCH).ok()
        };
        let (started, finished) = (time(&state.started_at), time(&state.finished_at));
        let started_again = started.filter(|_| state.running == Some(true));
        let policy = found.host_config.and_then(|host| host.restart_policy).and_then(|policy| policy.name);
        let for_good = policy.is_none_or(|name| match name {
            RestartPolicyNameEnum::EMPTY | RestartPolicyNameEnum::NO => true,
            RestartPolicyNameEnum::ON_FAILURE => state.exit_code == Some(0),
            _ => false,
        });
        Ok(Ended { started_again, at: started_again.or(finished).unwrap_or_default(), for_good })
    }

    /// All that the engine says of a container, without the values of its variables.
    ///
    /// # Errors
    ///
    /// What the engine said.
    pub(crate) async fn described(&self, container: &str) -> Result<serde_json::Value, EngineError> {
        let none = None::<InspectContainerOptions>;
        let found = self.ask(ASK_TIME, |docker| async move { docker.inspect_container(container, none).await }).await?;
        let mut found = serde_json::to_value(found).unwrap_or_default();
        for variable in found.pointer_mut("/Config/Env").and_then(serde_json::Value::as_array_mut).into_iter().flatten()
        {
            let name = variable.as_str().and_then(|text| text.split_once('=')).map_or("?", |(name, _)| name);
            *variable = format!("{name}=***").into();
        }
        Ok(found)
    }

    /// Passes output on, line by line.
    async fn passed_on<T>(
        &self,
        output: impl Stream<Item = Result<LogOutput, Error>>,
        silence: Option<Duration>,
        (lines, as_line): (&mpsc::Sender<T>, impl Fn(OutputStream, &[u8]) -> T),
    ) -> Result<(), EngineError> {
        tokio::pin!(output);
        let mut begun = [Vec::new(), Vec::new()];
        loop {
            let next = match silence {
                Some(limit) => timeout(limit, output.next()).await.map_err(|_| EngineError::Silent(limit))?,
                None => output.next().await,
            };
            let Some(next) = next else { break };
            let (stream, bytes) = match next.map_err(|error| self.engine.error(error))? {
                LogOutput::StdErr { message } => (OutputStream::Stderr, message),
                LogOutput::StdOut { message } | LogOutput::Console { message } | LogOutput::StdIn { message } => {
                    (OutputStream::Stdout, message)
                }
            };
            let rest = &mut begun[stream as usize];
            rest.extend_from_slice(&bytes);
            while let Some(end) = end_of_line(rest) {
                let whole: Vec<u8> = rest.drain(..end).collect();
                if lines.send(as_line(stream, &whole)).await.is_err() {
                    return Ok(());
                }
            }
        }
        for (rest, stream) in begun.iter().zip([OutputStream::Stdout, OutputStream::Stderr]) {
            if !rest.is_empty() && lines.send(as_line(stream, rest)).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Where the first line ends, or what is long enough to be one.
fn end_of_line(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
    end.filter(|end| *end <= LINE_MAX).or_else(|| (bytes.len() >= LINE_MAX).then_some(LINE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_divided_into_lines_that_are_not_too_long() {
        assert_eq!(end_of_line(b"a\nb"), Some(2));
        assert_eq!(end_of_line(b"a"), None);
        assert_eq!(end_of_line(&vec![b'x'; LINE_MAX + 5]), Some(LINE_MAX));
        let mut long = vec![b'x'; LINE_MAX + 5];
        long.push(b'\n');
        assert_eq!(end_of_line(&long), Some(LINE_MAX));
    }
}
