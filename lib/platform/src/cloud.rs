//! Which cloud the machine runs in, guessed from what its firmware says.

#[cfg_attr(unix, path = "cloud/unix.rs")]
#[cfg_attr(windows, path = "cloud/windows.rs")]
mod system;

use std::net::{IpAddr, Ipv4Addr};

/// Addresses through which Windows is activated (KMS) on AWS.
pub const AWS_ACTIVATION: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(169, 254, 169, 250)), IpAddr::V4(Ipv4Addr::new(169, 254, 169, 251))];

/// Whether this is very likely a machine of AWS.
///
/// There Windows is activated through [`AWS_ACTIVATION`], the addresses that metadata and DNS have by default. A guess
/// from the firmware's names, without asking the network; `false` when they cannot be read.
pub fn on_aws() -> bool {
    system::firmware_names().iter().any(|name| is_aws(name))
}

/// Nitro machines say "Amazon EC2"; Xen ones have "4.11.amazon" as version of the firmware.
fn is_aws(firmware_name: &str) -> bool {
    let name = firmware_name.trim().to_ascii_lowercase();
    name.contains("amazon ec2") || name.ends_with(".amazon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws_is_known_by_its_firmware() {
        for (name, expected) in [
            ("Amazon EC2\n", true),
            ("amazon ec2", true),
            ("4.11.amazon\n", true),
            ("Xen\n", false),
            ("Amazon Fire TV", false),
            ("Google", false),
            ("Microsoft Corporation", false),
            ("QEMU", false),
            ("", false),
        ] {
            assert_eq!(is_aws(name), expected, "{name}");
        }
    }

    #[test]
    fn this_machine_is_judged_by_its_names() {
        assert_eq!(on_aws(), system::firmware_names().iter().any(|name| is_aws(name)));
    }
}
