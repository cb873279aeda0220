//! The log: appended once, handed out in order, kept until nobody needs it.

use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    Action, Appended, DeadLetters, HandlerId, HandlerState, LaneChoice, Lanes, Log, MessageState, NewMessage,
    Operate, Place, Progress, Registration, Registry, Select, SetApart, Settled, Store, Survey, TakeLimits,
    Taker, Upkeep, Work,
};
use oncebox_core::{ErrorKind, Headers, Key, Mode, Start};
use oncebox_sqlite::SqliteStore;
use sqlx::AssertSqlSafe;

use crate::fixture;
use crate::one_handler::{
    A_WHILE, ALL, FOUR_LANES, LATER, LIMITS, OneHandler, at_most, failure, message, place, positions, stored,
};
use crate::plans::statement;

#[tokio::test]
async fn positions_have_no_gaps_and_known_keys_get_none() {
    let log = OneHandler::new().await;
    let first = log.append(1, &[message("a", "1"), message("a", "2")]).await;
    assert_eq!(first, [Appended::New(place(1, 1)), Appended::New(place(1, 2))]);

    let mut without_key = message("a", "2");
    without_key.key = None;
    let other_kind = message("b", "2");
    let second = [message("a", "3"), message("a", "2"), without_key.clone(), other_kind, without_key];
    let known = |lane, pos, key| Appended::Known {
        place: Some(place(lane, pos)),
        fingerprint: Some(message("a", key).fingerprint),
    };
    assert_eq!(
        log.append(1, &second).await,
        [
            Appended::New(place(1, 3)),
            known(1, 2, "2"),
            Appended::New(place(1, 4)),
            Appended::New(place(1, 5)),
            Appended::New(place(1, 6)),
        ]
    );
    // Known in every lane, and another lane counts for itself.
    let third =
        log.store.append(LaneChoice::Prefer(3), &[message("a", "3"), message("a", "4")]).await.unwrap();
    assert_eq!(third, [known(1, 3, "3"), Appended::New(place(3, 1))]);
    assert_eq!(log.positions(1).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(log.positions(3).await, [1]);
    assert_eq!(log.count("oncebox_marker where handler = '@accept' and state = 'accepted'").await, 5);
    assert_eq!(log.count("oncebox_kind").await, 2);
    assert!(log.append(0, &[]).await.is_empty());
}

#[tokio::test]
async fn a_large_batch_is_appended_whole_and_known_whole() {
    let log = OneHandler::new().await;
    let messages: Vec<_> = (1..=1000).map(|n| message("a", &n.to_string())).collect();
    let appended = log.append(0, &messages).await;
    let expected: Vec<_> = (1..=1000).map(|pos| Appended::New(place(0, pos))).collect();
    assert_eq!(appended, expected);
    let again = log.append(2, &messages).await;
    let places: Vec<_> = again
        .iter()
        .map(|one| match one {
            Appended::Known { place: Some(place), .. } => place.pos,
            _ => 0,
        })
        .collect();
    assert_eq!(places, (1..=1000).collect::<Vec<_>>());
    assert_eq!(log.count("oncebox_message").await, 1000);
    let batch = log.peek(0, TakeLimits { messages: 2000, positions: 2000, ..ALL }).await.unwrap();
    assert_eq!(batch.messages.len(), 1000);
    assert_eq!(batch.messages[999].body, messages[999].body);
}

#[tokio::test]
async fn a_message_comes_back_as_it_was() {
    let log = OneHandler::new().await;
    let long = "x".repeat(600);
    let mut headers = Headers::new();
    headers.append("traceparent", "00-1");
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(log.now_ms().await).unwrap());
    let full = NewMessage {
        order_by: Some(Key::new([0, 255])),
        headers: headers.clone(),
        occurred_at: Some(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
        due_at: Some(now + LATER),
        waited: LATER,
        body: vec![0, 159, 255],
        ..message("a", &long)
    };
    log.append(0, &[full]).await;
    let batch = log.peek(0, ALL).await.unwrap();
    let read = &batch.messages[0];
    assert_eq!(read.place, place(0, 1));
    assert_eq!(read.kind, "a");
    assert_eq!(read.key, Some(Key::from(long.as_str())));
    assert_eq!(read.order_by, Some(Key::new([0, 255])));
    assert_eq!(read.headers, headers);
    assert_eq!(read.body, [0, 159, 255]);
    assert_eq!(read.occurred_at, Some(SystemTime::UNIX_EPOCH - Duration::from_secs(1)));
    assert_eq!(read.due_at, Some(now + LATER));
    assert!(read.due_in > LATER - A_WHILE && read.due_in <= LATER, "{:?}", read.due_in);
    assert!(read.waited >= LATER && read.waited < LATER + A_WHILE, "{:?}", read.waited);
    assert_eq!((read.failures, read.attempts.as_deref(), read.edited), (0, None, false));
    assert_eq!(log.store.find_message("a", &Key::from(long.as_str())).await.unwrap(), Some(place(0, 1)));
    assert_eq!(log.store.find_message("b", &Key::from(long.as_str())).await.unwrap(), None);
}

#[tokio::test]
async fn imported_keys_are_known_without_a_place() {
    let log = OneHandler::new().await;
    let keys: Vec<_> = (0..20).map(|n| Key::from(n.to_string().as_str()).stored()).collect();
    assert_eq!(log.store.mark_accepted("a", &keys).await.unwrap(), 20);
    assert_eq!(log.store.mark_accepted("a", &keys[..3]).await.unwrap(), 0);
    let appended = log.append(0, &[message("a", "7"), message("a", "99")]).await;
    assert_eq!(appended, [Appended::Known { place: None, fingerprint: None }, Appended::New(place(0, 1))]);
}

#[tokio::test]
async fn a_lane_that_is_not_there_is_refused() {
    let fixture = fixture::in_a_file("log").await.unwrap();
    let append = async |lane| fixture.store.append(LaneChoice::Only(lane), &[]).await;
    assert_eq!(append(0).await.unwrap_err().kind(), ErrorKind::Configuration);
    fixture.store.register(Some(Lanes(None)), &[]).await.unwrap();
    append(Lanes::DEFAULT - 1).await.unwrap();
    assert_eq!(append(Lanes::DEFAULT).await.unwrap_err().kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn a_batch_is_taken_once_it_is_finished_and_again_if_not() {
    let log = OneHandler::new().await;
    log.append_keys(2, &["1", "2", "3"]).await;
    let batch = log.peek(2, ALL).await.unwrap();
    assert_eq!((batch.epoch, batch.from, batch.reached, batch.head), (0, 0, 3, 3));
    assert_eq!(positions(&batch.messages), [1, 2, 3]);
    assert_eq!(positions(&log.pass(2, &Settled::default()).await.messages), [1, 2, 3]);
    log.append_keys(2, &["4"]).await;
    let batch = log.peek(2, ALL).await.unwrap();
    assert_eq!((batch.from, batch.reached, batch.head), (3, 4, 4));
    assert_eq!(positions(&batch.messages), [4]);
    log.pass(2, &Settled::default()).await;
    let batch = log.peek(2, ALL).await.unwrap();
    assert_eq!((batch.from, batch.reached, batch.head, batch.messages.len()), (4, 4, 4, 0));
}

#[tokio::test]
async fn limits_end_a_batch_where_they_must() {
    let log = OneHandler::new().await;
    let sized = |key: &str, bytes| NewMessage { body: vec![7; bytes], ..message("a", key) };
    let other = |key: &str| message("b", key);
    // 1: a, 2: b, 3: a, 4: a, 5: b, 6: b
    let messages = [sized("1", 10), other("2"), sized("3", 10), sized("4", 10), other("5"), other("6")];
    log.append(0, &messages).await;
    let taken = async |messages, at_most, bytes| {
        let batch = log.peek(0, TakeLimits { messages, positions: at_most, bytes, ..ALL }).await.unwrap();
        assert_eq!((batch.from, batch.head), (0, 6));
        (positions(&batch.messages), batch.reached)
    };
    // Nothing more of these kinds: everything is passed.
    assert_eq!(taken(10, 100, 1000).await, (vec![1, 3, 4], 6));
    assert_eq!(taken(3, 100, 1000).await, (vec![1, 3, 4], 4));
    assert_eq!(taken(2, 100, 1000).await, (vec![1, 3], 3));
    assert_eq!(taken(10, 2, 1000).await, (vec![1], 2));
    assert_eq!(taken(10, 5, 1000).await, (vec![1, 3, 4], 5));
    // Ends with the one that exceeds.
    assert_eq!(taken(10, 100, 20).await, (vec![1, 3], 3));
    assert_eq!(taken(10, 100, 21).await, (vec![1, 3, 4], 6));
    assert_eq!(taken(10, 100, 10).await, (vec![1], 1));
    assert_eq!(taken(10, 100, 0).await, (vec![1], 1));
}

#[tokio::test]
async fn a_handler_cannot_commit_what_it_was_lent() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1"]).await;
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    log.store.take(&mut tx, log.taker(0), ALL).await.unwrap().unwrap();
    sqlx::query("insert into effect values ('stolen')")
        .execute(SqliteStore::connection(&mut tx))
        .await
        .unwrap();
    sqlx::query("commit").execute(SqliteStore::connection(&mut tx)).await.unwrap_err();
    let progress = Progress { handler: log.handler, lane: 0, epoch: 0, pos: 1 };
    let error = log.store.finish(tx, Some(progress)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transaction);
    assert_eq!(log.count("effect").await, 0);
    assert_eq!(log.peek(0, ALL).await.unwrap().from, 0);
}

#[tokio::test]
async fn what_fails_becomes_a_task_with_its_history_and_dies_with_it() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2", "3"]).await;
    let apart = SetApart { order_by: Some(Key::from("c")), due_in: LATER, ..failure(2, 1, "first") };
    log.pass(0, &Settled { apart: vec![apart], dead: vec![] }).await;
    let (tx, tasks) = log.take_tasks(0, 10).await;
    assert!(tasks.is_empty());
    log.store.finish(tx, None).await.unwrap();

    log.store.travel(LATER);
    let (tx, tasks) = log.take_tasks(0, 10).await;
    assert_eq!(positions(&tasks), [2]);
    log.store.rollback(tx).await;
    // What is not finished is still there.
    let (mut tx, tasks) = log.take_tasks(0, 10).await;
    let task = &tasks[0];
    assert_eq!((task.failures, task.edited, task.due_in), (1, false, Duration::ZERO));
    assert_eq!(task.key, Some(Key::from("2")));
    let again = SetApart {
        attempts: task.attempts.clone(),
        order_by: task.order_by.clone(),
        ..failure(2, 2, "second")
    };
    log.store.guard(&mut tx).await.unwrap();
    log.store.settle(&mut tx, log.taker(0), &Settled { apart: vec![again], dead: vec![] }).await.unwrap();
    log.store.finish(tx, None).await.unwrap();
    let listed = log.store.tasks(Some("ledger"), 10).await.unwrap();
    assert_eq!(
        (listed[0].place, listed[0].failures, listed[0].error.as_deref()),
        (place(0, 2), 2, Some("second"))
    );
    assert!(log.store.tasks(Some("nobody"), 10).await.unwrap().is_empty());

    let (mut tx, tasks) = log.take_tasks(0, 10).await;
    let dead = SetApart { attempts: tasks[0].attempts.clone(), ..failure(2, 3, "third") };
    log.store.guard(&mut tx).await.unwrap();
    log.store.settle(&mut tx, log.taker(0), &Settled { apart: vec![], dead: vec![dead] }).await.unwrap();
    log.store.finish(tx, None).await.unwrap();
    assert_eq!(log.count("oncebox_task").await, 0);
    let dead = log.store.dead_letters(&Select::all(), 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].place, dead[0].error.as_str()), (place(0, 2), "third"));
    let history: Vec<_> = dead[0].attempts.iter().map(|one| (one.attempt, one.error.as_str())).collect();
    assert_eq!(history, [(1, "first"), (2, "second"), (3, "third")]);
    let apart = dead[0].attempts[1].at.duration_since(dead[0].attempts[0].at).unwrap();
    assert!(apart >= LATER && apart < LATER + A_WHILE, "{apart:?}");
}

#[tokio::test]
async fn a_message_set_apart_for_its_time_has_no_history() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1"]).await;
    let scheduled = SetApart { error: None, ..failure(1, 0, "") };
    log.pass(0, &Settled { apart: vec![scheduled], dead: vec![] }).await;
    let (_tx, tasks) = log.take_tasks(0, 10).await;
    assert_eq!((tasks[0].failures, tasks[0].attempts.as_deref()), (0, Some("[]")));
}

#[tokio::test]
async fn tasks_are_taken_the_longest_due_first_and_no_more_than_asked_for() {
    let log = OneHandler::new().await;
    let keys: Vec<String> = (1..=40).map(|n| n.to_string()).collect();
    log.append_keys(0, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let apart = (1..=40).map(|pos| SetApart {
        due_in: Duration::from_secs(u64::try_from(40 - pos).unwrap()),
        ..failure(pos, 1, "x")
    });
    log.pass(0, &Settled { apart: apart.collect(), dead: vec![] }).await;
    log.store.travel(LATER);
    let (tx, tasks) = log.take_tasks(0, 3).await;
    assert_eq!(positions(&tasks), [40, 39, 38]);
    log.store.finish(tx, None).await.unwrap();
    assert_eq!(log.count("oncebox_task").await, 37);
}

#[tokio::test]
async fn a_look_sees_messages_and_tasks_that_are_due() {
    let log = OneHandler::new().await;
    let handlers = [log.handler, HandlerId(4711)];
    let seen = async || {
        let look = log.store.look(&handlers).await.unwrap();
        let waiting: Vec<_> = look.waiting.iter().map(|one| (one.lane, one.messages, one.tasks)).collect();
        (waiting, look.next_due)
    };
    assert_eq!(seen().await, (vec![], None));
    log.append_keys(1, &["1"]).await;
    log.append(3, &[message("b", "2")]).await;
    // Of another kind, but to be passed.
    assert_eq!(seen().await, (vec![(1, true, false), (3, true, false)], None));
    let apart = SetApart { due_in: LATER, ..failure(1, 1, "x") };
    log.pass(1, &Settled { apart: vec![apart], dead: vec![] }).await;
    log.pass(3, &Settled::default()).await;
    let (waiting, next_due) = seen().await;
    assert_eq!(waiting, []);
    let next_due = next_due.unwrap();
    assert!(next_due > LATER - A_WHILE && next_due <= LATER, "{next_due:?}");
    log.store.travel(LATER - A_WHILE);
    assert_eq!(seen().await.0, []);
    log.store.travel(A_WHILE);
    assert_eq!(seen().await, (vec![(1, false, true)], None));
    sqlx::query("update oncebox_task set owner = x'01'").execute(log.store.pool()).await.unwrap();
    assert_eq!(seen().await, (vec![], None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_register_at_once_agree() {
    let fixture = fixture::in_a_file("log").await.unwrap();
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let path = fixture.path();
            tokio::spawn(async move {
                // A pool each, as processes have.
                let store = SqliteStore::connect(&path).await.unwrap();
                let inline = Registration { mode: Mode::inline(), ..stored("mailer", &["c"]) };
                store.register(FOUR_LANES, &[stored("x", &["a"]), inline, stored("y", &["b"])]).await.unwrap()
            })
        })
        .collect();
    let mut layouts = Vec::new();
    for starter in starters {
        layouts.push(starter.await.unwrap());
    }
    assert!(layouts.iter().all(|layout| *layout == layouts[0]), "{layouts:?}");
    assert_eq!((layouts[0].lanes, layouts[0].handlers.len()), (4, 3));
    // Only what reads the log has a progress, one in each lane.
    let progress: Vec<(i32, i64)> =
        sqlx::query_as("select handler, count(*) from oncebox_progress group by handler order by handler")
            .fetch_all(fixture.store.pool())
            .await
            .unwrap();
    assert_eq!(progress, [(layouts[0].handlers[0].0, 4), (layouts[0].handlers[2].0, 4)]);
}

#[tokio::test]
async fn a_refused_registration_writes_nothing() {
    let log = OneHandler::new().await;
    let refused = async |lanes, handlers: &[Registration]| {
        let error = log.store.register(lanes, handlers).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    };
    refused(FOUR_LANES, &[stored("new", &["a"]), stored("ledger", &["b"])]).await;
    refused(Some(Lanes(Some(5))), &[stored("new", &["a"])]).await;
    assert_eq!(log.count("oncebox_handler").await, 1);
    // Who does not say how many lanes gets what there is; who wants no log may still ask.
    let layout = log.store.register(Some(Lanes(None)), &[stored("ledger", &["a"])]).await.unwrap();
    assert_eq!((layout.lanes, layout.handlers), (4, vec![log.handler]));
    sqlx::query("update oncebox_layout set hash = 'other'").execute(log.store.pool()).await.unwrap();
    refused(Some(Lanes(None)), &[]).await;
    assert_eq!(log.store.register(None, &[]).await.unwrap().lanes, 4);
}

#[tokio::test]
async fn without_a_log_there_are_no_lanes() {
    let fixture = fixture::in_memory("log").await.unwrap();
    let inline = Registration { mode: Mode::inline(), ..stored("mailer", &["a"]) };
    let first = fixture.store.register(None, std::slice::from_ref(&inline)).await.unwrap();
    assert_eq!((first.lanes, first.handlers.len()), (0, 1));
    assert_eq!(fixture.store.register(None, &[inline]).await.unwrap(), first);
}

#[tokio::test]
async fn a_handler_may_begin_now() {
    let log = OneHandler::new().await;
    log.append_keys(1, &["1", "2"]).await;
    let late = Registration { start: Start::Now, ..stored("late", &["a"]) };
    let late = log.store.register(FOUR_LANES, &[late]).await.unwrap().handlers[0];
    let early = log.store.register(FOUR_LANES, &[stored("early", &["a"])]).await.unwrap().handlers[0];
    log.append_keys(1, &["3"]).await;
    log.append_keys(2, &["4"]).await;
    for (handler, expected) in [
        (late, vec![place(1, 3), place(2, 1)]),
        (early, vec![place(1, 1), place(1, 2), place(1, 3), place(2, 1)]),
    ] {
        let pending = log.store.pending(handler, 10).await.unwrap();
        assert_eq!(pending.iter().map(|one| one.place).collect::<Vec<_>>(), expected);
        let pending = log.store.pending(handler, 1).await.unwrap();
        assert_eq!(pending.iter().map(|one| one.place).collect::<Vec<_>>(), expected[..1]);
    }
}

#[tokio::test]
async fn a_removed_handler_is_gone_until_it_is_revived() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2", "3"]).await;
    let settled =
        Settled { apart: vec![failure(1, 1, "x")], dead: vec![failure(2, 5, "y"), failure(3, 5, "z")] };
    log.pass(0, &settled).await;
    assert!(!log.store.remove_handler("nobody", "ann").await.unwrap());
    assert!(log.store.remove_handler("ledger", "ann").await.unwrap());
    assert!(!log.store.remove_handler("ledger", "ann").await.unwrap());
    assert_eq!(log.count("oncebox_task").await, 0);
    assert_eq!(log.count("oncebox_dead").await, 0);
    assert_eq!(log.count("oncebox_progress").await, 0);
    let audit = log.store.audit(10).await.unwrap();
    assert_eq!(audit.len(), 1);
    assert_eq!((audit[0].operator.as_str(), audit[0].action.as_str()), ("ann", "remove"));
    assert_eq!((audit[0].handler.as_str(), audit[0].place), ("ledger", None));
    assert_eq!(audit[0].detail.as_deref(), Some("tasks: 1, dead letters: 2"));

    assert!(log.peek(0, ALL).await.is_none());
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    assert!(log.store.take_tasks(&mut tx, log.taker(0), at_most(10)).await.unwrap().is_none());
    drop(tx);
    assert!(log.store.look(&[log.handler]).await.unwrap().waiting.is_empty());
    assert_eq!(log.store.handler_statuses().await.unwrap()[0].handler.state, HandlerState::Removed);

    let error = log.store.register(FOUR_LANES, &[stored("ledger", &["a"])]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    // A progress that was left over must not count.
    sqlx::query("insert into oncebox_progress values (?, 0, 6, 2, 0)")
        .bind(log.handler.0)
        .execute(log.store.pool())
        .await
        .unwrap();
    let revived = Registration { revive: true, ..stored("ledger", &["a", "b"]) };
    let layout = log.store.register(FOUR_LANES, &[revived]).await.unwrap();
    assert_eq!(layout.handlers, [log.handler]);
    // Whoever knows it as it was before gets nothing.
    assert!(log.peek(0, ALL).await.is_none());
    let kinds = ["a", "b"].map(str::to_owned);
    let mut tx = log.store.begin(LIMITS).await.unwrap();
    let taker = Taker { kinds: &kinds, ..log.taker(0) };
    let batch = log.store.take(&mut tx, taker, ALL).await.unwrap().unwrap();
    drop(tx);
    assert_eq!((batch.epoch, batch.from), (7, 0));
    assert_eq!(positions(&batch.messages), [1, 2, 3]);
    let status = &log.store.handler_statuses().await.unwrap()[0];
    assert_eq!(status.handler.kinds, ["a", "b"]);
    assert_eq!(status.handler.state, HandlerState::Active);
}

#[tokio::test]
async fn only_what_everybody_has_passed_is_pruned_and_never_the_newest() {
    let log = OneHandler::new().await;
    // 1: task, 2: dead, 3: passed, 4: nobody's, 5: passed, 6: the newest
    let kinds = ["a", "a", "a", "nobody", "a", "a"];
    let messages: Vec<_> = kinds.iter().zip(1..).map(|(kind, n)| message(kind, &n.to_string())).collect();
    log.append(0, &messages).await;
    log.store.travel(LATER);
    let now = log.now_ms().await;
    let prune = async |behind, positions, before| {
        let pruned = log.store.prune(0, behind, positions, before).await.unwrap();
        (pruned.deleted, pruned.next)
    };
    // Nobody has passed anything.
    assert_eq!(prune(0, 100, now).await, (0, None));
    log.pass(0, &Settled { apart: vec![failure(1, 1, "x")], dead: vec![failure(2, 5, "y")] }).await;
    // Another handler of the kind that is behind keeps everything.
    let slow = log.store.register(FOUR_LANES, &[stored("slow", &["a"])]).await.unwrap().handlers[0];
    assert_eq!(prune(0, 100, now).await, (0, None));
    sqlx::query("insert into oncebox_progress values (?, 0, 0, 3, 0)")
        .bind(slow.0)
        .execute(log.store.pool())
        .await
        .unwrap();
    // Too young.
    assert_eq!(prune(0, 2, now - 2 * 3_600_000).await, (0, None));
    // In steps.
    assert_eq!(prune(0, 2, now).await, (0, Some(2)));
    assert_eq!(prune(2, 2, now).await, (1, Some(4)));
    assert_eq!(log.positions(0).await, [1, 2, 4, 5, 6]);
    // A handler that was removed does not count.
    log.store.remove_handler("slow", "ann").await.unwrap();
    assert_eq!(prune(4, 2, now).await, (1, Some(6)));
    assert_eq!(prune(6, 2, now).await, (0, None));
    assert_eq!(log.positions(0).await, [1, 2, 4, 6]);
    // What has nothing to do with it any more may go; positions go on.
    log.store.act(&Select::all(), &Action::Discard, "ann", None, 10).await.unwrap();
    let (tx, _) = log.take_tasks(0, 10).await;
    log.store.finish(tx, None).await.unwrap();
    assert_eq!(prune(0, 100, now).await, (2, None));
    assert_eq!(log.positions(0).await, [4, 6]);
    assert_eq!(log.append(0, &[message("a", "7")]).await, [Appended::New(place(0, 7))]);
    // The newest one is passed now.
    assert_eq!(prune(0, 100, log.now_ms().await + 1).await, (1, None));
    assert_eq!(log.positions(0).await, [4, 7]);
}

#[tokio::test]
async fn of_the_progress_only_what_still_tells_something_is_kept() {
    let log = OneHandler::new().await;
    for key in ["1", "2", "3", "4"] {
        log.append_keys(0, &[key]).await;
        log.pass(0, &Settled::default()).await;
    }
    let progress = async || -> Vec<i64> {
        sqlx::query_scalar("select pos from oncebox_progress where lane = 0 order by pos")
            .fetch_all(log.store.pool())
            .await
            .unwrap()
    };
    assert_eq!(progress().await, [0, 1, 2, 3, 4]);
    // A step that has others behind it leaves the progress alone.
    assert_eq!(log.store.prune(0, 0, 2, log.now_ms().await + 1).await.unwrap().deleted, 2);
    assert_eq!(progress().await, [0, 1, 2, 3, 4]);
    // What is young tells when messages were done; of what is old, the newest stays.
    assert_eq!(log.store.prune(0, 0, 10, 1).await.unwrap().deleted, 0);
    assert_eq!(progress().await, [0, 1, 2, 3, 4]);
    assert_eq!(log.store.prune(0, 0, 10, log.now_ms().await + 1).await.unwrap().deleted, 1);
    assert_eq!(log.positions(0).await, [4]);
    assert_eq!(progress().await, [4]);
    // Other lanes are left alone.
    assert_eq!(log.count("oncebox_progress where lane <> 0").await, 3);
}

#[tokio::test]
async fn accept_markers_outlive_their_messages_and_no_sweep_of_the_others_takes_them() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &Settled::default()).await;
    log.store.travel(LATER);
    let now = log.now_ms().await;
    assert_eq!(log.store.sweep_accepted(now, 10).await.unwrap(), 0);
    assert_eq!(log.store.prune(0, 0, 10, now).await.unwrap().deleted, 2);
    let known =
        Appended::Known { place: Some(place(0, 1)), fingerprint: Some(message("a", "1").fingerprint) };
    assert_eq!(log.append(1, &[message("a", "1")]).await, [known]);
    assert_eq!(log.store.find_message("a", &Key::from("1")).await.unwrap(), None);
    assert_eq!(log.store.sweep(now, 10).await.unwrap(), 0);
    assert_eq!(log.store.sweep_accepted(now - 2 * 3_600_000, 10).await.unwrap(), 0);
    assert_eq!(log.store.sweep_accepted(now, 1).await.unwrap(), 1);
    assert_eq!(log.store.sweep_accepted(now, 10).await.unwrap(), 1);
    assert_eq!(log.count("oncebox_marker").await, 1);
    assert_eq!(log.append(1, &[message("a", "1")]).await, [Appended::New(place(1, 1))]);
}

#[tokio::test]
async fn dead_letters_are_selected_by_every_condition() {
    let log = OneHandler::new().await;
    log.bury(&[("1", "Connection refused"), ("2", "50% off")]).await;
    log.store.travel(LATER);
    log.append_keys(1, &["3"]).await;
    log.pass(1, &Settled { apart: vec![], dead: vec![failure(1, 1, "no connection")] }).await;
    let found = async |select: Select| -> Vec<Place> {
        let letters = log.store.dead_letters(&select, 10).await.unwrap();
        letters.into_iter().map(|letter| letter.place).collect()
    };
    let (one, two, three) = (place(0, 1), place(0, 2), place(1, 1));
    assert_eq!(found(Select::all()).await, [one, two, three]);
    assert_eq!(found(Select::all().error("CONNECTION")).await, [one, three]);
    assert_eq!(found(Select::all().error("50% OFF")).await, [two]);
    assert_eq!(found(Select::all().error("5%f")).await, []);
    assert_eq!(found(Select::all().handler("ledger").kind("a").at(three)).await, [three]);
    assert_eq!(found(Select::all().handler("nobody")).await, []);
    assert_eq!(found(Select::all().kind("b")).await, []);
    let late = log.store.dead_letters(&Select::all(), 10).await.unwrap()[2].died_at;
    assert_eq!(found(Select::all().died_after(late)).await, [three]);
    assert_eq!(found(Select::all().died_before(late)).await, [one, two]);
    let first = log.store.dead_letters(&Select::all(), 1).await.unwrap();
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].kind.as_str(), first[0].key.clone()), ("a", Some(Key::from("1"))));
    assert_eq!(first[0].body, message("a", "1").body);
}

#[tokio::test]
async fn every_action_on_dead_letters_leaves_its_entry() {
    let log = OneHandler::new().await;
    log.bury(&[("1", "e1"), ("2", "e2"), ("3", "e3"), ("4", "e4"), ("5", "e5")]).await;
    let act = async |pos, action| {
        let select = Select::all().at(place(0, pos));
        log.store.act(&select, &action, "ann", None, 10).await.unwrap().letters
    };
    // The handler has done number 5 by other means.
    let five = [Key::from("5").stored()];
    oncebox_core::store::Claims::mark_processed(&log.store, "ledger", "a", &five).await.unwrap();
    assert_eq!(act(1, Action::Retry).await, 1);
    assert_eq!(act(2, Action::Edit(b"better".to_vec())).await, 1);
    assert_eq!(act(3, Action::Discard).await, 1);
    assert_eq!(act(4, Action::MarkProcessed).await, 1);
    assert_eq!(act(5, Action::Retry).await, 1);
    assert_eq!(act(5, Action::Retry).await, 0);
    assert_eq!(log.count("oncebox_dead").await, 0);
    let audit = log.store.audit(10).await.unwrap();
    let edited = format!("e2; {}", Action::Edit(b"better".to_vec()).note().unwrap());
    let entries: Vec<_> = audit
        .iter()
        .map(|entry| (entry.action.as_str(), entry.place.unwrap().pos, entry.detail.as_deref().unwrap()))
        .collect();
    assert_eq!(
        entries,
        [
            ("already_done", 5, "e5"),
            ("mark_processed", 4, "e4"),
            ("discard", 3, "e3"),
            ("edit", 2, &*edited),
            ("retry", 1, "e1")
        ]
    );
    assert!(audit.iter().all(|entry| entry.operator == "ann" && entry.handler == "ledger"));
    assert_eq!(log.store.audit(1).await.unwrap().len(), 1);
    let done: Vec<Vec<u8>> = sqlx::query_scalar(
        "select substr(key, 2) from oncebox_marker where handler = 'ledger' and kind = 'a' and state = 'done' order by key",
    )
    .fetch_all(log.store.pool())
    .await
    .unwrap();
    assert_eq!(done, [b"4", b"5"]);

    let (tx, tasks) = log.take_tasks(0, 10).await;
    assert_eq!(positions(&tasks), [1, 2]);
    assert_eq!((tasks[0].failures, tasks[0].edited), (0, false));
    assert!(tasks[0].attempts.as_deref().unwrap().contains("e1"));
    assert_eq!((tasks[1].body.as_slice(), tasks[1].edited), (&b"better"[..], true));
    log.store.finish(tx, None).await.unwrap();
}

#[tokio::test]
async fn a_correction_stays_when_the_message_dies_again() {
    let log = OneHandler::new().await;
    log.bury(&[("1", "e1")]).await;
    log.store.act(&Select::all(), &Action::Edit(b"better".to_vec()), "ann", None, 10).await.unwrap();
    let (mut tx, tasks) = log.take_tasks(0, 10).await;
    let dead = SetApart {
        attempts: tasks[0].attempts.clone(),
        body: tasks[0].edited.then(|| tasks[0].body.clone()),
        ..failure(1, 1, "e2")
    };
    log.store.guard(&mut tx).await.unwrap();
    log.store.settle(&mut tx, log.taker(0), &Settled { apart: vec![], dead: vec![dead] }).await.unwrap();
    log.store.finish(tx, None).await.unwrap();
    let dead = log.store.dead_letters(&Select::all(), 10).await.unwrap();
    assert_eq!((dead[0].body.as_slice(), dead[0].attempts.len()), (&b"better"[..], 2));
    log.store.act(&Select::all(), &Action::Retry, "ann", None, 10).await.unwrap();
    let (_tx, tasks) = log.take_tasks(0, 10).await;
    assert_eq!((tasks[0].body.as_slice(), tasks[0].edited), (&b"better"[..], true));
}

#[tokio::test]
async fn an_action_takes_the_first_and_no_more_than_its_limit() {
    let log = OneHandler::new().await;
    log.bury(&[("1", "e"), ("2", "e"), ("3", "e")]).await;
    assert_eq!(log.store.act(&Select::all(), &Action::Discard, "ann", None, 2).await.unwrap().letters, 2);
    let left = log.store.dead_letters(&Select::all(), 10).await.unwrap();
    assert_eq!(left.iter().map(|letter| letter.place.pos).collect::<Vec<_>>(), [3]);
}

#[tokio::test]
async fn a_survey_tells_how_things_stand() {
    let log = OneHandler::new().await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &Settled { apart: vec![failure(1, 2, "x")], dead: vec![failure(2, 5, "y")] }).await;
    log.append(0, &[message("a", "4"), message("b", "5")]).await;
    log.append_keys(2, &["6"]).await;
    log.store.travel(LATER);
    let mailer = Registration { mode: Mode::inline(), ..stored("a mailer", &["b"]) };
    log.store.register(None, &[mailer]).await.unwrap();

    let statuses = log.store.handler_statuses().await.unwrap();
    let [mailer, ledger] = statuses.as_slice() else { panic!("{statuses:?}") };
    assert_eq!((mailer.handler.name.as_str(), mailer.lag, mailer.oldest_waiting), ("a mailer", 0, None));
    assert_eq!((ledger.lag, ledger.tasks, ledger.dead), (3, 1, 1));
    let oldest = ledger.oldest_waiting.unwrap();
    assert!(oldest >= LATER && oldest < LATER + A_WHILE, "{oldest:?}");

    let messages = log.store.messages(0, 0, 10).await.unwrap();
    let states: Vec<_> = messages
        .iter()
        .map(|one| one.handlers.iter().map(|(name, state)| (name.as_str(), state)).collect::<Vec<_>>())
        .collect();
    assert!(matches!(
        states[0].as_slice(),
        [("ledger", MessageState::Task { failures: 2, error: Some(error), .. })] if error == "x"
    ));
    assert_eq!(states[1], [("ledger", &MessageState::Dead { error: "y".into() })]);
    assert_eq!(states[2], [("ledger", &MessageState::Done)]);
    assert_eq!(states[3], [("ledger", &MessageState::Waiting)]);
    assert_eq!(states[4], []);
    let two = log.store.messages(0, 1, 2).await.unwrap();
    assert_eq!(two.iter().map(|one| one.message.place.pos).collect::<Vec<_>>(), [2, 3]);

    // One that takes it as it is delivered does not take it from the log.
    let unhandled = log.store.unhandled_kinds().await.unwrap();
    assert_eq!(unhandled.iter().map(|one| one.kind.as_str()).collect::<Vec<_>>(), ["b"]);
    let age = log.now_ms().await
        - i64::try_from(unhandled[0].since.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis())
            .unwrap();
    assert!((3_600_000..3_605_000).contains(&age), "{age}");
    log.store.register(None, &[stored("b", &["b"])]).await.unwrap();
    assert!(log.store.unhandled_kinds().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_log_reads_as_an_inbox_table() {
    let log = OneHandler::new().await;
    let binary =
        NewMessage { key: Some(Key::new([255, 1]).stored()), body: b"no json".to_vec(), ..message("a", "") };
    let keyless = NewMessage { key: None, ..message("a", "") };
    log.append(0, &[message("a", "Zürich"), message("a", "2"), binary, keyless, message("b", "5")]).await;
    type Row = (Option<String>, String, Option<String>, Option<String>, Option<String>, i64);
    let rows = async || -> Vec<Row> {
        sqlx::query_as(
            "select id, type, content, processed_on_utc, error, pos from oncebox_inbox_message order by pos",
        )
        .fetch_all(log.store.pool())
        .await
        .unwrap()
    };
    let before = rows().await;
    assert_eq!(
        before[0],
        (Some("Zürich".into()), "a".into(), Some("{\"of\":\"Zürich\"}".into()), None, None, 1)
    );
    assert_eq!((before[2].0.as_deref(), before[2].2.as_deref()), (Some("0xff01"), None));
    assert_eq!(before[3].0, None);
    log.pass(0, &Settled { apart: vec![failure(2, 1, "x")], dead: vec![] }).await;
    let after = rows().await;
    let processed: Vec<bool> = after.iter().map(|row| row.3.is_some()).collect();
    assert_eq!(processed, [true, false, true, true, false]);
    assert_eq!(after[1].4.as_deref(), Some("x"));
    // As ISO text, by the same clock.
    let when = after[0].3.as_deref().unwrap();
    assert_eq!((when.len(), &when[..2], &when[10..11], &when[23..]), (24, "20", "T", "Z"), "{when}");
}

#[tokio::test]
async fn work_is_found_along_indexes() {
    let log = OneHandler::new().await;
    let plan = async |sql: &str| -> String {
        let explain = AssertSqlSafe(format!("explain query plan {sql}"));
        let rows: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(explain).fetch_all(log.store.pool()).await.unwrap();
        rows.into_iter().map(|row| row.3).collect::<Vec<_>>().join("\n")
    };
    // Every table that grows, by the names that the statements give it.
    let grown = [
        "a",
        "d",
        "m",
        "p",
        "t",
        "oncebox_dead",
        "oncebox_marker",
        "oncebox_message",
        "oncebox_progress",
        "oncebox_task",
    ];
    let scanned = |plan: &str| {
        plan.lines().any(|line| {
            grown.contains(&line.trim_start_matches("SCAN ").split(' ').next().unwrap())
                && line.starts_with("SCAN ")
        })
    };
    let table = [
        ("work", "look"),
        ("work", "find_progress"),
        ("work", "take"),
        ("work", "find_taker"),
        ("work", "due_tasks"),
        ("work", "due_near"),
        ("work", "due_behind"),
        ("work", "take_tasks"),
        ("task", "count_tasks"),
        ("task", "free_tasks"),
        ("replay", "replay_targets"),
        ("replay", "drop_tasks_behind"),
        ("replay", "drop_dead_behind"),
        ("marker", "find_accepted"),
        ("message", "begin_append"),
        ("message", "prune_next"),
        ("message", "prune"),
        ("marker", "sweep_accepted"),
        ("lane", "prune_progress"),
        ("survey", "find_message"),
        ("survey", "message_states"),
        ("survey", "handler_statuses"),
        ("survey", "messages"),
        ("survey", "pending"),
    ];
    for (file, name) in table {
        let plan = plan(&statement(file, name)).await;
        assert!(plan.contains("SEARCH"), "{name}: {plan}");
        assert!(!scanned(&plan), "{name}: {plan}");
        // A sort would read everything that waits before it gives the first of it. The groups are kinds.
        assert!(!plan.contains("TEMP B-TREE FOR ORDER BY"), "{name}: {plan}");
    }
}

/// What waited to be appended was received earlier than what stands in front of it, and goes first: what is left of a lane may have gaps.
#[tokio::test]
async fn messages_go_by_when_they_were_received() {
    let log = OneHandler::new().await;
    let waited = |key: &str, waited| NewMessage { waited, ..message("a", key) };
    log.append(
        0,
        &[waited("first", Duration::ZERO), waited("second", LATER), waited("third", Duration::ZERO)],
    )
    .await;
    log.pass(0, &Settled { apart: vec![], dead: vec![] }).await;
    let before_ms = log.now_ms().await - i64::try_from((LATER / 2).as_millis()).unwrap();
    assert_eq!(log.store.prune(0, 0, 100, before_ms).await.unwrap().deleted, 1);
    assert_eq!(log.positions(0).await, [1, 3]);
}
