//! What happened, line by line, in a file that is only ever added to.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One line of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message exists from now on.
    Sent { id: u64 },
    /// A copy was given to a worker.
    Delivered { id: u64, worker: usize },
    /// A worker told the source what to do with a copy.
    Settled { id: u64, worker: usize, answer: Answer, word: String },
    /// A body ran; its transaction was open between the two times.
    Body { id: u64, handler: String, enter: i128, leave: i128 },
    /// Commits whose answer was lost.
    Unknown { commits: u64 },
    /// Commits that were found to have happened after all.
    Recovered { commits: u64 },
    /// A fault has happened.
    Fault { id: String },
    /// Processes started where nothing was: how many were ready, and how often they took effect on one message.
    Started { ready: u64, effects: u64 },
    /// A worker did nothing new for long after a fault was over.
    Idle { worker: usize },
    /// Nobody answered for so long that the run was broken off, with so many faults still to come.
    Silent { faults: usize },
    /// Nothing moved any more, and this was left: messages ahead of the handlers, set apart, and dead.
    Left { waiting: u64, tasks: u64, dead: u64 },
    /// A handler gave up on a message, for this reason.
    Dead { id: u64, handler: String, error: String },
    /// A worker ended; nobody had asked it to unless `how` says so.
    Gone { worker: usize, how: String },
}

/// What the source is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ack,
    Retry,
    Reject,
}

impl Answer {
    fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Retry => "retry",
            Self::Reject => "reject",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Ack, Self::Retry, Self::Reject].into_iter().find(|answer| answer.name() == name)
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sent { id } => write!(f, "sent {id}"),
            Self::Delivered { id, worker } => write!(f, "delivered {id} {worker}"),
            Self::Settled { id, worker, answer, word } => {
                write!(f, "settled {id} {worker} {} {word}", answer.name())
            }
            Self::Body { id, handler, enter, leave } => write!(f, "body {id} {handler} {enter} {leave}"),
            Self::Unknown { commits } => write!(f, "unknown {commits}"),
            Self::Recovered { commits } => write!(f, "recovered {commits}"),
            Self::Fault { id } => write!(f, "fault {id}"),
            Self::Started { ready, effects } => write!(f, "started {ready} {effects}"),
            Self::Idle { worker } => write!(f, "idle {worker}"),
            Self::Silent { faults } => write!(f, "silent {faults}"),
            Self::Left { waiting, tasks, dead } => write!(f, "left {waiting} {tasks} {dead}"),
            Self::Dead { id, handler, error } => write!(f, "dead {id} {handler} {error}"),
            Self::Gone { worker, how } => write!(f, "gone {worker} {how}"),
        }
    }
}

impl Event {
    /// Reads a line as it was written.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        let words: Vec<&str> = rest.split(' ').collect();
        Some(match (word, &words[..]) {
            ("sent", [id]) => Self::Sent { id: id.parse().ok()? },
            ("delivered", [id, worker]) => {
                Self::Delivered { id: id.parse().ok()?, worker: worker.parse().ok()? }
            }
            ("settled", [id, worker, answer, word]) => Self::Settled {
                id: id.parse().ok()?,
                worker: worker.parse().ok()?,
                answer: Answer::named(answer)?,
                word: (*word).to_owned(),
            },
            ("body", [id, handler, enter, leave]) => Self::Body {
                id: id.parse().ok()?,
                handler: (*handler).to_owned(),
                enter: enter.parse().ok()?,
                leave: leave.parse().ok()?,
            },
            ("unknown", [commits]) => Self::Unknown { commits: commits.parse().ok()? },
            ("recovered", [commits]) => Self::Recovered { commits: commits.parse().ok()? },
            ("fault", [id]) => Self::Fault { id: (*id).to_owned() },
            ("started", [ready, effects]) => {
                Self::Started { ready: ready.parse().ok()?, effects: effects.parse().ok()? }
            }
            ("idle", [worker]) => Self::Idle { worker: worker.parse().ok()? },
            ("silent", [faults]) => Self::Silent { faults: faults.parse().ok()? },
            ("left", [waiting, tasks, dead]) => Self::Left {
                waiting: waiting.parse().ok()?,
                tasks: tasks.parse().ok()?,
                dead: dead.parse().ok()?,
            },
            ("dead", [id, handler, error @ ..]) => {
                Self::Dead { id: id.parse().ok()?, handler: (*handler).to_owned(), error: error.join(" ") }
            }
            ("gone", [worker, how @ ..]) => Self::Gone { worker: worker.parse().ok()?, how: how.join(" ") },
            _ => return None,
        })
    }
}

/// The file, while it is written.
#[derive(Debug)]
pub(crate) struct History {
    path: PathBuf,
    out: BufWriter<File>,
}

impl History {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path, out: BufWriter::new(file) })
    }

    pub(crate) fn write(&mut self, event: &Event) -> Result<()> {
        writeln!(self.out, "{event}").with_context(|| format!("writing {}", self.path.display()))
    }

    /// Everything is in the file; where that is.
    pub(crate) fn finish(mut self) -> Result<PathBuf> {
        self.out.flush().with_context(|| format!("writing {}", self.path.display()))?;
        Ok(self.path)
    }
}

/// Reads a history back, line by line.
pub(crate) fn read(path: &Path) -> Result<impl Iterator<Item = Result<Event>>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(BufReader::new(file).lines().map(|line| {
        let line = line?;
        Event::parse(&line).with_context(|| format!("not a line of a history: {line}"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let events = [
            Event::Sent { id: 1 },
            Event::Delivered { id: 1, worker: 2 },
            Event::Settled { id: 1, worker: 2, answer: Answer::Retry, word: "failed+done".into() },
            Event::Body { id: 1, handler: "books".into(), enter: 5, leave: 9 },
            Event::Unknown { commits: 3 },
            Event::Recovered { commits: 2 },
            Event::Fault { id: "disk_full".into() },
            Event::Started { ready: 20, effects: 1 },
            Event::Idle { worker: 2 },
            Event::Silent { faults: 4 },
            Event::Left { waiting: 1, tasks: 2, dead: 3 },
            Event::Dead { id: 1, handler: "books".into(), error: "no such function".into() },
            Event::Gone { worker: 3, how: "was ended by signal 9".into() },
        ];
        let mut history = History::create(folder.path().join("history")).unwrap();
        for event in &events {
            history.write(event).unwrap();
        }
        let path = history.finish().unwrap();
        assert_eq!(read(&path).unwrap().collect::<Result<Vec<_>>>().unwrap(), events);
        assert_eq!(Event::parse("body 1 books 5"), None);
    }
}
