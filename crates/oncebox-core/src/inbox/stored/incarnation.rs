//! Which run of which program on which machine a process is.

use std::fmt;
use std::sync::LazyLock;

use uuid::Uuid;

/// A host, a process number there, and one run of it; where that can be seen also the process table in which the number counts, and
/// when the process began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    host: String,
    number: u32,
    run: String,
    seen: Option<Seen>,
}

/// What tells processes of one number apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// The machine since it started, and the namespace of its process numbers: containers on one machine have each their own.
    table: String,
    /// In the machine's own ticks.
    began: u64,
}

static THIS: LazyLock<Incarnation> = LazyLock::new(|| {
    let number = std::process::id();
    let began = process_began(number);
    Incarnation {
        host: host(),
        number,
        run: Uuid::now_v7().simple().to_string(),
        seen: process_table().zip(began).map(|(table, began)| Seen { table, began }),
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
        let seen = table.zip(began).map(|(table, began)| Seen { table, began });
        Some(Self { host: host.to_owned(), number, run: run.to_owned(), seen })
    }

    /// Whether it has ended for sure, as far as that can be seen from beside it in the same process table.
    pub(super) fn has_ended_beside(&self, me: &Self) -> bool {
        let (Some(seen), Some(mine)) = (&self.seen, &me.seen) else { return false };
        seen.table == mine.table && self.run != me.run && process_began(self.number) != Some(seen.began)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.host, self.number, self.run)?;
        match &self.seen {
            Some(Seen { table, began }) => write!(f, " {table} {began}"),
            None => Ok(()),
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    let name = name.unwrap_or_default().trim().replace(char::is_whitespace, "_");
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// The table in which this process's number counts; `None` where that cannot be seen.
fn process_table() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.to_string_lossy()).replace(char::is_whitespace, "_"))
}

/// When the process of that number began; `None` if there is none, or it has ended and waits for its parent to notice.
fn process_began(number: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The fields follow the name, which stands in brackets and may be anything.
    let mut fields = status.rsplit(')').next()?.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        // The 22nd of all, the 20th behind the name.
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_from_another_one() {
        let me = Incarnation::of_this_process();
        assert_eq!(Incarnation::parse(&me.to_string()).as_ref(), Some(me));
        assert!(!me.has_ended_beside(me));
        assert_eq!(Incarnation::parse("by hand"), None);
        let Some(seen) = me.seen.clone() else { return };
        let other = Incarnation { run: "other".into(), ..me.clone() };
        assert!(!other.has_ended_beside(me), "another inbox of this very process");
        let before =
            Incarnation { seen: Some(Seen { began: seen.began - 1, ..seen.clone() }), ..other.clone() };
        assert!(before.has_ended_beside(me), "its number is ours now");
        let gone = Incarnation { number: u32::MAX, ..other.clone() };
        assert!(gone.has_ended_beside(me));
        let elsewhere = Seen { table: "another container".into(), ..seen };
        let elsewhere = Incarnation { seen: Some(elsewhere), ..gone };
        assert!(!elsewhere.has_ended_beside(me), "nobody can say");
        let unseen = Incarnation { seen: None, ..other };
        assert!(!unseen.has_ended_beside(me), "nobody can say");
    }
}
