//! Handlers of the gateway: a message goes to an endpoint or a command, outside of any transaction.

mod address;
mod command;
mod endpoint;
mod told;

use std::sync::Arc;

use anyhow::Result;
use oncebox::{Envelope, InboxBuilder, LogStore};

use crate::config::{Handler, To};
pub(crate) use crate::deliver::address::is_public;
use crate::deliver::command::Command;
use crate::deliver::endpoint::Endpoint;
pub(crate) use crate::deliver::endpoint::objection;
use crate::deliver::told::Told;

/// Registers a handler of the configuration.
pub(crate) fn register<S: LogStore>(builder: InboxBuilder<S>, handler: &Handler) -> Result<InboxBuilder<S>> {
    let set = handler.clone();
    let options = move |options: oncebox::HandlerOptions<Envelope>| {
        let mut options =
            options.detached().out_of_process().timeout(set.timeout).retry(set.retry).start(set.start);
        options = options.concurrency(set.concurrency);
        if let Some(tasks) = set.max_open_tasks {
            options = options.max_open_tasks(tasks);
        }
        if let Some(policy) = set.ordered {
            options = options.dead_head(policy);
        }
        if set.revive { options.revive() } else { options }
    };
    let (name, kinds) = (handler.name.clone(), handler.kinds.clone());
    Ok(match &handler.to {
        To::Endpoint { url, headers, allow_private } => {
            let endpoint = Arc::new(Endpoint::new(url.clone(), headers.clone(), *allow_private)?);
            let run = async move |envelope: Envelope, told: Told| endpoint.deliver(envelope, &told).await;
            builder.on_raw_with(name, kinds, run, options)
        }
        To::Command { program, arguments, folder } => {
            let command = Arc::new(Command::new(program.clone(), arguments.clone(), folder.clone()));
            let run = async move |envelope: Envelope, told: Told| command.deliver(envelope, &told).await;
            builder.on_raw_with(name, kinds, run, options)
        }
    })
}

/// The beginning of a text that a service or a command has said: enough to know what is wrong.
fn beginning(text: &str) -> String {
    const CHARACTERS: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
