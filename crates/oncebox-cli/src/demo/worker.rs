//! A worker: takes deliveries from standard input, handles them with a real inbox, and answers on standard output. It is killed.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use oncebox::store::Store;
use oncebox::{Envelope, Inbox, Message, Mode, Report, Retention, Settlement};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::demo::ledger::{Ledger, table};
use crate::demo::plan::{Entry, Way};
use crate::demo::wire::{Answer, Delivery, Said, Setup};
use crate::exit;
use crate::store::{For, Target, with_store};

/// The handler of what is stored.
pub(super) const STORED: &str = "demo-transfers";
const INLINE: &str = "demo-payments";
/// Whoever was killed is known to be dead after this time.
const LEASE: Duration = Duration::from_secs(1);
/// After a death as many messages of every lane run one by one as a worker may have had in hand.
const WORK_BATCH: usize = 8;
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Several workers share the connections of a server with others.
const IN_FLIGHT: usize = 4;
const WORKERS: usize = 2;

/// Handled while it is delivered.
#[derive(Message, Serialize, Deserialize)]
#[message(kind = "demo.payment", key = "message")]
struct Payment {
    message: i64,
    account: i64,
    amount: i64,
}

/// Stored when it is delivered, and handled later.
#[derive(Message, Serialize, Deserialize)]
#[message(kind = "demo.transfer", key = "message")]
struct Transfer {
    message: i64,
    account: i64,
    amount: i64,
}

/// The inboxes of this process.
struct Inboxes<S: Ledger> {
    inline: Inbox<S>,
    stored: Inbox<S>,
}

/// Works until standard input ends: when the demo is done, or is no more.
pub(crate) async fn run() -> ! {
    let code = match work().await {
        Ok(()) => 0,
        Err(error) => {
            exit::explain(&error);
            1
        }
    };
    // At once: the thread that reads standard input would be waited for.
    std::process::exit(code)
}

async fn work() -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let setup = lines.next_line().await?.unwrap_or_default();
    let setup = serde_json::from_str(&setup).context("this command is for `oncebox demo`, which starts it");
    let Setup { url, schema } = setup?;
    let table = table(schema.as_deref());
    let opened = Target { url, schema }.open(For::Working).await?;
    with_store!(opened, store => take_deliveries(Inboxes::build(store, &table).await?, lines).await)
}

impl<S: Ledger> Inboxes<S> {
    async fn build(store: S, table: &str) -> Result<Self> {
        let retention = Retention { automatic: false, ..Retention::default() };
        let (for_payments, for_transfers) = (table.to_owned(), table.to_owned());
        let inline = Inbox::builder(store.clone())
            .mode(Mode::inline())
            .max_in_flight(IN_FLIGHT)
            .retention(retention)
            .on(
                INLINE,
                async move |payment: Payment, conn: &mut <S as Store>::Conn| -> Result<(), sqlx::Error> {
                    let Payment { message, account, amount } = payment;
                    S::add(conn, &for_payments, Entry { message, account, amount }).await
                },
            )
            .build()
            .await?;
        let stored = Inbox::builder(store)
            .stored()
            .workers(WORKERS)
            .lease(LEASE)
            .poll_every(POLL_EVERY)
            .work_batch(WORK_BATCH)
            .retention(retention)
            .on(
                STORED,
                async move |transfer: Transfer, conn: &mut <S as Store>::Conn| -> Result<(), sqlx::Error> {
                    let Transfer { message, account, amount } = transfer;
                    S::add(conn, &for_transfers, Entry { message, account, amount }).await
                },
            )
            .build()
            .await?;
        Ok(Self { inline, stored })
    }
}

async fn take_deliveries<S: Ledger>(inboxes: Inboxes<S>, mut lines: Lines<BufReader<Stdin>>) -> Result<()> {
    let (stop, mut stopped) = watch::channel(false);
    let stored = inboxes.stored.clone();
    let working =
        tokio::spawn(
            async move { stored.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await },
        );
    say(&Said::Ready)?;
    let mut in_hand = JoinSet::new();
    while let Some(line) = lines.next_line().await? {
        let delivery: Delivery = serde_json::from_str(&line).context("reading a delivery")?;
        let (inline, stored) = (inboxes.inline.clone(), inboxes.stored.clone());
        in_hand.spawn(async move {
            let (answer, outcome) = handle(&inline, &stored, delivery).await;
            say(&Said::Answered { delivery: delivery.delivery, answer, outcome })
        });
        while in_hand.try_join_next().is_some() {}
    }
    while in_hand.join_next().await.is_some() {}
    stop.send_replace(true);
    working.await??;
    inboxes.inline.close().await;
    inboxes.stored.close().await;
    Ok(())
}

async fn handle<S: Ledger>(inline: &Inbox<S>, stored: &Inbox<S>, delivery: Delivery) -> (Answer, String) {
    let Entry { message, account, amount } = delivery.entry;
    let answered = match delivery.way {
        Way::Inline => match Envelope::of(&Payment { message, account, amount }) {
            Ok(envelope) => {
                let report = inline.process(envelope.with_attempt(delivery.copy)).await;
                report.map(|report| settled(&report))
            }
            Err(error) => Err(error),
        },
        Way::Stored => match Envelope::of(&Transfer { message, account, amount }) {
            Ok(envelope) => {
                let accepted = stored.accept(envelope.with_attempt(delivery.copy)).await;
                accepted.map(|accept| {
                    (Answer::Ack, if accept.is_new() { "accepted" } else { "duplicate" }.to_owned())
                })
            }
            Err(error) => Err(error),
        },
    };
    answered.unwrap_or_else(|error| (Answer::Retry, error.to_string()))
}

fn settled(report: &Report) -> (Answer, String) {
    let answer = match report.settlement() {
        Settlement::Ack => Answer::Ack,
        Settlement::Retry { .. } => Answer::Retry,
        Settlement::Reject => Answer::Reject,
    };
    let outcome = report.outcome(INLINE).map_or("unhandled", |outcome| outcome.name());
    (answer, outcome.to_owned())
}

/// Tells the demo. A line that was said is heard, whatever happens to this process next.
fn say(said: &Said) -> Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).context("answering: the demo is gone")
}
