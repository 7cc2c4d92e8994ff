//! Memory of which much is used at once.

#[cfg_attr(target_os = "linux", path = "memory/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "memory/other.rs")]
mod system;

/// Least octets of a buffer for which large pages are asked: below, the system gives memory as fast in small ones.
const LARGE_MIN: usize = 16 << 20;

/// Asks for large pages for the free room of a buffer that is about to be filled: the system then gives its memory in
/// hundreds of steps instead of hundreds of thousands. A wish; whether it was heard, nobody but a clock can tell.
pub fn about_to_fill(buffer: &mut Vec<u8>) {
    let room = buffer.spare_capacity_mut();
    if room.len() >= LARGE_MIN {
        system::use_large_pages(room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_buffer_stays() {
        for (filled, room) in [(0, 0), (3, 10), (5000, LARGE_MIN - 1), (0, LARGE_MIN), (12_345, 3 * LARGE_MIN)] {
            let octets: Vec<u8> = (0..filled).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let mut buffer = Vec::with_capacity(filled + room);
            buffer.extend_from_slice(&octets);
            about_to_fill(&mut buffer);
            assert_eq!(buffer, octets, "{room}");
            buffer.resize(filled + room, 7);
            assert_eq!(buffer[..filled], octets, "{room}");
            assert!(buffer[filled..].iter().all(|octet| *octet == 7), "{room}");
        }
    }
}
