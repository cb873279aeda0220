//! Owned processes, with shells in place of servers.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oncebox_servers::process::{OwnedProcess, Signal, describe};

use crate::running::runs;

/// A shell that runs `script`, and what it writes.
fn shell(script: &str) -> (OwnedProcess, BufReader<std::io::PipeReader>) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(writer);
    let process = OwnedProcess::spawn(&mut command, Signal::TERM, None).expect("a shell starts");
    // The command holds the writing end too.
    drop(command);
    (process, BufReader::new(reader))
}

fn number(output: &mut impl BufRead) -> i32 {
    let mut line = String::new();
    output.read_line(&mut line).expect("the shell writes");
    line.trim().parse().expect("the shell writes a number")
}

#[test]
fn a_polite_process_is_asked_to_stop() {
    let (mut process, mut output) =
        shell("trap 'echo bye; exit 3' TERM; echo 0; while :; do sleep 0.05; done");
    number(&mut output);
    let status = process.stop(Duration::from_secs(300)).unwrap();
    assert_eq!(describe(status), "ended with exit code 3");
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");
}

#[test]
fn a_stubborn_process_is_killed_after_the_grace() {
    let (mut process, mut output) = shell("trap '' TERM; echo 0; while :; do sleep 0.05; done");
    number(&mut output);
    let start = Instant::now();
    let status = process.stop(Duration::from_millis(100)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert_eq!(status.signal(), Some(9));
}

#[test]
fn descendants_in_sessions_of_their_own_die_too() {
    let script = "setsid sh -c 'echo $$; setsid sleep 900 & echo $!; wait' & wait";
    let (mut process, mut output) = shell(script);
    let (child, grandchild) = (number(&mut output), number(&mut output));
    assert!(runs(child) && runs(grandchild));
    process.kill().unwrap();
    assert!(!runs(child) && !runs(grandchild));
}

#[test]
fn dropping_kills() {
    let (process, mut output) = shell("echo $$; sleep 900");
    let pid = number(&mut output);
    drop(process);
    assert!(!runs(pid));
}

#[tokio::test]
async fn what_ended_by_itself_stays_ended() {
    let (mut process, _output) = shell("exit 7");
    assert_eq!(process.wait().await.unwrap().code(), Some(7));
    assert_eq!(process.stop(Duration::ZERO).unwrap().code(), Some(7));
    assert_eq!(process.kill().unwrap().code(), Some(7));
}
