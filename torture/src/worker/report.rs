//! How a worker reports to the harness.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use oncebox_torture::event::TortureEvent;
use oncebox_torture::protocol::WorkerReport;

/// Reports to the harness. A line that is written arrives, even if this process is killed next.
pub(crate) fn report(report: &WorkerReport) {
    let Ok(mut line) = serde_json::to_vec(report) else { return };
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    // Fails if the harness has ended; then this process is about to be killed.
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// The machine's monotonic clock: all processes share it, and it cannot jump.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Whether a handler has committed or a message was accepted since [`take_progress`] was called.
static HAS_PROGRESS: AtomicBool = AtomicBool::new(false);

/// Whether this process has committed a handler, or accepted a message, since the last call.
pub(crate) fn take_progress() -> bool {
    HAS_PROGRESS.swap(false, Ordering::SeqCst)
}

#[derive(Debug)]
struct ProgressCounter;

impl CounterFn for ProgressCounter {
    fn increment(&self, _: u64) {
        HAS_PROGRESS.store(true, Ordering::SeqCst);
    }

    fn absolute(&self, _: u64) {}
}

/// Reports every commit with a lost result at once: a counter in memory would be lost with the process.
#[derive(Debug)]
pub(crate) struct CommitReporter {
    /// Whether messages are accepted, and handlers run them later: those are not what consumers do.
    pub(crate) is_stored: bool,
}

#[derive(Debug)]
struct CommitCounter(fn(u64) -> TortureEvent);

impl CounterFn for CommitCounter {
    fn increment(&self, value: u64) {
        report(&WorkerReport::Event(self.0(value)));
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for CommitReporter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let counter = |event| Counter::from_arc(CommitCounter(event).into());
        match key.name() {
            "oncebox_commits_unknown_total" => counter(|commits| TortureEvent::CommitsUnknown { commits }),
            "oncebox_commits_recovered_total" => {
                counter(|commits| TortureEvent::CommitsRecovered { commits })
            }
            "oncebox_accepted_total" if self.is_stored => Counter::from_arc(ProgressCounter.into()),
            "oncebox_processed_total" if !self.is_stored => Counter::from_arc(ProgressCounter.into()),
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
