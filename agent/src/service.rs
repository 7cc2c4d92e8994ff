//! `agent service`: the agent as a service of Windows.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use platform::service::{self, Definition, ServiceError, State};
use process::Failure;
use process::launch::CANNOT_RUN;

/// Files of the log that stay, one a day: two weeks are enough to look back over a weekend and a holiday.
const LOG_DAYS: &str = "14";

/// Install the agent as a Windows service, remove it, start and stop it
#[derive(clap::Args)]
pub(crate) struct Service {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Install a service that starts with the machine and again when it fails
    ///
    /// What comes after `--` are the arguments of `agent up`:
    /// agent service install -- C:\berth\cluster.yml --add-address --metadata 169.254.169.250:80 --dns 169.254.169.251:53
    Install {
        #[command(flatten)]
        name: Name,

        /// Services that have to run before; stopping one of them stops this one too, so none is needed for an engine
        #[arg(long, value_name = "SERVICE", value_delimiter = ',')]
        after: Vec<String>,

        /// Where the service stores its log and its last good state
        /// [default: C:\ProgramData\Berth; with another --name a folder of this name in it]
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,

        /// Arguments of `agent up`
        #[arg(last = true, required = true)]
        up: Vec<OsString>,
    },
    /// Stop the service and remove it and its addresses; its log and its state stay
    Uninstall(Name),
    /// Set up the restart after failures and the event log again, of a service that an installer made
    Repair(Name),
    /// Start the service and wait until it runs
    Start(Name),
    /// Stop the service and wait until it has ended
    Stop(Name),
    /// Take away the addresses that a service or process left which has stopped
    ///
    /// A service of Windows leaves its addresses on their adapter when it stops, so that they are never missing while it starts
    /// again. Those of services and processes that run stay.
    Release,
    /// Tell what the service does at the moment; the exit code is 0 when it runs
    Status(Name),
    /// What the system starts
    #[command(hide = true)]
    Run {
        #[command(flatten)]
        name: Name,

        /// The folder that relative paths belong to
        #[arg(long)]
        folder: PathBuf,

        /// Arguments of `agent up`
        #[arg(last = true, required = true)]
        up: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct Name {
    /// Name of the service
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

/// The name of a machine's only service.
pub(crate) const DEFAULT_NAME: &str = "berth";

/// The folder of the service of this name: no two share a log, a state or a ledger.
pub(crate) fn data_folder(name: &str) -> PathBuf {
    let data = std::env::var_os("ProgramData").map_or_else(|| PathBuf::from(r"C:\ProgramData"), PathBuf::from);
    let all = data.join("Berth");
    if name == DEFAULT_NAME { all } else { all.join(name) }
}

impl Service {
    /// Does what was asked for; `check` refuses arguments of `agent up` that are none and gives the cluster file that they
    /// name, `up` serves with them.
    pub(crate) fn run(
        self,
        check: impl FnOnce(&[OsString]) -> Result<Option<PathBuf>, clap::Error>,
        up: impl FnOnce(Vec<OsString>) -> ExitCode + Send + 'static,
    ) -> ExitCode {
        let done = match self.action {
            Action::Install { name, after, data, up } => {
                let file = check(&up).unwrap_or_else(|wrong| wrong.exit());
                let data = data.unwrap_or_else(|| data_folder(&name.name));
                install(name.name, after, &data, up, file.as_deref())
            }
            Action::Uninstall(Name { name }) => service::uninstall(&name).map_err(Failure::from).and_then(|()| {
                Ok([format!("{name} is removed")].into_iter().chain(release()?).collect::<Vec<_>>().join("\n"))
            }),
            Action::Release => release().map(|released| match &released[..] {
                [] => "there is no address that a Berth left which has stopped".to_owned(),
                released => released.join("\n"),
            }),
            Action::Repair(Name { name }) => service::repair(&name)
                .map(|unknown| format!("{name} is set up\n{}", unknown_settings(&unknown)).trim_end().to_owned())
                .map_err(Failure::from),
            Action::Start(Name { name }) => {
                service::start(&name).map(|()| format!("{name} runs")).map_err(|error| with_log(error, &name))
            }
            Action::Stop(Name { name }) => {
                service::stop(&name).map(|()| format!("{name} has stopped")).map_err(Failure::from)
            }
            Action::Status(Name { name }) => return status(&name),
            Action::Run { name, folder, up: mut arguments } => {
                // No successor can have the sockets here; at least the addresses are there all the time.
                arguments.insert(0, "--keep-address".into());
                let served = std::env::set_current_dir(&folder)
                    .map_err(|failure| Failure::from(format!("{}: {failure}", folder.display())))
                    .and_then(|()| service::run(&name.name, move || code(up(arguments))).map_err(Failure::from));
                served.map(|()| String::new())
            }
        };
        match done {
            Ok(text) if text.is_empty() => ExitCode::SUCCESS,
            Ok(text) => {
                let _ = writeln!(io::stdout(), "{text}");
                ExitCode::SUCCESS
            }
            Err(failure) => refuse(&failure.to_string()),
        }
    }
}

/// Takes away the addresses of Berths that are gone; gives a line about each.
fn release() -> Result<Vec<String>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let removed = runtime.block_on(platform::address::remove_left())?;
    Ok(removed.into_iter().map(|(address, interface)| format!("{address} is removed from {interface}")).collect())
}

/// The error of a service that ended, with what its log says about it.
fn with_log(error: ServiceError, name: &str) -> Failure {
    let ServiceError::Ended { .. } = error else { return error.into() };
    let arguments = service::arguments(name).unwrap_or_default();
    let log = arguments.iter().position(|word| word == "--log").and_then(|at| arguments.get(at + 1));
    let Some(log) = log.map(Path::new) else { return error.into() };
    match newest_of(log).and_then(|file| Some((last_error(&file)?, file))) {
        Some((line, file)) => format!("{error}. The last error in {}:\n{line}", file.display()).into(),
        None => format!("{error}, and its log {} has no error", log.display()).into(),
    }
}

/// The file that was written last of those that a daily log keeps: `agent.log` becomes `agent.2026-11-20.log`.
fn newest_of(log: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(log.parent()?).ok()?.flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        path.extension() == log.extension() && name.starts_with(&*log.file_stem().unwrap_or_default().to_string_lossy())
    };
    files.filter(ours).max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
}

fn last_error(file: &Path) -> Option<String> {
    let text = std::fs::read(file).ok()?;
    String::from_utf8_lossy(&text).lines().rfind(|line| line.contains("ERROR")).map(|line| line.trim().to_owned())
}

/// The number of an exit code, which has no getter.
fn code(code: ExitCode) -> u8 {
    if code == ExitCode::SUCCESS { 0 } else { CANNOT_RUN }
}

fn refuse(problem: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {problem}");
    ExitCode::from(CANNOT_RUN)
}

/// Installs the service that runs `agent up` with these arguments, in place of one that is there.
pub(crate) fn install_agent(up: Vec<OsString>) -> Result<String, Failure> {
    if !matches!(service::state(DEFAULT_NAME), Err(ServiceError::Missing { .. })) {
        service::uninstall(DEFAULT_NAME)?;
    }
    install(DEFAULT_NAME.to_owned(), Vec::new(), &data_folder(DEFAULT_NAME), up, None)
}

fn install(
    name: String,
    dependencies: Vec<String>,
    data: &Path,
    up: Vec<OsString>,
    file: Option<&Path>,
) -> Result<String, Failure> {
    let (log, state) = (data.join("agent.log"), data.join("state"));
    for folder in [data, &state] {
        let made = platform::file::create_private_folder(folder);
        made.map_err(|failure| format!("cannot store anything in {}: {failure}", folder.display()))?;
    }
    let folder = std::env::current_dir()?;
    let mut arguments: Vec<OsString> =
        ["service", "run", "--name", &name, "--folder"].into_iter().map(OsString::from).collect();
    arguments.extend([folder.clone().into(), "--".into()]);
    let has = |flag: &str| up.iter().any(|argument| is_flag(argument, flag));
    // First, so that what was given wins when it is given twice.
    if !has("--log") {
        arguments.extend(["--log".into(), log.clone().into(), "--log-days".into(), LOG_DAYS.into()]);
    }
    if !has("--state-dir") {
        arguments.extend(["--state-dir".into(), state.into()]);
    }
    arguments.extend(up);
    let definition = Definition {
        display_name: if name == DEFAULT_NAME { "Berth".to_owned() } else { format!("Berth ({name})") },
        name,
        description: "Tells containers who they are, where the others are and where the next one should go".to_owned(),
        arguments,
        dependencies,
    };
    let unknown = service::install(&definition)?;
    let after = match &definition.dependencies[..] {
        [] => String::new(),
        names => format!(", after {}", names.join(", ")),
    };
    // It may come later; but mostly the path is wrong.
    let missing = match file.map(|file| folder.join(file)) {
        Some(file) if !file.exists() => format!(
            "warning: there is no cluster file {}; until there is one, the service runs and answers nothing\n",
            file.display()
        ),
        _ => String::new(),
    };
    let name = &definition.name;
    Ok(format!(
        "{name} is installed: it starts with the machine{after}, and logs to {}\n{missing}{}\
         Start it now with: agent service start --name {name}",
        log.display(),
        unknown_settings(&unknown)
    ))
}

/// A line about settings that this system does not know.
fn unknown_settings(unknown: &[&str]) -> String {
    if unknown.is_empty() { String::new() } else { format!("this system does not know {}\n", unknown.join(", ")) }
}

fn is_flag(argument: &OsString, flag: &str) -> bool {
    let argument = argument.to_string_lossy();
    argument == flag || argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
}

fn status(name: &str) -> ExitCode {
    let (text, runs) = match service::state(name) {
        Ok(State::Running) => ("running", true),
        Ok(State::Starting) => ("starting", false),
        Ok(State::Stopping) => ("stopping", false),
        Ok(State::Stopped) => ("stopped", false),
        Ok(State::Paused) => ("paused", false),
        Err(ServiceError::Missing { .. }) => ("not installed", false),
        Err(failure) => return refuse(&failure.to_string()),
    };
    let _ = writeln!(io::stdout(), "{name}: {text}");
    if runs { ExitCode::SUCCESS } else { ExitCode::from(CANNOT_RUN) }
}
