//! The registry: a handler's name, kinds, mode and beginning are durable.

use oncebox_core::store::HandlerState;
use oncebox_core::{BoxError, Envelope, Error, ErrorKind, Inbox, InboxBuilder, InboxStore, LogStore, Start};

use super::stored::{Conn, accept_new, one_lane, sample, with_effect};
use super::{Fixture, Sample};
use crate::operator;

/// Why an inbox cannot be built: always a matter of its configuration.
async fn refused<S: InboxStore>(builder: InboxBuilder<S>) -> String {
    let error: Error = builder.build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    error.to_string()
}

/// A new handler begins with all stored messages, or with those accepted from now on.
pub async fn a_new_handler_begins_at_the_beginning_or_now<F: Fixture<Store: LogStore>>(fixture: F) {
    let first = with_effect(&fixture, one_lane(&fixture), "old").build().await.unwrap();
    for id in ["a", "b", "c"] {
        accept_new(&first, sample(id)).await;
    }
    assert_eq!(first.work_until_idle().await.unwrap().done, 3);

    let effects = fixture.clone();
    let from_now = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &format!("now {}", sample.id)).await
    };
    let builder = with_effect(&fixture, with_effect(&fixture, one_lane(&fixture), "old"), "beginning");
    let second = builder.on_with("now", from_now, |options| options.start(Start::Now)).build().await.unwrap();
    accept_new(&second, sample("d")).await;
    assert_eq!(second.work_until_idle().await.unwrap().done, 1 + 4 + 1);
    for (name, count) in [("old a", 1), ("beginning a", 1), ("now a", 0), ("old d", 1), ("now d", 1)] {
        assert_eq!(fixture.effects(name).await, count, "{name}");
    }
}

/// Anything else would lose messages or run them twice.
pub async fn a_name_keeps_its_kinds_and_its_mode<F: Fixture<Store: LogStore>>(fixture: F) {
    let raw = async |_: Envelope, _: &mut Conn<F>| -> Result<(), BoxError> { Ok(()) };
    let inline = || Inbox::builder(fixture.store());
    one_lane(&fixture).on_raw("stored", ["a", "b"], raw).build().await.unwrap();
    inline().on_raw("inline", ["a"], raw).build().await.unwrap();

    one_lane(&fixture).on_raw("stored", ["b", "a"], raw).build().await.expect("the order does not matter");
    inline().on_raw("inline", ["a", "b"], raw).build().await.expect("inline, kinds may come and go");
    let text = refused(one_lane(&fixture).on_raw("stored", ["a"], raw)).await;
    assert!(text.contains("another name"), "{text}");
    let text = refused(one_lane(&fixture).on_raw("stored", ["a", "b", "c"], raw)).await;
    assert!(text.contains("another name"), "{text}");
    let text = refused(inline().on_raw("stored", ["a", "b"], raw)).await;
    assert!(text.contains("is stored in the database and inline here"), "{text}");
    let text = refused(one_lane(&fixture).on_raw("inline", ["a", "b"], raw)).await;
    assert!(text.contains("is inline in the database and stored here"), "{text}");
}

/// The wrong one is an error that names the right one.
pub async fn each_mode_has_its_own_way_in<F: Fixture<Store: LogStore>>(fixture: F) {
    let inline = with_effect(&fixture, Inbox::builder(fixture.store()), "inline").build().await.unwrap();
    let stored = with_effect(&fixture, one_lane(&fixture), "stored").build().await.unwrap();
    let processed = stored.process(sample("a")).await.unwrap_err();
    assert_eq!(processed.kind(), ErrorKind::Configuration);
    assert!(processed.to_string().contains("accept()"), "{processed}");
    let accepted = inline.accept(sample("a")).await.unwrap_err();
    assert_eq!(accepted.kind(), ErrorKind::Configuration);
    assert!(accepted.to_string().contains(".stored()"), "{accepted}");
    let worked = inline.work_until_idle().await.unwrap_err();
    assert_eq!(worked.kind(), ErrorKind::Configuration);
    assert_eq!((fixture.effects("inline a").await, fixture.effects("stored a").await), (0, 0));
    // The same key goes to each inbox, and the two do not affect each other.
    inline.process(sample("a")).await.unwrap();
    accept_new(&stored, sample("a")).await;
    assert_eq!(stored.work_until_idle().await.unwrap().done, 1);
    assert_eq!((fixture.effects("inline a").await, fixture.effects("stored a").await), (1, 1));
}

/// A tombstone, so that no handler begins again by accident.
pub async fn a_removed_handler_s_name_stays_taken_until_it_is_revived<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let both = || with_effect(&fixture, with_effect(&fixture, one_lane(&fixture), "stays"), "goes");
    let inbox = both().build().await.unwrap();
    accept_new(&inbox, sample("a")).await;
    inbox.work_until_idle().await.unwrap();
    accept_new(&inbox, sample("b")).await;
    assert!(!inbox.operators().remove_handler("unknown", &operator("ann")).await.unwrap());
    assert!(inbox.operators().remove_handler("goes", &operator("ann")).await.unwrap());
    assert!(!inbox.operators().remove_handler("goes", &operator("ann")).await.unwrap());

    // A program that still has it works on without it.
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!((fixture.effects("stays b").await, fixture.effects("goes b").await), (1, 0));
    let statuses = inbox.operators().handler_statuses().await.unwrap();
    let states: Vec<_> =
        statuses.iter().map(|status| (&*status.handler.name, status.handler.state)).collect();
    assert_eq!(states, [("goes", HandlerState::Removed), ("stays", HandlerState::Active)]);
    let audit = inbox.operators().audit(10).await.unwrap();
    assert_eq!((audit.len(), &*audit[0].action, &*audit[0].handler), (1, "remove", "goes"));
    assert_eq!((&*audit[0].operator, audit[0].place), ("ann", None));

    let text = refused(both()).await;
    assert!(text.contains("set `revive`"), "{text}");
    let effects = fixture.clone();
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &format!("revived {}", sample.id)).await
    };
    let revived = with_effect(&fixture, one_lane(&fixture), "stays");
    let revived = revived.on_with("goes", handler, |options| options.revive()).build().await.unwrap();
    assert_eq!(revived.work_until_idle().await.unwrap().done, 2);
    assert_eq!((fixture.effects("revived a").await, fixture.effects("revived b").await), (1, 1));
    // Once revived, the handler needs no `revive` to start again.
    assert!(both().build().await.unwrap().work_until_idle().await.unwrap().is_empty());
}

/// Its tasks and dead letters keep nothing waiting.
pub async fn what_a_removed_handler_left_behind_goes_with_it<F: Fixture<Store: LogStore>>(fixture: F) {
    let handler = async |sample: Sample, _: &mut Conn<F>| -> Result<(), oncebox_core::Failure> {
        match &*sample.id {
            "task" => Err(oncebox_core::Failure::after(std::time::Duration::from_secs(3600), "later")),
            _ => Err(oncebox_core::Failure::permanent("never")),
        }
    };
    let inbox = one_lane(&fixture).on("goes", handler).build().await.unwrap();
    accept_new(&inbox, sample("task")).await;
    accept_new(&inbox, sample("dead")).await;
    inbox.work_until_idle().await.unwrap();
    let status = &inbox.operators().handler_statuses().await.unwrap()[0];
    assert_eq!((status.tasks, status.dead), (1, 1));
    assert!(inbox.operators().remove_handler("goes", &operator("ann")).await.unwrap());
    let status = &inbox.operators().handler_statuses().await.unwrap()[0];
    assert_eq!((status.tasks, status.dead, status.lag), (0, 0, 0));
    assert!(inbox.operators().tasks(None, 10).await.unwrap().is_empty());
    fixture.travel(std::time::Duration::from_secs(7200));
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
}

/// With another number of lanes, the messages of one ordering key would be in two lanes.
pub async fn the_number_of_lanes_is_fixed_when_the_log_is_made<F: Fixture<Store: LogStore>>(fixture: F) {
    let stored = || with_effect(&fixture, Inbox::builder(fixture.store()).stored(), "ledger");
    for lanes in [0, 1025] {
        refused(stored().lanes(lanes)).await;
    }
    stored().lanes(3).build().await.unwrap();
    let text = refused(stored().lanes(8)).await;
    assert!(text.contains("the log has 3 lanes"), "{text}");
    let whatever = stored().build().await.unwrap();
    assert!(whatever.operators().messages(2, 0, 1).await.unwrap().is_empty());
    assert_eq!(whatever.operators().messages(3, 0, 1).await.unwrap_err().kind(), ErrorKind::Configuration);
    for n in 0..12 {
        assert!(accept_new(&whatever, sample(&format!("m-{n}"))).await.lane < 3);
    }
}

/// Ten processes on an empty schema.
pub async fn inboxes_that_start_at_once_agree<F: Fixture<Store: LogStore>>(fixture: F) {
    let starts: Vec<_> = (0..10)
        .map(|_| {
            let fixture = fixture.clone();
            tokio::spawn(async move {
                let builder = Inbox::builder(fixture.store()).stored();
                with_effect(&fixture, with_effect(&fixture, builder, "one"), "two").build().await.unwrap()
            })
        })
        .collect();
    let mut inboxes = Vec::new();
    for start in starts {
        inboxes.push(start.await.unwrap());
    }
    let statuses = inboxes[0].operators().handler_statuses().await.unwrap();
    let names: Vec<_> = statuses.iter().map(|status| &*status.handler.name).collect();
    assert_eq!(names, ["one", "two"]);
    let mut new = 0;
    for inbox in &inboxes {
        new += usize::from(inbox.accept(sample("a")).await.unwrap().is_new());
    }
    assert_eq!(new, 1);
    let mut done = 0;
    for inbox in &inboxes {
        done += inbox.work_until_idle().await.unwrap().done;
    }
    assert_eq!(done, 2);
    assert_eq!((fixture.effects("one a").await, fixture.effects("two a").await), (1, 1));
}
