//! The options of the command line.

use std::time::Duration;

use clap::{Args, Parser, ValueEnum};

use crate::gateway;
use crate::measure::Pace;

/// How fast Oncebox is beside other inboxes and beside none.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) enum Command {
    /// Measure messages that are processed as they arrive
    Inline(Asked<InlineScenario>),
    /// Measure messages that are accepted now and worked through later
    Stored(Asked<StoredScenario>),
    /// Measure the outbox: publishing, moving to the log, and the way to a handler of the same database or to a sink
    Outbox(Asked<OutboxScenario>),
    /// Measure brokers: from a queue into an inbox, and from an outbox to an exchange
    Broker(BrokerOptions),
    /// Measure the program: messages that come over HTTP, or a great many for a slow receiver
    Gateway(gateway::GatewayOptions),
}

/// Which broker to measure.
#[derive(Args, Debug)]
pub(crate) struct BrokerOptions {
    #[command(flatten)]
    pub(crate) asked: Asked<BrokerScenario>,
    /// The broker
    #[arg(long, value_name = "NAME", default_value = "rabbitmq")]
    pub(crate) broker: BrokerName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokerName {
    Rabbitmq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokerScenario {
    /// From a queue to a handler's commit and the acknowledgement
    #[value(name = "broker-inline")]
    Inline,
    /// From a queue into the log, and the acknowledgement
    #[value(name = "broker-stored")]
    Stored,
    /// From the log to an exchange
    #[value(name = "broker-relay")]
    Relay,
    /// A million messages for a broker that was away, a hundred thousand with --quick; only if it is named
    #[value(name = "broker-outage")]
    Outage,
}

/// What to measure, and how.
#[derive(Args, Debug)]
pub(crate) struct Asked<S: ValueEnum + Send + Sync + 'static> {
    #[command(flatten)]
    pub(crate) options: MeasureOptions,
    /// Only this scenario; may be given several times
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<S>,
}

impl<S: ValueEnum + Copy + PartialEq + Send + Sync + 'static> Asked<S> {
    pub(crate) fn wants(&self, scenario: S) -> bool {
        self.scenarios.is_empty() || self.names(scenario)
    }

    /// Whether a scenario was asked for by its name.
    pub(crate) fn names(&self, scenario: S) -> bool {
        self.scenarios.contains(&scenario)
    }
}

/// How to measure.
#[derive(Args, Debug)]
pub(crate) struct MeasureOptions {
    /// Fewer and shorter rounds: all within a few minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Only on this database
    #[arg(long)]
    store: Option<StoreName>,
    /// Only with this number of callers, where a scenario has several; may be given several times
    #[arg(long = "callers", value_name = "N")]
    callers: Vec<usize>,
    /// How often each contender is measured: 5, or 3 with --quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreName {
    Postgres,
    Sqlite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InlineScenario {
    /// Each message once, from 1, 16, 64 and 256 callers
    #[value(name = "inline-fresh")]
    Fresh,
    /// Every second delivery is a copy
    #[value(name = "inline-half-duplicates")]
    HalfDuplicates,
    /// Only copies, read by an inbox that has not seen them
    #[value(name = "inline-duplicates")]
    Duplicates,
    /// Every handler updates one of 10 rows
    #[value(name = "inline-hot-rows")]
    HotRows,
    /// Two handlers update the same two rows in opposite order; of 20, 2 and 1,000 rows, on PostgreSQL
    #[value(name = "inline-deadlocks")]
    Deadlocks,
    /// 5 % of the handlers fail
    #[value(name = "inline-failing")]
    Failing,
    /// Handlers that take 20 ms
    #[value(name = "inline-slow")]
    Slow,
    /// How long a message takes at 30 % load
    #[value(name = "inline-latency")]
    Latency,
    /// How much the database writes to its log per message
    #[value(name = "inline-wal")]
    Wal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoredScenario {
    /// Accepting alone, from 64 and 256 callers
    #[value(name = "stored-accept")]
    Accept,
    /// Working through a backlog with a handler of single messages
    #[value(name = "stored-work")]
    Work,
    /// Working through a backlog with a handler of sets
    #[value(name = "stored-work-set")]
    WorkSet,
    /// Three handlers on the same backlog, and what they write to the database's log
    #[value(name = "stored-3-handlers")]
    ThreeHandlers,
    /// Accepting from 64 callers while workers run
    #[value(name = "stored-end-to-end")]
    EndToEnd,
    /// Working while another transaction holds an old snapshot
    #[value(name = "held-snapshot")]
    HeldSnapshot,
    /// Working through a million messages; a hundred thousand with --quick
    #[value(name = "backlog")]
    Backlog,
    /// What a message leaves in the database's log and on its disk
    #[value(name = "stored-disk")]
    Disk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutboxScenario {
    /// Business transactions that publish, and ones that do not
    #[value(name = "outbox-capture")]
    Capture,
    /// Moving messages to the log, also while another transaction holds an old snapshot
    #[value(name = "outbox-move")]
    Move,
    /// From business transactions to the handler of another module
    #[value(name = "outbox-local")]
    Local,
    /// From the outbox to a sink that confirms at once
    #[value(name = "outbox-relay")]
    Relay,
    /// The same while another transaction holds an old snapshot
    #[value(name = "outbox-relay-held")]
    RelayHeld,
    /// Publishing beside a million messages that no process moves, a hundred thousand with --quick; then moving and sending them
    #[value(name = "outbox-backlog")]
    Backlog,
}

impl MeasureOptions {
    pub(crate) fn wants_store(&self, store: StoreName) -> bool {
        self.store.is_none_or(|only| only == store)
    }

    pub(crate) fn wants_callers(&self, callers: usize) -> bool {
        self.callers.is_empty() || self.callers.contains(&callers)
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    pub(crate) fn pace(&self) -> Pace {
        let (warm_up, slice) = if self.quick { (80, 300) } else { (500, 2_000) };
        Pace::of(warm_up, slice)
    }

    /// For choosing among pools.
    pub(crate) fn short_pace(&self) -> Pace {
        let (warm_up, slice) = if self.quick { (50, 200) } else { (200, 800) };
        Pace::of(warm_up, slice)
    }

    /// The number of messages of which only copies arrive.
    pub(crate) fn known_messages(&self) -> u64 {
        if self.quick { 10_000 } else { 60_000 }
    }

    /// The number of messages that wait when workers begin.
    pub(crate) fn waiting_messages(&self) -> u64 {
        if self.quick { 16_000 } else { 100_000 }
    }

    /// The number of messages that wait when numbers of workers are tried.
    pub(crate) fn choosing_messages(&self) -> u64 {
        self.waiting_messages() / 2
    }

    /// The number of messages of a large backlog.
    pub(crate) fn large_backlog(&self) -> u64 {
        if self.quick { 100_000 } else { 1_000_000 }
    }

    /// The number of rounds with a large backlog: one, unless `--rounds` is set.
    pub(crate) fn large_rounds(&self) -> u32 {
        self.rounds.unwrap_or(1)
    }

    /// The longest that a contender may work on one backlog that slows it down.
    pub(crate) fn work_limit(&self) -> Duration {
        Duration::from_secs(if self.quick { 6 } else { 30 })
    }
}
