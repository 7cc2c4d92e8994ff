//! A job object.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::process::Command;
use std::ptr::{from_mut, from_ref, null, null_mut};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_BASIC_ACCOUNTING_INFORMATION, JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectBasicAccountingInformation,
    JobObjectExtendedLimitInformation, QueryInformationJobObject, SetInformationJobObject,
};
use windows_sys::Win32::System::Threading::{OpenProcess, PROCESS_SET_QUOTA, PROCESS_TERMINATE};

pub(super) fn prepare(_: &mut Command) {}

/// A job of which all processes end with its handle.
#[derive(Debug)]
pub(super) struct Family(OwnedHandle);

impl Family {
    #[expect(unsafe_code, reason = "std has no jobs")]
    pub(super) fn of(id: u32) -> io::Result<Self> {
        // SAFETY: both pointers may be null: no security attributes, no name.
        let job = owned(unsafe { CreateJobObjectW(null(), null()) })?;
        limit(&job, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)?;
        // SAFETY: it takes numbers only; the handle is not inherited.
        let process = owned(unsafe { OpenProcess(PROCESS_SET_QUOTA | PROCESS_TERMINATE, 0, id) })?;
        // SAFETY: both handles are open until the end of this function at least.
        if unsafe { AssignProcessToJobObject(job.as_raw_handle(), process.as_raw_handle()) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(job))
    }

    #[expect(clippy::unused_self, reason = "as on Linux")]
    pub(super) fn ask_to_finish(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[expect(unsafe_code, reason = "std has no jobs")]
    pub(super) fn is_there(&self) -> bool {
        let mut account = JOBOBJECT_BASIC_ACCOUNTING_INFORMATION::default();
        let length = u32::try_from(size_of::<JOBOBJECT_BASIC_ACCOUNTING_INFORMATION>()).unwrap_or_default();
        // SAFETY: the handle is open, and the pointer is to a whole structure of the kind and length that are named, which
        // lives until after the call; the length that was written may be left out.
        let asked = unsafe {
            QueryInformationJobObject(
                self.0.as_raw_handle(),
                JobObjectBasicAccountingInformation,
                from_mut(&mut account).cast(),
                length,
                null_mut(),
            )
        };
        asked != 0 && account.ActiveProcesses > 0
    }

    pub(super) fn leave(self) {
        // Should the system refuse, they end with the handle.
        let _ = limit(&self.0, 0);
    }

    pub(super) fn end(self) {
        drop(self.0);
    }
}

/// What the system gave, unless it is nothing.
#[expect(unsafe_code, reason = "the handle is a number until it is owned")]
fn owned(handle: HANDLE) -> io::Result<OwnedHandle> {
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just given it to us, so it is open and closed only here.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

#[expect(unsafe_code, reason = "std has no jobs")]
fn limit(job: &OwnedHandle, flags: u32) -> io::Result<()> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    limits.BasicLimitInformation.LimitFlags = flags;
    let length = u32::try_from(size_of::<JOBOBJECT_EXTENDED_LIMIT_INFORMATION>()).unwrap_or_default();
    // SAFETY: the handle is open, and the pointer is to a whole structure of the kind and length that are named, which
    // lives until after the call.
    let set = unsafe {
        SetInformationJobObject(
            job.as_raw_handle(),
            JobObjectExtendedLimitInformation,
            from_ref(&limits).cast(),
            length,
        )
    };
    if set == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
