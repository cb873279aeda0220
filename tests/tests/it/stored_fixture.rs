//! What tests of the log need of a store beyond its fixture.

use std::time::Duration;

use oncebox::store::{Peer, ProcessId, Processes};
use oncebox::{LogStore, PostgresStore, SqliteStore};
use oncebox_testing::Fixture;
use oncebox_testing::TestTime;
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::postgres::Postgres;
use crate::sqlite::Sqlite;

/// What one snapshot says of a handler: how many messages are where. Done is what has an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) handler: String,
    pub(crate) accepted: i64,
    pub(crate) waiting: i64,
    pub(crate) tasks: i64,
    pub(crate) done: i64,
    pub(crate) dead: i64,
}

impl Balance {
    pub(crate) fn is_even(&self) -> bool {
        self.accepted == self.waiting + self.tasks + self.done + self.dead
    }
}

/// One statement, one snapshot. Effects are named `handler id`; all messages are for all handlers.
const BALANCE: &str = "
    select h.name,
        (select count(*) from {message}),
        (select count(*) from {message} m join (
            select p.lane, max(p.pos) as pos from {progress} p where p.handler = h.id group by p.lane
        ) as reached on reached.lane = m.lane and m.pos > reached.pos),
        (select count(*) from {task} t where t.handler = h.id),
        (select count(*) from effect e where e.name like h.name || ' %'),
        (select count(*) from {dead} d where d.handler = h.id)
    from {handler} h order by h.name";

fn balance_of(tables: &str) -> sqlx::AssertSqlSafe<String> {
    let named =
        ["message", "progress", "task", "dead", "handler"].iter().fold(BALANCE.to_owned(), |sql, table| {
            sql.replace(&format!("{{{table}}}"), &format!("{tables}{table}"))
        });
    sqlx::AssertSqlSafe(named)
}

fn crashes_pending_sql(tables: &str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!(
        "select (select count(*) from {tables}process) <> $1 or exists (select 1 from {tables}careful where messages_left > 0)
            or exists (select 1 from {tables}attempting)"
    ))
}

type Row = (String, i64, i64, i64, i64, i64);

fn read(rows: Vec<Row>) -> Vec<Balance> {
    let balance = |(handler, accepted, waiting, tasks, done, dead)| Balance {
        handler,
        accepted,
        waiting,
        tasks,
        done,
        dead,
    };
    rows.into_iter().map(balance).collect()
}

/// A database with a log, as another process would see it.
pub(crate) trait LogFixture: Fixture<Store: LogStore> {
    /// Where other processes find it.
    fn address(&self) -> String;

    /// A store with a pool of its own.
    async fn another_store(&self) -> Self::Store;

    /// The same, with a clock that is so far ahead.
    async fn store_ahead(&self, time: Duration) -> Self::Store;

    /// The processes that are at work, or have crashed and whose lease has not expired yet.
    async fn processes(&self) -> Vec<Peer> {
        let none = ProcessId(Default::default());
        self.store().peers(none).await.unwrap()
    }

    /// Makes a process's death known at once, as it would be known at the end of its lease. One that has not begun to work leaves
    /// nothing behind.
    async fn remove_process(&self, number: u32) {
        let number = number.to_string();
        for dead in self.processes().await.iter().filter(|peer| peer.name.split(' ').nth(1) == Some(&number))
        {
            let ahead = self.store_ahead(dead.lease * 2).await;
            // Nothing if another process was faster.
            let _ = ahead.remove_crashed(dead.id, true).await.unwrap();
        }
    }

    /// How many effects there are, and of how many names.
    async fn totals(&self) -> (i64, i64);

    /// Lets effects tell in which order they came, and makes the table of what is healed.
    async fn prepare_order(&self);

    /// All effects; where the order is prepared, in that.
    async fn effect_names(&self) -> Vec<String>;

    /// Takes away the reason for which a message can never be handled.
    async fn heal(&self, name: &str);

    /// Whether a death is not yet known to the others, of whom so many are alive, or makes them careful. Who kills again now
    /// may hit a message that is suspected already, and after three times that is a dead letter, as it should be.
    async fn crashes_pending(&self, alive: i64) -> bool;

    /// Whether a stopped process that will not go on keeps all others from writing.
    async fn is_stuck(&self) -> bool;

    /// From now on the log takes no message with the body [`REFUSED`].
    async fn refuse(&self);

    /// From now on tasks and dead letters take no error with this text in it.
    async fn refuse_errors(&self, text: &str);

    /// Where every message is, for each handler, in one snapshot.
    async fn balance(&self) -> Vec<Balance>;

    /// Sends one statement as a handler would, and swallows its error.
    fn send(
        conn: &mut <Self::Store as oncebox::store::Store>::Conn,
        sql: &'static str,
    ) -> impl Future<Output = ()> + Send;
}

/// A body that a log can be made to refuse.
pub(crate) const REFUSED: &str = "refused";

const TOTALS: &str = "select count(*), count(distinct name) from effect";

impl LogFixture for Sqlite {
    fn address(&self) -> String {
        self.path()
    }

    async fn another_store(&self) -> SqliteStore {
        SqliteStore::connect(&self.path()).await.unwrap()
    }

    async fn store_ahead(&self, time: Duration) -> SqliteStore {
        let store = self.another_store().await;
        store.travel(time);
        store
    }

    async fn totals(&self) -> (i64, i64) {
        sqlx::query_as(TOTALS).fetch_one(self.store.pool()).await.unwrap()
    }

    async fn prepare_order(&self) {
        sqlx::query("create table healed (name text not null)").execute(self.store.pool()).await.unwrap();
    }

    /// There is one writer, and rows are numbered as they come.
    async fn effect_names(&self) -> Vec<String> {
        sqlx::query_scalar("select name from effect order by rowid")
            .fetch_all(self.store.pool())
            .await
            .unwrap()
    }

    async fn heal(&self, name: &str) {
        let mut conn = SqliteConnection::connect(&self.path()).await.unwrap();
        sqlx::query("pragma busy_timeout = 60000").execute(&mut conn).await.unwrap();
        let heal = sqlx::query("insert into healed (name) values (?)").bind(name);
        heal.execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }

    async fn crashes_pending(&self, alive: i64) -> bool {
        let mut conn = SqliteConnection::connect(&self.path()).await.unwrap();
        sqlx::query("pragma busy_timeout = 60000").execute(&mut conn).await.unwrap();
        let found =
            sqlx::query_scalar(crashes_pending_sql("oncebox_")).bind(alive).fetch_one(&mut conn).await;
        conn.close().await.unwrap();
        found.unwrap()
    }

    async fn is_stuck(&self) -> bool {
        let mut conn = SqliteConnection::connect(&self.path()).await.unwrap();
        sqlx::query("pragma busy_timeout = 2000").execute(&mut conn).await.unwrap();
        sqlx::query("begin immediate").execute(&mut conn).await.is_err()
    }

    async fn refuse(&self) {
        let refuse =
            "create trigger refuse before insert on oncebox_message when new.body = cast('refused' as blob)
            begin select raise(abort, 'refused'); end";
        sqlx::raw_sql(refuse).execute(self.store.pool()).await.unwrap();
    }

    async fn refuse_errors(&self, text: &str) {
        for table in ["task", "dead"] {
            for change in ["insert", "update"] {
                let refuse = sqlx::AssertSqlSafe(format!(
                    "create trigger refuse_{table}_{change} before {change} on oncebox_{table} when new.error like '%{text}%'
                     begin select raise(abort, 'refused'); end"
                ));
                sqlx::raw_sql(refuse).execute(self.store.pool()).await.unwrap();
            }
        }
    }

    async fn balance(&self) -> Vec<Balance> {
        let mut conn = SqliteConnection::connect(&self.path()).await.unwrap();
        sqlx::query("pragma busy_timeout = 60000").execute(&mut conn).await.unwrap();
        let rows = sqlx::query_as(balance_of("oncebox_")).fetch_all(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        read(rows)
    }

    async fn send(conn: &mut SqliteConnection, sql: &'static str) {
        let _ = sqlx::query(sql).execute(conn).await;
    }
}

impl LogFixture for Postgres {
    fn address(&self) -> String {
        self.database.url()
    }

    async fn another_store(&self) -> PostgresStore {
        PostgresStore::connect(&self.database.url()).await.unwrap()
    }

    async fn store_ahead(&self, time: Duration) -> PostgresStore {
        let store = self.another_store().await;
        store.travel(time);
        store
    }

    async fn totals(&self) -> (i64, i64) {
        sqlx::query_as(TOTALS).fetch_one(self.store.pool()).await.unwrap()
    }

    async fn prepare_order(&self) {
        let sql = "alter table effect add column seq bigserial; create table healed (name text not null)";
        sqlx::raw_sql(sql).execute(self.store.pool()).await.unwrap();
    }

    async fn effect_names(&self) -> Vec<String> {
        let all = "select name from effect e order by to_jsonb(e) -> 'seq'";
        sqlx::query_scalar(all).fetch_all(self.store.pool()).await.unwrap()
    }

    async fn heal(&self, name: &str) {
        let heal = sqlx::query("insert into healed (name) values ($1)").bind(name);
        heal.execute(self.store.pool()).await.unwrap();
    }

    async fn crashes_pending(&self, alive: i64) -> bool {
        let found = sqlx::query_scalar(crashes_pending_sql("oncebox.")).bind(alive);
        found.fetch_one(self.store.pool()).await.unwrap()
    }

    /// Rows are locked one by one.
    async fn is_stuck(&self) -> bool {
        false
    }

    async fn refuse(&self) {
        let refuse = "alter table oncebox.message add check (body <> 'refused')";
        sqlx::raw_sql(refuse).execute(self.store.pool()).await.unwrap();
    }

    async fn refuse_errors(&self, text: &str) {
        for table in ["task", "dead"] {
            let refuse = format!("alter table oncebox.{table} add check (error not like '%{text}%')");
            sqlx::raw_sql(sqlx::AssertSqlSafe(refuse)).execute(self.store.pool()).await.unwrap();
        }
    }

    async fn balance(&self) -> Vec<Balance> {
        read(sqlx::query_as(balance_of("oncebox.")).fetch_all(self.store.pool()).await.unwrap())
    }

    async fn send(conn: &mut PgConnection, sql: &'static str) {
        let _ = sqlx::query(sql).execute(conn).await;
    }
}

/// The statistics of a database once all other backends have left it: backends report their work when they end.
pub(crate) async fn when_all_have_left(conn: &mut PgConnection) {
    let others =
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
        and backend_type = 'client backend'";
    while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut *conn).await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sqlx::query("select pg_stat_clear_snapshot()").execute(conn).await.unwrap();
}

/// Another one each time; printed, so that a failure can be looked into.
#[allow(clippy::print_stdout, reason = "shown with a failure only")]
pub(crate) fn seed() -> u64 {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    seed
}

/// Numbers by chance, the same ones for the same seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}
