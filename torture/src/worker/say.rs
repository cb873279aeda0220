//! How a worker tells its harness.

use std::io::Write;

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Tells the harness. A line that was said is heard, whatever happens to this process next.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The harness may be gone; then there is nobody to tell.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// Nanoseconds of the one clock that all processes of the machine share and nobody can set.
pub(crate) fn nanos() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Tells of every commit whose answer was lost, at once: a count that is kept dies with its process.
#[derive(Debug)]
pub(crate) struct Telling;

#[derive(Debug)]
struct Word(&'static str);

impl CounterFn for Word {
    fn increment(&self, value: u64) {
        say(&format!("{} {value}", self.0));
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for Telling {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "oncebox_commits_unknown_total" => Counter::from_arc(Word("unknown").into()),
            "oncebox_commits_recovered_total" => Counter::from_arc(Word("recovered").into()),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
