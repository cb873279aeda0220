//! `oncebox demo`, small.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use oncebox_servers::skip::skip_or_fail;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use sqlx::{Connection, PgConnection, SqliteConnection};

const MESSAGES: u64 = 300;
const KILLS: u64 = 5;

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_oncebox"));
    for name in ["ONCEBOX_STORE", "ONCEBOX_CONFIG", "ONCEBOX_OPERATOR"] {
        program.env_remove(name);
    }
    program.arg("demo");
    program
}

fn small(program: &mut Command) -> &mut Command {
    let (messages, kills) = (MESSAGES.to_string(), KILLS.to_string());
    program.args(["--messages", &messages, "--kills", &kills, "--seed", "11"])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The one object on standard output.
fn object(output: &Output) -> Value {
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{out}\n{}", text(&output.stderr));
    serde_json::from_str(&out).unwrap()
}

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}"))
}

fn assert_proof(output: &Output) -> Value {
    let object = object(output);
    assert_eq!(output.status.code(), Some(0), "{object}\n{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let of = |name| number(&object, name);
    assert_eq!((of("messages"), of("sent"), of("effects")), (MESSAGES, MESSAGES, MESSAGES), "{object}");
    assert_eq!((of("lost"), of("double"), of("seed")), (0, 0, 11), "{object}");
    assert_eq!(of("delivered"), of("sent") + of("duplicates"), "{object}");
    assert!(of("duplicates") > of("acks_dropped") && of("acks_dropped") > 0, "{object}");
    assert_eq!(of("crashes"), KILLS, "{object}");
    assert_eq!(of("amount_expected"), of("amount_found"), "{object}");
    assert!(object["seconds"].as_f64().unwrap() > 0.0, "{object}");
    object
}

fn events(folder: &Path, name: &str) -> Vec<Value> {
    let history = fs::read_to_string(folder.join("history.jsonl")).unwrap();
    let events = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == name).collect()
}

async fn ledger(folder: &Path) -> SqliteConnection {
    SqliteConnection::connect(folder.join("demo.db").to_str().unwrap()).await.unwrap()
}

#[test]
fn every_message_takes_effect_once_on_sqlite() {
    let temporary = tempfile::tempdir().unwrap();
    let output = small(&mut program()).arg("--json").env("TMPDIR", temporary.path()).output().unwrap();
    assert_proof(&output);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "files are left");
}

#[test]
fn people_get_a_table_and_a_sentence() {
    let output = program().args(["--messages", "50", "--kills", "1", "--workers", "1"]).output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    assert!(out.contains("\nExact: each of 50 messages took effect once, through "), "{out}");
    let cells = |line: &str| line.split("  ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = out.lines().map(cells).collect();
    for (name, value) in [("messages sent", "50"), ("ledger rows", "50"), ("lost", "0"), ("double", "0")] {
        let is_it = |row: &&Vec<String>| row.first().is_some_and(|cell| cell == name);
        assert_eq!(rows.iter().find(is_it).unwrap().last().unwrap(), value, "{out}");
    }
}

#[tokio::test]
async fn a_kept_demo_can_be_audited_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("new/kept");
    let output = small(&mut program()).arg("--json").arg("--keep").arg(&kept).output().unwrap();
    let report = assert_proof(&output);

    // By hand: from the history and the ledger alone.
    let sent = events(&kept, "sent");
    assert_eq!(sent.len() as u64, MESSAGES);
    let numbers: HashSet<i64> = sent.iter().map(|event| event["message"].as_i64().unwrap()).collect();
    assert_eq!(numbers.len() as u64, MESSAGES);
    let amounts: i64 = sent.iter().map(|event| event["amount"].as_i64().unwrap()).sum();
    assert_eq!(events(&kept, "delivered").len() as u64, number(&report, "delivered"));
    assert_eq!(events(&kept, "ack_dropped").len() as u64, number(&report, "acks_dropped"));
    let killed = events(&kept, "killed");
    assert_eq!(killed.len() as u64, KILLS);
    let pids: HashSet<u64> = killed.iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len() as u64, KILLS, "each process was another one");
    let mut conn = ledger(&kept).await;
    let query = "select count(*), count(distinct message), sum(amount) from ledger";
    let (rows, messages, sum): (i64, i64, i64) = sqlx::query_as(query).fetch_one(&mut conn).await.unwrap();
    assert_eq!((rows.unsigned_abs(), messages.unsigned_abs(), sum), (MESSAGES, MESSAGES, amounts));
    conn.close().await.unwrap();

    // By the program.
    let audit = || program().arg("--json").arg("--audit").arg(&kept).output().unwrap();
    assert_eq!(assert_proof(&audit()), report);
    // It is not overwritten.
    let again = program().arg("--keep").arg(&kept).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
}

#[tokio::test]
async fn the_audit_finds_lost_double_and_foreign_rows() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path();
    let run = program().args(["--messages", "40", "--kills", "1", "--keep"]).arg(kept).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let tampered = async |sql: &'static str| {
        let mut conn = ledger(kept).await;
        sqlx::query(sql).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        let output = program().arg("--json").arg("--audit").arg(kept).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let object = object(&output);
        assert_eq!(object["exact"], false);
        ["effects", "lost", "double", "foreign"].map(|name| number(&object, name))
    };
    let twice = "insert into ledger select * from ledger where message = 7";
    assert_eq!(tampered(twice).await, [41, 0, 1, 0]);
    assert_eq!(tampered("delete from ledger where message = 8").await, [40, 1, 1, 0]);
    assert_eq!(tampered("insert into ledger values (41, 1, 1)").await, [41, 1, 1, 1]);
    let out = text(&program().arg("--audit").arg(kept).output().unwrap().stdout);
    assert!(out.contains("NOT exact: 1 lost, 1 double, 1 of no message."), "{out}");
}

#[test]
fn an_existing_file_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.db");
    fs::write(&file, "precious").unwrap();
    let output = program().arg("--store").arg(format!("sqlite://{}", file.display())).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is not empty"), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_named_file_is_kept_and_not_used_twice() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("named.db").display());
    let run = || program().args(["--messages", "20", "--kills", "0", "--store", &url]).output().unwrap();
    let first = run();
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("The database is "), "{}", text(&first.stdout));
    assert!(folder.path().join("named.db").exists());
    assert_eq!(run().status.code(), Some(2));
}

#[test]
fn a_database_that_cannot_be_reached_is_reported_and_no_file_is_left() {
    let temporary = tempfile::tempdir().unwrap();
    let run = |store: &str| {
        let output = program().args(["--store", store]).env("TMPDIR", temporary.path()).output().unwrap();
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = run("postgres://nobody@127.0.0.1:1/nothing");
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("PostgreSQL cannot be reached"), "{error}");
    let (code, error) = run("sqlite::memory:");
    assert_eq!(code, Some(2), "{error}");
    let (code, error) = run("sqlite:///nowhere/at/all.db");
    assert_eq!(code, Some(4), "{error}");
}

#[test]
fn an_audit_without_a_history_is_refused() {
    let audit = program().args(["--audit", "nope"]).output().unwrap();
    assert_eq!(audit.status.code(), Some(4), "{}", text(&audit.stderr));
    assert!(text(&audit.stderr).contains("--keep"), "{}", text(&audit.stderr));
}

/// Starts a long demo, and waits until its workers have started.
fn start_long(kept: &Path, temporary: &Path) -> (Child, Vec<Pid>) {
    let child = program()
        .args(["--messages", "1000000", "--kills", "0", "--keep"])
        .arg(kept)
        .env("TMPDIR", temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The history is written in blocks: the first one has the start of all workers.
    let pids = loop {
        let history = fs::read_to_string(kept.join("history.jsonl")).unwrap_or_default();
        let started = history.lines().filter(|line| line.contains("\"started\""));
        let started: Vec<Value> = started.filter_map(|line| serde_json::from_str(line).ok()).collect();
        if started.len() == 3 {
            let pid = |event: &Value| Pid::from_raw(i32::try_from(event["pid"].as_i64().unwrap()).unwrap());
            break started.iter().map(|event| pid(event).unwrap()).collect();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    (child, pids)
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

#[test]
fn an_interrupted_demo_reports_its_progress_and_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, workers) = start_long(&folder.path().join("kept"), folder.path());
    kill_process(pid(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(out.contains("Interrupted after "), "{out}");
    assert!(out.contains("exact so far"), "{out}");
    for worker in workers {
        assert!(test_kill_process(worker).is_err(), "{worker:?} is still there");
    }
    assert_eq!(events(&folder.path().join("kept"), "interrupted").len(), 1);
}

#[test]
fn workers_end_when_the_demo_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, workers) = start_long(&folder.path().join("kept"), folder.path());
    child.kill().unwrap();
    child.wait().unwrap();
    // Each worker ends when it notices that its standard input is closed.
    for worker in workers {
        while is_running(worker) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a process runs that is not a child of this one. A zombie does not run.
fn is_running(pid: Pid) -> bool {
    let Ok(stat) = fs::File::open(format!("/proc/{}/stat", pid.as_raw_nonzero())) else { return false };
    let mut line = String::new();
    BufReader::new(stat).read_line(&mut line).is_ok()
        && line
            .rsplit(')')
            .next()
            .is_some_and(|rest| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X') | None))
}

#[tokio::test]
async fn every_message_takes_effect_once_on_postgres_and_the_schema_is_dropped() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else {
        return skip_or_fail("demo on PostgreSQL", "ONCEBOX_TEST_POSTGRES names no server");
    };
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut exists = async |schema: &str| {
        let query = sqlx::query_scalar("select count(*) from pg_namespace where nspname = $1");
        query.bind(schema.to_owned()).fetch_one(&mut conn).await.is_ok_and(|found: i64| found == 1)
    };
    let output = small(&mut program()).args(["--json", "--store", &url]).output().unwrap();
    let report = assert_proof(&output);
    let schema = report["schema"].as_str().unwrap();
    assert!(schema.starts_with("oncebox_demo_"), "{schema}");
    assert!(!exists(schema).await, "{schema} is left");

    // A named schema is kept with --keep, and not used twice.
    let schema = format!("demo_test_{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let mut run = program();
    let run = run.args(["--messages", "40", "--kills", "1", "--store", &url, "--schema", &schema]);
    let kept = run.arg("--keep").arg(folder.path()).output().unwrap();
    assert_eq!(kept.status.code(), Some(0), "{}", text(&kept.stderr));
    let audit = program().arg("--audit").arg(folder.path()).output().unwrap();
    assert_eq!(audit.status.code(), Some(0), "{}", text(&audit.stderr));
    let refused = program().args(["--store", &url, "--schema", &schema]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(exists(&schema).await, "{schema} is gone");
    let drop = sqlx::AssertSqlSafe(format!("drop schema {schema} cascade"));
    sqlx::query(drop).execute(&mut conn).await.unwrap();
}
