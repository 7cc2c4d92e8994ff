//! The log of the system, which the event viewer shows: that a service serves, has stopped or cannot run, and why.
//!
//! Everything else is in the service's own log file. The text of an event is in a message file; Windows has one whose messages
//! are whatever text comes with the event, EventCreate.exe, which Docker uses too.

use std::ffi::{CStr, OsStr, c_void};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::ptr::null;

use windows_sys::Win32::Foundation::{ERROR_SUCCESS, HANDLE, WIN32_ERROR};
use windows_sys::Win32::System::EventLog::{EVENTLOG_ERROR_TYPE, EVENTLOG_INFORMATION_TYPE, EVENTLOG_WARNING_TYPE};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, REG_DWORD, REG_EXPAND_SZ, RegDeleteTreeW, RegSetKeyValueW,
};
use windows_sys::core::{BOOL, PCWSTR};
use windows_sys::w;

/// A kind of event: its type and its number, by which people filter.
#[derive(Clone, Copy)]
pub(super) struct Event(u16, u32);

pub(super) const SERVES: Event = Event(EVENTLOG_INFORMATION_TYPE, 1);
pub(super) const STOPPED: Event = Event(EVENTLOG_INFORMATION_TYPE, 2);
pub(super) const CANNOT_RUN: Event = Event(EVENTLOG_ERROR_TYPE, 3);

/// The types of events that the source has: errors, warnings and information.
const TYPES: u16 = EVENTLOG_ERROR_TYPE | EVENTLOG_WARNING_TYPE | EVENTLOG_INFORMATION_TYPE;

fn wide(text: &str) -> Vec<u16> {
    OsStr::new(text).encode_wide().chain([0]).collect()
}

fn key(service: &str) -> Vec<u16> {
    wide(&format!(r"SYSTEM\CurrentControlSet\Services\EventLog\Application\{service}"))
}

/// Makes the service a source of events.
pub(super) fn register(service: &str) -> io::Result<()> {
    let key = key(service);
    let messages = wide(r"%SystemRoot%\System32\EventCreate.exe");
    let messages: Vec<u8> = messages.into_iter().flat_map(u16::to_ne_bytes).collect();
    set(&key, w!("EventMessageFile"), REG_EXPAND_SZ, &messages)?;
    set(&key, w!("TypesSupported"), REG_DWORD, &u32::from(TYPES).to_ne_bytes())
}

fn set(key: &[u16], name: PCWSTR, kind: u32, value: &[u8]) -> io::Result<()> {
    let bytes = u32::try_from(value.len()).expect("a path or a number");
    // SAFETY: key and name end in a zero, and the value has as many bytes as is said.
    #[expect(unsafe_code, reason = "std does not know the registry")]
    let set = unsafe { RegSetKeyValueW(HKEY_LOCAL_MACHINE, key.as_ptr(), name, kind, value.as_ptr().cast(), bytes) };
    succeeded(set)
}

fn succeeded(code: WIN32_ERROR) -> io::Result<()> {
    if code == ERROR_SUCCESS { Ok(()) } else { Err(io::Error::from_raw_os_error(code.cast_signed())) }
}

/// Undoes [`register`]. Events of the past keep their text. A source that stays, or was none, harms nothing.
pub(super) fn unregister(service: &str) {
    let key = key(service);
    // SAFETY: the key ends in a zero.
    #[expect(unsafe_code, reason = "std does not know the registry")]
    let _ = unsafe { RegDeleteTreeW(HKEY_LOCAL_MACHINE, key.as_ptr()) };
}

/// Writes an event. A system that cannot take it runs the service all the same.
pub(super) fn report(service: &str, Event(kind, number): Event, text: &str) {
    type Register = unsafe extern "system" fn(PCWSTR, PCWSTR) -> HANDLE;
    type Report =
        unsafe extern "system" fn(HANDLE, u16, u16, u32, *const c_void, u16, u32, *const PCWSTR, *const c_void) -> BOOL;

    let (Some(register), Some(report)) = (function(c"RegisterEventSourceW"), function(c"ReportEventW")) else { return };
    let (service, text) = (wide(service), wide(text));
    let texts = [text.as_ptr()];
    // SAFETY: both functions have had these signatures since Windows NT 3.1. All texts end in a zero and live until the calls
    // return. There is one text, and there are no further bytes. The source is closed with the process, which reports few events.
    #[expect(unsafe_code, reason = "std does not know the event log")]
    unsafe {
        let register = std::mem::transmute::<Function, Register>(register);
        let report = std::mem::transmute::<Function, Report>(report);
        let source = register(null(), service.as_ptr());
        if !source.is_null() {
            report(source, kind, 0, number, null(), 1, 0, texts.as_ptr(), null());
        }
    }
}

type Function = unsafe extern "system" fn() -> isize;

/// A function of advapi32.dll that is looked up when it is needed: nanoserver, where no service runs, lacks it, and would start
/// no executable that imports it.
fn function(name: &CStr) -> Option<Function> {
    // SAFETY: both names end in a zero. The module is never unloaded, because the registry's functions are imported from it.
    #[expect(unsafe_code, reason = "std does not look up functions")]
    unsafe {
        let module = GetModuleHandleW(w!("advapi32.dll"));
        if module.is_null() { None } else { GetProcAddress(module, name.as_ptr().cast()) }
    }
}
