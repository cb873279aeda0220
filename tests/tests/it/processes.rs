//! Several processes on one database, and what happens when they are killed.

use std::collections::HashMap;

use oncebox_testing::Fixture;

use crate::every_store::judged;
use crate::worker::Worker;

/// Intervals of bodies, and outcomes, as four workers reported them.
#[derive(Default)]
struct Seen {
    bodies: Vec<(u128, u128)>,
    outcomes: HashMap<String, usize>,
}

impl Seen {
    /// Reads one worker's lines until all its copies are settled.
    async fn read(&mut self, worker: &mut Worker, copies: usize) {
        let mut entered = None;
        let mut settled = 0;
        while settled < copies {
            let line = worker.line().await;
            match line.split_once(' ') {
                Some(("enter", at)) => entered = Some(at.parse().unwrap()),
                Some(("leave", at)) => self.bodies.push((entered.take().unwrap(), at.parse().unwrap())),
                Some(("settled", outcome)) => {
                    *self.outcomes.entry(outcome.to_owned()).or_default() += 1;
                    settled += 1;
                }
                _ => panic!("{line}"),
            }
        }
    }
}

async fn copies_over_four_processes<F: Fixture>(fixture: F, url: &str) {
    const COPIES_EACH: usize = 16;
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(url).await);
    }
    for round in 0..judged(100) {
        let key = format!("copied-{round}");
        for worker in &mut workers {
            worker.deliver(&key, COPIES_EACH, "none").await;
        }
        let mut seen = Seen::default();
        for worker in &mut workers {
            seen.read(worker, COPIES_EACH).await;
        }
        assert_eq!(fixture.effects(&key).await, 1, "round {round}");
        let expected = HashMap::from([("done".to_owned(), 1), ("duplicate".to_owned(), 63)]);
        assert_eq!(seen.outcomes, expected, "round {round}");
        seen.bodies.sort_unstable();
        for pair in seen.bodies.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "bodies overlap in round {round}: {pair:?}");
        }
    }
    for worker in workers {
        worker.kill().await;
    }
}

/// Every key meets death at each of the points, one worker after the other, then is delivered in peace.
async fn killed_at_every_point<F: Fixture>(fixture: F, url: &str) {
    const POINTS: [&str; 4] = ["before_claim", "in_body", "before_commit", "after_commit"];
    let kills = judged(200).next_multiple_of(POINTS.len());
    let keys = kills / POINTS.len();
    let mut killed = 0;
    for key in (0..keys).map(|n| format!("killed-{n}")) {
        for point in POINTS {
            let mut worker = Worker::start(url).await;
            worker.deliver(&key, 1, point).await;
            loop {
                let line = worker.line().await;
                if line == format!("at {point}") {
                    break;
                }
                assert!(line.starts_with("enter") || line.starts_with("leave"), "{key} {point}: {line}");
            }
            let before = fixture.effects(&key).await;
            assert_eq!(before, u64::from(point == "after_commit"), "{key} {point}");
            worker.kill().await;
            killed += 1;
        }
    }
    let mut worker = Worker::start(url).await;
    for key in (0..keys).map(|n| format!("killed-{n}")) {
        worker.deliver(&key, 1, "none").await;
        assert_eq!(worker.line().await, "settled duplicate", "{key}");
        assert_eq!(fixture.effects(&key).await, 1, "{key}");
    }
    // A worker that died before the commit leaves the next one a free way, and the effect happens once.
    for (n, point) in POINTS[..3].iter().enumerate() {
        let key = format!("revived-{n}");
        let mut dying = Worker::start(url).await;
        dying.deliver(&key, 1, point).await;
        while dying.line().await != format!("at {point}") {}
        dying.kill().await;
        worker.deliver(&key, 1, "none").await;
        let mut line = worker.line().await;
        while !line.starts_with("settled") {
            line = worker.line().await;
        }
        assert_eq!(line, "settled done", "{point}");
        assert_eq!(fixture.effects(&key).await, 1, "{point}");
    }
    worker.kill().await;
    assert_eq!(killed, kills);
}

mod on_sqlite {
    use crate::sqlite::in_a_file;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn copies_over_four_processes_take_effect_once_and_never_overlap() {
        let sqlite = in_a_file("copies").await.unwrap();
        let path = sqlite.path();
        super::copies_over_four_processes(sqlite, &path).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_killed_at_any_point_leaves_exactly_one_effect() {
        let sqlite = in_a_file("killed").await.unwrap();
        let path = sqlite.path();
        super::killed_at_every_point(sqlite, &path).await;
    }
}

mod on_postgres {
    use crate::postgres::as_owner;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn copies_over_four_processes_take_effect_once_and_never_overlap() {
        if let Some(postgres) = as_owner("copies_over_four_processes").await {
            let url = postgres.database.url();
            super::copies_over_four_processes(postgres, &url).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_killed_at_any_point_leaves_exactly_one_effect() {
        if let Some(postgres) = as_owner("a_worker_killed_at_any_point").await {
            let url = postgres.database.url();
            super::killed_at_every_point(postgres, &url).await;
        }
    }
}
