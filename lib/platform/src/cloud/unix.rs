//! Names in the DMI tables, which the kernel shows in /sys.

use std::fs;

pub(super) fn firmware_names() -> Vec<String> {
    ["sys_vendor", "bios_vendor", "board_vendor", "bios_version"]
        .iter()
        .filter_map(|file| fs::read_to_string(format!("/sys/class/dmi/id/{file}")).ok())
        .collect()
}
