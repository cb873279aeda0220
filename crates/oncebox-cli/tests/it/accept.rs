//! Messages from files, and handlers without the gateway.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::gateway::{json, oncebox, run};

#[test]
fn every_line_is_a_message_and_is_accepted_once() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["migrate", "up"]);
    let lines: String = (0..1500).map(|n| format!("{{\"id\":{n},\"type\":\"paid\"}}\n")).collect();
    std::fs::write(folder.path().join("messages.jsonl"), &lines).unwrap();
    let accept =
        ["accept", "messages.jsonl", "--source", "shop", "--key-pointer", "/id", "--kind-pointer", "/type"];
    let first = json(folder.path(), &accept).pop().unwrap();
    assert_eq!(
        (&first["accepted"], &first["duplicates"], &first["refused"]),
        (&1500.into(), &0.into(), &0.into())
    );
    let again = json(folder.path(), &accept).pop().unwrap();
    assert_eq!((&again["accepted"], &again["duplicates"]), (&0.into(), &1500.into()));

    // From standard input. Refused lines are reported with their number; the others are accepted.
    let mut command = oncebox(folder.path());
    command.args(["accept", "-", "--source", "shop", "--key-pointer", "/id", "--json"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input =
        b"{\"id\":\"new\"}\n\nnonsense\n{\"no\":\"id\"}\n{\"id\":\"newer\"}\n\xff\xfe\n{\"id\":\"newest\"}";
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error_text = String::from_utf8_lossy(&output.stderr);
    assert!(
        error_text.contains("line 3: the body of 8 bytes is not JSON")
            && error_text.contains("line 4: no value at /id in the body"),
        "{error_text}"
    );
    let tally: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&tally["accepted"], &tally["refused"]), (&3.into(), &3.into()));
}

#[test]
fn work_once_handles_all_due_messages_and_exits() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = run(folder.path(), &["work", "--once"]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    let config = "[handlers.archive]\nkinds = [\"shop\"]\ncommand = [\"sh\", \"-c\", \"cat >> archive\"]\n";
    std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
    run(folder.path(), &["migrate", "up"]);
    std::fs::write(folder.path().join("in"), "{\"id\":1}\n{\"id\":2}\n{\"id\":3}\n").unwrap();
    json(folder.path(), &["accept", "in", "--source", "shop", "--key-pointer", "/id"]);
    let report = json(folder.path(), &["work", "--once"]).pop().unwrap();
    assert_eq!((&report["done"], &report["dead"]), (&3.into(), &0.into()));
    assert_eq!(std::fs::read_to_string(folder.path().join("archive")).unwrap().matches("id").count(), 3);
    let report = json(folder.path(), &["work", "--once"]).pop().unwrap();
    assert_eq!(report["done"], 0);
}

/// The report says how far it got, and that a repetition loses nothing.
#[test]
fn an_interrupted_run_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["migrate", "up"]);
    let mut command = oncebox(folder.path());
    command.args(["accept", "-", "--source", "shop", "--key-pointer", "/id"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // A refused line shows that the program reads. The others have left the pipe and could not be sent again.
    let others: String = (0..40).map(|n| format!("{{\"id\":{n}}}\n")).collect();
    input.write_all(format!("nonsense\n{others}").as_bytes()).unwrap();
    let mut first_line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut first_line).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("40 accepted, 0 duplicates, 1 refused") && out.contains("Run the same command again"),
        "{out}"
    );
}

/// As with `tail -f`: a pause of the input does not delay earlier lines.
#[test]
fn lines_of_a_pipe_are_accepted_when_it_pauses() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["migrate", "up"]);
    let mut command = oncebox(folder.path());
    command.args(["accept", "-", "--source", "shop", "--key-pointer", "/id", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for id in 1..=3 {
        // Half of a line delays no earlier one, and is not lost.
        write!(input, "{{\"id\":{id}}}\n{{\"id\"").unwrap();
        while json(folder.path(), &["messages", "list"]).len() < id {
            std::thread::sleep(Duration::from_millis(20));
        }
        writeln!(input, ":{id}}}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let tally: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&tally["accepted"], &tally["duplicates"]), (&3.into(), &3.into()));
}

/// A wrong length would cut the body on delivery.
#[test]
fn headers_of_a_connection_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["migrate", "up"]);
    std::fs::write(folder.path().join("in"), "{\"id\":1}\n").unwrap();
    let accept = ["accept", "in", "--source", "shop", "--key-pointer", "/id", "--header"];
    let refused = run(folder.path(), &[&accept[..], &["Content-Length: 4"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Content-Length"), "{refused:?}");
    json(folder.path(), &[&accept[..], &["content-type: application/json"]].concat());
}

/// By the example's configuration, with many messages at the same time.
#[test]
fn the_example_s_archive_has_one_message_per_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/gateway/oncebox.toml");
    std::fs::copy(config, folder.path().join("oncebox.toml")).unwrap();
    run(folder.path(), &["migrate", "up"]);
    let lines: String = (0..60).map(|n| format!("{{\"id\":{n},\"type\":\"order.refunded\"}}\n")).collect();
    std::fs::write(folder.path().join("in"), lines).unwrap();
    json(folder.path(), &["accept", "in", "--source", "shop", "--key-pointer", "/id"]);
    let report = json(folder.path(), &["work", "--once"]).pop().unwrap();
    assert_eq!(report["done"], 60);
    let archive = std::fs::read_to_string(folder.path().join("archive.jsonl")).unwrap();
    assert_eq!(archive.lines().count(), 60);
    for line in archive.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[test]
fn a_line_without_a_key_says_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["migrate", "up"]);
    std::fs::write(folder.path().join("in"), "{\"id\":1}\n").unwrap();
    let refused = run(folder.path(), &["accept", "in", "--source", "shop"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--key-pointer /id"), "{refused:?}");
}
