//! Registration: all of it or none, and where each handler starts.

use oncebox_core::store::{HandlerState, LaneCount, Registration, Registry};
use oncebox_core::{LogStore, Mode, Start};

use super::refused;
use crate::Fixture;
use crate::one_handler::{ALL, FOUR_LANES, OneHandler, as_tasks, dead, failure, place, positions, stored};

/// Neither handlers beside a refused one, nor handlers with a wrong number of lanes, are registered.
pub async fn a_refused_registration_writes_nothing<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture.clone()).await;
    let store = fixture.store();
    refused(store.register(FOUR_LANES, &[stored("new", &["a"]), stored("ledger", &["b"])]).await);
    refused(store.register(Some(LaneCount(Some(5))), &[stored("new", &["a"])]).await);
    assert_eq!(log.statuses().await.len(), 1);
    let layout = store.register(Some(LaneCount(None)), &[stored("ledger", &["a"])]).await.unwrap();
    assert_eq!((layout.lanes, layout.handlers), (4, vec![log.handler]), "any number of lanes will do");
}

/// An inline handler needs none.
pub async fn without_a_log_there_are_no_lanes<F: Fixture<Store: LogStore>>(fixture: F) {
    let store = fixture.store();
    let inline = Registration { mode: Mode::inline(), ..stored("mailer", &["a"]) };
    let first = store.register(None, std::slice::from_ref(&inline)).await.unwrap();
    assert_eq!((first.lanes, first.handlers.len()), (0, 1));
    assert_eq!(store.register(None, &[inline]).await.unwrap(), first);
}

/// In each lane behind the newest message, or before the oldest.
pub async fn a_handler_starts_in_every_lane_where_it_is_told<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(1, &["1", "2"]).await;
    let late = log.beside(Registration { start: Start::Now, ..stored("late", &["a"]) }).await;
    let early = log.beside(stored("early", &["a"])).await;
    log.append_keys(1, &["3"]).await;
    log.append_keys(2, &["4"]).await;
    for (handler, expected) in [
        (late, vec![place(1, 3), place(2, 1)]),
        (early, vec![place(1, 1), place(1, 2), place(1, 3), place(2, 1)]),
    ] {
        for limit in [1, expected.len()] {
            let pending = handler.pending(u32::try_from(limit).unwrap()).await;
            assert_eq!(pending.iter().map(|one| one.place).collect::<Vec<_>>(), expected[..limit]);
        }
    }
}

/// Markers are made with the name under which a handler was registered first.
pub async fn a_new_handler_s_name_is_its_first_name<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    let layout = log.register(&[stored("ledger", &["a"]), stored("new", &["b"])]).await.unwrap();
    assert_eq!(layout.origins, ["ledger", "new"]);
}

/// From the beginning, with its new kinds, and without its old tasks and dead letters.
pub async fn a_revived_handler_starts_again<F: Fixture<Store: LogStore>>(fixture: F) {
    let mut log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &as_tasks([failure(1, 1, "x")])).await;
    log.settle(0, &dead([failure(2, 5, "y"), failure(3, 5, "z")])).await;
    assert!(!log.remove("unknown").await);
    assert!(log.remove("ledger").await);
    assert!(!log.remove("ledger").await);
    assert_eq!((log.tasks().await.len(), log.dead_letters().await.len()), (0, 0));
    assert!(log.peek(0, ALL).await.is_none());
    assert!(log.look().await.waiting.is_empty());
    assert_eq!(log.status().await.handler.state, HandlerState::Removed);
    refused(log.register(&[stored("ledger", &["a"])]).await);

    let before = log.clone();
    let revive = |wanted: &mut Registration| {
        wanted.revive = true;
        wanted.kinds = vec!["a".into(), "b".into()];
    };
    log.change(revive).await.unwrap();
    assert!(before.peek(0, ALL).await.is_none(), "a process that knows it as it was before gets nothing");
    let batch = log.peek(0, ALL).await.unwrap();
    assert_eq!((batch.from, positions(&batch.messages)), (0, vec![1, 2, 3]));
    let status = log.status().await;
    assert_eq!((status.handler.state, status.lag), (HandlerState::Active, 3));
    assert_eq!(status.handler.kinds, ["a", "b"]);
}

/// Its messages would land in other lanes, out of their order.
pub async fn a_log_with_another_hash_is_refused<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    if !log.fixture.change_lane_hash().await {
        return;
    }
    refused(log.fixture.store().register(Some(LaneCount(None)), &[]).await);
    let layout = log.fixture.store().register(None, &[]).await.unwrap();
    assert_eq!(layout.lanes, 4, "without a log it does not matter");
}
