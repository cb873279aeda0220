//! Identifies one run of a process on one machine.

use std::fmt;
use std::sync::LazyLock;

use uuid::Uuid;

/// A host, a process id, and one run. Where the system shows them, also the process table and the start time of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    host: String,
    number: u32,
    run: String,
    seen: Option<ProcessStart>,
}

/// Distinguishes processes with the same process id.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProcessStart {
    /// The boot id of the machine and the namespace of its process ids. Each container has its own namespace.
    table: String,
    /// The start time, in clock ticks since boot.
    began: u64,
}

static THIS: LazyLock<Incarnation> = LazyLock::new(|| {
    let number = std::process::id();
    let began = process_began(number);
    Incarnation {
        host: host(),
        number,
        run: Uuid::now_v7().simple().to_string(),
        seen: process_table().zip(began).map(|(table, began)| ProcessStart { table, began }),
    }
});

impl Incarnation {
    pub(super) fn of_this_process() -> &'static Self {
        &THIS
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (host, number, run) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        let table = words.next().map(str::to_owned);
        let began = words.next().and_then(|began| began.parse().ok());
        let seen = table.zip(began).map(|(table, began)| ProcessStart { table, began });
        Some(Self { host: host.to_owned(), number, run: run.to_owned(), seen })
    }

    /// Whether this run has certainly ended. Only a process in the same process table can know.
    pub(super) fn has_ended_beside(&self, me: &Self) -> bool {
        let (Some(seen), Some(mine)) = (&self.seen, &me.seen) else { return false };
        seen.table == mine.table && self.run != me.run && process_began(self.number) != Some(seen.began)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.host, self.number, self.run)?;
        match &self.seen {
            Some(ProcessStart { table, began }) => write!(f, " {table} {began}"),
            None => Ok(()),
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    let name = name.unwrap_or_default().trim().replace(char::is_whitespace, "_");
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// The process table of this process; `None` where the system does not show it.
fn process_table() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.to_string_lossy()).replace(char::is_whitespace, "_"))
}

/// The start time of the process with this id; `None` if it does not exist or is a zombie.
fn process_began(number: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The program name stands in brackets and may contain brackets and spaces, so parsing starts after the last bracket.
    let mut fields = status.rsplit(')').next()?.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        // `starttime` is field 22 of the file, the 20th after the name.
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_with_one_process_id_differ() {
        let me = Incarnation::of_this_process();
        assert_eq!(Incarnation::parse(&me.to_string()).as_ref(), Some(me));
        assert!(!me.has_ended_beside(me));
        assert_eq!(Incarnation::parse("by hand"), None);
        let Some(seen) = me.seen.clone() else { return };
        let other = Incarnation { run: "other".into(), ..me.clone() };
        assert!(!other.has_ended_beside(me), "another inbox of this very process");
        let before = Incarnation {
            seen: Some(ProcessStart { began: seen.began - 1, ..seen.clone() }),
            ..other.clone()
        };
        assert!(before.has_ended_beside(me), "this process has its id now");
        let gone = Incarnation { number: u32::MAX, ..other.clone() };
        assert!(gone.has_ended_beside(me));
        let elsewhere = ProcessStart { table: "another container".into(), ..seen };
        let elsewhere = Incarnation { seen: Some(elsewhere), ..gone };
        assert!(!elsewhere.has_ended_beside(me), "another process table is not visible");
        let unseen = Incarnation { seen: None, ..other };
        assert!(!unseen.has_ended_beside(me), "its process table is unknown");
    }
}
