//! A worker process: reads deliveries from standard input, handles them with real inboxes, and reports on standard output.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use oncebox::store::Store;
use oncebox::{Envelope, Error, Inbox, Message, Mode, Report, Retention, Settlement};
use oncebox_workload::deliverer::DeliveryResult;
use oncebox_workload::plan::Entry;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::demo::ledger::{LedgerStore, table};
use crate::demo::plan::MessageMode;
use crate::demo::protocol::{DeliveryRequest, Setup, WorkerReport};
use crate::exit;
use crate::store::{DatabaseTarget, OpenPurpose, with_store};

/// The handler of stored messages.
pub(super) const STORED: &str = "demo-transfers";
const INLINE: &str = "demo-payments";
/// The lease of a killed worker expires after this time.
const LEASE: Duration = Duration::from_secs(1);
/// After a crash this many messages of every lane run one by one.
const WORK_BATCH: usize = 8;
const POLL_EVERY: Duration = Duration::from_millis(50);
/// The workers share the connections of a server.
const IN_FLIGHT: usize = 4;
const WORKERS: usize = 2;

/// Handled while it is delivered.
#[derive(Message, Serialize, Deserialize)]
#[message(kind = "demo.payment", key = "message")]
struct Payment {
    message: u64,
    account: u64,
    amount: u64,
}

/// Stored when it is delivered, and handled later.
#[derive(Message, Serialize, Deserialize)]
#[message(kind = "demo.transfer", key = "message")]
struct Transfer {
    message: u64,
    account: u64,
    amount: u64,
}

/// The inboxes of this process.
struct Inboxes<S: LedgerStore> {
    inline: Inbox<S>,
    stored: Inbox<S>,
}

/// Works until standard input ends: the demo is done, or has ended.
pub(crate) async fn run() -> ! {
    let code = match work().await {
        Ok(()) => 0,
        Err(error) => {
            exit::explain(&error);
            1
        }
    };
    // `exit`, because the runtime would wait for the thread that reads standard input.
    std::process::exit(code)
}

async fn work() -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let setup = lines.next_line().await?.unwrap_or_default();
    let setup =
        serde_json::from_str(&setup).context("invalid setup: only `oncebox demo` starts this command");
    let Setup { url, schema } = setup?;
    let table = table(schema.as_deref());
    let opened = DatabaseTarget { url, schema }.open(OpenPurpose::Run).await?;
    with_store!(opened, store => take_deliveries(Inboxes::build(store, &table).await?, lines).await)
}

impl<S: LedgerStore> Inboxes<S> {
    async fn build(store: S, table: &str) -> Result<Self> {
        // No sweeps: a demo is shorter than any retention period.
        let retention = Retention::new().automatic(false);
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

async fn take_deliveries<S: LedgerStore>(
    inboxes: Inboxes<S>,
    mut lines: Lines<BufReader<Stdin>>,
) -> Result<()> {
    let (stop, mut stopped) = watch::channel(false);
    let stored = inboxes.stored.clone();
    let working =
        tokio::spawn(
            async move { stored.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await },
        );
    report(&WorkerReport::Ready)?;
    let mut in_flight = JoinSet::new();
    while let Some(line) = lines.next_line().await? {
        let request: DeliveryRequest = serde_json::from_str(&line).context("cannot read a delivery")?;
        let (inline, stored) = (inboxes.inline.clone(), inboxes.stored.clone());
        in_flight.spawn(async move {
            let handled = handle(&inline, &stored, request).await;
            let (result, outcome) =
                // An error means that the store did not respond, so the source must deliver again.
                handled.unwrap_or_else(|error| (DeliveryResult::Retry, exit::chain_text(&error)));
            report(&WorkerReport::Settled { delivery: request.delivery, result, outcome })
        });
        // The set keeps ended tasks until they are fetched.
        while in_flight.try_join_next().is_some() {}
    }
    // Before the workers stop: every delivery in flight still reports its result.
    while in_flight.join_next().await.is_some() {}
    stop.send_replace(true);
    working.await??;
    inboxes.inline.close().await;
    inboxes.stored.close().await;
    Ok(())
}

async fn handle<S: LedgerStore>(
    inline: &Inbox<S>,
    stored: &Inbox<S>,
    DeliveryRequest { mode, entry: Entry { message, account, amount }, copy, .. }: DeliveryRequest,
) -> Result<(DeliveryResult, String), Error> {
    match mode {
        MessageMode::Inline => {
            let envelope = Envelope::of(&Payment { message, account, amount })?;
            Ok(result_of(&inline.process(envelope.with_attempt(copy)).await?))
        }
        MessageMode::Stored => {
            let envelope = Envelope::of(&Transfer { message, account, amount })?;
            let accepted = stored.accept(envelope.with_attempt(copy)).await?;
            let outcome = if accepted.is_new() { "accepted" } else { "duplicate" };
            Ok((DeliveryResult::Ack, outcome.to_owned()))
        }
    }
}

fn result_of(report: &Report) -> (DeliveryResult, String) {
    let result = match report.settlement() {
        Settlement::Ack => DeliveryResult::Ack,
        Settlement::Retry { .. } => DeliveryResult::Retry,
        Settlement::Reject => DeliveryResult::Reject,
    };
    let outcome = report.outcome(INLINE).map_or("unhandled", |outcome| outcome.name());
    (result, outcome.to_owned())
}

/// Reports to the demo. A line that is written arrives, even if this process is killed next.
fn report(report: &WorkerReport) -> Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).context("cannot report to the demo")
}
