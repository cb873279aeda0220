//! Rounds in which every contender has its turn, so that a slow minute of the machine hits all of them.

use anyhow::Result;

use crate::report::figure;
use crate::results::Series;

/// Measures each contender once a round, beginning with another one each time.
pub(crate) async fn interleave(
    title: &str,
    rounds: u32,
    contenders: &[&'static str],
    mut measure: impl AsyncFnMut(usize) -> Result<f64>,
) -> Result<Vec<Series>> {
    let mut all: Vec<Series> =
        contenders.iter().map(|&contender| Series { contender, figures: Vec::new() }).collect();
    for round in 0..rounds {
        for n in order(contenders.len(), round as usize) {
            let value = measure(n).await?;
            eprintln!("{title}, round {} of {rounds}: {} {}", round + 1, contenders[n], figure(value));
            all[n].figures.push(value);
        }
    }
    Ok(all)
}

fn order(contenders: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |n| (n + round) % contenders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another_contender() {
        assert_eq!(order(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(order(3, 1).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(order(3, 3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
