//! Room on disks, `GetDiskFreeSpaceEx`, which nanoserver has too.

use std::io;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;

use super::DiskRoom;

pub(super) fn room(folder: &Path) -> io::Result<DiskRoom> {
    let path: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let (mut free, mut total) = (0, 0);
    // SAFETY: the path ends with a zero; the pointers are to local variables. All live until the call returns, and the pointer
    // that is null may be.
    #[expect(unsafe_code, reason = "std does not know disks")]
    let known = unsafe { GetDiskFreeSpaceExW(path.as_ptr(), &raw mut free, &raw mut total, null_mut()) } != 0;
    if known { Ok(DiskRoom { free, total }) } else { Err(io::Error::last_os_error()) }
}
