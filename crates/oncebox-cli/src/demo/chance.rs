//! Numbers by chance, the same ones for the same seed.

/// A source of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// Numbers that depend on these alone.
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        Self(fate(&[seed, purpose]))
    }

    /// One of 0, 1, … below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mix(self.0) % limit.max(1) as u64).unwrap_or_default()
    }

    /// True once in so many times.
    pub(super) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// A number that depends on these alone, and looks like chance.
pub(super) fn fate(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |mixed, part| mix(mixed ^ mix(*part)))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed, purpose| {
            let mut chance = Chance::new(seed, purpose);
            [(); 8].map(|()| chance.below(1_000_000))
        };
        assert_eq!(numbers(7, 1), numbers(7, 1));
        assert_ne!(numbers(7, 1), numbers(8, 1));
        assert_ne!(numbers(7, 1), numbers(7, 2));
        assert_ne!(fate(&[1, 2]), fate(&[2, 1]));
    }
}
