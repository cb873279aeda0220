//! Random numbers that follow from a seed.

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers (SplitMix64): the same one for the same seed and purpose.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts a sequence. Each purpose has its own, so that one does not change when another is used more often.
    #[must_use]
    pub fn new(seed: u64, purpose: &str) -> Self {
        Self(draw(seed, purpose, &[]))
    }

    /// The next number, from 0 to `limit - 1`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(INCREMENT);
        // The remainder is slightly uneven, which does not matter for limits far below 2^64.
        usize::try_from(mix(self.0) % limit.max(1) as u64).unwrap_or_default()
    }

    /// Whether an event happens that has a probability of 1 to `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of the items, if there are any.
    pub fn choose<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len())])
    }

    /// Puts the items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// A random number that depends on its arguments alone, not on numbers that were drawn before.
#[must_use]
pub fn draw(seed: u64, purpose: &str, parts: &[u64]) -> u64 {
    let purpose =
        purpose.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
    [seed, purpose].iter().chain(parts).fold(INCREMENT, |mixed, part| mix(mixed ^ mix(*part)))
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
    fn the_same_seed_and_purpose_give_the_same_numbers() {
        let numbers = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            [(); 8].map(|()| random.below(1_000_000))
        };
        assert_eq!(numbers(7, "kills"), numbers(7, "kills"));
        assert_ne!(numbers(7, "kills"), numbers(8, "kills"));
        assert_ne!(numbers(7, "kills"), numbers(7, "copies"));
    }

    #[test]
    fn a_drawn_number_depends_on_every_argument_and_on_their_order() {
        let numbers = [
            draw(1, "amount", &[1, 2]),
            draw(2, "amount", &[1, 2]),
            draw(1, "account", &[1, 2]),
            draw(1, "amount", &[2, 1]),
            draw(1, "amount", &[1]),
        ];
        for (index, number) in numbers.iter().enumerate() {
            assert!(!numbers[..index].contains(number), "{numbers:?}");
        }
    }

    #[test]
    fn an_event_of_one_in_ten_happens_about_that_often() {
        let mut random = Random::new(1, "test");
        let happened = (0..10_000).filter(|_| random.one_in(10)).count();
        assert!((800..1_200).contains(&happened), "{happened}");
    }

    #[test]
    fn every_item_is_chosen_at_times_and_none_of_an_empty_list() {
        let mut random = Random::new(1, "test");
        let mut chosen: Vec<u8> = (0..100).filter_map(|_| random.choose(&[1, 2, 3])).collect();
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen, [1, 2, 3]);
        assert_eq!(random.choose::<u8>(&[]), None);
    }

    #[test]
    fn shuffling_keeps_all_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(1, "test").shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
