//! A store of your own: the least that CONTRIBUTING.md asks for, in memory, and it passes the conformance suite.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    Claimed, Claims, Fault, Guarantee, HandlerId, Inspect, LaneCount, Layout, Limits, LiveTime, Marker,
    MarkerState, Registration, Registry, Store, Unit, Upkeep, find_cause,
};
use oncebox_core::{BoxError, Error, ErrorKind, Key, StoredKey};
use oncebox_testing::conformance::TransactionBody;
use oncebox_testing::{Capabilities, Fixture};
use tokio::sync::{Mutex, OwnedMutexGuard};

type MarkerIdentity = (String, String, StoredKey);

/// The whole database. What a transaction writes is a copy, which its commit puts in the place of the original.
#[derive(Clone, Debug, Default)]
struct Tables {
    markers: BTreeMap<MarkerIdentity, Marker>,
    live: Vec<LiveTime>,
    effects: Vec<String>,
}

/// One writer at a time, as in SQLite.
#[derive(Clone, Debug, Default)]
struct MinimalStore {
    tables: Arc<Mutex<Tables>>,
    clock_offset_ms: Arc<AtomicI64>,
}

/// What handlers are lent.
#[derive(Debug)]
struct Conn {
    tables: Tables,
    now_ms: i64,
}

struct Tx {
    original: OwnedMutexGuard<Tables>,
    conn: Conn,
    savepoint: Tables,
}

#[derive(Debug)]
struct WriterBusy;

impl fmt::Display for WriterBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another transaction holds the writer")
    }
}

impl StdError for WriterBusy {}

impl MinimalStore {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap() + self.clock_offset_ms.load(Ordering::SeqCst)
    }
}

fn time(ms: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn identity(unit: &Unit) -> MarkerIdentity {
    (unit.handler.clone(), unit.kind.clone(), unit.key.clone())
}

impl Conn {
    /// The marker is the referee: the first insert wins.
    fn claim(&mut self, unit: &Unit) -> Claimed {
        if let Some(marker) = self.tables.markers.get(&identity(unit)) {
            return Claimed::Known(marker.clone());
        }
        let waited = i64::try_from(unit.waited.as_millis()).unwrap_or(0);
        let marker = Marker {
            handler: unit.handler.clone(),
            kind: unit.kind.clone(),
            key: StoredKey::read(unit.key.as_bytes(), unit.key.original().map(Key::as_bytes)).unwrap(),
            fingerprint: unit.fingerprint,
            state: MarkerState::Done,
            received_at: time(self.now_ms - waited),
            processed_at: time(self.now_ms),
            result: None,
        };
        self.tables.markers.insert(identity(unit), marker);
        Claimed::Fresh
    }
}

impl Store for MinimalStore {
    const NAME: &'static str = "minimal";
    const GUARANTEE: Guarantee = Guarantee::Exactly;
    type Conn = Conn;
    type Tx = Tx;

    fn capacity(&self) -> usize {
        1
    }

    async fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn begin(&self, limits: Limits) -> Result<Tx, Error> {
        let locked = tokio::time::timeout(limits.lock_timeout, self.tables.clone().lock_owned()).await;
        let original =
            locked.map_err(|_| Error::new(ErrorKind::Busy, "no turn to write").with_source(WriterBusy))?;
        let conn = Conn { tables: original.clone(), now_ms: self.now_ms() };
        Ok(Tx { savepoint: conn.tables.clone(), original, conn })
    }

    fn connection(tx: &mut Tx) -> &mut Conn {
        &mut tx.conn
    }

    async fn arm(&self, _tx: &mut Tx) -> Result<(), Error> {
        Ok(())
    }

    async fn guard(&self, _tx: &mut Tx) -> Result<(), Error> {
        Ok(())
    }

    async fn commit(&self, mut tx: Tx) -> Result<(), Error> {
        *tx.original = tx.conn.tables;
        Ok(())
    }

    async fn rollback(&self, tx: Tx) {
        drop(tx);
    }

    async fn abandon(&self, tx: Tx) {
        drop(tx);
    }

    fn classify(error: &(dyn StdError + 'static)) -> Fault {
        find_cause(error, |cause| cause.is::<WriterBusy>().then_some(Fault::LockTimeout))
            .unwrap_or(Fault::Other)
    }
}

impl Registry for MinimalStore {
    /// Without a log nothing needs to be durable here: every handler has its own name and the next number.
    async fn register(&self, _log: Option<LaneCount>, handlers: &[Registration]) -> Result<Layout, Error> {
        let numbers = (1..).map(HandlerId).take(handlers.len());
        let origins = handlers.iter().map(|handler| handler.name.clone());
        Ok(Layout { lanes: 0, handlers: numbers.collect(), origins: origins.collect() })
    }
}

impl Claims for MinimalStore {
    async fn claim(&self, tx: &mut Tx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        Ok(units.iter().map(|unit| tx.conn.claim(unit)).collect())
    }

    async fn claim_in(&self, conn: &mut Conn, unit: &Unit) -> Result<Claimed, Error> {
        Ok(conn.claim(unit))
    }

    async fn isolate(&self, tx: &mut Tx) -> Result<(), Error> {
        tx.savepoint = tx.conn.tables.clone();
        Ok(())
    }

    async fn keep(&self, tx: &mut Tx, _next: bool) -> Result<(), Error> {
        self.isolate(tx).await
    }

    async fn undo(&self, tx: &mut Tx, unit: Option<&Unit>, _next: bool) -> Result<(), Error> {
        tx.conn.tables = tx.savepoint.clone();
        if let Some(unit) = unit {
            tx.conn.tables.markers.remove(&identity(unit));
        }
        self.isolate(tx).await
    }

    async fn record_results(&self, tx: &mut Tx, results: &[(&Unit, &[u8])]) -> Result<(), Error> {
        for (unit, result) in results {
            if let Some(marker) = tx.conn.tables.markers.get_mut(&identity(unit)) {
                marker.result = Some(result.to_vec());
            }
        }
        Ok(())
    }

    async fn import_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let mut tables = self.tables.lock().await;
        let mut conn = Conn { tables: std::mem::take(&mut *tables), now_ms: self.now_ms() };
        let unit = |key: &StoredKey| Unit {
            handler: handler.to_owned(),
            kind: kind.to_owned(),
            key: key.clone(),
            fingerprint: None,
            waited: Duration::ZERO,
        };
        let new = keys.iter().filter(|key| conn.claim(&unit(key)).is_fresh()).count();
        *tables = conn.tables;
        Ok(new as u64)
    }
}

impl Inspect for MinimalStore {
    async fn markers(&self, units: &[Unit]) -> Result<Vec<Option<Marker>>, Error> {
        let tables = self.tables.lock().await;
        Ok(units.iter().map(|unit| tables.markers.get(&identity(unit)).cloned()).collect())
    }
}

impl Upkeep for MinimalStore {
    async fn beat(&self, tolerance: Duration) -> Result<(), Error> {
        let now_ms = self.now_ms();
        let tolerance_ms = i64::try_from(tolerance.as_millis()).unwrap_or(i64::MAX);
        let live = &mut self.tables.lock().await.live;
        match live.last_mut() {
            Some(latest) if now_ms - latest.until_ms <= tolerance_ms => latest.until_ms = now_ms,
            _ => live.push(LiveTime { from_ms: now_ms, until_ms: now_ms }),
        }
        Ok(())
    }

    async fn live_time(&self) -> Result<(Vec<LiveTime>, i64), Error> {
        Ok((self.tables.lock().await.live.clone(), self.now_ms()))
    }

    async fn sweep(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        let markers = &mut self.tables.lock().await.markers;
        let due = markers.iter().filter(|(_, marker)| marker.processed_at < time(before_ms));
        let due: Vec<MarkerIdentity> =
            due.map(|(identity, _)| identity.clone()).take(limit as usize).collect();
        due.iter().for_each(|identity| drop(markers.remove(identity)));
        Ok(due.len() as u64)
    }

    async fn forget_live_time(&self, before_ms: i64) -> Result<(), Error> {
        self.tables.lock().await.live.retain(|live| live.until_ms >= before_ms);
        Ok(())
    }
}

impl Fixture for MinimalStore {
    type Store = Self;

    fn capabilities(&self) -> Capabilities {
        Capabilities { transactional: true, counts_live_time: true, counts_crashes: false }
    }

    fn store(&self) -> Self {
        self.clone()
    }

    async fn effect(&self, conn: &mut Conn, name: &str) -> Result<(), BoxError> {
        conn.tables.effects.push(name.to_owned());
        Ok(())
    }

    async fn effects(&self, name: &str) -> u64 {
        self.tables.lock().await.effects.iter().filter(|effect| *effect == name).count() as u64
    }

    fn travel(&self, time: Duration) {
        self.clock_offset_ms.fetch_add(i64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    async fn transaction(&self, commits: bool, body: TransactionBody<Conn>) -> bool {
        let mut tx = self.begin(LIMITS).await.unwrap();
        body(Self::connection(&mut tx)).await;
        if commits {
            self.commit(tx).await.unwrap();
        } else {
            self.rollback(tx).await;
        }
        true
    }
}

const LIMITS: Limits = Limits {
    lock_timeout: Duration::from_secs(120),
    body_lock_timeout: None,
    handler_timeout: Duration::from_secs(120),
};

async fn in_memory(_test: &str) -> Option<MinimalStore> {
    Some(MinimalStore::default())
}

oncebox_testing::conformance!(in_memory);

/// The traits that this file implements, in their order.
fn required() -> Vec<&'static str> {
    let here = include_str!("minimal_store.rs").lines();
    here.filter_map(|line| line.strip_prefix("impl ")?.strip_suffix(" for MinimalStore {"))
        .filter(|name| *name != "Fixture")
        .collect()
}

/// The traits that a store with a log implements beside them: those of `LogStore`.
fn of_the_log() -> Vec<&'static str> {
    let engine = include_str!("../../../oncebox-core/src/inbox/stored/mod.rs");
    let (_, bounds) = engine.split_once("pub trait LogStore:").unwrap();
    let bounds = bounds.split_once('{').unwrap().0;
    bounds.split('+').map(str::trim).filter(|bound| *bound != "InboxStore").collect()
}

/// The traits among the code words of a text, each where it comes first.
fn traits_in(text: &str) -> Vec<&str> {
    let known: Vec<&str> = required().into_iter().chain(of_the_log()).collect();
    let mut named = Vec::new();
    for word in text.split('`').skip(1).step_by(2) {
        let word = word.strip_prefix("store::").unwrap_or(word);
        if known.contains(&word) && !named.contains(&word) {
            named.push(word);
        }
    }
    named
}

/// The text from one mark to the next.
fn section<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let (_, text) = text.split_once(from).unwrap_or_else(|| panic!("there is no {from:?}"));
    text.split(to).next().unwrap_or(text)
}

/// Contributors read the guide, users the tour: both name all traits, and nothing else.
#[test]
fn the_guide_names_the_traits_that_are_required() {
    let all: Vec<&str> = required().into_iter().chain(of_the_log()).collect();
    assert_eq!((required().len(), of_the_log().len()), (5, 8));
    let guide = section(include_str!("../../../../CONTRIBUTING.md"), "\n**a store.**", "\n**");
    assert_eq!(traits_in(guide), all, "CONTRIBUTING.md");
    let tour = section(include_str!("../../../oncebox/src/tour.md"), "\n# A store of your own\n", "```");
    assert_eq!(traits_in(tour), all, "tour.md");

    // The numbers of traits, in words.
    let numbers = ["four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    for text in [guide, tour] {
        let words = text.split(|letter: char| !letter.is_alphabetic()).map(str::to_lowercase);
        let wrong = words.filter(|word| numbers.contains(&&**word) && !["five", "eight"].contains(&&**word));
        assert_eq!(wrong.collect::<Vec<_>>(), [""; 0], "{text}");
    }
}

/// The guide states the number of lines of the store: those before the fixture, rounded up.
#[test]
fn the_guide_knows_the_size_of_this_store() {
    let guide = section(include_str!("../../../../CONTRIBUTING.md"), "\n**a store.**", "\n**");
    let (before, _) = guide.split_once(" lines](crates/oncebox-testing/tests/it/minimal_store.rs)").unwrap();
    let promised: usize = before.rsplit(' ').next().unwrap().parse().unwrap();
    let lines = include_str!("minimal_store.rs").split("\nimpl Fixture").next().unwrap().lines().count();
    assert!((promised.saturating_sub(24)..=promised).contains(&lines), "{lines} lines, {promised} promised");
}
