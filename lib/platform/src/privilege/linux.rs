//! credentials(7), capabilities(7) and seccomp(2).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown, lchown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use libc::{c_int, c_long, c_ulong};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::{Capability, User};
use crate::nobody;

/// capabilities(7): ports below 1024; addresses, routes and filters.
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;

/// The highest number of a capability that can be; the kernel says which ones it does not know.
const CAPABILITY_MAX: c_ulong = 63;

/// The version of capget(2) with two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// The number that leaves a user or a group as it is, in setresuid(2) and chown(2): root would stay root.
const UNCHANGED: u32 = u32::MAX;

/// What no service calls: starting programs, other processes, mounts and namespaces, kernel modules, the clock, and parts of
/// the kernel that have been ways to root. They fail with EPERM. A list of what is called would break with a C library
/// that calls something else.
const FORBIDDEN: [c_long; 43] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_personality,
];

pub(super) fn user(name: &str) -> io::Result<User> {
    let found = |what: String| io::Error::new(io::ErrorKind::NotFound, what);
    let number: Option<u32> = name.parse().ok();
    let known = fs::read_to_string("/etc/passwd")?;
    let line = known.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (id, group) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        (fields.first() == Some(&name) || number == Some(id)).then_some(User { id, group })
    });
    let user = line.or_else(|| number.map(|id| User { id, group: id }));
    let user = user.ok_or_else(|| found(format!("there is no user {name}")))?;
    let unfit = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if user.id == 0 || user.group == 0 {
        return unfit(format!("{name} has the rights of root"));
    }
    if [user.id, user.group].contains(&UNCHANGED) {
        return unfit(format!("{UNCHANGED} is the number of no user"));
    }
    nobody::refuse(user.id, user.group)?;
    Ok(user)
}

pub(super) fn create_folder_for(user: User, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o710).create(path)?;
    chown(path, Some(0), Some(user.group))
}

pub(super) fn hand_over(user: User, folder: &Path) -> io::Result<()> {
    let owner = fs::metadata(folder)?.uid();
    if owner == user.id {
        return Ok(());
    }
    if owner != 0 {
        return Err(io::Error::other(format!("{} belongs to user {owner}", folder.display())));
    }
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    let mut seen = 0;
    while let Some(folder) = folders.get(seen) {
        seen += 1;
        for entry in fs::read_dir(folder)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            match kind {
                kind if kind.is_dir() => folders.push(path),
                kind if kind.is_file() => files.push(path),
                _ => return Err(io::Error::other(format!("{} is no file of Berth's: remove it", path.display()))),
            }
        }
    }
    // The folder itself last: until then only root can write there, and what was ended goes on with the next start.
    let mut all = files.iter().chain(folders.iter().rev());
    all.try_for_each(|path| lchown(path, Some(user.id), Some(user.group)))
}

pub(super) fn owns(user: User, folder: &Path) -> io::Result<bool> {
    match fs::metadata(folder) {
        Ok(metadata) => Ok(metadata.uid() == user.id),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn in_own_group(command: &mut Command) {
    command.process_group(0);
}

/// Fails if this process has several threads.
fn alone() -> io::Result<()> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads == 1 { Ok(()) } else { Err(io::Error::other("there is more than one thread")) }
}

/// What the kernel says of this process in a line of its status.
fn status(line: &str) -> io::Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let found = status.lines().find_map(|one| Some(one.strip_prefix(line)?.trim().to_owned()));
    found.ok_or_else(|| io::Error::other(format!("/proc/self/status has no {line}")))
}

/// The capabilities of a line of the status, as bits.
fn capabilities(line: &str) -> io::Result<u64> {
    u64::from_str_radix(&status(line)?, 16).map_err(io::Error::other)
}

/// The line with those that programs get which this process runs.
const AMBIENT: &str = "CapAmb:";

/// What makes the calls of [`FORBIDDEN`] fail.
fn filter() -> io::Result<BpfProgram> {
    let architecture = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let rules = FORBIDDEN.map(|call| (call, Vec::new()));
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(BTreeMap::from(rules), SeccompAction::Allow, denied, architecture);
    filter.and_then(TryInto::try_into).map_err(io::Error::other)
}

pub(super) fn passes_network_on() -> io::Result<bool> {
    let users = status("Uid:")?;
    Ok(users.split_ascii_whitespace().all(|user| user != "0") && capabilities(AMBIENT)? & NET_ADMIN != 0)
}

pub(super) fn starting_with_network<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let others = capabilities(AMBIENT)? & !NET_ADMIN;
    pass_on(libc::PR_CAP_AMBIENT_LOWER, others)?;
    let started = start();
    pass_on(libc::PR_CAP_AMBIENT_RAISE, others)?;
    started
}

pub(super) fn pass_network_on_no_more() -> io::Result<()> {
    alone()?;
    pass_on(libc::PR_CAP_AMBIENT_LOWER, NET_ADMIN)
}

/// Has programs that this process runs get these capabilities, or not get them.
fn pass_on(how: c_int, capabilities: u64) -> io::Result<()> {
    let how = how.unsigned_abs().into();
    let mut each = (0..=CAPABILITY_MAX).filter(|number| capabilities & 1 << number != 0);
    each.try_for_each(|number| prctl(libc::PR_CAP_AMBIENT, [how, number]))
}

pub(super) fn keep_network_alone() -> io::Result<()> {
    alone()?;
    if capabilities("CapPrm:")? != NET_ADMIN {
        return Err(io::Error::other("this process was not started with NET_ADMIN alone"));
    }
    // Sets no_new_privs as well.
    seccompiler::apply_filter(&filter()?).map_err(io::Error::other)
}

pub(super) fn become_user(user: User, capability: Capability) -> io::Result<()> {
    alone()?;
    let filter = filter()?;
    let kept = match capability {
        Capability::Ports => NET_BIND_SERVICE,
        Capability::Network => NET_ADMIN,
    };
    for capability in (0..=CAPABILITY_MAX).filter(|number| kept & 1 << number == 0) {
        match prctl(libc::PR_CAPBSET_DROP, [capability, 0]) {
            // The kernel has none of this number.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            other => other?,
        }
    }
    prctl(libc::PR_SET_KEEPCAPS, [1, 0])?;
    // SAFETY: an empty list, of which nothing is read.
    #[expect(unsafe_code, reason = "std knows no groups")]
    let result = unsafe { libc::setgroups(0, std::ptr::null()) };
    checked(result)?;
    // SAFETY: takes numbers only.
    #[expect(unsafe_code, reason = "std knows no users")]
    let result = unsafe { libc::setresgid(user.group, user.group, user.group) };
    checked(result)?;
    // SAFETY: takes numbers only.
    #[expect(unsafe_code, reason = "std knows no users")]
    let result = unsafe { libc::setresuid(user.id, user.id, user.id) };
    checked(result)?;
    set_capabilities(kept)?;
    // Sets no_new_privs as well.
    seccompiler::apply_filter(&filter).map_err(io::Error::other)
}

fn prctl(option: c_int, [first, second]: [c_ulong; 2]) -> io::Result<()> {
    // SAFETY: these options take numbers, and no others are given.
    #[expect(unsafe_code, reason = "std knows no capabilities")]
    let result = unsafe { libc::prctl(option, first, second, 0, 0) };
    checked(result)
}

/// These capabilities and no others, effective and permitted; none passes to other programs.
fn set_capabilities(kept: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: c_int,
    }
    #[repr(C)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header { version: CAPABILITY_VERSION, pid: 0 };
    let sets = [kept, kept >> u32::BITS].map(|bits| {
        let word = u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        Sets { effective: word, permitted: word, inheritable: 0 }
    });
    // SAFETY: this version reads a header and two sets as they stand here, which outlive the call.
    #[expect(unsafe_code, reason = "libc has no function for it")]
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn checked(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_known_by_name_and_number_and_root_is_none() {
        assert_eq!(user("64123").unwrap(), User { id: 64_123, group: 64_123 });
        for name in ["root", "0", "no such user", "", "-1", "4294967295"] {
            assert!(user(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_user_that_other_services_have_too_is_refused() {
        for name in ["nobody", "65534"] {
            let error = user(name).unwrap_err().to_string();
            assert!(error.contains("useradd --system berth"), "{name}: {error}");
        }
    }

    #[test]
    fn a_folder_is_handed_over_as_a_whole_and_without_links() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir_all(state.join("labels.d")).unwrap();
        fs::write(state.join("labels.d/a.env"), "").unwrap();
        let user = User { id: 64_123, group: 64_123 };
        let link = state.join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        if owner(&state) != 0 {
            return println!("only root gives files away");
        }
        assert!(hand_over(user, &state).unwrap_err().to_string().contains("link is no file"));
        assert_eq!(owner(&state), 0);
        fs::remove_file(link).unwrap();
        hand_over(user, &state).unwrap();
        assert_eq!((owner(&state), owner(&state.join("labels.d/a.env"))), (user.id, user.id));
        assert!(
            hand_over(User { id: 64_124, group: 1 }, &state).unwrap_err().to_string().contains("belongs to user 64123")
        );
    }
}
