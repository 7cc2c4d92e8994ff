//! Names in the tables of the firmware, which Windows stores in the registry.

use std::ptr;

use windows_sys::Win32::Foundation::NO_ERROR;
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::core::w;

/// Longest name that is read, in UTF-16 units; a longer one is none we know.
const NAME_MAX: usize = 256;

pub(super) fn firmware_names() -> Vec<String> {
    ["SystemManufacturer", "BIOSVendor", "BaseBoardManufacturer", "BIOSVersion"]
        .into_iter()
        .filter_map(firmware_name)
        .collect()
}

fn firmware_name(value: &str) -> Option<String> {
    let value: Vec<u16> = value.encode_utf16().chain([0]).collect();
    let mut name = [0_u16; NAME_MAX];
    let mut bytes = u32::try_from(size_of_val(&name)).ok()?;
    // SAFETY: both names end with zero and live until the call returns; `name` has `bytes` bytes and is ours alone, as
    // `bytes` is; the type is not asked for.
    #[expect(unsafe_code, reason = "std does not know the registry")]
    let result = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!("HARDWARE\\DESCRIPTION\\System\\BIOS"),
            value.as_ptr(),
            RRF_RT_REG_SZ,
            ptr::null_mut(),
            name.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != NO_ERROR {
        return None;
    }
    let end = name.iter().position(|&unit| unit == 0)?;
    Some(String::from_utf16_lossy(&name[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_strings() {
        for name in firmware_names() {
            assert!(name.len() < NAME_MAX && !name.contains('\0'), "{name:?}");
        }
    }
}
