//! Rights of files and folders through the system's calls for security descriptors.

use std::ffi::{OsStr, c_void};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr;

use windows_sys::Win32::Foundation::{HANDLE, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW, ConvertSidToStringSidW,
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, GetFileSecurityW, GetTokenInformation, OBJECT_SECURITY_INFORMATION,
    OWNER_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, SECURITY_ATTRIBUTES,
    SetFileSecurityW, TOKEN_ELEVATION, TOKEN_INFORMATION_CLASS, TOKEN_QUERY, TOKEN_USER, TokenElevation, TokenUser,
};
use windows_sys::Win32::Storage::FileSystem::CreateDirectoryW;
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

use super::{OVER_A_FILE, OVER_A_FOLDER, OVER_A_PATH, stranger};

/// Rights of files and folders that only the system and administrators may use, as `icacls` takes them in both shells.
const ONLY_ADMINISTRATORS: &str = r#""*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F""#;

/// Makes a folder that only SYSTEM, administrators and this user may use, in one step; the folder above has to be there.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    let (path, closed) = (wide(path.as_os_str()), closed("OICI")?);
    let attributes = SECURITY_ATTRIBUTES {
        nLength: u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).unwrap_or_default(),
        lpSecurityDescriptor: closed.0,
        bInheritHandle: 0,
    };
    // SAFETY: the path ends in NUL; the attributes have their own length, and a descriptor that lives until the end.
    #[expect(unsafe_code, reason = "std makes folders with the rights of the folder above")]
    let made = unsafe { CreateDirectoryW(path.as_ptr(), &raw const attributes) };
    done(made)
}

/// Lets only SYSTEM, administrators and this user use a file.
pub(crate) fn close_file(path: &Path) -> io::Result<()> {
    set(path, &closed("")?)
}

/// Gives a file or a folder the rights of a descriptor, and none of the folder above.
fn set(path: &Path, rights: &Descriptor) -> io::Result<()> {
    let path = wide(path.as_os_str());
    let what = DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION;
    // SAFETY: the path ends in NUL, and the descriptor, which has a list of rights, lives until the end.
    #[expect(unsafe_code, reason = "std sets no rights")]
    let set = unsafe { SetFileSecurityW(path.as_ptr(), what, rights.0) };
    done(set)
}

/// Fails if others than administrators and this user can change what a folder has.
pub(crate) fn folder_must_be_own(path: &Path) -> io::Result<()> {
    let (text, own) = (text_of_file(path)?, own_name()?);
    let Some(who) = stranger(&text, OVER_A_FOLDER, &own) else { return Ok(()) };
    let path = path.display();
    Err(refused(format!(
        "others ({who}) can change what is stored in {path}: delete what is not yours in it and type \
         `icacls \"{path}\" /setowner *S-1-5-32-544` and `icacls \"{path}\" /inheritance:r /grant:r {ONLY_ADMINISTRATORS}`, \
         or give another folder"
    )))
}

/// Fails if others than administrators and this user can replace a program, or put a library beside it.
pub(crate) fn program_must_be_own(path: &Path) -> io::Result<()> {
    let own = own_name()?;
    // By each of its names, if it has several.
    let real = std::fs::canonicalize(path)?;
    for path in [path, &real] {
        for (above, part) in path.ancestors().enumerate() {
            let rights = [OVER_A_FILE, OVER_A_FOLDER].get(above).copied().unwrap_or(OVER_A_PATH);
            let text = match text_of_file(part) {
                Ok(text) => text,
                Err(error) if above < 2 => return Err(error),
                // What cannot be looked at is the root of a share, or nothing.
                Err(_) => continue,
            };
            if let Some(who) = stranger(&text, rights, &own) {
                let part = part.display();
                let grants = if above == 0 {
                    r#""*S-1-5-18:F" "*S-1-5-32-544:F" "*S-1-5-32-545:RX""#.to_owned()
                } else {
                    format!(r#"{ONLY_ADMINISTRATORS} "*S-1-5-32-545:(OI)(CI)RX""#)
                };
                return Err(refused(format!(
                    "others ({who}) can change {part}, and so what the service runs as LocalSystem: put the program below \
                     C:\\Program Files, or type `icacls \"{part}\" /setowner *S-1-5-32-544` and \
                     `icacls \"{part}\" /inheritance:r /grant:r {grants}`"
                )));
            }
        }
    }
    Ok(())
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Rights of SYSTEM and administrators, and of this user unless it is acting as one of them; for what comes into a folder
/// too, by these flags.
fn closed(flags: &str) -> io::Result<Descriptor> {
    let own = if is_elevated()? { String::new() } else { format!("(A;{flags};FA;;;{})", own_number()?) };
    Descriptor::parse(&format!("D:P(A;{flags};FA;;;SY)(A;{flags};FA;;;BA){own}"))
}

/// A security descriptor that the system has made.
struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    fn parse(text: &str) -> io::Result<Self> {
        let text = wide(OsStr::new(text));
        let mut made = ptr::null_mut();
        // SAFETY: the text ends in NUL, and the pointer is written before it is read; a length is not asked for.
        #[expect(unsafe_code, reason = "std has no rights")]
        let parsed = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut made,
                ptr::null_mut(),
            )
        };
        done(parsed)?;
        Ok(Self(made))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        free(self.0);
    }
}

/// The owner and the rights of a file or folder, as text.
fn text_of_file(path: &Path) -> io::Result<String> {
    let path = wide(path.as_os_str());
    let what = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    let mut length = 0;
    // SAFETY: the path ends in NUL; a buffer of no length is not written to.
    #[expect(unsafe_code, reason = "std reads no rights")]
    let known = unsafe { GetFileSecurityW(path.as_ptr(), what, ptr::null_mut(), 0, &raw mut length) };
    if known == 0 && length == 0 {
        return Err(io::Error::last_os_error());
    }
    // Aligned as the system's structures are.
    let mut buffer = vec![0_u64; length.div_ceil(8) as usize];
    let descriptor = buffer.as_mut_ptr().cast::<c_void>();
    // SAFETY: the buffer has at least the length that is given.
    #[expect(unsafe_code, reason = "std reads no rights")]
    let read = unsafe { GetFileSecurityW(path.as_ptr(), what, descriptor, length, &raw mut length) };
    done(read)?;
    text_of(descriptor, what)
}

/// The text of a descriptor, which has to be valid.
fn text_of(descriptor: PSECURITY_DESCRIPTOR, what: OBJECT_SECURITY_INFORMATION) -> io::Result<String> {
    let mut text = ptr::null_mut();
    // SAFETY: the callers have the descriptor from the system; the pointer is written before it is read.
    #[expect(unsafe_code, reason = "std has no rights")]
    let made = unsafe {
        ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor,
            SDDL_REVISION_1,
            what,
            &raw mut text,
            ptr::null_mut(),
        )
    };
    done(made)?;
    Ok(taken(text))
}

/// This user as such texts have it, by its short name if it has one.
fn own_name() -> io::Result<String> {
    let number = own_number()?;
    let descriptor = Descriptor::parse(&format!("O:{number}"))?;
    let text = text_of(descriptor.0, OWNER_SECURITY_INFORMATION)?;
    Ok(text.strip_prefix("O:").map_or(number, ToOwned::to_owned))
}

/// The number of the user that this process runs as.
fn own_number() -> io::Result<String> {
    // A number has at most 68 bytes, and a structure that points to it stands before.
    let mut buffer = [0_u64; 16];
    token_information(TokenUser, &mut buffer)?;
    let mut text = ptr::null_mut();
    // SAFETY: the system has put a `TOKEN_USER` there, whose pointer leads into the buffer, which is aligned for it.
    #[expect(unsafe_code, reason = "std does not tell which user this process runs as")]
    let made = unsafe {
        let user = &*buffer.as_ptr().cast::<TOKEN_USER>();
        ConvertSidToStringSidW(user.User.Sid, &raw mut text)
    };
    done(made)?;
    Ok(taken(text))
}

/// Whether this process may do what administrators may.
fn is_elevated() -> io::Result<bool> {
    let mut buffer = [0_u64; 1];
    token_information(TokenElevation, &mut buffer)?;
    // SAFETY: the system has put a `TOKEN_ELEVATION` there, which is one number.
    #[expect(unsafe_code, reason = "std does not tell what this process may do")]
    let elevation = unsafe { *buffer.as_ptr().cast::<TOKEN_ELEVATION>() };
    Ok(elevation.TokenIsElevated != 0)
}

fn token_information(class: TOKEN_INFORMATION_CLASS, buffer: &mut [u64]) -> io::Result<()> {
    let mut handle: HANDLE = ptr::null_mut();
    // SAFETY: the handle of the own process needs no closing; the new one is written before it is read.
    #[expect(unsafe_code, reason = "std has no tokens")]
    let opened = unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut handle) };
    done(opened)?;
    // SAFETY: the handle was just opened, and nothing else owns it.
    #[expect(unsafe_code, reason = "std has no tokens")]
    let token = unsafe { OwnedHandle::from_raw_handle(handle) };
    let mut length = u32::try_from(size_of_val(buffer)).unwrap_or_default();
    // SAFETY: the token is open, and the buffer has the length that is given.
    #[expect(unsafe_code, reason = "std has no tokens")]
    let read = unsafe {
        GetTokenInformation(token.as_raw_handle(), class, buffer.as_mut_ptr().cast(), length, &raw mut length)
    };
    done(read)
}

/// The text at this pointer, which the system has allocated, and which is freed.
fn taken(text: *mut u16) -> String {
    let mut units = Vec::new();
    // SAFETY: the system ends such texts in NUL, and nothing behind that is read.
    #[expect(unsafe_code, reason = "the text belongs to the system")]
    unsafe {
        let mut at = text;
        while *at != 0 {
            units.push(*at);
            at = at.add(1);
        }
    }
    free(text.cast());
    String::from_utf16_lossy(&units)
}

/// Gives back what the system has allocated.
fn free(allocated: *mut c_void) {
    // SAFETY: the callers own it and do not use it any more; the system accepts null, too.
    #[expect(unsafe_code, reason = "it belongs to the system")]
    let _ = unsafe { LocalFree(allocated) };
}

fn wide(text: &OsStr) -> Vec<u16> {
    text.encode_wide().chain([0]).collect()
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_made_closed_is_own_and_its_files_are_too() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("state");
        create_folder(&folder).unwrap();
        assert_eq!(create_folder(&folder).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        folder_must_be_own(&folder).unwrap();
        let file = folder.join("ledger.key");
        std::fs::write(&file, "key").unwrap();
        close_file(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "key");
        assert_eq!(stranger(&text_of_file(&file).unwrap(), OVER_A_FILE, &own_name().unwrap()), None);
        assert!(own_number().unwrap().starts_with("S-1-"));
    }

    #[test]
    fn no_service_runs_a_program_that_others_can_replace() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("berth");
        create_folder(&folder).unwrap();
        let program = folder.join("agent.exe");
        std::fs::write(&program, "").unwrap();
        program_must_be_own(&program).unwrap();
        let open = Descriptor::parse("D:P(A;OICI;FA;;;WD)").unwrap();
        for (part, rights) in [(&program, ""), (&folder, "OICI")] {
            set(part, &open).unwrap();
            let error = program_must_be_own(&program).unwrap_err();
            let told =
                [&format!("others (WD) can change {}, ", part.display()), "`icacls \"", "/setowner", "/inheritance:r"];
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(told.iter().all(|part| error.to_string().contains(*part)), "{error}");
            set(part, &closed(rights).unwrap()).unwrap();
        }
        set(&folder, &open).unwrap();
        assert!(folder_must_be_own(&folder).unwrap_err().to_string().contains("/setowner"));
    }
}
