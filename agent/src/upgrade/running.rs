//! The agent that runs, in the words of its admin pages. Whoever has its port on loopback may have written them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;
use process::command::get_admin;
use serde_json::Value;

/// Longest wait for an answer; while a process begins, its pages wait for it.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The process that serves.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) process: u32,
    pub(super) version: String,
    pub(super) executable: Option<PathBuf>,
    /// Why it does not start again in place.
    pub(super) refused: Option<String>,
    /// How many times it did not.
    pub(super) failed: u64,
    /// Why it did not the last time.
    pub(super) reason: Option<String>,
}

impl Running {
    /// Asks which process serves.
    ///
    /// # Errors
    ///
    /// Fails if none answers, or its version does not say.
    pub(super) fn ask(admin: SocketAddr) -> Result<Self, String> {
        let (status, body) = get_admin(admin, "/v1/process", ANSWER_LIMIT)?;
        let found = if status == StatusCode::OK { serde_json::from_str(&body).ok() } else { None };
        found.as_ref().and_then(Self::read).ok_or_else(|| {
            format!(
                "what answers at {admin} does not say which process it is: an agent of an earlier version is upgraded by replacing \
                 its file and `systemctl reload berth`"
            )
        })
    }

    fn read(answer: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let restart = &answer["restart"];
        Some(Self {
            process: u32::try_from(answer["process"].as_u64()?).ok()?,
            version: text(&answer["version"])?,
            executable: text(&answer["executable"]).map(PathBuf::from),
            refused: text(&restart["refused"]),
            failed: restart["failed"].as_u64()?,
            reason: text(&restart["reason"]),
        })
    }
}

/// Why the agent is not ready: a line for each part.
pub(super) fn reasons(admin: SocketAddr) -> Result<Vec<String>, String> {
    let (_, body) = get_admin(admin, "/readyz", ANSWER_LIMIT)?;
    let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{admin} is no agent: {error}"))?;
    let reasons = answer["reasons"].as_object().ok_or_else(|| format!("{admin} is no agent"))?;
    Ok(reasons.iter().map(|(part, why)| format!("{part}: {}", why.as_str().unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_that_lacks_something_is_none() {
        let mut answer = json!({
            "process": 7, "version": "0.1.0", "executable": "/usr/bin/agent",
            "restart": { "refused": null, "failed": 1, "reason": "it ended" },
        });
        let read = Running::read(&answer).unwrap();
        assert_eq!((read.process, read.failed, read.reason.as_deref()), (7, 1, Some("it ended")));
        assert!(read.refused.is_none());
        answer["process"] = json!(u64::MAX);
        assert!(Running::read(&answer).is_none());
        assert!(Running::read(&json!({})).is_none());
    }
}
