//! Handlers and relays of the gateway: each message goes to an endpoint or a command, outside of any transaction.

mod command;
mod delivery_info;
mod endpoint;

use std::sync::Arc;

use anyhow::Result;
use oncebox::{
    Envelope, HandlerState, HttpSink, Inbox, InboxBuilder, KeyReuse, LogStore, Outbox, OutboxStore, Relay,
    Retention, Sink, WorkReport,
};

use crate::broker::Brokers;
use crate::config::{Config, Destination, HandlerConfig, RelayConfig, RelayDestination};
use crate::deliver::command::CommandRunner;
use crate::deliver::delivery_info::DeliveryInfo;
use crate::deliver::endpoint::{deliver, endpoint};
use crate::exit::Usage;
use crate::store::{Opened, with_store};

/// The inbox of a configuration, with or without its handlers and relays.
pub(crate) async fn inbox<S: OutboxStore>(
    store: S,
    config: &Config,
    with_handlers: bool,
) -> Result<Inbox<S>> {
    let mut builder = Inbox::builder(store.clone())
        .stored()
        // A second body under a known key is a mistake of the sender, which a duplicate's 200 would hide.
        .key_reuse(KeyReuse::Reject)
        .notify(config.notify);
    // Unset options keep the defaults of the library.
    if let Some(bytes) = config.http.max_body_bytes {
        builder = builder.max_body_bytes(bytes);
    }
    if let Some(period) = config.keep_markers {
        builder = builder.retention(Retention::new().period(period));
    }
    if let Some(time) = config.keep_messages {
        builder = builder.keep_messages(time);
    }
    if let Some(lanes) = config.lanes {
        builder = builder.lanes(lanes);
    }
    if let Some(workers) = config.workers {
        builder = builder.workers(workers);
    }
    if with_handlers {
        // Services publish in SQL, in their own transactions. This program moves their messages to its handlers, and its relays
        // send them.
        let mut outbox = Outbox::builder(store);
        if let Some(lanes) = config.lanes {
            outbox = outbox.lanes(lanes);
        }
        let brokers = Brokers::new(&config.brokers)?;
        for relay in &config.relays {
            outbox = outbox.relay(match &relay.to {
                RelayDestination::Endpoint(to) => relay_of(relay, HttpSink::from(endpoint(to)?)),
                RelayDestination::Exchange(to) => relay_of(relay, brokers.sink(to)?),
            });
        }
        builder = builder.outbox(&outbox.build().await?);
        for handler in &config.handlers {
            builder = register(builder, handler)?;
        }
    }
    Ok(builder.build().await?)
}

/// Runs the handlers and relays until `stop` resolves, or with `once` until no message is due. Returns `None` if that was interrupted.
pub(crate) async fn work(
    opened: Opened,
    config: &Config,
    once: bool,
    stop: impl Future<Output = ()> + Send,
) -> Result<Option<WorkReport>> {
    check_removed(&opened, config).await?;
    with_store!(opened, store => {
        let inbox = inbox(store, config, true).await?;
        let report = if once {
            tokio::select! {
                report = inbox.work_until_idle() => report?,
                // Dropping the work in progress is safe: its messages are delivered again.
                () = stop => return Ok(None),
            }
        } else {
            inbox.run(stop).await?
        };
        inbox.close().await;
        Ok(Some(report))
    })
}

/// Refuses handlers and relays that an operator has removed, unless `revive` is set. The engine refuses them too, but its error is
/// for Rust programs.
pub(crate) async fn check_removed(opened: &Opened, config: &Config) -> Result<()> {
    let handlers = config.handlers.iter().map(|handler| ("handler", &handler.name, handler.revive));
    let relays = config.relays.iter().map(|relay| ("relay", &relay.name, relay.revive));
    let configured: Vec<_> = handlers.chain(relays).filter(|(.., revive)| !revive).collect();
    for status in opened.operators().await?.handler_statuses().await? {
        let known = status.handler;
        if known.state == HandlerState::Removed
            && let Some((what, name, _)) = configured.iter().find(|(_, name, _)| **name == known.name)
        {
            let file = config.file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default();
            return Err(Usage(format!(
                "{file}an operator has removed the {what} {name}: rename [{what}s.{name}], or set revive = true there to start \
                 it again"
            ))
            .into());
        }
    }
    Ok(())
}

/// The relay of a configuration.
fn relay_of(config: &RelayConfig, sink: impl Sink) -> Relay {
    let mut relay =
        Relay::new(&config.name, sink).retry(config.retry).start(config.start).in_flight(config.in_flight);
    // Unset options keep the defaults of the library.
    if let Some(kinds) = &config.kinds {
        relay = relay.kinds(kinds);
    }
    if let Some(tasks) = config.max_open_tasks {
        relay = relay.max_open_tasks(tasks);
    }
    if let Some(time) = config.keep_sent {
        relay = relay.keep_sent(time);
    }
    relay = match config.ordered {
        Some(policy) => relay.dead_head(policy),
        None => relay.unordered(),
    };
    if config.revive { relay.revive() } else { relay }
}

/// Registers a handler of the configuration.
fn register<S: LogStore>(builder: InboxBuilder<S>, handler: &HandlerConfig) -> Result<InboxBuilder<S>> {
    let config = handler.clone();
    let options = move |options: oncebox::HandlerOptions<Envelope>| {
        // An effect in a service is outside of any transaction, and cannot crash this process.
        let mut options = options.detached().out_of_process().retry(config.retry).start(config.start);
        // Unset options keep the defaults of the library.
        if let Some(timeout) = config.timeout {
            options = options.timeout(timeout);
        }
        if let Some(concurrency) = config.concurrency {
            options = options.concurrency(concurrency);
        }
        if let Some(tasks) = config.max_open_tasks {
            options = options.max_open_tasks(tasks);
        }
        if let Some(policy) = config.ordered {
            options = options.dead_head(policy);
        }
        if config.revive { options.revive() } else { options }
    };
    let (name, kinds) = (handler.name.clone(), handler.kinds.clone());
    Ok(match &handler.to {
        Destination::Endpoint(to) => {
            let endpoint = endpoint(to)?;
            let run = async move |envelope: Envelope, info: DeliveryInfo| {
                deliver(&endpoint, &envelope, &info).await
            };
            builder.on_raw_with(name, kinds, run, options)
        }
        Destination::Command { program, arguments, folder } => {
            let command = Arc::new(CommandRunner::new(program.clone(), arguments.clone(), folder.clone()));
            let run =
                async move |envelope: Envelope, info: DeliveryInfo| command.deliver(envelope, &info).await;
            builder.on_raw_with(name, kinds, run, options)
        }
    })
}
