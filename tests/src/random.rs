//! Numbers without a pattern (xorshift), the same for a seed.

/// A row of such numbers, from its seed on, which is not zero.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, less than an end that is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }

    /// One of several.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_stands_for_the_same_numbers() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let numbers = [(); 4].map(|()| random.below(1000));
        let mut again = Random(0x9e37_79b9_7f4a_7c15);
        assert_eq!([(); 4].map(|()| again.below(1000)), numbers);
        assert_ne!([(); 4].map(|()| again.below(1000)), numbers);
    }
}
