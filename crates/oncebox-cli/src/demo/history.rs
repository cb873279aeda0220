//! The demo's history: every event is counted at once, and written to a file that others can count.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use oncebox_workload::history::{DeliveryCounts, HistoryEvent, HistoryLine, HistoryWriter, read_file};
use serde::{Deserialize, Serialize};

use crate::exit::NotFound;

/// The file's name in the folder that is kept.
pub(super) const FILE: &str = "history.jsonl";

/// An event of a demo.
pub(super) type Event = HistoryEvent<DemoEvent>;

/// Events that only the demo has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum DemoEvent {
    /// The first line: the options.
    Begun { seed: u64, messages: u64, workers: usize, kills: usize, store: String, schema: Option<String> },
    /// A worker takes deliveries.
    Started { worker: usize, pid: Option<u32> },
    /// A worker was killed with that many deliveries in flight.
    Killed { worker: usize, pid: Option<u32>, in_flight: usize },
    /// Dead letters were retried: workers had been killed several times while they handled those messages.
    Revived { dead_letters: u64 },
    /// Every message is acknowledged, and all stored messages are handled.
    WorkedOff,
    /// A signal ended the demo early.
    Interrupted,
}

/// The sums of all events.
#[derive(Clone, Debug, Default)]
pub(super) struct DemoCounts {
    pub(super) seed: u64,
    /// The number of messages that were to be sent.
    pub(super) messages: u64,
    pub(super) kills_wanted: usize,
    pub(super) store: String,
    pub(super) schema: Option<String>,
    pub(super) deliveries: DeliveryCounts,
    /// Deliveries that the inbox recognised as duplicates.
    pub(super) recognised: u64,
    pub(super) crashes: usize,
    /// Deliveries in flight at workers that were killed.
    pub(super) cut_off: usize,
    pub(super) revived: u64,
    pub(super) is_worked_off: bool,
    pub(super) ms: u64,
}

impl DemoCounts {
    fn add(&mut self, line: &HistoryLine<DemoEvent>) {
        self.ms = line.ms;
        self.deliveries.add(&line.event);
        match &line.event {
            Event::Settled { outcome, .. } => self.recognised += u64::from(outcome == "duplicate"),
            Event::Run(event) => self.add_run_event(event),
            Event::Sent(_) | Event::Delivered { .. } | Event::AckDropped { .. } => {}
        }
    }

    fn add_run_event(&mut self, event: &DemoEvent) {
        match event {
            DemoEvent::Begun { seed, messages, kills, store, schema, .. } => {
                (self.seed, self.messages, self.kills_wanted) = (*seed, *messages, *kills);
                (self.store, self.schema) = (store.clone(), schema.clone());
            }
            DemoEvent::Killed { in_flight, .. } => {
                self.crashes += 1;
                self.cut_off += in_flight;
            }
            DemoEvent::Revived { dead_letters } => self.revived += dead_letters,
            DemoEvent::WorkedOff => self.is_worked_off = true,
            DemoEvent::Started { .. } | DemoEvent::Interrupted => {}
        }
    }
}

/// Counts events, and writes them to a file if there is one.
#[derive(Debug)]
pub(super) struct DemoHistory {
    begun: Instant,
    counts: DemoCounts,
    file: Option<HistoryWriter>,
}

impl DemoHistory {
    /// Begins a history. The file must not exist yet.
    pub(super) fn begin(path: Option<&Path>) -> Result<Self> {
        let file = path.map(HistoryWriter::create).transpose()?;
        Ok(Self { begun: Instant::now(), counts: DemoCounts::default(), file })
    }

    pub(super) fn counts(&self) -> &DemoCounts {
        &self.counts
    }

    pub(super) fn add(&mut self, event: impl Into<Event>) -> Result<()> {
        let line = HistoryLine::new(self.begun.elapsed(), event);
        self.counts.add(&line);
        if let Some(file) = &mut self.file {
            file.add(&line)?;
        }
        Ok(())
    }

    pub(super) fn add_all(&mut self, events: impl IntoIterator<Item = Event>) -> Result<()> {
        events.into_iter().try_for_each(|event| self.add(event))
    }

    /// Completes the file.
    pub(super) fn finish(self) -> Result<DemoCounts> {
        self.file.map(HistoryWriter::finish).transpose()?;
        Ok(self.counts)
    }
}

/// Counts the events of a file.
pub(super) fn read(path: &Path) -> Result<DemoCounts> {
    let lines = read_file(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let text = format!("there is no {}: `oncebox demo --keep DIR` leaves one in DIR", path.display());
            NotFound(text).into()
        }
        _ => anyhow::Error::new(error),
    })?;
    let mut counts = DemoCounts::default();
    for line in lines {
        counts.add(&line?);
    }
    Ok(counts)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use oncebox_workload::deliverer::DeliveryResult;
    use oncebox_workload::plan::Entry;

    use super::*;

    pub(in crate::demo) fn counts(events: &[Event]) -> DemoCounts {
        let mut counts = DemoCounts::default();
        for event in events {
            counts.add(&HistoryLine::new(Duration::ZERO, event.clone()));
        }
        counts
    }

    pub(in crate::demo) fn sent(message: u64) -> Event {
        Event::Sent(Entry { message, account: 1, amount: message * 10 })
    }

    pub(in crate::demo) fn acknowledged(message: u64, outcome: &str) -> Event {
        let result = DeliveryResult::Ack;
        Event::Settled { delivery: 0, message, worker: 0, result, outcome: outcome.into() }
    }

    fn events() -> Vec<Event> {
        let begun =
            DemoEvent::Begun { seed: 7, messages: 2, workers: 1, kills: 1, store: "s".into(), schema: None };
        vec![
            begun.into(),
            sent(1),
            acknowledged(1, "done"),
            DemoEvent::Killed { worker: 0, pid: Some(9), in_flight: 3 }.into(),
            acknowledged(1, "duplicate"),
            DemoEvent::Revived { dead_letters: 2 }.into(),
            DemoEvent::WorkedOff.into(),
        ]
    }

    #[test]
    fn events_are_counted() {
        let counts = counts(&events());
        assert_eq!((counts.seed, counts.messages, counts.kills_wanted), (7, 2, 1));
        assert_eq!((counts.deliveries.acknowledged, counts.recognised, counts.revived), (1, 1, 2));
        assert_eq!((counts.crashes, counts.cut_off, counts.is_worked_off), (1, 3, true));
    }

    #[test]
    fn a_history_file_has_the_same_counts_when_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut history = DemoHistory::begin(Some(&path)).unwrap();
        for event in events() {
            history.add(event).unwrap();
        }
        let (written, read) = (history.finish().unwrap(), read(&path).unwrap());
        assert_eq!((read.recognised, read.crashes, read.is_worked_off), (1, 1, true));
        assert_eq!((written.cut_off, written.ms, written.seed), (read.cut_off, read.ms, read.seed));
        assert_eq!(read.deliveries.sent[&1].entry.amount, 10);
        DemoHistory::begin(Some(&path)).unwrap_err();
    }
}
