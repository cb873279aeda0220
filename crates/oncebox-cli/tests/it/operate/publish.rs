//! Messages from files and pipes, published into the outbox.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::database::{InboxDatabase, on_each_database};

on_each_database!(
    every_line_is_published_in_its_order,
    refused_lines_are_named_and_the_others_are_published,
    a_repeated_run_delivers_known_keys_once,
    lines_of_a_pipe_are_published_when_it_pauses,
    an_interrupted_run_publishes_all_lines_that_it_has_read,
);

async fn every_line_is_published_in_its_order(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let lines = |from: u32| {
        (from..from + 800).map(|n| format!("{{\"id\":{n},\"type\":\"paid\"}}\n")).collect::<String>()
    };
    let folder = database.folder.path();
    std::fs::write(folder.join("one.jsonl"), lines(0)).unwrap();
    std::fs::write(folder.join("two.jsonl"), lines(800)).unwrap();
    let publish = ["publish", "one.jsonl", "two.jsonl", "--kind-pointer", "/type", "--key-pointer", "/id"];
    let options = ["--order-pointer", "/type", "--header", "content-type: application/json", "--json"];
    let mut printed = database.oncebox(&[&publish[..], &options].concat()).ok().json();
    assert_eq!(printed.pop().unwrap(), serde_json::json!({ "published": 1600, "refused": 0 }));
    assert_eq!(printed.iter().map(|line| &line["id"]).collect::<HashSet<_>>().len(), 1600);
    assert_eq!((&printed[0]["file"], &printed[0]["line"]), (&"one.jsonl".into(), &1.into()));
    assert_eq!((&printed[1599]["file"], &printed[1599]["line"]), (&"two.jsonl".into(), &800.into()));
    assert_eq!(database.count("outbox").await, 1600);
    let listed = database.oncebox(&["outbox", "list", "--limit", "1600", "--json"]).ok().json();
    let keys: HashSet<&str> = listed.iter().map(|message| message["key"].as_str().unwrap()).collect();
    assert_eq!(
        (keys.len(), &listed[0]["kind"], &listed[0]["order_by"]),
        (1600, &"paid".into(), &"paid".into())
    );
    let id = printed[7]["id"].as_str().unwrap();
    let shown = database.oncebox(&["outbox", "show", id, "--json"]).ok().json().remove(0);
    assert_eq!((&shown["key"], &shown["headers"][0][0]), (&"7".into(), &"content-type".into()));
}

async fn refused_lines_are_named_and_the_others_are_published(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let publish = ["publish", "--kind", "paid", "--kind-pointer", "/type", "--key-pointer", "/id", "--json"];
    // The outbox itself refuses a kind that begins with @.
    let input =
        b"{\"id\":1}\n\nnonsense\n{\"no\":\"id\"}\n{\"id\":2,\"type\":\"@accept\"}\n\xff\xfe\n{\"id\":3}";
    let result = database.oncebox_with(&publish, input).ends_with_code(1);
    let printed = result.json();
    assert_eq!(printed.last().unwrap(), &serde_json::json!({ "published": 2, "refused": 4 }));
    assert_eq!(printed.iter().filter_map(|line| line["line"].as_u64()).collect::<Vec<_>>(), [1, 7]);
    result
        .reports("line 3: the line of 8 bytes is not JSON")
        .reports("line 4: no value at /id in the line")
        .reports("line 5: ")
        .reports("line 6: the line of 2 bytes is not JSON");
    assert_eq!(database.count("outbox").await, 2);

    // With several files each line has its file. A missing one is found before anything is published.
    std::fs::write(database.folder.path().join("one"), "{\"id\":4}\n{}\n").unwrap();
    let files = ["publish", "--kind", "paid", "--key-pointer", "/id", "one", "-"];
    database
        .oncebox_with(&files, b"{}\n")
        .ends_with_code(1)
        .reports("one: line 2: no value")
        .reports("-: line 1: no value");
    assert_eq!(database.count("outbox").await, 3);
    let missing = ["publish", "--kind", "paid", "one", "nowhere"];
    database.oncebox(&missing).ends_with_code(1).reports("cannot open nowhere");
    assert_eq!(database.count("outbox").await, 3);
    std::fs::write(database.folder.path().join("oncebox.toml"), "[http]\nmax_body_bytes = 10\n").unwrap();
    let long =
        database.oncebox_with(&["publish", "--kind", "note"], b"12345678901\nshort\n").ends_with_code(1);
    long.prints("1 published, 1 refused").reports("line 1: the line has 11 bytes, the limit is 10");
    database.oncebox(&["publish"]).ends_with_code(2).reports("--kind");
    database
        .oncebox(&["publish", "--kind", "k", "--key-pointer", "id"])
        .ends_with_code(2)
        .reports("start it with '/'");
    let header = ["publish", "--kind", "k", "--header", "content-length: 4"];
    database.oncebox(&header).ends_with_code(2).reports("content-length");
}

async fn a_repeated_run_delivers_known_keys_once(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let config =
        "[handlers.ledger]\nkinds = [\"paid\"]\ncommand = [\"sh\", \"-c\", \"echo $ONCEBOX_KEY >> keys\"]\n";
    std::fs::write(database.folder.path().join("oncebox.toml"), config).unwrap();
    let publish = ["publish", "--kind", "paid", "--key-pointer", "/id"];
    for _ in 0..2 {
        database
            .oncebox_with(&publish, b"{\"id\":\"o-1\"}\n{\"id\":\"o-2\"}\n")
            .ok()
            .prints("2 published, 0 refused");
        database.oncebox(&["work", "--once"]).ok();
    }
    let keys = std::fs::read_to_string(database.folder.path().join("keys")).unwrap();
    assert_eq!(keys.lines().count(), 2, "{keys}");
    assert_eq!(database.count("outbox").await, 0);
}

/// As with `tail -f`: a pause of the input does not delay earlier lines.
async fn lines_of_a_pipe_are_published_when_it_pauses(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let mut command = database.program(&["publish", "--kind", "paid", "--key-pointer", "/id", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for id in 1..=3 {
        // Half of a line delays no earlier one, and is not lost.
        write!(input, "{{\"id\":{id}}}\n{{\"id\"").unwrap();
        while database.count("outbox").await < 2 * id - 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        writeln!(input, ":\"{id} again\"}}").unwrap();
    }
    drop(input);
    let last = output.by_ref().map(|line| line.unwrap()).last().unwrap();
    let tally: Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&tally["published"], &tally["refused"]), (&6.into(), &0.into()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

async fn an_interrupted_run_publishes_all_lines_that_it_has_read(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let mut command = database.program(&["publish", "--kind", "paid", "--key-pointer", "/id"]);
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
    assert!(out.contains("40 published, 1 refused") && out.contains("Run the same command again"), "{out}");
    assert_eq!(database.count("outbox").await, 40);
}
