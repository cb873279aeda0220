//! The expected effects compared with the rows of the ledger: a table without a unique constraint, which would accept a second row.

use std::collections::BTreeMap;

/// Where the ledger differs from the expected effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDiff<E> {
    /// The number of rows.
    pub rows: u64,
    /// Expected effects without a row.
    pub missing: Vec<E>,
    /// Expected effects with more than one row, and the number of their rows.
    pub duplicated: Vec<(E, u64)>,
    /// Effects that are not expected, and the number of their rows.
    pub unexpected: Vec<(E, u64)>,
}

impl<E: Copy + Ord> LedgerDiff<E> {
    /// Compares each effect that is expected once with the rows: effects, and how often each was found.
    pub fn new(expected: impl IntoIterator<Item = E>, rows: impl IntoIterator<Item = (E, u64)>) -> Self {
        let mut found: BTreeMap<E, u64> = BTreeMap::new();
        for (effect, times) in rows {
            *found.entry(effect).or_default() += times;
        }
        let rows = found.values().sum();
        let (mut missing, mut duplicated) = (Vec::new(), Vec::new());
        for effect in expected {
            match found.remove(&effect) {
                None => missing.push(effect),
                Some(1) => {}
                Some(times) => duplicated.push((effect, times)),
            }
        }
        Self { rows, missing, duplicated, unexpected: found.into_iter().collect() }
    }

    /// The number of rows beyond the first of each expected effect.
    #[must_use]
    pub fn duplicate_rows(&self) -> u64 {
        self.duplicated.iter().map(|(_, times)| times - 1).sum()
    }

    /// The number of rows of effects that are not expected.
    #[must_use]
    pub fn unexpected_rows(&self) -> u64 {
        self.unexpected.iter().map(|(_, times)| times).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_missing_duplicated_or_unexpected() {
        type Rows = &'static [(u8, u64)];
        let table: [(&str, Rows, &[u8], Rows, Rows); 6] = [
            ("one row each", &[(1, 1), (2, 1)], &[], &[], &[]),
            ("no row", &[(2, 1)], &[1], &[], &[]),
            ("three rows", &[(1, 1), (2, 3)], &[], &[(2, 3)], &[]),
            ("the same row, listed twice", &[(1, 1), (2, 1), (1, 1)], &[], &[(1, 2)], &[]),
            ("a missing and a second row do not cancel out", &[(1, 2)], &[2], &[(1, 2)], &[]),
            ("rows that are not expected are not duplicates", &[(1, 1), (2, 1), (3, 2)], &[], &[], &[(3, 2)]),
        ];
        for (case, rows, missing, duplicated, unexpected) in table {
            let diff = LedgerDiff::new([1, 2], rows.iter().copied());
            assert_eq!(diff.rows, rows.iter().map(|(_, times)| times).sum::<u64>(), "{case}");
            assert_eq!(
                (&diff.missing[..], &diff.duplicated[..], &diff.unexpected[..]),
                (missing, duplicated, unexpected),
                "{case}"
            );
        }
    }

    #[test]
    fn only_the_first_row_of_an_expected_effect_is_no_duplicate() {
        let diff = LedgerDiff::new([1, 2], [(1, 3), (2, 2), (3, 4)]);
        assert_eq!((diff.duplicate_rows(), diff.unexpected_rows()), (3, 4));
    }
}
