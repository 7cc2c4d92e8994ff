//! Services through the service control manager.

mod event_log;

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use windows_service::Error;
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceControl, ServiceControlAccept, ServiceDependency,
    ServiceErrorControl, ServiceExitCode, ServiceFailureActions, ServiceFailureResetPeriod, ServiceInfo,
    ServiceStartType, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{ServiceControlHandlerResult, ServiceStatusHandle, register};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_FAILED_SERVICE_CONTROLLER_CONNECT, ERROR_INVALID_LEVEL, ERROR_SERVICE_ALREADY_RUNNING,
    ERROR_SERVICE_DOES_NOT_EXIST, ERROR_SERVICE_EXISTS, ERROR_SERVICE_MARKED_FOR_DELETE, ERROR_SERVICE_NOT_ACTIVE,
};

use super::{Definition, ServiceError, State};
use crate::rights;
use crate::stop::{DRAIN_LIMIT, SERVICE_STOP};

/// Longest wait until a service runs or has stopped; the system itself gives a service 30 s to report.
const CHANGE_WITHIN: Duration = Duration::from_secs(30);

/// Time between two looks at a service that changes its state.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A service that failed is started again after these times, the last one for every further failure: the first is not
/// noticed by clients, which ask again after a second, and the others leave what is in the way time to go.
const RESTART_AFTER: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(5)];

/// A service that did not fail for a day begins to count its failures again.
const FAILURES_FORGOTTEN_AFTER: Duration = Duration::from_hours(24);

pub(super) fn install(definition: &Definition) -> Result<Vec<&'static str>, ServiceError> {
    let named = Named { verb: "install", name: &definition.name };
    let manager = named.manager(ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE)?;
    let program = std::env::current_exe().map_err(|error| named.refused(error))?;
    // Whoever can replace it can do what the system can.
    rights::program_must_be_own(&program).map_err(|error| named.refused(error))?;
    let dependencies = definition.dependencies.iter().map(|name| ServiceDependency::Service(name.into())).collect();
    let info = ServiceInfo {
        name: definition.name.clone().into(),
        display_name: definition.display_name.clone().into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: program,
        launch_arguments: definition.arguments.clone(),
        dependencies,
        // LocalSystem, which may add addresses.
        account_name: None,
        account_password: None,
    };
    let access = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START | ServiceAccess::DELETE;
    let service = manager.create_service(&info, access).map_err(|error| named.failed(error))?;
    let set = known("a description", service.set_description(&definition.description))
        .and_then(|unknown| Ok([unknown, restart_after_failures(&service)?].concat()))
        .map_err(|error| named.failed(error))
        .and_then(|unknown| {
            event_log::register(&definition.name).map_err(|error| named.refused(error)).map(|()| unknown)
        });
    if set.is_err() {
        // Half a service is worse than none; the first error is the one to report.
        let _ = service.delete();
    }
    set
}

pub(super) fn repair(name: &str) -> Result<Vec<&'static str>, ServiceError> {
    let named = Named { verb: "repair", name };
    let service = named.open(ServiceAccess::CHANGE_CONFIG | ServiceAccess::START)?;
    event_log::register(name).map_err(|error| named.refused(error))?;
    restart_after_failures(&service).map_err(|error| named.failed(error))
}

/// Makes the system start the service again when it fails. Gives what this system does not know.
fn restart_after_failures(service: &Service) -> windows_service::Result<Vec<&'static str>> {
    let failures = known("a restart after failures", service.update_failure_actions(failure_actions()))?;
    // A process that reports its failure to the system counts too.
    let errors = known("a restart after errors", service.set_failure_actions_on_non_crash_failures(true))?;
    Ok([failures, errors].concat())
}

/// Nothing, or the name of a setting that this system does not know.
fn known(setting: &'static str, set: windows_service::Result<()>) -> windows_service::Result<Vec<&'static str>> {
    match set {
        Err(error) if code(&error) == Some(ERROR_INVALID_LEVEL) => Ok(vec![setting]),
        set => set.map(|()| Vec::new()),
    }
}

pub(super) fn uninstall(name: &str) -> Result<(), ServiceError> {
    let named = Named { verb: "uninstall", name };
    let service = named.open(ServiceAccess::QUERY_STATUS | ServiceAccess::STOP | ServiceAccess::DELETE)?;
    stop_and_wait(&named, &service)?;
    service.delete().map_err(|error| named.failed(error))?;
    event_log::unregister(name);
    Ok(())
}

pub(super) fn start(name: &str) -> Result<(), ServiceError> {
    let named = Named { verb: "start", name };
    let service = named.open(ServiceAccess::QUERY_STATUS | ServiceAccess::START)?;
    match service.start::<&OsStr>(&[]) {
        Err(error) if code(&error) != Some(ERROR_SERVICE_ALREADY_RUNNING) => return Err(named.failed(error)),
        _ => {}
    }
    named.wait_for(&service, ServiceState::Running)
}

pub(super) fn stop(name: &str) -> Result<(), ServiceError> {
    let named = Named { verb: "stop", name };
    stop_and_wait(&named, &named.open(ServiceAccess::QUERY_STATUS | ServiceAccess::STOP)?)
}

fn stop_and_wait(named: &Named<'_>, service: &Service) -> Result<(), ServiceError> {
    match service.stop() {
        Err(error) if code(&error) == Some(ERROR_SERVICE_NOT_ACTIVE) => return Ok(()),
        Err(error) => return Err(named.failed(error)),
        Ok(_) => {}
    }
    named.wait_for(service, ServiceState::Stopped)
}

pub(super) fn command_line(name: &str) -> Result<String, ServiceError> {
    let named = Named { verb: "query", name };
    let service = named.open(ServiceAccess::QUERY_CONFIG)?;
    let config = service.query_config().map_err(|error| named.failed(error))?;
    Ok(config.executable_path.to_string_lossy().into_owned())
}

pub(super) fn state(name: &str) -> Result<State, ServiceError> {
    let named = Named { verb: "query", name };
    let service = named.open(ServiceAccess::QUERY_STATUS)?;
    let status = service.query_status().map_err(|error| named.failed(error))?;
    Ok(match status.current_state {
        ServiceState::Stopped => State::Stopped,
        ServiceState::StartPending | ServiceState::ContinuePending => State::Starting,
        ServiceState::Running => State::Running,
        ServiceState::StopPending => State::Stopping,
        ServiceState::Paused | ServiceState::PausePending => State::Paused,
    })
}

fn failure_actions() -> ServiceFailureActions {
    let restarts = RESTART_AFTER.map(|delay| ServiceAction { action_type: ServiceActionType::Restart, delay });
    ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(FAILURES_FORGOTTEN_AFTER),
        reboot_msg: None,
        command: None,
        actions: Some(restarts.to_vec()),
    }
}

/// A service by its name, and what is being done to it.
struct Named<'a> {
    verb: &'static str,
    name: &'a str,
}

impl Named<'_> {
    fn manager(&self, access: ServiceManagerAccess) -> Result<ServiceManager, ServiceError> {
        ServiceManager::local_computer(None::<&str>, access).map_err(|error| self.failed(error))
    }

    fn open(&self, access: ServiceAccess) -> Result<Service, ServiceError> {
        let manager = self.manager(ServiceManagerAccess::CONNECT)?;
        manager.open_service(self.name, access).map_err(|error| self.failed(error))
    }

    fn wait_for(&self, service: &Service, wanted: ServiceState) -> Result<(), ServiceError> {
        let begun = Instant::now();
        loop {
            let status = service.query_status().map_err(|error| self.failed(error))?;
            if status.current_state == wanted {
                return Ok(());
            }
            if wanted == ServiceState::Running && status.current_state == ServiceState::Stopped {
                return Err(ServiceError::Ended { name: self.name.to_owned() });
            }
            if begun.elapsed() > CHANGE_WITHIN {
                let late = format!("still {:?} after {} s", status.current_state, CHANGE_WITHIN.as_secs());
                return Err(self.refused(io::Error::new(io::ErrorKind::TimedOut, late)));
            }
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    fn failed(&self, error: Error) -> ServiceError {
        let (verb, name) = (self.verb, self.name.to_owned());
        match (code(&error), error) {
            (Some(ERROR_ACCESS_DENIED), _) => ServiceError::NotPermitted { verb, name },
            (Some(ERROR_SERVICE_DOES_NOT_EXIST), _) => ServiceError::Missing { name },
            (Some(ERROR_SERVICE_EXISTS), _) => ServiceError::Exists { name },
            (Some(ERROR_SERVICE_MARKED_FOR_DELETE), _) => ServiceError::Leaving { name },
            (_, Error::Winapi(error)) => ServiceError::Refused { verb, name, error },
            (_, error) => self.refused(io::Error::other(error.to_string())),
        }
    }

    fn refused(&self, error: io::Error) -> ServiceError {
        ServiceError::Refused { verb: self.verb, name: self.name.to_owned(), error }
    }
}

fn code(error: &Error) -> Option<u32> {
    match error {
        Error::Winapi(error) => error.raw_os_error().map(i32::cast_unsigned),
        _ => None,
    }
}

/// What the service does and what it is called, for the function that the system calls, which has no arguments of ours.
static BODY: Mutex<Option<(String, Body)>> = Mutex::new(None);

type Body = Box<dyn FnOnce() -> u8 + Send>;

// The macro makes the function that the system calls; it reads the arguments of the service.
mod dispatch {
    use windows_service::{define_windows_service, service_dispatcher};

    use super::main;

    // SAFETY: the macro only reads as many arguments as the system says are there.
    define_windows_service!(ffi_main, main);

    /// Waits for the system to call, and until the service has ended.
    pub(super) fn start(name: &str) -> windows_service::Result<()> {
        service_dispatcher::start(name, ffi_main)
    }
}

pub(super) fn run(name: &str, body: Body) -> Result<(), ServiceError> {
    *BODY.lock().unwrap_or_else(PoisonError::into_inner) = Some((name.to_owned(), body));
    dispatch::start(name).map_err(|error| match code(&error) {
        Some(ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) => ServiceError::NotStartedBySystem,
        _ => Named { verb: "run", name }.failed(error),
    })
}

/// The life of the service, on a thread of the system.
fn main(_arguments: Vec<OsString>) {
    let Some((name, body)) = BODY.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let on_control = |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown | ServiceControl::Preshutdown => {
            SERVICE_STOP.notify_one();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    // Without a handler nothing can be reported, so there is nothing to run.
    let Ok(handle) = register(&name, on_control) else { return };
    *HANDLE.lock().unwrap_or_else(PoisonError::into_inner) = Some((name.clone(), handle));
    set_status(ServiceState::StartPending, NO_ERROR_YET);
    let code = body();
    if code == 0 {
        event_log::report(&name, event_log::STOPPED, "Berth has stopped.");
    }
    let code = if code == 0 { NO_ERROR_YET } else { ServiceExitCode::ServiceSpecific(code.into()) };
    set_status(ServiceState::Stopped, code);
}

/// The name of the service, and through what the system learns what it does; `None` in a process that is no service.
static HANDLE: Mutex<Option<(String, ServiceStatusHandle)>> = Mutex::new(None);

const NO_ERROR_YET: ServiceExitCode = ServiceExitCode::Win32(0);

pub(super) fn report(state: State) {
    match state {
        State::Running => {
            set_status(ServiceState::Running, NO_ERROR_YET);
            report_event(event_log::SERVES, &format!("Berth {} serves.", env!("CARGO_PKG_VERSION")));
        }
        State::Stopping => set_status(ServiceState::StopPending, NO_ERROR_YET),
        // The beginning and the end are reported by `main`.
        State::Starting | State::Stopped | State::Paused => {}
    }
}

pub(super) fn failed(reason: &str) {
    report_event(event_log::CANNOT_RUN, &format!("Berth cannot run: {reason}"));
}

pub(super) fn is_succeeded_by(_: u32) {}

pub(super) fn watchdog() -> Option<Duration> {
    None
}

pub(super) fn alive() {}

fn report_event(event: event_log::Event, text: &str) {
    if let Some((name, _)) = &*HANDLE.lock().unwrap_or_else(PoisonError::into_inner) {
        event_log::report(name, event, text);
    }
}

fn set_status(current_state: ServiceState, exit_code: ServiceExitCode) {
    let (controls_accepted, wait_hint) = match current_state {
        ServiceState::Running => (ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN, Duration::ZERO),
        ServiceState::StartPending => (ServiceControlAccept::empty(), CHANGE_WITHIN),
        // What follows the drain takes a moment too.
        ServiceState::StopPending => (ServiceControlAccept::empty(), 2 * DRAIN_LIMIT),
        _ => (ServiceControlAccept::empty(), Duration::ZERO),
    };
    if let Some((_, handle)) = &*HANDLE.lock().unwrap_or_else(PoisonError::into_inner) {
        // The system learns of the end of the process in any case.
        let _ = handle.set_service_status(ServiceStatus {
            service_type: ServiceType::OWN_PROCESS,
            current_state,
            controls_accepted,
            exit_code,
            checkpoint: 0,
            wait_hint,
            process_id: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_fails_is_back_after_one_second_and_then_after_five() {
        let actions = failure_actions();
        let delays: Vec<_> = actions.actions.unwrap().iter().map(|action| action.delay.as_secs()).collect();
        assert_eq!(delays, [1, 5, 5]);
    }

    #[test]
    fn a_missing_service_is_called_by_its_name() {
        let error = state("berth-none-such").unwrap_err();
        assert_eq!(error.to_string(), "there is no service berth-none-such: `agent service install` makes one");
    }

    #[test]
    fn codes_of_the_system_become_sentences() {
        for (code, expected) in [
            (ERROR_ACCESS_DENIED, "may not start the service berth: run this as administrator"),
            (ERROR_SERVICE_EXISTS, "there is a service berth already: remove it with `agent service uninstall`"),
            (ERROR_SERVICE_MARKED_FOR_DELETE, "the service berth is still being removed: close what looks at it"),
            (ERROR_SERVICE_NOT_ACTIVE, "cannot start the service berth: "),
        ] {
            let error = Error::Winapi(io::Error::from_raw_os_error(code.cast_signed()));
            let text = Named { verb: "start", name: "berth" }.failed(error).to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn a_console_is_not_the_system() {
        let error = run("berth-none-such", Box::new(|| 0)).unwrap_err();
        assert!(matches!(error, ServiceError::NotStartedBySystem), "{error}");
    }
}
