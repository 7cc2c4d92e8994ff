//! A hash of names that every machine and every version computes alike, where all hosts have to come to the same choice.

/// FNV-1a with 64 bits. Its last bytes weigh little in the upper bits.
pub fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::name_hash;

    /// Test vectors of its authors.
    #[test]
    fn hashes_are_those_of_fnv_1a() {
        let hashes = ["", "a", "foobar"].map(name_hash);
        assert_eq!(hashes, [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]);
    }
}
