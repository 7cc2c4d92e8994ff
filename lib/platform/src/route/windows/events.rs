//! Changes as IP Helper reports them, on threads of the system.

use std::ffi::c_void;
use std::io;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use windows_sys::Win32::Foundation::{HANDLE, NO_ERROR, WIN32_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CancelMibChangeNotify2, MIB_IPFORWARD_ROW2, MIB_IPINTERFACE_ROW, MIB_NOTIFICATION_TYPE, MIB_UNICASTIPADDRESS_ROW,
    NotifyIpInterfaceChange, NotifyRouteChange2, NotifyUnicastIpAddressChange,
};
use windows_sys::Win32::Networking::WinSock::AF_INET;

use super::os_error;

/// Pause after a change, so that the several reports of one change are one hint.
const SETTLE: Duration = Duration::from_millis(10);

/// Registrations for reports, which only wake the task that waits.
#[derive(Debug)]
pub(in super::super) struct Events {
    /// Whether something has changed that was not returned yet.
    pending: bool,
    changed: Arc<Notify>,
    _registrations: [Registration; 3],
}

/// A registration, which ends when this is dropped.
#[derive(Debug)]
struct Registration {
    handle: HANDLE,
    /// What the system's threads are given a pointer to.
    _changed: Arc<Notify>,
}

// SAFETY: the handle is a number to us, which any thread may give back to the system.
#[expect(unsafe_code, reason = "a handle is a pointer in windows-sys")]
unsafe impl Send for Registration {}

// SAFETY: nothing is done with a shared one.
#[expect(unsafe_code, reason = "a handle is a pointer in windows-sys")]
unsafe impl Sync for Registration {}

impl Events {
    pub(super) fn open() -> io::Result<Self> {
        let changed = Arc::new(Notify::new());
        let registrations = [
            // SAFETY: the callback has the type that the function asks for; `register` answers for both pointers.
            #[expect(unsafe_code, reason = "std does not watch links")]
            register(&changed, |context, handle| unsafe {
                NotifyIpInterfaceChange(AF_INET, Some(link_changed), context, false, handle)
            })?,
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "std does not watch addresses")]
            register(&changed, |context, handle| unsafe {
                NotifyUnicastIpAddressChange(AF_INET, Some(address_changed), context, false, handle)
            })?,
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "std does not watch routes")]
            register(&changed, |context, handle| unsafe {
                NotifyRouteChange2(AF_INET, Some(route_changed), context, false, handle)
            })?,
        ];
        Ok(Self { pending: false, changed, _registrations: registrations })
    }

    pub(in super::super) async fn changed(&mut self) {
        if !self.pending {
            self.changed.notified().await;
            self.pending = true;
        }
        tokio::time::sleep(SETTLE).await;
        // What was reported in the meantime belongs to this change.
        let _ = tokio::time::timeout(Duration::ZERO, self.changed.notified()).await;
        self.pending = false;
    }

    pub(in super::super) async fn has_changed(&mut self) -> bool {
        self.pending |= tokio::time::timeout(Duration::ZERO, self.changed.notified()).await.is_ok();
        mem::take(&mut self.pending)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the handle is of a registration, which is cancelled only here, and on a thread of ours. The call returns
        // when no callback runs any more, so that nothing has the pointer when it is dropped afterwards.
        #[expect(unsafe_code, reason = "std does not watch routes")]
        unsafe {
            CancelMibChangeNotify2(self.handle);
        }
    }
}

/// Registers with `function`, which is given a context that lives as long as the registration, and where the handle goes.
fn register(
    changed: &Arc<Notify>,
    function: impl FnOnce(*const c_void, *mut HANDLE) -> WIN32_ERROR,
) -> io::Result<Registration> {
    let mut handle = ptr::null_mut();
    match function(Arc::as_ptr(changed).cast(), &raw mut handle) {
        NO_ERROR => Ok(Registration { handle, _changed: Arc::clone(changed) }),
        code => Err(os_error(code)),
    }
}

/// # Safety
/// `context` is that of a registration which has not ended.
#[expect(unsafe_code, reason = "the system calls it")]
unsafe fn wake(context: *const c_void) {
    // SAFETY: it points to a `Notify` which lives as long as the registration, and which threads may share.
    unsafe { &*context.cast::<Notify>() }.notify_one();
}

/// # Safety
/// Only for the system, which gives back the context of the registration while it lasts.
#[expect(unsafe_code, reason = "the system calls it")]
unsafe extern "system" fn link_changed(
    context: *const c_void,
    _: *const MIB_IPINTERFACE_ROW,
    _: MIB_NOTIFICATION_TYPE,
) {
    // SAFETY: as above.
    unsafe { wake(context) }
}

/// # Safety
/// Only for the system, which gives back the context of the registration while it lasts.
#[expect(unsafe_code, reason = "the system calls it")]
unsafe extern "system" fn address_changed(
    context: *const c_void,
    _: *const MIB_UNICASTIPADDRESS_ROW,
    _: MIB_NOTIFICATION_TYPE,
) {
    // SAFETY: as above.
    unsafe { wake(context) }
}

/// # Safety
/// Only for the system, which gives back the context of the registration while it lasts.
#[expect(unsafe_code, reason = "the system calls it")]
unsafe extern "system" fn route_changed(
    context: *const c_void,
    _: *const MIB_IPFORWARD_ROW2,
    _: MIB_NOTIFICATION_TYPE,
) {
    // SAFETY: as above.
    unsafe { wake(context) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_report_wakes_the_task_that_waits_and_several_are_one() {
        let mut events = Events::open().unwrap();
        let context = Arc::as_ptr(&events.changed).cast();
        for _ in 0..2 {
            // SAFETY: the registrations last; no row is looked at.
            #[expect(unsafe_code, reason = "as the system does")]
            unsafe {
                route_changed(context, ptr::null(), 0);
                link_changed(context, ptr::null(), 0);
                address_changed(context, ptr::null(), 0);
            }
        }
        tokio::time::timeout(Duration::from_secs(10), events.changed()).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), events.changed()).await.is_err());
    }
}
