//! Where the pool connects to: one server, or whichever of several is the one to write to.
//!
//! The driver's pool knows one address at a time. A caller that gets no connection soon asks all servers, and turns
//! the pool to the one that is suitable. All other callers follow, because they use the same pool.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncebox_core::store::Retries;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::hosts::place;
use crate::target::{Answer, Target, Timeline};

/// After this time without a connection, a caller asks all servers.
const LOOK_AFTER: Duration = Duration::from_millis(200);
/// The servers are asked at this interval only, however many callers wait for a busy pool.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a server may take to answer.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How long the others may take once one has said that it will do: a newer one may be among them.
const SECOND_LOOK_LIMIT: Duration = Duration::from_millis(500);

/// The pool, and where it may connect to.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    pool: PgPool,
    /// `None` where the pool's own address is all there is.
    several: Option<Arc<Several>>,
}

impl Servers {
    /// Whatever the pool connects to.
    pub(crate) fn of(pool: PgPool) -> Self {
        Self { pool, several: None }
    }

    /// A pool that follows the server to write to.
    pub(crate) async fn follow(
        options: Vec<PgConnectOptions>,
        target: Target,
        pool: PgPoolOptions,
    ) -> Result<Self, sqlx::Error> {
        let several = Arc::new(Several {
            options,
            target,
            state: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            refused: Notify::new(),
        });
        let mut retries = Retries::within(pool.get_acquire_timeout()).with_longest_pause(LOOK_AFTER);
        // A server that starts, or is being promoted, gets the same time as with the driver.
        let at = loop {
            match several.look().await {
                Ok(at) => break at,
                Err(not_found) if retries.is_over() => return Err(not_found.into()),
                Err(_) => retries.pause().await,
            }
        };
        let (admitting, trusting) = (several.clone(), several.clone());
        let pool = pool
            // The server may have become a standby since it was chosen.
            .after_connect(move |conn, _| {
                let several = admitting.clone();
                Box::pin(async move { several.admit(conn).await })
            })
            // After a failover, idle connections still lead to the former primary.
            .before_acquire(move |_, meta| {
                let trusted = trusting.trusts(meta.age);
                Box::pin(async move { Ok(trusted) })
            })
            .connect_lazy_with(several.options[at].clone());
        Ok(Self { pool, several: Some(several) })
    }

    /// Whether there is a server to fail over to.
    pub(crate) fn are_several(&self) -> bool {
        self.several.as_ref().is_some_and(|several| several.options.len() > 1)
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A connection of the pool.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.open(|| self.pool.acquire()).await
    }

    /// Whether a connection that came from the pool then may be used again without the pool, which would ask the same.
    pub(crate) fn trust(&self, since: Instant) -> bool {
        !self.pool.is_closed() && self.several.as_ref().is_none_or(|several| several.trusts(since.elapsed()))
    }

    /// Whether the pool has a connection for the next one who wants one.
    pub(crate) fn have_room(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }

    /// A connection beside the pool.
    pub(crate) async fn connect_apart(&self) -> Result<PgConnection, sqlx::Error> {
        let connect = async || {
            let mut conn = self.pool.connect_options().connect().await?;
            if let Some(several) = &self.several {
                several.admit(&mut conn).await?;
            }
            Ok(conn)
        };
        self.open(connect).await
    }

    /// Notes that a server takes no writes: connections that are open now are not used again.
    pub(crate) fn distrust(&self) {
        if let Some(several) = &self.several {
            several.state().trusted_since = Some(Instant::now());
        }
    }

    /// Opens a connection, and begins anew when the pool was turned meanwhile: the old server may be gone without a word.
    async fn open<T, F>(&self, open: impl Fn() -> F + Send + Sync) -> Result<T, sqlx::Error>
    where
        F: Future<Output = Result<T, sqlx::Error>> + Send,
    {
        let Some(several) = &self.several else { return open().await };
        // Each server may turn out to be the wrong one once.
        for _ in &several.options {
            let since = Instant::now();
            tokio::select! {
                biased;
                // Polled first: a connection that is there needs no look at the servers.
                opened = open() => match opened {
                    Err(sqlx::Error::PoolClosed) => return Err(sqlx::Error::PoolClosed),
                    Err(error) => {
                        if !several.turn(&self.pool, since).await {
                            return Err(several.state().not_found.clone().map_or(error, Into::into));
                        }
                    }
                    opened => return opened,
                },
                () = several.turn_in_time(&self.pool, since) => {}
            }
        }
        open().await
    }
}

/// Several servers, of which one is the one to write to.
struct Several {
    options: Vec<PgConnectOptions>,
    target: Target,
    state: Mutex<ServersState>,
    /// One looks for all.
    looking: tokio::sync::Mutex<()>,
    /// A server would not do.
    refused: Notify,
}

#[derive(Debug, Default)]
struct ServersState {
    /// Where the pool connects to.
    at: usize,
    /// The newest history that was ever seen.
    newest: Timeline,
    /// Connections from before this are not used again.
    trusted_since: Option<Instant>,
    looked_at: Option<Instant>,
    /// Why the last look found no suitable server.
    not_found: Option<NoServer>,
    turned_at: Option<Instant>,
}

impl Several {
    /// Whether a new connection leads to a server that will do.
    async fn admit(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let why = match self.target.ask(conn).await? {
            Answer::Fit(timeline) => {
                let newest = self.note(timeline);
                if !timeline.is_behind(newest) {
                    return Ok(());
                }
                left_behind(timeline, newest)
            }
            Answer::Unfit(why) => why.to_owned(),
        };
        // Callers that wait for a connection look for another server at once.
        self.refused.notify_waiters();
        Err(sqlx::Error::Io(io::Error::other(format!("the server {why}"))))
    }

    /// The newest history, with this one.
    fn note(&self, timeline: Timeline) -> Timeline {
        let mut state = self.state();
        state.newest = state.newest.max(timeline);
        state.newest
    }

    fn trusts(&self, age: Duration) -> bool {
        self.state().trusted_since.is_none_or(|since| age <= since.elapsed())
    }

    /// Returns when the pool was turned to another server, which happens if a connection takes too long.
    async fn turn_in_time(&self, pool: &PgPool, since: Instant) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_AFTER) => {}
                () = self.refused.notified() => {}
            }
            if self.turn(pool, since).await {
                return;
            }
        }
    }

    /// Looks at the servers, unless another caller has done so since; whether the pool was turned since.
    async fn turn(&self, pool: &PgPool, since: Instant) -> bool {
        // One caller asks the servers for all. The others wait here and find the result below.
        let _one_for_all = self.looking.lock().await;
        let before = {
            let state = self.state();
            if state.turned_at.is_some_and(|at| at >= since) {
                return true;
            }
            if state.looked_at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                return false;
            }
            state.at
        };
        let Ok(at) = self.look().await else { return false };
        if at == before {
            return false;
        }
        pool.set_connect_options(self.options[at].clone());
        let now = Instant::now();
        {
            let mut state = self.state();
            state.trusted_since = Some(now);
            state.turned_at = Some(now);
        }
        let (from, to) = (place(&self.options[before]), place(&self.options[at]));
        tracing::warn!(from, to, "turned to another PostgreSQL server");
        true
    }

    /// Which server is the one to write to: of those that will do, one of the newest history.
    async fn look(&self) -> Result<usize, NoServer> {
        let mut asked = JoinSet::new();
        for (n, options) in self.options.iter().enumerate() {
            let (options, target) = (options.clone(), self.target);
            // All at once: an unreachable server must not delay the others' answers.
            asked.spawn(async move { (n, ask(&options, target).await) });
        }
        let mut answers: Vec<Option<Result<Answer, sqlx::Error>>> =
            self.options.iter().map(|_| None).collect();
        let mut limit = tokio::time::Instant::now() + LOOK_LIMIT;
        while let Ok(Some(answer)) = tokio::time::timeout_at(limit, asked.join_next()).await {
            let Ok((n, answer)) = answer else { continue };
            if let Ok(Answer::Fit(timeline)) = answer {
                self.note(timeline);
                limit = limit.min(tokio::time::Instant::now() + SECOND_LOOK_LIMIT);
            }
            answers[n] = Some(answer);
        }
        let mut state = self.state();
        state.looked_at = Some(Instant::now());
        let chosen = choose(&answers, state.at, state.newest);
        state.at = chosen.unwrap_or(state.at);
        state.not_found = chosen.is_none().then(|| self.not_found(&answers, state.newest));
        chosen.ok_or_else(|| state.not_found.clone().unwrap_or_default())
    }

    fn not_found(&self, answers: &[Option<Result<Answer, sqlx::Error>>], newest: Timeline) -> NoServer {
        let why = |answer: &Option<Result<Answer, sqlx::Error>>| match answer {
            None => "does not answer".to_owned(),
            Some(Err(error)) => format!("cannot be reached ({error})"),
            Some(Ok(Answer::Unfit(why))) => (*why).to_owned(),
            Some(Ok(Answer::Fit(timeline))) => left_behind(*timeline, newest),
        };
        let each = self.options.iter().zip(answers).map(|(options, answer)| {
            let place = place(options);
            format!("{place} {}", why(answer))
        });
        NoServer(each.collect::<Vec<_>>().join(", "))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ServersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// By hand: the driver's options print the password.
impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.options.iter().map(place).collect();
        f.debug_struct("Several")
            .field("places", &places)
            .field("target", &self.target)
            .field("state", &*self.state())
            .finish_non_exhaustive()
    }
}

async fn ask(options: &PgConnectOptions, target: Target) -> Result<Answer, sqlx::Error> {
    let mut conn = options.connect().await?;
    let answer = target.ask(&mut conn).await?;
    // It has responded: closing may fail.
    let _ = conn.close().await;
    Ok(answer)
}

/// The newest history counts, then where the pool is already, then the order of the URL.
fn choose(answers: &[Option<Result<Answer, sqlx::Error>>], at: usize, newest: Timeline) -> Option<usize> {
    // A server that a promotion left behind is refused: the others would not have what it commits.
    let fit = answers.iter().enumerate().filter_map(|(n, answer)| match answer {
        Some(Ok(Answer::Fit(timeline))) if !timeline.is_behind(newest) => Some((*timeline, n)),
        _ => None,
    });
    fit.max_by_key(|&(timeline, n)| (timeline, n == at, std::cmp::Reverse(n))).map(|(_, n)| n)
}

fn left_behind(timeline: Timeline, newest: Timeline) -> String {
    format!("is on timeline {timeline}, though {newest} has begun: it was left behind by a promotion")
}

/// No server will do; why, for each.
#[derive(Clone, Debug, Default)]
struct NoServer(String);

impl From<NoServer> for sqlx::Error {
    fn from(NoServer(why): NoServer) -> Self {
        sqlx::Error::Io(io::Error::new(
            io::ErrorKind::NotConnected,
            format!("no server can be written to: {why}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(timeline: i64) -> Option<Result<Answer, sqlx::Error>> {
        Some(Ok(Answer::Fit(Timeline::numbered(timeline))))
    }

    fn chosen(answers: &[Option<Result<Answer, sqlx::Error>>], at: usize, newest: i64) -> Option<usize> {
        choose(answers, at, Timeline::numbered(newest))
    }

    #[test]
    fn the_newest_history_counts_then_where_we_are_then_the_order() {
        let standby = || Some(Ok(Answer::Unfit("is a standby")));
        assert_eq!(chosen(&[standby(), fit(1)], 0, 1), Some(1));
        assert_eq!(chosen(&[fit(1), fit(2)], 0, 2), Some(1), "the old primary is back");
        assert_eq!(
            chosen(&[fit(1), standby(), None], 2, 2),
            None,
            "rather none than one that was left behind"
        );
        assert_eq!(chosen(&[fit(1), fit(1)], 1, 1), Some(1));
        assert_eq!(chosen(&[None, fit(0), fit(0)], 0, 0), Some(1));
        assert_eq!(chosen(&[Some(Err(sqlx::Error::PoolTimedOut)), None], 0, 0), None);
    }

    #[test]
    fn what_is_printed_has_no_password() {
        let options = PgConnectOptions::new_without_pgpass().host("one").port(1).password("secret");
        let several = Several {
            options: vec![options],
            target: Target::ReadWrite,
            state: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            refused: Notify::new(),
        };
        let printed = format!("{several:?}");
        assert!(printed.contains("one:1") && !printed.contains("secret"), "{printed}");
        let error = sqlx::Error::from(several.not_found(&[None], Timeline::UNKNOWN)).to_string();
        assert!(error.contains("one:1 does not answer") && !error.contains("secret"), "{error}");
    }
}
