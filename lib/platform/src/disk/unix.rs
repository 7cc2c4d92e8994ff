//! Room on disks, statvfs(3).

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::DiskRoom;

pub(super) fn room(folder: &Path) -> io::Result<DiskRoom> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    let mut room = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte; the pointer is to room for the structure that the call fills. Both live until it
    // returns.
    #[expect(unsafe_code, reason = "std does not know disks")]
    let result = unsafe { libc::statvfs(path.as_ptr(), room.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled the whole structure.
    #[expect(unsafe_code, reason = "the structure was filled by the call above")]
    let room = unsafe { room.assume_init() };
    let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(room.f_frsize);
    Ok(DiskRoom { free: bytes(room.f_bavail), total: bytes(room.f_blocks) })
}
