//! A process and all its descendants.
//!
//! A process group is not enough: every PostgreSQL backend leads a session of its own, and one that outlives
//! the postmaster still commits.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

const DEATH_LIMIT: Duration = Duration::from_secs(10);

/// Kills `leader` and all its descendants, and returns when no descendant runs any more.
///
/// The leader stays a zombie until its parent waits for it.
pub(crate) fn kill(leader: Pid) -> Result<()> {
    let members = freeze(leader)?;
    // Stopped processes end by SIGKILL too.
    for &pid in &members {
        signal(pid, Signal::KILL)?;
    }
    wait_for_death(&members)
}

// A stopped process cannot fork, so the family is complete once a search finds no new process. Killing first and
// searching later would miss the orphans.
fn freeze(leader: Pid) -> Result<HashSet<Pid>> {
    let mut frozen = HashSet::from([leader]);
    // The leader first, so that it starts no more processes during the search.
    signal(leader, Signal::STOP)?;
    loop {
        let entries = entries()?;
        let newcomers: Vec<Pid> = entries
            .iter()
            .filter(|entry| frozen.contains(&entry.parent) && !frozen.contains(&entry.pid))
            .map(|entry| entry.pid)
            .collect();
        if newcomers.is_empty() {
            return Ok(frozen);
        }
        for pid in newcomers {
            signal(pid, Signal::STOP)?;
            frozen.insert(pid);
        }
    }
}

fn wait_for_death(members: &HashSet<Pid>) -> Result<()> {
    let deadline = Instant::now() + DEATH_LIMIT;
    while entries()?.iter().any(|entry| members.contains(&entry.pid) && entry.runs) {
        if Instant::now() > deadline {
            bail!("some of the processes {members:?} still run {DEATH_LIMIT:?} after SIGKILL");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn signal(pid: Pid, signal: Signal) -> Result<()> {
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("sending {signal:?} to process {pid:?}")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessEntry {
    pid: Pid,
    parent: Pid,
    // False for a zombie, which has released everything except its process id.
    runs: bool,
}

impl ProcessEntry {
    fn parse(pid: &str, state: &str, parent: &str) -> Option<ProcessEntry> {
        Some(ProcessEntry {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            parent: Pid::from_raw(parent.parse().ok()?)?,
            runs: !state.starts_with(['Z', 'X']),
        })
    }
}

fn entries() -> Result<Vec<ProcessEntry>> {
    let proc = Path::new("/proc");
    if proc.join("self/stat").exists() { entries_in_proc(proc) } else { entries_from_ps() }
}

fn entries_in_proc(proc: &Path) -> Result<Vec<ProcessEntry>> {
    let folders = fs::read_dir(proc).context("reading /proc")?;
    // A process that has ended since the folder was read is no error.
    let stats = folders.flatten().filter_map(|folder| fs::read_to_string(folder.path().join("stat")).ok());
    Ok(stats.filter_map(|stat| parse_stat(&stat)).collect())
}

// `pid (name) state parent ...`, where the name may itself hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<ProcessEntry> {
    let (pid, rest) = stat.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    ProcessEntry::parse(pid, fields.next()?, fields.next()?)
}

fn entries_from_ps() -> Result<Vec<ProcessEntry>> {
    let output =
        Command::new("ps").args(["-A", "-o", "pid=,state=,ppid="]).output().context("listing processes")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(parse_ps).collect())
}

fn parse_ps(line: &str) -> Option<ProcessEntry> {
    let mut fields = line.split_whitespace();
    ProcessEntry::parse(fields.next()?, fields.next()?, fields.next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32, runs: bool) -> Option<ProcessEntry> {
        Some(ProcessEntry { pid: Pid::from_raw(pid).unwrap(), parent: Pid::from_raw(parent).unwrap(), runs })
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        assert_eq!(parse_stat("12 (a) S 3 (b) c) R 7 12 12 0"), entry(12, 7, true));
        assert_eq!(parse_stat("12 (cat) Z 1 12"), entry(12, 1, false));
        assert_eq!(parse_stat("1 (init) S 0 1"), None, "a process without a parent is no descendant");
    }

    #[test]
    fn ps_lines_are_understood() {
        assert_eq!(parse_ps("  345 Ss+     1"), entry(345, 1, true));
        assert_eq!(parse_ps("  346 Z     345"), entry(346, 345, false));
    }

    #[test]
    fn this_process_is_among_the_entries_with_its_parent() {
        let this = rustix::process::getpid();
        let parent = rustix::process::getppid();
        let found = entries().unwrap().into_iter().find(|entry| entry.pid == this).unwrap();
        assert_eq!(Some(found.parent), parent);
        assert!(found.runs);
    }
}
