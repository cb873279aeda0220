//! The history of a run, in a file that is only appended to.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use oncebox_torture::event::TortureEvent;
use oncebox_workload::history::{HistoryEvent, HistoryLine, HistoryWriter, read_file};

/// An event of a torture run.
pub(crate) type Event = HistoryEvent<TortureEvent>;

/// The history of the run under way.
#[derive(Debug)]
pub(crate) struct History {
    begun: Instant,
    file: HistoryWriter,
}

impl History {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        Ok(Self { file: HistoryWriter::create(path)?, begun: Instant::now() })
    }

    pub(crate) fn add(&mut self, event: impl Into<Event>) -> Result<()> {
        Ok(self.file.add(&HistoryLine::new(self.begun.elapsed(), event))?)
    }

    pub(crate) fn add_all(&mut self, events: impl IntoIterator<Item = Event>) -> Result<()> {
        events.into_iter().try_for_each(|event| self.add(event))
    }

    /// Completes the file. Returns its path.
    pub(crate) fn finish(self) -> Result<PathBuf> {
        Ok(self.file.finish()?)
    }
}

/// Reads the events of a file.
pub(crate) fn read(path: &Path) -> Result<impl Iterator<Item = Result<Event>>> {
    Ok(read_file(path)?.map(|line| Ok(line.map(|line: HistoryLine<TortureEvent>| line.event)?)))
}

#[cfg(test)]
mod tests {
    use oncebox_torture::event::Backlog;
    use oncebox_workload::deliverer::DeliveryResult;
    use oncebox_workload::plan::Entry;

    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let (message, handler) = (1, || "books".to_owned());
        let events: Vec<Event> = vec![
            Event::Sent(Entry { message, account: 1, amount: 5 }),
            Event::Delivered { delivery: 1, message, worker: 2 },
            Event::Settled {
                delivery: 1,
                message,
                worker: 2,
                result: DeliveryResult::Retry,
                outcome: "failed+done".into(),
            },
            TortureEvent::Body { message, handler: handler(), enter: 5, leave: u64::MAX }.into(),
            TortureEvent::CommitsUnknown { commits: 3 }.into(),
            TortureEvent::CommitsRecovered { commits: 2 }.into(),
            TortureEvent::DeadLetter { message, handler: handler(), error: "no such \"function\"".into() }
                .into(),
            TortureEvent::TortureFault { id: "disk_full".into() }.into(),
            TortureEvent::Starters { ready: 20, effects: 1 }.into(),
            TortureEvent::Idle { worker: 2 }.into(),
            TortureEvent::IdleHandler { handler: handler() }.into(),
            TortureEvent::Stalled { faults: 4 }.into(),
            TortureEvent::BacklogLeft(Backlog { lag: 1, tasks: 2, dead: 3 }).into(),
            TortureEvent::WorkerEnded { worker: 3, status: "signal 9".into(), is_expected: true }.into(),
        ];
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::create(folder.path().join("history.jsonl")).unwrap();
        for event in &events {
            history.add(event.clone()).unwrap();
        }
        let path = history.finish().unwrap();
        assert_eq!(read(&path).unwrap().collect::<Result<Vec<_>>>().unwrap(), events);
    }
}
