//! When the disk on which an engine has its images and containers is nearly full. ◇

use model::{LOW_ON_DISK, Text};

/// The part of a disk that has to be free.
const PART: u64 = 20;

/// So much is enough on the largest disk: the images of a few containers, or one of Windows.
const ENOUGH_MAX: u64 = 4 << 30;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// What is said of a host if so many bytes of the disk with its engine's folder are free, of all that there are, and that is too
/// little for new containers.
///
/// One that was low has to have a quarter more, so that it does not come and go with each log line.
pub(super) fn low(folder: &str, (free, total): (u64, u64), was_low: bool) -> Option<Text> {
    let least = (total / PART).min(ENOUGH_MAX);
    let enough = least + least / 4;
    let is_low = free < if was_low { enough } else { least };
    is_low.then(|| format!("{LOW_ON_DISK}: {folder} has to have {} free", words(enough)).into())
}

/// Bytes, rounded up to tenths.
fn words(bytes: u64) -> String {
    let (unit, word) = if bytes < GIB { (MIB, "MiB") } else { (GIB, "GiB") };
    let tenths = (bytes * 10).div_ceil(unit);
    format!("{}.{} {word}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_low_below_its_part_until_it_has_more_than_that() {
        for (total, free, was_low, needed) in [
            (100 * GIB, 4 * GIB, false, None),
            (100 * GIB, 4 * GIB - 1, false, Some("5.0 GiB")),
            (100 * GIB, 5 * GIB - 1, true, Some("5.0 GiB")),
            (100 * GIB, 5 * GIB, true, None),
            (20 * GIB, GIB, false, None),
            (20 * GIB, GIB - 1, false, Some("1.3 GiB")),
            (100 * MIB, 0, false, Some("6.3 MiB")),
            (u64::MAX, 0, false, Some("5.0 GiB")),
            (0, 0, false, None),
        ] {
            let found = low("/d", (free, total), was_low);
            let expected = needed.map(|needed| format!("low on disk: /d has to have {needed} free").into());
            assert_eq!(found, expected, "{free} of {total}");
        }
    }
}
