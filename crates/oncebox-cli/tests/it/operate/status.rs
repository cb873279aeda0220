//! Status and top, and that reading leaves no trace.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use oncebox::Envelope;
use rustix::process::{Pid, Signal, kill_process};

use super::database::{InboxDatabase, accept_and_work, on_each_database, with_ledger};

on_each_database!(
    status_shows_handlers_kinds_and_processes,
    reading_leaves_no_trace,
    top_shows_rates_and_exits_after_count,
    top_continues_when_the_database_is_back_and_exits_by_ctrl_c,
    the_error_of_a_database_without_tables_names_the_remedy,
);

async fn status_shows_handlers_kinds_and_processes(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}"), ("o-2", "broken")]).await;
        inbox.accept(Envelope::new("order.sent", "{}").with_key("s-1")).await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let worker = inbox.clone();
        let work = tokio::spawn(async move { worker.run(async { stopped.await.unwrap_or(()) }).await });
        while database.count("process").await == 0 {
            tokio::task::yield_now().await;
        }
        let status = database.oncebox(&["status", "--json"]).ok().json().remove(0);
        let handler = &status["handlers"][0];
        assert_eq!((&handler["name"], &handler["mode"], &handler["dead"]), (&"ledger".into(), &"stored".into(), &1.into()));
        assert_eq!(status["guarantee"], "exactly once");
        assert_eq!(status["unhandled_kinds"][0]["kind"], "order.sent");
        assert_eq!(status["processes"][0]["handlers"][0], "ledger");
        assert_eq!(status["processes"][0]["alive"], true);
        database.oncebox(&["status"]).ok().prints("ledger").prints("order.sent").prints("process");
        stop.send(()).unwrap();
        work.await.unwrap().unwrap();
    });
    database.oncebox(&["status"]).ok().prints("No process is at work.");
}

/// Reading must not fix the number of lanes, and must not count as live time: markers would expire without a running worker.
async fn reading_leaves_no_trace(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    for arguments in [
        &["status"][..],
        &["handlers"],
        &["messages"],
        &["dead"],
        &["doctor"],
        &["prune"],
        &["top", "--count", "1"],
    ] {
        database.oncebox(arguments).ok();
    }
    database.oncebox(&["dead", "retry", "--all"]).ends_with_code(4);
    for table in ["layout", "live", "handler", "process", "audit"] {
        assert_eq!(database.count(table).await, 0, "{table}");
    }
}

async fn top_shows_rates_and_exits_after_count(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}"), ("o-2", "broken")]).await;
    });
    let lines = database.oncebox(&["top", "--json", "--count", "2", "--every", "10ms"]).ok().json();
    assert_eq!(lines.len(), 2);
    assert!(lines[0]["accepted_per_second"].is_null());
    assert_eq!(lines[1]["accepted_per_second"], 0.0);
    assert_eq!((&lines[1]["dead"], &lines[1]["handlers"][0]["passed_per_second"]), (&1.into(), &0.0.into()));
    let plain = database
        .oncebox(&["top", "--count", "2", "--every", "10ms"])
        .ok()
        .prints("ledger active stored passed/s 0.0");
    assert!(!plain.out.contains('\u{1b}'), "control sequences without a terminal: {}", plain.out);
    database.oncebox(&["top", "--every", "0s"]).ends_with_code(2);
    database.oncebox(&["top", "--count", "0"]).ends_with_code(2);
}

async fn top_continues_when_the_database_is_back_and_exits_by_ctrl_c(database: &InboxDatabase) {
    with_ledger!(database, _inbox => {});
    let mut top =
        database.program(&["top", "--json", "--every", "10ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut until = |field: &str| lines.find(|line| line.contains(field)).unwrap();
    until("\"handlers\"");
    let rename = |from: &str, to: &str| match &database.schema {
        None => format!("alter table oncebox_{from} rename to oncebox_{to}"),
        Some(schema) => format!("alter table {schema}.{from} rename to {to}"),
    };
    database.sql(&rename("process", "gone")).await;
    until("\"error\"");
    database.sql(&rename("gone", "process")).await;
    until("\"handlers\"");
    let pid = Pid::from_child(&top);
    kill_process(pid, Signal::INT).unwrap();
    // The pipe is closed: top must not wait for a reader.
    drop(lines);
    assert_eq!(top.wait().unwrap().code(), Some(0));
}

async fn the_error_of_a_database_without_tables_names_the_remedy(database: &InboxDatabase) {
    if database.is_sqlite() {
        database.oncebox(&["status"]).ends_with_code(4).reports("database not found");
        database.sql("select 1").await;
    }
    for arguments in
        [&["status"][..], &["dead", "retry", "--all"], &["prune"], &["top"], &["handlers", "pause", "x"]]
    {
        database.oncebox(arguments).ends_with_code(2).reports("`oncebox migrate up`");
    }
    database.oncebox(&["doctor"]).ends_with_code(1).prints("`oncebox migrate up`");
}
