//! The queues of a source: the queue itself, those of its retries, and the one of its dead messages.

use std::time::Duration;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use oncebox_core::Error;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::broker::Settings;
use crate::errors::{failed, is_not_found, is_refused, mismatch, no_response};
use crate::link::{Link, within};
use crate::source::{Declare, QueueOptions, QueueType};

/// The delays of the retry queues, and the ends of their names.
pub(crate) const DELAYS: [(Duration, &str); 4] = [
    (Duration::from_secs(1), "1s"),
    (Duration::from_secs(10), "10s"),
    (Duration::from_secs(60), "1m"),
    (Duration::from_secs(600), "10m"),
];

/// How a message is delivered again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retries {
    /// By a queue for each delay.
    Queues,
    /// By giving the message back to its queue, after a wait in this process.
    Requeue,
}

/// What was found, or declared.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) retries: Retries,
    pub(crate) warnings: Vec<String>,
}

/// The name of the queue for dead messages.
pub(crate) fn dead_queue(queue: &str) -> String {
    format!("{queue}.dead")
}

/// The name of a queue for retries.
pub(crate) fn retry_queue(queue: &str, end: &str) -> String {
    format!("{queue}.retry.{end}")
}

/// Declares or checks the queues of a source.
pub(crate) async fn prepare(
    link: &Link,
    settings: &Settings,
    options: &QueueOptions,
) -> Result<Found, Error> {
    let topology = Topology { link, settings, options };
    match options.declare {
        Declare::Create => topology.create().await?,
        Declare::Check => {}
        Declare::Nothing => return Ok(Found { retries: Retries::Queues, warnings: options.warnings() }),
    }
    let mut found = topology.check().await?;
    found.warnings.extend(options.warnings());
    Ok(found)
}

/// Checks that an exchange exists.
pub(crate) async fn check_exchange(
    link: &Link,
    settings: &Settings,
    doing: &str,
    exchange: &str,
) -> Result<(), Error> {
    let channel = link.channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    // A passive declaration ignores the type.
    let asking =
        channel.exchange_declare(short(exchange)?, ExchangeKind::Fanout, options, FieldTable::default());
    within(settings, doing, asking).await
}

struct Topology<'a> {
    link: &'a Link,
    settings: &'a Settings,
    options: &'a QueueOptions,
}

/// A setting of a queue.
type Argument = (&'static str, Value);

impl Topology<'_> {
    async fn create(&self) -> Result<(), Error> {
        let queue = &self.options.queue;
        self.declare(&dead_queue(queue), &self.own_type()).await?;
        for (delay, end) in DELAYS {
            self.declare(&retry_queue(queue, end), &self.retry_arguments(delay)).await?;
        }
        self.declare(queue, &self.arguments()).await
    }

    async fn check(&self) -> Result<Found, Error> {
        let queue = &self.options.queue;
        if !self.exists(queue).await? {
            return Err(Error::configuration(format!(
                "the queue {queue:?} does not exist in the virtual host {:?} of {}: create it, or let the source do that with \
                 `declare` = create",
                self.settings.address.vhost(),
                self.settings.address
            )));
        }
        if let Some(exchange) = &self.options.fault_exchange {
            let doing = format!("checking the fault exchange {exchange:?}");
            check_exchange(self.link, self.settings, &doing, exchange).await?;
        }
        let mut warnings = Vec::new();
        if self.options.declare == Declare::Check {
            warnings.extend(self.difference(queue, &self.arguments()).await?);
        }
        if !self.exists(&dead_queue(queue)).await? {
            warnings.push(format!(
                "the queue {:?} does not exist: rejected messages stay in the queue {queue:?} and are tried again. Create it \
                 with the type {}",
                dead_queue(queue),
                self.options.queue_type.name()
            ));
        }
        let mut missing = Vec::new();
        for (_, end) in DELAYS {
            let name = retry_queue(queue, end);
            if !self.exists(&name).await? {
                missing.push(name);
            }
        }
        let retries = if missing.is_empty() { Retries::Queues } else { Retries::Requeue };
        if !missing.is_empty() && missing.len() < DELAYS.len() {
            let missing = missing.join(", ");
            warnings.push(format!(
                "some queues for retries do not exist: {missing}. Without them failed messages wait in this process, and \
                 occupy its prefetch"
            ));
        }
        Ok(Found { retries, warnings })
    }

    fn own_type(&self) -> Vec<Argument> {
        vec![("x-queue-type", self.options.queue_type.name().into())]
    }

    /// The arguments of the queue itself.
    fn arguments(&self) -> Vec<Argument> {
        let mut arguments = self.dead_lettering(&dead_queue(&self.options.queue));
        if self.options.is_single_active {
            arguments.push(("x-single-active-consumer", true.into()));
        }
        arguments
    }

    fn retry_arguments(&self, delay: Duration) -> Vec<Argument> {
        let mut arguments = self.dead_lettering(&self.options.queue);
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        arguments.push(("x-message-ttl", delay.into()));
        arguments
    }

    /// Arguments by which the broker moves messages to another queue.
    fn dead_lettering(&self, to: &str) -> Vec<Argument> {
        let mut arguments = self.own_type();
        arguments.push(("x-dead-letter-exchange", "".into()));
        arguments.push(("x-dead-letter-routing-key", to.into()));
        if self.options.queue_type == QueueType::Quorum {
            // Without the first the broker may lose a message while it moves it; the first does nothing without the second.
            arguments.push(("x-dead-letter-strategy", "at-least-once".into()));
            arguments.push(("x-overflow", "reject-publish".into()));
        }
        arguments
    }

    /// Declares a queue. An existing one must have the same arguments.
    async fn declare(&self, queue: &str, arguments: &[Argument]) -> Result<(), Error> {
        let doing = format!("declaring the queue {queue:?}");
        match self.ask(&doing, queue, false, table(arguments)).await? {
            Ok(()) => Ok(()),
            Err(error) => Err(match mismatch(&error) {
                Some(text) => Error::configuration(self.differs(queue, arguments, text)).with_source(error),
                None => failed(self.settings, &doing, error),
            }),
        }
    }

    async fn exists(&self, queue: &str) -> Result<bool, Error> {
        let doing = format!("checking the queue {queue:?}");
        match self.ask(&doing, queue, true, FieldTable::default()).await? {
            Ok(()) => Ok(true),
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(failed(self.settings, &doing, error)),
        }
    }

    /// How an existing queue differs from the arguments that a source declares. A policy may make up for it, which no client can see.
    async fn difference(&self, queue: &str, arguments: &[Argument]) -> Result<Option<String>, Error> {
        let doing = format!("comparing the queue {queue:?}");
        match self.ask(&doing, queue, false, table(arguments)).await? {
            Ok(()) => Ok(None),
            Err(error) => match mismatch(&error) {
                Some(text) => Ok(Some(self.differs(queue, arguments, text))),
                // Only a user who may configure the queue can compare it.
                None if is_refused(&error) => Ok(None),
                None => Err(failed(self.settings, &doing, error)),
            },
        }
    }

    fn differs(&self, queue: &str, arguments: &[Argument], text: &str) -> String {
        let vhost = self.settings.address.vhost();
        let found = match self.options.declare {
            Declare::Create => "cannot be created: it exists with other arguments",
            _ => "has other arguments than recommended",
        };
        if text.contains("x-queue-type") {
            return format!(
                "the queue {queue:?} {found} ({text}). Its type cannot be changed: set `queue_type`, or delete the queue and \
                 create it again"
            );
        }
        if text.contains("x-single-active-consumer") {
            return format!(
                "the queue {queue:?} {found} ({text}). Whether it has a single active consumer cannot be changed: set or remove \
                 `single_active_consumer`, or delete the queue and create it again"
            );
        }
        let policy: Map<String, Value> = arguments
            .iter()
            .filter(|(name, _)| *name != "x-queue-type")
            .map(|(name, value)| (name.trim_start_matches("x-").to_owned(), value.clone()))
            .collect();
        let pattern = queue.replace('.', "\\.");
        format!(
            "the queue {queue:?} {found} ({text}). Unless a policy of yours does the same, run: rabbitmqctl set_policy -p \
             {vhost} 'oncebox-{queue}' '^{pattern}$' '{}' --apply-to queues; and set `declare` = check",
            Value::Object(policy)
        )
    }

    /// Declares a queue on a channel of its own, because an error closes the channel.
    async fn ask(
        &self,
        doing: &str,
        queue: &str,
        is_passive: bool,
        arguments: FieldTable,
    ) -> Result<Result<(), lapin::Error>, Error> {
        let channel = self.link.channel().await?;
        let options =
            QueueDeclareOptions { passive: is_passive, durable: true, ..QueueDeclareOptions::default() };
        let asking = channel.queue_declare(short(queue)?, options, arguments);
        let limit = self.settings.timeout;
        let answer = timeout(limit, asking).await.map_err(|_| no_response(self.settings, doing, limit))?;
        if answer.is_ok() {
            // Not waited for: the channel is unused.
            drop(channel);
        }
        Ok(answer.map(|_| ()))
    }
}

/// The name of a queue or an exchange in the protocol.
pub(crate) fn short(name: &str) -> Result<ShortString, Error> {
    ShortString::try_new(name).map_err(|_| {
        Error::configuration(format!(
            "the name {name:?} has {} bytes: names of queues and exchanges have at most 255",
            name.len()
        ))
    })
}

fn table(arguments: &[Argument]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Value::Number(number) => AMQPValue::LongLongInt(number.as_i64().unwrap_or(i64::MAX)),
            Value::Bool(value) => AMQPValue::Boolean(*value),
            other => AMQPValue::LongString(other.as_str().unwrap_or_default().into()),
        };
        table.insert((*name).into(), value);
    }
    table
}

/// The delay of an attempt that failed: the shortest one that is not shorter than the wish. Without a wish, it grows with the attempts.
pub(crate) fn delay(wish: Option<Duration>, attempt: u32) -> (Duration, &'static str) {
    let last = DELAYS[DELAYS.len() - 1];
    match wish {
        Some(wish) => DELAYS.into_iter().find(|(delay, _)| *delay >= wish).unwrap_or(last),
        None => {
            let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
            DELAYS.get(index).copied().unwrap_or(last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_not_shorter_than_the_wish() {
        for (wish, attempt, end) in [
            (Some(0), 1, "1s"),
            (Some(1000), 9, "1s"),
            (Some(1001), 1, "10s"),
            (Some(60_000), 1, "1m"),
            (Some(60_001), 1, "10m"),
            (Some(u64::MAX), 1, "10m"),
            (None, 1, "1s"),
            (None, 2, "10s"),
            (None, 4, "10m"),
            (None, u32::MAX, "10m"),
        ] {
            assert_eq!(delay(wish.map(Duration::from_millis), attempt).1, end, "{wish:?}, attempt {attempt}");
        }
    }
}
