//! Order: what an earlier message of the same ordering key holds back, and what not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncebox_core::DeadHead;
use oncebox_core::store::{
    DeadLetters, Look, MessageState, ProcessId, Registration, Registry, SetApart, Settled, Store, Survey,
    TaskLimits, Waits, Work,
};
use oncebox_sqlite::SqliteStore;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use crate::one_handler::{
    ALL, FOUR_LANES, LATER, LIMITS, OneHandler, apart, at_most, failure, in_order, message, place, positions,
    stored,
};
use crate::plans::statement;

const NOW: Duration = Duration::ZERO;

async fn ordered(dead_head: DeadHead) -> OneHandler {
    OneHandler::of(Registration { ordered: Some(dead_head), ..stored("ledger", &["a"]) }).await
}

/// A log with so many messages in lane 0, all of them passed.
async fn passed(dead_head: DeadHead, messages: i64) -> OneHandler {
    let log = ordered(dead_head).await;
    let messages: Vec<_> = (1..=messages).map(|n| message("a", &n.to_string())).collect();
    log.append(0, &messages).await;
    log.pass(0, &Settled::default()).await;
    log
}

async fn set_apart(log: &OneHandler, apart: Vec<SetApart>) {
    log.settle(0, &Settled { apart, dead: vec![] }).await;
}

async fn bury(log: &OneHandler, dead: SetApart) {
    log.settle(0, &Settled { apart: vec![], dead: vec![dead] }).await;
}

async fn heads(log: &OneHandler) -> Vec<i64> {
    positions(&log.peek_tasks(0, TaskLimits { tasks: 100, heads_only: true }).await.unwrap())
}

async fn sees_tasks(log: &OneHandler) -> bool {
    log.store.look(&[log.handler]).await.unwrap().waiting.iter().any(|waiting| waiting.tasks)
}

#[tokio::test]
async fn only_the_messages_of_a_key_wait_for_each_other() {
    let log = passed(DeadHead::Hold, 6).await;
    let free = failure(5, 1, "x");
    set_apart(
        &log,
        vec![apart(1, "A", LATER), apart(2, "A", NOW), apart(3, "B", NOW), apart(4, "A", NOW), free],
    )
    .await;
    assert_eq!(log.runnable().await, [3, 5]);
    assert_eq!(heads(&log).await, [3, 5]);
    log.store.travel(LATER);
    // The longest due first; then those behind each head, in their order.
    assert_eq!(heads(&log).await, [3, 5, 1]);
    assert_eq!(log.runnable().await, [3, 5, 1, 2, 4]);
    assert_eq!(positions(&log.peek_tasks(0, at_most(2)).await.unwrap()), [3, 5]);
    assert_eq!(positions(&log.peek_tasks(0, at_most(4)).await.unwrap()), [3, 5, 1, 2]);
    // What is taken no longer holds anything back.
    let (tx, _) = log.take_tasks(0, 3).await;
    log.store.finish(tx, None).await.unwrap();
    assert_eq!(heads(&log).await, [2]);
}

#[tokio::test]
async fn without_order_nothing_is_held_back() {
    let log = OneHandler::new().await;
    log.append(0, &[in_order("1", Some("A")), in_order("2", Some("A")), in_order("3", Some("A"))]).await;
    let batch =
        log.pass(0, &Settled { apart: vec![apart(1, "A", LATER), apart(2, "A", NOW)], dead: vec![] }).await;
    assert!(batch.messages.iter().all(|message| !message.held));
    assert_eq!(log.runnable().await, [2]);
    log.append(0, &[in_order("4", Some("A"))]).await;
    assert!(!log.peek(0, ALL).await.unwrap().messages[0].held);
}

#[tokio::test]
async fn what_runs_outside_of_a_transaction_holds_the_others_back() {
    let log = passed(DeadHead::Hold, 3).await;
    log.lease(ProcessId(Uuid::now_v7()), &[apart(1, "A", NOW)]).await;
    set_apart(&log, vec![apart(2, "A", NOW)]).await;
    assert!(log.runnable().await.is_empty());
    assert!(!sees_tasks(&log).await);
    set_apart(&log, vec![apart(3, "B", NOW)]).await;
    assert_eq!(log.runnable().await, [3]);
    assert!(sees_tasks(&log).await);
}

#[tokio::test]
async fn a_dead_letter_holds_its_key_or_is_skipped() {
    for (dead_head, expected) in [(DeadHead::Hold, vec![1, 5]), (DeadHead::Skip, vec![1, 5, 3, 4])] {
        let log = passed(dead_head, 5).await;
        bury(&log, apart(2, "A", NOW)).await;
        set_apart(&log, vec![apart(1, "A", NOW), apart(3, "A", NOW), apart(4, "A", NOW), apart(5, "B", NOW)])
            .await;
        // Only what is behind it waits for it.
        assert_eq!(log.runnable().await, expected);
        assert_eq!(heads(&log).await, [1, 5]);
        let (tx, _) = log.take_tasks(0, 2).await;
        log.store.finish(tx, None).await.unwrap();
        let is_held = dead_head == DeadHead::Hold;
        assert_eq!(sees_tasks(&log).await, !is_held);
        assert_eq!(heads(&log).await, if is_held { vec![] } else { vec![3] });
        // The operator has dealt with it.
        let discard = oncebox_core::store::Action::Discard;
        log.store.act(&oncebox_core::store::Select::all(), &discard, "ann", None, 10).await.unwrap();
        assert_eq!(log.runnable().await, [3, 4]);
    }
}

#[tokio::test]
async fn what_is_scheduled_holds_nobody_back_before_its_time() {
    let log = passed(DeadHead::Hold, 4).await;
    let scheduled = SetApart { scheduled: true, ..apart(1, "A", LATER) };
    let also = SetApart { scheduled: true, ..apart(3, "A", 2 * LATER) };
    set_apart(&log, vec![scheduled, apart(2, "A", NOW), also, apart(4, "A", NOW)]).await;
    assert_eq!(heads(&log).await, [2]);
    assert_eq!(log.runnable().await, [2, 4]);
    log.store.travel(LATER);
    assert_eq!(heads(&log).await, [1]);
    assert_eq!(log.runnable().await, [1, 2, 4]);
    log.store.travel(LATER);
    assert_eq!(log.runnable().await, [1, 2, 3, 4]);
    // One that failed is not scheduled any more.
    set_apart(&log, vec![apart(1, "A", LATER)]).await;
    assert!(log.runnable().await.is_empty());
}

#[tokio::test]
async fn what_follows_a_head_ends_with_the_first_that_may_not() {
    let log = passed(DeadHead::Hold, 4).await;
    set_apart(&log, vec![apart(1, "A", NOW), apart(2, "A", NOW), apart(3, "A", LATER), apart(4, "A", NOW)])
        .await;
    assert_eq!(log.runnable().await, [1, 2]);
    log.lease(ProcessId(Uuid::now_v7()), &[apart(2, "A", NOW)]).await;
    assert_eq!(log.runnable().await, [1]);
    log.store.travel(LATER);
    assert_eq!(log.runnable().await, [1]);
}

#[tokio::test]
async fn a_message_behind_a_task_of_its_key_comes_as_held() {
    for (dead_head, behind_dead) in [(DeadHead::Hold, true), (DeadHead::Skip, false)] {
        let log = ordered(dead_head).await;
        let keys = [Some("A"), Some("B"), Some("C"), Some("A"), Some("B"), Some("C"), None, Some("D")];
        let messages: Vec<_> =
            keys.iter().zip(1..).map(|(order_by, n)| in_order(&n.to_string(), *order_by)).collect();
        log.append(0, &messages[..3]).await;
        let later = SetApart { scheduled: true, ..apart(3, "C", LATER) };
        let batch = log
            .pass(0, &Settled { apart: vec![apart(1, "A", LATER), later], dead: vec![apart(2, "B", NOW)] })
            .await;
        assert!(batch.messages.iter().all(|message| !message.held));
        log.append(0, &messages[3..]).await;
        let held = async || {
            let batch = log.peek(0, ALL).await.unwrap();
            batch.messages.iter().filter(|one| one.held).map(|one| one.place.pos).collect::<Vec<_>>()
        };
        assert_eq!(held().await, if behind_dead { vec![4, 5] } else { vec![4] });
        log.store.travel(LATER);
        assert_eq!(held().await, if behind_dead { vec![4, 5, 6] } else { vec![4, 6] });
    }
}

#[tokio::test]
async fn the_next_time_is_that_of_a_task_which_could_run_then() {
    let hours = |look: Option<Duration>| look.map(|next| (next.as_secs_f64() / 3600.0).round());
    let log = passed(DeadHead::Hold, 9).await;
    let next = async || {
        let look = log.store.look(&[log.handler]).await.unwrap();
        assert_eq!(look.waiting, []);
        hours(look.next_due)
    };
    assert_eq!(next().await, None);
    // Behind a head that waits longer, and behind a dead letter.
    set_apart(&log, vec![apart(1, "A", 5 * LATER), apart(2, "A", 2 * LATER)]).await;
    bury(&log, apart(3, "B", NOW)).await;
    set_apart(&log, vec![apart(4, "B", LATER)]).await;
    assert_eq!(next().await, Some(5.0));
    // Behind one that a process runs.
    log.lease(ProcessId(Uuid::now_v7()), &[apart(5, "C", NOW)]).await;
    set_apart(&log, vec![apart(6, "C", LATER)]).await;
    assert_eq!(next().await, Some(5.0));
    // Scheduled in front of its head.
    let early = SetApart { scheduled: true, ..apart(7, "D", 4 * LATER) };
    set_apart(&log, vec![early, apart(8, "D", 6 * LATER)]).await;
    assert_eq!(next().await, Some(4.0));
    set_apart(&log, vec![SetApart { due_in: 3 * LATER, ..failure(9, 1, "x") }]).await;
    assert_eq!(next().await, Some(3.0));
    log.store.travel(3 * LATER);
    assert!(sees_tasks(&log).await);
}

#[tokio::test]
async fn what_dead_letters_mean_may_change() {
    let mut log = passed(DeadHead::Hold, 2).await;
    bury(&log, apart(1, "A", NOW)).await;
    set_apart(&log, vec![apart(2, "A", NOW)]).await;
    assert!(log.runnable().await.is_empty());
    for (dead_head, expected) in
        [(Some(DeadHead::Skip), vec![2]), (Some(DeadHead::Hold), vec![]), (None, vec![2])]
    {
        log.as_wanted.ordered = dead_head;
        let layout = log.store.register(FOUR_LANES, std::slice::from_ref(&log.as_wanted)).await.unwrap();
        assert_eq!((layout.handlers, layout.origins), (vec![log.handler], vec!["ledger".to_owned()]));
        assert_eq!(log.store.handler_statuses().await.unwrap()[0].handler.ordered, dead_head);
        assert_eq!(log.runnable().await, expected);
    }
}

#[tokio::test]
async fn a_survey_tells_what_a_task_waits_for() {
    let log = passed(DeadHead::Hold, 7).await;
    let scheduled = SetApart { scheduled: true, ..apart(1, "A", LATER) };
    bury(&log, apart(6, "C", NOW)).await;
    set_apart(&log, vec![scheduled, apart(2, "A", LATER), apart(3, "A", NOW), apart(7, "C", NOW)]).await;
    log.lease(ProcessId(Uuid::now_v7()), &[apart(4, "B", NOW)]).await;
    set_apart(&log, vec![apart(5, "B", NOW)]).await;
    let expected = [
        (1, Waits::Scheduled),
        (2, Waits::Turn),
        (3, Waits::Parked),
        (4, Waits::Running),
        (5, Waits::Parked),
        (7, Waits::Parked),
    ];
    let mut tasks: Vec<_> =
        log.store.tasks(None, 10).await.unwrap().iter().map(|task| (task.place.pos, task.waits)).collect();
    tasks.sort_unstable_by_key(|task| task.0);
    assert_eq!(tasks, expected);
    let messages = log.store.messages(0, 0, 10).await.unwrap();
    let states: Vec<_> = messages
        .iter()
        .filter_map(|one| match &one.handlers[0].1 {
            MessageState::Task { waits, .. } => Some((one.message.place.pos, *waits)),
            _ => None,
        })
        .collect();
    assert_eq!(states, expected);
    // Its time has come.
    log.store.travel(LATER);
    let tasks = log.store.tasks(Some("ledger"), 10).await.unwrap();
    let first = tasks.iter().find(|task| task.place == place(0, 1)).unwrap();
    assert_eq!(first.waits, Waits::Turn);
}

/// Fills lane 0 with messages and tasks of one key, and one task each of others.
async fn park(log: &OneHandler, parked: i64, others: i64) {
    let pool = log.store.pool();
    sqlx::query(
        "with recursive n(pos) as (select 1 union all select pos + 1 from n where pos < ?) \
         insert into oncebox_message (lane, pos, kind, received_at, body) select 0, pos, 'a', 0, x'' from n",
    )
    .bind(parked + others)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query(
        "insert into oncebox_task (handler, lane, pos, order_by, failures, due_at) \
         select ?1, 0, pos, case when pos <= ?2 then x'4d' else cast('N' || pos as blob) end, 1, 0 \
         from oncebox_message",
    )
    .bind(log.handler.0)
    .bind(parked)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query("update oncebox_task set due_at = unixepoch() * 1000 + 3600000 where pos = 1")
        .execute(pool)
        .await
        .unwrap();
}

/// Counts the instructions of SQLite's virtual machine: what work costs, on any machine.
#[derive(Clone, Default)]
struct Steps(Arc<AtomicU64>);

impl Steps {
    async fn count_on(&self, conn: &mut SqliteConnection) {
        let steps = self.0.clone();
        let mut handle = conn.lock_handle().await.unwrap();
        handle.set_progress_handler(1, move || {
            steps.fetch_add(1, Ordering::Relaxed);
            true
        });
    }
}

/// A log on one connection, whose instructions are counted.
struct Counted {
    log: OneHandler,
    steps: Steps,
}

impl Counted {
    async fn new(log: &OneHandler) -> Self {
        let options = log.store.pool().connect_options().as_ref().clone();
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        Self { log: log.seen_by(SqliteStore::new(pool)), steps: Steps::default() }
    }

    /// The positions of tasks that can be taken.
    async fn peek_tasks(&self, limits: TaskLimits) -> Vec<i64> {
        let mut tx = self.log.store.begin(LIMITS).await.unwrap();
        self.steps.count_on(SqliteStore::connection(&mut tx)).await;
        let tasks = self.log.store.take_tasks(&mut tx, self.log.taker(0), limits).await.unwrap().unwrap();
        self.log.store.rollback(tx).await;
        positions(&tasks)
    }

    async fn look(&self) -> Look {
        self.steps.count_on(&mut self.log.store.pool().acquire().await.unwrap()).await;
        self.log.store.look(&[self.log.handler]).await.unwrap()
    }

    fn steps(self) -> u64 {
        self.steps.0.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn what_is_parked_costs_nothing() {
    let few = looks_at_parked(&ordered(DeadHead::Hold).await, 20).await;
    let log = ordered(DeadHead::Hold).await;
    let many = looks_at_parked(&log, 20_000).await;
    // A thousand times as many if every task was looked at.
    assert!(few > 0 && many < few * 50, "{many} steps among many, {few} among few");
    // All of them may run: no more than asked for are looked at.
    log.store.travel(LATER + LATER);
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    let limits = TaskLimits { tasks: 10, heads_only: false };
    let tasks = log.store.take_tasks(&mut tx, log.taker(0), limits).await.unwrap().unwrap();
    assert_eq!(positions(&tasks), [20_001, 20_002, 1, 2, 3, 4, 5, 6, 7, 8]);
    log.store.finish(tx, None).await.unwrap();
}

/// What it costs to look for what may run, with so many parked behind one head.
async fn looks_at_parked(log: &OneHandler, parked: i64) -> u64 {
    park(log, parked, 2).await;
    let counted = Counted::new(log).await;
    assert_eq!(counted.peek_tasks(at_most(100)).await, [parked + 1, parked + 2]);
    assert!(counted.look().await.waiting.iter().any(|waiting| waiting.tasks));
    counted.steps()
}

/// Many keys of which no head is due, and many of which all are.
#[tokio::test]
async fn many_keys_are_no_burden_either() {
    let few = looks_at_keys(&ordered(DeadHead::Hold).await, 20).await;
    let many = looks_at_keys(&ordered(DeadHead::Hold).await, 20_000).await;
    assert!(few > 0 && many < few * 50, "{many} steps among many, {few} among few");
}

/// What it costs to look for what may run, with so many keys, of which all heads are due and then none.
async fn looks_at_keys(log: &OneHandler, keys: i64) -> u64 {
    park(log, 1, keys).await;
    let counted = Counted::new(log).await;
    assert_eq!(counted.peek_tasks(at_most(10)).await, (2..12).collect::<Vec<_>>());
    sqlx::query("update oncebox_task set due_at = unixepoch() * 1000 + 3600000 + pos")
        .execute(log.store.pool())
        .await
        .unwrap();
    assert!(counted.look().await.next_due.unwrap() <= LATER);
    assert_eq!(counted.peek_tasks(at_most(100)).await, [0; 0]);
    counted.steps()
}

/// What is free to run is found among the first that are due, and from key to key, with the same result.
#[tokio::test]
async fn among_many_that_are_due_the_same_ones_are_free() {
    for dead_head in [DeadHead::Hold, DeadHead::Skip] {
        let log = ordered(dead_head).await;
        park(&log, 1_000, 300).await;
        let pool = log.store.pool();
        // Behind a dead letter, behind one that a process runs, scheduled for later, and without a key.
        for change in [
            "insert into oncebox_dead (handler, lane, pos, order_by, error, attempts, died_at) \
             select handler, lane, 1, order_by, 'x', '[]', 0 from oncebox_task where pos = 1100",
            "update oncebox_task set order_by = x'4e31' where pos in (1101, 1102)",
            "update oncebox_task set owner = x'01', fence = 1 where pos = 1101",
            "update oncebox_task set order_by = x'4e32' where pos in (1103, 1104)",
            "update oncebox_task set scheduled = 1, due_at = unixepoch() * 1000 + 3600000 where pos = 1103",
            "update oncebox_task set order_by = null where pos = 1105",
        ] {
            sqlx::query(change).execute(pool).await.unwrap();
        }
        let expected: Vec<i64> = (1_001..=1_300)
            .filter(|pos| ![1_101, 1_102, 1_103].contains(pos))
            .filter(|pos| dead_head == DeadHead::Skip || *pos != 1_100)
            .collect();
        // More are due than are looked at first; and few enough.
        let taken = async |tasks| positions(&log.peek_tasks(0, at_most(tasks)).await.unwrap());
        assert_eq!(taken(1_000).await, expected);
        assert_eq!(taken(5).await, expected[..5]);
        assert!(sees_tasks(&log).await);
        sqlx::query("delete from oncebox_task where pos between 2 and 1000").execute(pool).await.unwrap();
        assert_eq!(taken(1_000).await, expected);
        sqlx::query("delete from oncebox_task where pos > 1120").execute(pool).await.unwrap();
        let fewer: Vec<_> = expected.iter().copied().filter(|pos| *pos <= 1_120).collect();
        assert_eq!(taken(1_000).await, fewer);
        assert!(sees_tasks(&log).await);
    }
}

#[tokio::test]
async fn heads_are_found_along_the_index() {
    let log = ordered(DeadHead::Hold).await;
    let plan = async |sql: &str| -> String {
        let explain = AssertSqlSafe(format!("explain query plan {sql}"));
        let rows: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(explain).fetch_all(log.store.pool()).await.unwrap();
        rows.into_iter().map(|row| row.3).collect::<Vec<_>>().join("\n")
    };
    for name in ["due_heads", "look"] {
        let plan = plan(&statement("work", name)).await;
        let keys = "SEARCH t USING COVERING INDEX oncebox_task_order (handler=? AND lane=? AND order_by>?)";
        assert!(plan.contains(keys), "{plan}");
        assert!(plan.contains("oncebox_task_order (handler=? AND lane=? AND order_by=?"), "{plan}");
        assert!(
            plan.contains("oncebox_dead_order (handler=? AND lane=? AND order_by=? AND pos<?)"),
            "{plan}"
        );
        assert!(plan.contains("oncebox_task_free (handler=? AND lane=? AND due_at<?)"), "{plan}");
        // What has no key is not sorted before it is cut.
        assert!(!plan.contains("due_at<?)\nUSE TEMP B-TREE"), "{plan}");
        for table in ["t", "d", "head"] {
            assert!(!plan.lines().any(|line| line.starts_with(&format!("SCAN {table} "))), "{plan}");
        }
    }
}
