//! Which cloud the machine runs in, guessed from what its firmware says.

#[cfg_attr(unix, path = "cloud/unix.rs")]
#[cfg_attr(windows, path = "cloud/windows.rs")]
mod system;

/// Whether this is very likely a machine of AWS.
///
/// There Windows is activated through 169.254.169.250 and .251, the addresses that metadata and DNS have by default. A
/// guess from the firmware's names, without asking the network; `false` when they cannot be read.
pub fn on_aws() -> bool {
    system::firmware_names().iter().any(|name| is_aws(name))
}

/// Nitro machines say "Amazon EC2"; Xen ones have "4.11.amazon" as version of the firmware.
fn is_aws(firmware_name: &str) -> bool {
    let name = firmware_name.trim().to_ascii_lowercase();
    name.contains("amazon ec2") || name.ends_with(".amazon")
}
