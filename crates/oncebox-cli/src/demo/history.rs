//! What happened, an event at a time: counted at once, and written to a file for those who want to count for themselves.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::demo::plan::{Entry, Way};
use crate::demo::wire::Answer;
use crate::exit::NotFound;

/// The file's name in the folder that is kept.
pub(super) const FILE: &str = "history.jsonl";

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    /// The first line: what was asked for.
    Begun { seed: u64, messages: u64, workers: usize, kills: usize, store: String, schema: Option<String> },
    /// A worker takes deliveries.
    Started { worker: usize, pid: Option<u32> },
    /// A message was delivered for the first time.
    Sent {
        #[serde(flatten)]
        entry: Entry,
        way: Way,
    },
    /// A copy was handed to a worker, the first one too.
    Delivered { delivery: u64, message: i64, worker: usize },
    /// A worker has answered.
    Answered { delivery: u64, message: i64, worker: usize, answer: Answer, outcome: String },
    /// That answer was lost on the way: the source has not seen it.
    AckDropped { delivery: u64, message: i64 },
    /// A worker was killed with so many deliveries in hand.
    Killed { worker: usize, pid: Option<u32>, in_hand: usize },
    /// Messages that were taken for deadly, because workers were killed while they ran, are tried again.
    Revived { dead_letters: u64 },
    /// Every message is acknowledged, and what was stored is worked off.
    WorkedOff,
    /// Somebody had enough.
    Interrupted,
}

#[derive(Serialize, Deserialize)]
struct Line {
    /// Since the beginning.
    ms: u64,
    #[serde(flatten)]
    event: Event,
}

/// What the events amount to.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) seed: u64,
    /// How many were asked for.
    pub(super) messages: u64,
    pub(super) kills_wanted: usize,
    pub(super) store: String,
    pub(super) schema: Option<String>,
    pub(super) sent: HashMap<i64, Sent>,
    pub(super) delivered: u64,
    /// Answers that said that the message was known already.
    pub(super) recognised: u64,
    pub(super) acks_dropped: u64,
    /// Messages of which the source has seen an acknowledgement.
    pub(super) acknowledged: u64,
    pub(super) crashes: usize,
    /// Deliveries that were in the hands of somebody who was killed.
    pub(super) cut_off: usize,
    pub(super) revived: u64,
    pub(super) is_worked_off: bool,
    pub(super) ms: u64,
}

/// What is known of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) entry: Entry,
    pub(super) way: Way,
    /// How often a worker said that the source is done with it, less the times that the source did not hear.
    acknowledgements: u64,
    /// A worker said so at least once.
    pub(super) is_acknowledged: bool,
}

impl Counts {
    /// Deliveries beyond the first of each message.
    pub(super) fn duplicates(&self) -> u64 {
        self.delivered.saturating_sub(self.sent.len() as u64)
    }

    fn add(&mut self, event: &Event) {
        match event {
            Event::Begun { seed, messages, kills, store, schema, .. } => {
                (self.seed, self.messages, self.kills_wanted) = (*seed, *messages, *kills);
                (self.store, self.schema) = (store.clone(), schema.clone());
            }
            Event::Sent { entry, way } => {
                let sent = Sent { entry: *entry, way: *way, acknowledgements: 0, is_acknowledged: false };
                self.sent.insert(entry.message, sent);
            }
            Event::Delivered { .. } => self.delivered += 1,
            Event::Answered { message, answer, outcome, .. } => {
                self.recognised += u64::from(outcome == "duplicate");
                if *answer == Answer::Ack {
                    self.acknowledge(*message);
                }
            }
            Event::AckDropped { message, .. } => self.drop_acknowledgement(*message),
            Event::Killed { in_hand, .. } => {
                self.crashes += 1;
                self.cut_off += in_hand;
            }
            Event::Revived { dead_letters } => self.revived += dead_letters,
            Event::WorkedOff => self.is_worked_off = true,
            Event::Started { .. } | Event::Interrupted => {}
        }
    }

    fn acknowledge(&mut self, message: i64) {
        if let Some(sent) = self.sent.get_mut(&message) {
            sent.acknowledgements += 1;
            sent.is_acknowledged = true;
            self.acknowledged += u64::from(sent.acknowledgements == 1);
        }
    }

    fn drop_acknowledgement(&mut self, message: i64) {
        self.acks_dropped += 1;
        if let Some(sent) = self.sent.get_mut(&message) {
            sent.acknowledgements = sent.acknowledgements.saturating_sub(1);
            self.acknowledged -= u64::from(sent.acknowledgements == 0);
        }
    }
}

/// What happens is told here.
#[derive(Debug)]
pub(super) struct History {
    begun: Instant,
    counts: Counts,
    file: Option<BufWriter<File>>,
}

impl History {
    /// Counts; and writes to a file, if there is to be one, which must be new.
    pub(super) fn begin(path: Option<&Path>) -> Result<Self> {
        let create = |path: &Path| {
            let file = File::create_new(path).with_context(|| format!("creating {}", path.display()))?;
            anyhow::Ok(BufWriter::new(file))
        };
        let file = path.map(create).transpose()?;
        Ok(Self { begun: Instant::now(), counts: Counts::default(), file })
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn note(&mut self, event: Event) -> Result<()> {
        self.counts.add(&event);
        self.counts.ms = u64::try_from(self.begun.elapsed().as_millis())?;
        if let Some(file) = &mut self.file {
            serde_json::to_writer(&mut *file, &Line { ms: self.counts.ms, event })?;
            file.write_all(b"\n").context("writing the history")?;
        }
        Ok(())
    }

    /// Ends it: the file is whole.
    pub(super) fn finish(mut self) -> Result<Counts> {
        if let Some(file) = &mut self.file {
            file.flush().context("writing the history")?;
        }
        Ok(self.counts)
    }
}

/// Counts what a file says.
pub(super) fn read(path: &Path) -> Result<Counts> {
    let file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let text = format!("there is no {}: `oncebox demo --keep DIR` leaves one in DIR", path.display());
            NotFound(text).into()
        }
        _ => anyhow::Error::new(error).context(format!("opening {}", path.display())),
    })?;
    let mut counts = Counts::default();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.with_context(|| format!("reading {}", path.display()))?;
        let line: Line = serde_json::from_str(&line)
            .with_context(|| format!("line {number} of {} is no event of a demo", path.display()))?;
        counts.add(&line.event);
        counts.ms = line.ms;
    }
    Ok(counts)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::demo) fn counts(events: &[Event]) -> Counts {
        let mut counts = Counts::default();
        events.iter().for_each(|event| counts.add(event));
        counts
    }

    pub(in crate::demo) fn sent(message: i64, way: Way) -> Event {
        Event::Sent { entry: Entry { message, account: 1, amount: message * 10 }, way }
    }

    pub(in crate::demo) fn answered(message: i64, outcome: &str) -> Event {
        Event::Answered { delivery: 0, message, worker: 0, answer: Answer::Ack, outcome: outcome.into() }
    }

    fn events() -> Vec<Event> {
        let delivered = |message| Event::Delivered { delivery: 0, message, worker: 0 };
        vec![
            Event::Begun { seed: 7, messages: 2, workers: 1, kills: 1, store: "s".into(), schema: None },
            sent(1, Way::Inline),
            delivered(1),
            answered(1, "done"),
            Event::AckDropped { delivery: 0, message: 1 },
            sent(2, Way::Stored),
            delivered(2),
            Event::Killed { worker: 0, pid: Some(9), in_hand: 1 },
            delivered(1),
            answered(1, "duplicate"),
            delivered(2),
            answered(2, "accepted"),
            Event::WorkedOff,
        ]
    }

    #[test]
    fn events_are_counted() {
        let counts = counts(&events());
        assert_eq!((counts.sent.len(), counts.delivered, counts.duplicates()), (2, 4, 2));
        assert_eq!((counts.acknowledged, counts.acks_dropped, counts.recognised), (2, 1, 1));
        assert_eq!((counts.crashes, counts.cut_off, counts.is_worked_off), (1, 1, true));
    }

    #[test]
    fn a_lost_acknowledgement_is_none_to_the_source() {
        let counts = counts(&events()[..5]);
        assert_eq!((counts.acknowledged, counts.acks_dropped), (0, 1));
        assert!(counts.sent[&1].is_acknowledged, "the worker has said so");
    }

    #[test]
    fn what_was_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut history = History::begin(Some(&path)).unwrap();
        for event in events() {
            history.note(event).unwrap();
        }
        let (written, read) = (history.finish().unwrap(), read(&path).unwrap());
        assert_eq!((read.delivered, read.acknowledged, read.crashes), (4, 2, 1));
        assert_eq!((written.delivered, written.ms, written.seed), (read.delivered, read.ms, read.seed));
        assert_eq!(read.sent[&2].entry.amount, 20);
        History::begin(Some(&path)).unwrap_err();
    }
}
