//! The kernel's settings, as sysctl(8) reads and writes them; Linux only.
//!
//! Those below `net` are the settings of the network namespace that the calling thread is in.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

/// Reads a setting, such as `net.ipv4.ip_forward`, without the line break at its end.
///
/// As for sysctl(8), the first separator says which one it is: `net/ipv4/conf/eth0.100/forwarding` is
/// `net.ipv4.conf.eth0/100.forwarding`.
///
/// # Errors
///
/// Fails if the name has characters other than letters, digits and `_.-/`, if there is no such setting, or if it cannot
/// be read.
pub fn read(name: &str) -> io::Result<String> {
    let mut value = fs::read_to_string(path(name)?)?;
    value.truncate(value.trim_end_matches('\n').len());
    Ok(value)
}

/// Writes a setting.
///
/// # Errors
///
/// As those of [`read`]; and if the kernel refuses the value, or the process lacks the right: root, and for what is below
/// `net` the capability `NET_ADMIN`.
pub fn write(name: &str, value: &str) -> io::Result<()> {
    // One call, so that the kernel sees the value as a whole.
    File::options().write(true).open(path(name)?)?.write_all(format!("{value}\n").as_bytes())
}

/// The file of a setting.
fn path(name: &str) -> io::Result<PathBuf> {
    if !cfg!(target_os = "linux") {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no settings by name"));
    }
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_.-/".contains(letter);
    let separator = name.find(['.', '/']).map(|at| &name[at..=at]);
    let name: String = match separator {
        Some(".") => name
            .chars()
            .map(|letter| match letter {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    };
    // A name of nothing but dots leads to another folder, and an empty one to the folder itself.
    let is_name = |part: &str| part.contains(|letter| letter != '.');
    if !name.chars().all(allowed) || !name.split('/').all(is_name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a setting")));
    }
    Ok(PathBuf::from("/proc/sys").join(name))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_sysctl_and_lead_nowhere_else() {
        for (name, expected) in [
            ("net.ipv4.ip_forward", Some("net/ipv4/ip_forward")),
            ("net/ipv4/conf/eth0.100/forwarding", Some("net/ipv4/conf/eth0.100/forwarding")),
            ("net.ipv4.conf.eth0/100.forwarding", Some("net/ipv4/conf/eth0.100/forwarding")),
            ("net/ipv4/conf/br-0a_1/rp_filter", Some("net/ipv4/conf/br-0a_1/rp_filter")),
            ("net/ipv4/conf/enP2p1s0/mtu", Some("net/ipv4/conf/enP2p1s0/mtu")),
            ("../../etc/passwd", None),
            ("net/../../../etc/passwd", None),
            ("net.//.etc", None),
            ("net/ipv4/./ip_forward", None),
            ("/etc/passwd", None),
            ("net//ipv4", None),
            ("net/ipv4/", None),
            ("", None),
            ("net ipv4", None),
            ("net/ipv4\0", None),
            ("net/ïpv4", None),
        ] {
            let path = path(name).ok();
            assert_eq!(path, expected.map(|expected| PathBuf::from("/proc/sys").join(expected)), "{name}");
        }
    }

    #[test]
    fn a_setting_is_read_and_one_that_is_not_there_is_an_error() {
        let value = read("kernel.ostype").unwrap();
        assert_eq!(value, "Linux");
        assert_eq!(read("net.ipv4.no_such_setting").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(write("kernel.no_such_setting", "1").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(write("..", "1").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
