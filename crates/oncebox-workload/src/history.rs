//! The events of a run, in a file with one JSON object per line, and their counts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::deliverer::{DeliveryResult, SentCopy, Settled};
use crate::plan::{Entry, Plan};

/// An event of a run. `R` are the events that only this kind of run has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum HistoryEvent<R> {
    /// A message is delivered for the first time.
    Sent(Entry),
    /// A worker receives a copy of a message; the first copy counts too.
    Delivered {
        /// The number of the delivery.
        delivery: u64,
        /// The number of the message.
        message: u64,
        /// The worker.
        worker: usize,
    },
    /// A worker has reported the result of a delivery.
    Settled {
        /// The number of the delivery.
        delivery: u64,
        /// The number of the message.
        message: u64,
        /// The worker.
        worker: usize,
        /// The result.
        result: DeliveryResult,
        /// The outcomes that the inbox reported, or its error.
        outcome: String,
    },
    /// The acknowledgement of that delivery was lost on its way to the source.
    AckDropped {
        /// The number of the delivery.
        delivery: u64,
        /// The number of the message.
        message: u64,
    },
    /// An event of this kind of run.
    #[serde(untagged)]
    Run(R),
}

impl<R> HistoryEvent<R> {
    /// The events of a delivery.
    pub fn of_delivery(delivery: &SentCopy, plan: Plan) -> impl Iterator<Item = Self> + use<R> {
        let SentCopy { number, worker, message, .. } = *delivery;
        let sent = delivery.is_first().then(|| Self::Sent(plan.entry(message)));
        sent.into_iter().chain([Self::Delivered { delivery: number, message, worker }])
    }

    /// The events of a result, with the outcomes that the inbox reported.
    pub fn of_result(settled: &Settled, outcome: String) -> impl Iterator<Item = Self> + use<R> {
        let Settled { delivery: SentCopy { number: delivery, worker, message, .. }, result, .. } = *settled;
        let dropped = settled.is_ack_lost.then_some(Self::AckDropped { delivery, message });
        [Self::Settled { delivery, message, worker, result, outcome }].into_iter().chain(dropped)
    }
}

impl<R> From<R> for HistoryEvent<R> {
    fn from(event: R) -> Self {
        Self::Run(event)
    }
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLine<R> {
    /// Milliseconds since the beginning of the run.
    pub ms: u64,
    /// The event.
    #[serde(flatten)]
    pub event: HistoryEvent<R>,
}

impl<R> HistoryLine<R> {
    /// An event after that time.
    pub fn new(elapsed: Duration, event: impl Into<HistoryEvent<R>>) -> Self {
        Self { ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX), event: event.into() }
    }
}

impl<R: Serialize> HistoryLine<R> {
    /// Adds the line to a history.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }
}

/// Reads a history line by line. An error names the line.
pub fn read<R: DeserializeOwned>(input: impl BufRead) -> impl Iterator<Item = io::Result<HistoryLine<R>>> {
    (1..).zip(input.lines()).map(|(number, line)| {
        let invalid =
            |error| io::Error::new(io::ErrorKind::InvalidData, format!("invalid line {number}: {error}"));
        serde_json::from_str(&line?).map_err(invalid)
    })
}

/// A history while it is written to a file. Errors name the file.
#[derive(Debug)]
pub struct HistoryWriter {
    path: PathBuf,
    out: BufWriter<File>,
}

impl HistoryWriter {
    /// Creates the file. It must not exist yet: it may be the history of another run.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let file = File::create_new(&path).map_err(|error| about("creating", &path, &error))?;
        Ok(Self { path, out: BufWriter::new(file) })
    }

    /// Adds a line.
    pub fn add<R: Serialize>(&mut self, line: &HistoryLine<R>) -> io::Result<()> {
        line.write(&mut self.out).map_err(|error| about("writing", &self.path, &error))
    }

    /// Completes the file. Returns its path.
    pub fn finish(mut self) -> io::Result<PathBuf> {
        self.out.flush().map_err(|error| about("writing", &self.path, &error))?;
        Ok(self.path)
    }
}

/// Reads a history file line by line. An error names the file, and has the kind of its cause.
pub fn read_file<R: DeserializeOwned>(
    path: &Path,
) -> io::Result<impl Iterator<Item = io::Result<HistoryLine<R>>> + use<R>> {
    let path = path.to_owned();
    let file = File::open(&path).map_err(|error| about("reading", &path, &error))?;
    Ok(read(BufReader::new(file)).map(move |line| line.map_err(|error| about("reading", &path, &error))))
}

fn about(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{action} {}: {error}", path.display()))
}

/// The sums of the events that all runs have.
#[derive(Clone, Debug, Default)]
pub struct DeliveryCounts {
    /// Messages that were sent, by their numbers.
    pub sent: HashMap<u64, SentMessage>,
    /// Copies that workers received.
    pub delivered: u64,
    /// Acknowledgements that were lost on their way to the source.
    pub acks_dropped: u64,
    /// Messages whose acknowledgement the source has received.
    pub acknowledged: u64,
}

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentMessage {
    /// Its content.
    pub entry: Entry,
    /// Whether a worker has acknowledged it, even if the acknowledgement was lost.
    pub is_acknowledged: bool,
    acks_received: u64,
}

impl DeliveryCounts {
    /// Copies beyond the first of each message.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.delivered.saturating_sub(self.sent.len() as u64)
    }

    /// Counts an event.
    pub fn add<R>(&mut self, event: &HistoryEvent<R>) {
        match event {
            HistoryEvent::Sent(entry) => {
                let sent = SentMessage { entry: *entry, is_acknowledged: false, acks_received: 0 };
                self.sent.insert(entry.message, sent);
            }
            HistoryEvent::Delivered { .. } => self.delivered += 1,
            HistoryEvent::Settled { message, result: DeliveryResult::Ack, .. } => self.add_ack(*message),
            HistoryEvent::AckDropped { message, .. } => self.drop_ack(*message),
            HistoryEvent::Settled { .. } | HistoryEvent::Run(_) => {}
        }
    }

    fn add_ack(&mut self, message: u64) {
        if let Some(sent) = self.sent.get_mut(&message) {
            sent.is_acknowledged = true;
            sent.acks_received += 1;
            self.acknowledged += u64::from(sent.acks_received == 1);
        }
    }

    fn drop_ack(&mut self, message: u64) {
        self.acks_dropped += 1;
        if let Some(sent) = self.sent.get_mut(&message).filter(|sent| sent.acks_received > 0) {
            // `is_acknowledged` stays true, because the worker has handled the message.
            sent.acks_received -= 1;
            self.acknowledged -= u64::from(sent.acks_received == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(tag = "event", rename_all = "snake_case")]
    enum TestEvent {
        Killed { worker: usize, pid: Option<u32> },
        Finished,
    }

    type Event = HistoryEvent<TestEvent>;

    fn sent(message: u64) -> Event {
        Event::Sent(Entry { message, account: 1, amount: message * 10 })
    }

    fn delivered(delivery: u64, message: u64) -> Event {
        Event::Delivered { delivery, message, worker: 0 }
    }

    fn settled(delivery: u64, message: u64, result: DeliveryResult) -> Event {
        Event::Settled { delivery, message, worker: 0, result, outcome: "done".into() }
    }

    fn events() -> Vec<Event> {
        vec![
            sent(1),
            delivered(1, 1),
            settled(1, 1, DeliveryResult::Ack),
            Event::AckDropped { delivery: 1, message: 1 },
            sent(2),
            delivered(2, 2),
            TestEvent::Killed { worker: 0, pid: Some(9) }.into(),
            delivered(3, 1),
            settled(3, 1, DeliveryResult::Ack),
            delivered(4, 2),
            settled(4, 2, DeliveryResult::Retry),
            TestEvent::Finished.into(),
        ]
    }

    fn counts(events: &[Event]) -> DeliveryCounts {
        let mut counts = DeliveryCounts::default();
        events.iter().for_each(|event| counts.add(event));
        counts
    }

    #[test]
    fn the_first_delivery_of_a_message_is_also_the_event_that_it_is_sent() {
        let plan = Plan { seed: 1, accounts: 10, is_ordered: false };
        let events = |copy| {
            let delivery = SentCopy { number: 3, worker: 0, message: 7, copy };
            Event::of_delivery(&delivery, plan).collect::<Vec<_>>()
        };
        assert_eq!(events(1), [Event::Sent(plan.entry(7)), delivered(3, 7)]);
        assert_eq!(events(2), [delivered(3, 7)]);
    }

    #[test]
    fn a_lost_acknowledgement_is_an_event_after_its_result() {
        let events = |is_ack_lost| {
            let delivery = SentCopy { number: 3, worker: 0, message: 7, copy: 1 };
            let settled = Settled { delivery, result: DeliveryResult::Ack, is_first_ack: false, is_ack_lost };
            Event::of_result(&settled, "done".into()).collect::<Vec<_>>()
        };
        let result = settled(3, 7, DeliveryResult::Ack);
        assert_eq!(events(false), std::slice::from_ref(&result));
        assert_eq!(events(true), [result, Event::AckDropped { delivery: 3, message: 7 }]);
    }

    #[test]
    fn events_are_counted() {
        let counts = counts(&events());
        assert_eq!((counts.sent.len(), counts.delivered, counts.duplicates()), (2, 4, 2));
        assert_eq!((counts.acknowledged, counts.acks_dropped), (1, 1));
        assert_eq!(counts.sent[&2].entry.amount, 20);
        assert!(!counts.sent[&2].is_acknowledged, "the worker has asked for a retry");
    }

    #[test]
    fn a_dropped_acknowledgement_does_not_count_for_the_source() {
        let counts = counts(&events()[..4]);
        assert_eq!((counts.acknowledged, counts.acks_dropped), (0, 1));
        assert!(counts.sent[&1].is_acknowledged, "the worker has acknowledged it");
    }

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let line = |(ms, event)| HistoryLine::new(Duration::from_millis(ms), event);
        let lines: Vec<HistoryLine<TestEvent>> = (5..).zip(events()).map(line).collect();
        let mut text = Vec::new();
        for line in &lines {
            line.write(&mut text).unwrap();
        }
        assert_eq!(read(&text[..]).collect::<io::Result<Vec<HistoryLine<TestEvent>>>>().unwrap(), lines);
        let first = text.split(|byte| *byte == b'\n').next().unwrap();
        assert_eq!(first, br#"{"ms":5,"event":"sent","message":1,"account":1,"amount":10}"#);
    }

    #[test]
    fn a_history_file_is_new_and_its_errors_name_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        let missing = read_file::<TestEvent>(&path).err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let mut writer = HistoryWriter::create(&path).unwrap();
        let line = HistoryLine::<TestEvent>::new(Duration::from_millis(5), sent(1));
        writer.add(&line).unwrap();
        assert_eq!(writer.finish().unwrap(), path);
        assert_eq!(read_file(&path).unwrap().collect::<io::Result<Vec<_>>>().unwrap(), [line]);
        let existing = HistoryWriter::create(&path).unwrap_err();
        assert_eq!(existing.kind(), io::ErrorKind::AlreadyExists);
        assert!(existing.to_string().contains("history.jsonl"), "{existing}");
        std::fs::write(&path, "nonsense\n").unwrap();
        let error = read_file::<TestEvent>(&path).unwrap().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("history.jsonl: invalid line 1"), "{error}");
    }

    #[test]
    fn a_line_that_is_not_an_event_is_an_error_with_its_number() {
        for line in ["nonsense", r#"{"ms":1,"event":"unknown"}"#, r#"{"ms":1,"event":"killed"}"#] {
            let text = format!("{{\"ms\":0,\"event\":\"finished\"}}\n{line}\n");
            let mut lines = read::<TestEvent>(text.as_bytes());
            lines.next().unwrap().unwrap();
            let error = lines.next().unwrap().unwrap_err().to_string();
            assert!(error.starts_with("invalid line 2: "), "{error}");
        }
    }
}
