//! The outbox: messages of transactions that publish, until the mover takes them to the log.

use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    Capture, Captured, HandlerId, MoveLimits, MoveWindow, Moved, OutboxSize, OutboxStatus, Place,
    StoredMessage, WaitingMessage, doing, refusal, row,
};
use oncebox_core::{Error, Headers, Key, MessageId};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::types::Uuid;
use sqlx::{Executor, PgConnection, Postgres, Row};

use crate::fault::{failed, refused};
use crate::log::{RACES_MAX, is_known_by_now};
use crate::store::PostgresStore;
use crate::transaction::PostgresTx;
use crate::work::{lane, read_message, read_message_id};

/// The time that the server may take for one move: a large one on a busy machine.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

impl Capture for PostgresStore {
    async fn capture(&self, conn: &mut PgConnection, messages: &[Captured]) -> Result<(), Error> {
        conn.execute(self.capture_of(messages)).await.map(drop).map_err(failed(doing::CAPTURE))
    }

    async fn capture_in(&self, tx: &mut PostgresTx, messages: &[Captured]) -> Result<(), Error> {
        let doing = doing::CAPTURE;
        tx.check_nested()?;
        if let Some(transaction_id) = tx.transaction_id() {
            let is_own =
                sqlx::query(self.statements.is_in_transaction.clone()).bind(transaction_id.to_string());
            let row = tx.timed().fetch_one(is_own).await.map_err(refused(doing))?;
            if !row.try_get::<bool, _>(0).map_err(failed(doing))? {
                return Err(refusal::transaction_ended());
            }
        }
        tx.timed().execute(self.capture_of(messages)).await.map(drop).map_err(refused(doing))
    }

    async fn move_captured(&self, window: &MoveWindow, limits: MoveLimits) -> Result<Option<Moved>, Error> {
        let mut races = 0;
        loop {
            match self.try_move(window, limits).await {
                // Nothing was moved, and by now the other message's key is known (decision 14).
                Err(error) if is_known_by_now(&error) && races < RACES_MAX => races += 1,
                moved => return moved.map_err(self.connections.failed(doing::MOVE)),
            }
        }
    }

    async fn outbox_status(&self) -> Result<OutboxStatus, Error> {
        let doing = doing::READ_OUTBOX;
        let read = sqlx::query(self.statements.captured.clone()).persistent(false);
        let row = self.connections.fetch_one(doing, read).await?;
        let status = || {
            let waiting: i64 = row.try_get("waiting")?;
            let oldest: Option<i64> = row.try_get("oldest_ms")?;
            let waiting = u64::try_from(waiting).unwrap_or(0);
            Ok::<_, sqlx::Error>(OutboxStatus::new(waiting, oldest.map(row::duration_from_ms)))
        };
        status().map_err(failed(doing))
    }

    async fn outbox_size(&self) -> Result<OutboxSize, Error> {
        let doing = doing::READ_OUTBOX;
        let read = sqlx::query(self.statements.outbox_size.clone()).persistent(false);
        let row = self.connections.fetch_one(doing, read).await?;
        let size = || {
            let size = OutboxSize::new(row.try_get("outbox")?, row.try_get("log")?, row.try_get("database")?);
            Ok::<_, sqlx::Error>(size)
        };
        size().map_err(failed(doing))
    }

    async fn waiting_messages(&self, limit: u32) -> Result<Vec<WaitingMessage>, Error> {
        let doing = doing::READ_OUTBOX;
        let read = sqlx::query(self.statements.waiting_messages.clone()).persistent(false);
        let rows = self.connections.fetch_all(doing, read.bind(i64::from(limit))).await?;
        rows.iter().map(read_waiting).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn waiting_message(&self, id: MessageId) -> Result<Option<WaitingMessage>, Error> {
        let doing = doing::READ_OUTBOX;
        let read = sqlx::query(self.statements.waiting_message.clone()).persistent(false);
        let row = self.connections.fetch_optional(doing, read.bind(Uuid::from_bytes(*id.as_bytes()))).await?;
        row.as_ref().map(read_waiting).transpose().map_err(failed(doing))
    }

    async fn find_published(&self, id: MessageId) -> Result<Option<Place>, Error> {
        let doing = doing::FIND_MESSAGE;
        let read = sqlx::query(self.statements.find_published.clone()).persistent(false);
        let row = self.connections.fetch_optional(doing, read.bind(Uuid::from_bytes(*id.as_bytes()))).await?;
        let read = |row: PgRow| Ok(Place { lane: lane(&row)?, pos: row.try_get("pos")? });
        row.map(read).transpose().map_err(failed(doing))
    }

    async fn unsent_messages(&self, relay: HandlerId, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let doing = doing::READ_PENDING;
        let read = sqlx::query(self.statements.unsent_messages.clone()).persistent(false);
        let read = read.bind(relay.0).bind(i64::from(limit)).bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        let read = |row: &PgRow| {
            let message = read_message(row, lane(row)?)?;
            Ok(StoredMessage { message_id: read_message_id(row)?, ..message })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(failed(doing))
    }
}

impl PostgresStore {
    async fn try_move(&self, window: &MoveWindow, limits: MoveLimits) -> Result<Option<Moved>, sqlx::Error> {
        // As text: the driver has no type for the numbers of transactions.
        let in_progress: Vec<String> = window.in_progress.iter().map(u64::to_string).collect();
        let move_captured = sqlx::query(self.statements.move_captured.clone())
            .bind(window.history)
            .bind(window.from.to_string())
            .bind(in_progress)
            .bind(i32::try_from(limits.messages).unwrap_or(i32::MAX))
            .bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))
            .bind(self.clock_offset_ms());
        let mut conn = self.connections.warm().await?;
        conn.may_take(MOVE_LIMIT);
        let row = conn.fetch_optional(move_captured).await?;
        conn.may_take(Duration::ZERO);
        // Only after a success: otherwise the pool checks the connection when it comes back (decision 26).
        self.connections.keep_warm(conn);
        row.as_ref().map(read_moved).transpose()
    }

    /// The statement that writes messages to the outbox.
    pub(crate) fn capture_of<'m>(&self, messages: &'m [Captured]) -> Query<'m, Postgres, PgArguments> {
        if let [message] = messages {
            return sqlx::query(self.statements.capture_one.clone())
                .bind(Uuid::from_bytes(*message.id.as_bytes()))
                .bind(&message.kind)
                .bind(message.key.as_ref().map(Key::as_bytes))
                .bind(message.fingerprint.to_i64())
                .bind(message.order_by.as_ref().map(Key::as_bytes))
                .bind(message.headers.to_json())
                .bind(&message.body)
                .bind(message.occurred_at.map(row::time_to_ms))
                .bind(message.due_at.map(row::time_to_ms));
        }
        let times = |of: fn(&Captured) -> Option<SystemTime>| {
            messages.iter().map(|message| of(message).map(row::time_to_ms)).collect::<Vec<_>>()
        };
        sqlx::query(self.statements.capture.clone())
            .bind(messages.iter().map(|message| Uuid::from_bytes(*message.id.as_bytes())).collect::<Vec<_>>())
            .bind(messages.iter().map(|message| &*message.kind).collect::<Vec<_>>())
            .bind(messages.iter().map(|message| message.key.as_ref().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(messages.iter().map(|message| message.fingerprint.to_i64()).collect::<Vec<_>>())
            .bind(
                messages
                    .iter()
                    .map(|message| message.order_by.as_ref().map(Key::as_bytes))
                    .collect::<Vec<_>>(),
            )
            .bind(messages.iter().map(|message| message.headers.to_json()).collect::<Vec<_>>())
            .bind(messages.iter().map(|message| &*message.body).collect::<Vec<_>>())
            .bind(times(|message| message.occurred_at))
            .bind(times(|message| message.due_at))
    }
}

fn read_moved(row: &PgRow) -> Result<Moved, sqlx::Error> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| sqlx::Error::Decode(error.into()));
    let messages: i64 = row.try_get("moved")?;
    let in_progress: Vec<String> = row.try_get("next_in_progress")?;
    Ok(Moved {
        messages: u64::try_from(messages).unwrap_or(0),
        is_complete: row.try_get("is_complete")?,
        next: MoveWindow {
            history: row.try_get("history")?,
            from: number(row.try_get("next_xid")?)?,
            in_progress: in_progress.iter().map(|xid| number(xid)).collect::<Result<_, _>>()?,
        },
    })
}

fn read_waiting(row: &PgRow) -> Result<WaitingMessage, sqlx::Error> {
    let time = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(row::time_from_ms));
    Ok(WaitingMessage {
        id: read_message_id(row)?,
        kind: row.try_get("kind")?,
        key: row.try_get::<Option<&[u8]>, _>("key")?.map(Key::new),
        order_by: row.try_get::<Option<&[u8]>, _>("order_by")?.map(Key::new),
        headers: Headers::from_json(row.try_get("headers")?),
        body: row.try_get("body")?,
        occurred_at: time("occurred_ms")?,
        due_at: time("due_ms")?,
        captured_at: row::time_from_ms(row.try_get("captured_ms")?),
        waited: row::duration_from_ms(row.try_get("waited_ms")?),
    })
}
