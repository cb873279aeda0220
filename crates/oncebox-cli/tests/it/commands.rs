//! Handlers that are commands.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::gateway::{TestGateway, json, run};

fn running(script: &str, more: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "[handlers.archive]\nkinds = [\"shop\"]\ncommand = [\"sh\", \"-c\", {script}]\n\
         retry = {{ max_attempts = 3, first_delay = \"10ms\", max_delay = \"10ms\" }}\n{more}"
    )
}

async fn wait_for_file(gateway: &TestGateway, name: &str, lines: usize) -> Vec<String> {
    loop {
        let content = std::fs::read_to_string(gateway.path().join(name)).unwrap_or_default();
        let found: Vec<String> = content.lines().map(str::to_owned).collect();
        if found.len() >= lines {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for this number of dead letters.
async fn wait_for_dead(gateway: &TestGateway, letters: usize) -> Vec<serde_json::Value> {
    loop {
        let dead = json(gateway.path(), &["dead", "list"]);
        if dead.len() >= letters {
            return dead;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until these processes have ended. The limit is far longer than that takes, but shorter than they would run.
async fn wait_for_end(processes: &[String]) {
    let is_running = |process: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The state follows the name in brackets. A zombie does not run.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
    };
    let all = async {
        while processes.iter().any(is_running) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), all)
        .await
        .expect("a process of a killed command still runs");
}

/// On a busy machine a command may time out before it does anything: then the test sends another message.
const MESSAGES_MAX: usize = 50;

#[tokio::test]
async fn a_command_gets_the_message_as_input_and_its_exit_code_is_the_outcome() {
    // Fails the first time.
    let script = "read body; echo \"$ONCEBOX_ATTEMPT $ONCEBOX_KEY $ONCEBOX_SOURCE $ONCEBOX_KIND $ONCEBOX_HANDLER $body\" >> runs; \
                  echo $ONCEBOX_EFFECT_ID >> ids; test $ONCEBOX_ATTEMPT -gt 1";
    let gateway = TestGateway::start(&running(script, ""));
    gateway.accept("shop", "o-1", "{\"order\":1}\n").await;
    let runs = wait_for_file(&gateway, "runs", 2).await;
    assert_eq!(runs, ["1 o-1 shop shop archive {\"order\":1}", "2 o-1 shop shop archive {\"order\":1}"]);
    let ids = wait_for_file(&gateway, "ids", 2).await;
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn exit_code_65_is_final_and_the_end_of_standard_error_is_stored() {
    let gateway = TestGateway::start(&running("echo run >> runs; echo 'no such account' >&2; exit 65", ""));
    for n in 1..=MESSAGES_MAX {
        gateway.accept("shop", &format!("o-{n}"), "x").await;
        let letters = wait_for_dead(&gateway, n).await;
        assert_eq!(wait_for_file(&gateway, "runs", n).await.len(), n);
        // Without the text if that does not arrive soon after the exit.
        if letters.iter().any(|letter| letter["error"] == "exit code 65: no such account") {
            return;
        }
        assert!(letters.iter().all(|letter| letter["error"] == "exit code 65"), "{letters:?}");
    }
    panic!("no dead letter has the text of standard error");
}

/// With all processes that it has started, and although it does not read its input.
#[tokio::test]
async fn a_command_that_runs_too_long_is_killed() {
    let script = "sleep 900 & echo $! >> started; echo $$ >> started; sleep 900";
    let gateway = TestGateway::start(&running(script, "timeout = \"300ms\"\n"));
    for n in 1..=MESSAGES_MAX {
        gateway.accept("shop", &format!("o-{n}"), &"x".repeat(1 << 20)).await;
        let letters = wait_for_dead(&gateway, n).await;
        assert!(
            letters.iter().all(|letter| letter["error"].as_str().unwrap().contains("300")),
            "{letters:?}"
        );
        let started = wait_for_file(&gateway, "started", 0).await;
        wait_for_end(&started).await;
        if !started.is_empty() {
            return;
        }
    }
    panic!("no command started another process in time");
}

#[tokio::test]
async fn a_missing_program_is_reported_at_start_and_on_delivery() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        "[handlers.h]\nkinds = [\"shop\"]\ncommand = [\"./archive\"]\nretry = { max_attempts = 1 }\n";
    std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["work"]] {
        let refused = run(folder.path(), command);
        assert_eq!(refused.status.code(), Some(2));
        let error_text = String::from_utf8_lossy(&refused.stderr);
        assert!(error_text.contains("oncebox.toml:3: program not found: ./archive"), "{error_text}");
    }
    // Commands that only read need no programs.
    run(folder.path(), &["migrate", "up"]);
    assert!(run(folder.path(), &["status"]).status.success());
    // The program may also disappear later.
    let program = folder.path().join("archive");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let gateway = TestGateway::start_in(folder);
    std::fs::remove_file(program).unwrap();
    gateway.accept("shop", "o-1", "x").await;
    let letter = wait_for_dead(&gateway, 1).await.remove(0);
    assert!(letter["error"].as_str().unwrap().contains("cannot start ./archive"), "{letter}");
}

/// The exit code is the outcome. Processes that the command left behind do not delay it, and are killed.
#[tokio::test]
async fn processes_that_a_command_leaves_behind_do_not_delay_it() {
    let script = "sleep 900 & echo $! >> started; exit 0";
    let gateway = TestGateway::start(&running(script, "timeout = \"10m\"\n"));
    gateway.accept("shop", "o-1", "x").await;
    let started = wait_for_file(&gateway, "started", 1).await;
    loop {
        let status = json(gateway.path(), &["handlers", "list"]).remove(0);
        if (&status["lag"], &status["tasks"]) == (&0.into(), &0.into()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    wait_for_end(&started).await;
    assert_eq!(wait_for_file(&gateway, "started", 1).await.len(), 1);
    assert!(json(gateway.path(), &["dead", "list"]).is_empty());
}
