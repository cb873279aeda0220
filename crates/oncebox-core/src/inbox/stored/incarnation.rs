//! Which run of which program on which machine a process is.

use std::fmt;
use std::sync::LazyLock;

use uuid::Uuid;

/// A host, a process number there, and one run of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    host: String,
    number: u32,
    run: String,
}

static THIS: LazyLock<Incarnation> = LazyLock::new(|| Incarnation {
    host: host(),
    number: std::process::id(),
    run: Uuid::now_v7().simple().to_string(),
});

impl Incarnation {
    pub(super) fn of_this_process() -> &'static Self {
        &THIS
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (host, number, run) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        Some(Self { host: host.to_owned(), number, run: run.to_owned() })
    }

    /// Whether it is alive, as far as can be seen from beside it on the same machine.
    pub(super) fn is_alive_beside(&self, me: &Self) -> Option<bool> {
        match self.host == me.host {
            false => None,
            true if self.run == me.run => Some(true),
            // A container begins again with the same number.
            true if self.number == me.number => Some(false),
            true => has_process(self.number),
        }
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.host, self.number, self.run)
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    let name = name.unwrap_or_default().trim().replace(char::is_whitespace, "_");
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Whether there is a process of that number; `None` where that cannot be seen.
fn has_process(number: u32) -> Option<bool> {
    let all = std::path::Path::new("/proc");
    if !all.join("self").exists() {
        return None;
    }
    let status = std::fs::read_to_string(all.join(number.to_string()).join("stat")).unwrap_or_default();
    // The state follows the name, which stands in brackets and may be anything. A zombie is dead.
    let state = status.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    Some(state.is_some_and(|state| !matches!(state, 'Z' | 'X')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_from_another_one() {
        let me = Incarnation::of_this_process();
        assert_eq!(Incarnation::parse(&me.to_string()).as_ref(), Some(me));
        assert_eq!(me.is_alive_beside(me), Some(true));
        let before = Incarnation { run: "before".into(), ..me.clone() };
        assert_eq!(before.is_alive_beside(me), Some(false), "its number is ours now");
        let elsewhere = Incarnation { host: "elsewhere".into(), ..before };
        assert_eq!(elsewhere.is_alive_beside(me), None);
        assert_eq!(Incarnation::parse("by hand"), None);
        if let Some(alive) = has_process(std::process::id()) {
            assert!(alive);
            assert_eq!(has_process(u32::MAX), Some(false));
        }
    }
}
