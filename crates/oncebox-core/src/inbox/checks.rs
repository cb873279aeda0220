//! The checks of `build()`: names, states, settings, and whether they fit together.

use std::collections::HashSet;

use crate::handler::States;
use crate::inbox::InboxStore;
use crate::inbox::builder::{INLINE_SPARE, InboxSettings, SPARE_CONNECTIONS};
use crate::inbox::registered::Registered;
use crate::inbox::stored::StoredSettings;
use crate::{Error, Mode, name};

/// The settings of a builder, checked as a whole.
pub(super) struct Checks<'a, S: InboxStore> {
    pub(super) handlers: &'a [Registered<S>],
    pub(super) states: &'a States,
    pub(super) settings: &'a InboxSettings,
    pub(super) stored: &'a StoredSettings,
    pub(super) mode: Mode,
    pub(super) has_log: bool,
    pub(super) has_outbox: bool,
    pub(super) for_operators: bool,
    /// The number of connections that the store has.
    pub(super) capacity: usize,
}

impl<S: InboxStore> Checks<'_, S> {
    pub(super) fn all(&self) -> Result<(), Error> {
        self.check_handlers()?;
        self.check_settings()?;
        self.check_modes()?;
        self.check_max_in_flight()?;
        if self.has_log { self.check_stored() } else { Ok(()) }
    }

    fn check_max_in_flight(&self) -> Result<(), Error> {
        let capacity = self.capacity;
        // A store with one writer has no pool to exhaust, and one without a limit cannot run out of connections.
        if let Some(max) = self.settings.max_in_flight
            && capacity != usize::MAX
            && capacity > 1
            && max.saturating_add(INLINE_SPARE) > capacity
        {
            return Err(Error::configuration(format!(
                "max_in_flight({max}) needs a pool of {} connections, {INLINE_SPARE} of them for upkeep, and the pool has \
                 {capacity}: give it more, or set less",
                max.saturating_add(INLINE_SPARE)
            )));
        }
        Ok(())
    }

    /// Checks that the mode of the inbox has what each handler needs.
    fn check_modes(&self) -> Result<(), Error> {
        for handler in self.handlers {
            let name = &*handler.name;
            let problem = match (handler.handler.is_detached(), &handler.settings.detached) {
                (true, None) => {
                    "takes no connection, so it runs outside of any transaction: say so with .detached() in its options"
                }
                (false, Some(_)) => {
                    "is detached and takes a connection: it runs outside of any transaction, so leave the connection out"
                }
                (true, Some(_)) if !self.has_log => {
                    "is detached, and its messages wait in the log: call .mode(Mode::inline()) or .stored() on the builder"
                }
                (_, Some(detached)) if detached.concurrency == 0 || detached.open_tasks == 0 => {
                    "has concurrency or max_open_tasks 0: nothing would ever run"
                }
                (true, Some(detached)) if detached.at_most_once && handler.settings.ordered.is_some() => {
                    "is ordered and at_most_once: an at-most-once message counts as handled before it runs, so it cannot hold back \
                     the next one. Leave one of them out"
                }
                _ if (self.mode == Mode::Relay) != handler.relay.is_some() => {
                    "is a handler, and Mode::Relay is for the relays of an outbox: choose another mode"
                }
                (true, Some(_)) if !self.mode.allows_detached() => {
                    "is detached, and mixed is for handlers in a transaction: register it in the other mode under another name"
                }
                _ if handler.handler.publishes() && !self.has_outbox => {
                    "publishes messages, and the inbox has no outbox: call .outbox(&outbox) on the builder"
                }
                (_, Some(detached)) if handler.handler.publishes() && detached.at_most_once => {
                    "publishes messages and is at_most_once: it has no transaction after its run in which they could be written. \
                     Leave one of them out"
                }
                _ if handler.settings.ordered.is_some() && !self.mode.keeps_order() => {
                    "is ordered, which needs the log: inline deliveries arrive in any order. Call .stored() on the builder"
                }
                _ => continue,
            };
            return Err(Error::configuration(format!("the handler {name:?} {problem}")));
        }
        Ok(())
    }

    /// Checks the settings of an inbox with a log. In the log a message has one key for all its handlers.
    fn check_stored(&self) -> Result<(), Error> {
        for handler in self.handlers.iter().filter(|handler| handler.handler.selects_keys()) {
            // `accept` finds the key once, so the selector of one handler would decide for the others too.
            let shared =
                |kind: &String| self.handlers.iter().filter(|other| other.kinds.contains(kind)).count() > 1;
            if handler.kinds.iter().any(shared) {
                return Err(Error::configuration(format!(
                    "the handler {:?} has a key selector of its own, and shares its kind with others: in the log a message has \
                     one key for all of them. Use key_for(…) on the inbox",
                    &*handler.name
                )));
            }
        }
        if self.settings.dedup_off || self.handlers.iter().any(|handler| handler.settings.dedup_off) {
            return Err(Error::configuration(
                "without_dedup() is for inline inboxes: a stored one takes each key once. For messages without keys, set \
                 missing_key(MissingKey::RunWithoutDedup)",
            ));
        }
        if self.for_operators && !self.handlers.is_empty() {
            return Err(Error::configuration(
                "an inbox for operators has no handlers: leave them out, or leave for_operators() out",
            ));
        }
        if self.stored.lease.is_zero() {
            return Err(Error::configuration("lease is 0: set a time greater than 0"));
        }
        let stored = self.stored;
        stored.lanes.check()?;
        if stored.workers == Some(0) || stored.work_batch == 0 || !stored.retry.is_possible() {
            return Err(Error::configuration(
                "workers, work_batch or retry.max_attempts is 0: nothing would ever run",
            ));
        }
        if stored.poll_every.is_zero() || stored.batch_time.is_some_and(|time| time.is_zero()) {
            return Err(Error::configuration("poll_every or batch_time is 0: set a time greater than 0"));
        }
        let capacity = self.capacity;
        // Without a setting, the number of workers follows from the pool, so only one worker is required.
        let needed = stored.workers.unwrap_or(1).saturating_add(SPARE_CONNECTIONS);
        if capacity > 1 && needed > capacity {
            return Err(Error::configuration(format!(
                "workers({}) need a pool of {needed} connections, {SPARE_CONNECTIONS} of them for accepting, upkeep and \
                 look-ups, and the pool has {capacity}: give it more, or set less",
                needed - SPARE_CONNECTIONS
            )));
        }
        Ok(())
    }

    fn check_handlers(&self) -> Result<(), Error> {
        let mut names = HashSet::new();
        for handler in self.handlers {
            let handler_name = &*handler.name;
            name::check("handler name", handler_name)?;
            if !names.insert(handler_name) {
                return Err(Error::configuration(format!(
                    "two handlers are registered as {handler_name:?}: each needs a name of its own"
                )));
            }
            if handler.kinds.is_empty() {
                return Err(Error::configuration(if handler.takes_envelope {
                    format!(
                        "the handler {handler_name:?} takes an Envelope and names no kinds: register it with \
                         on_raw(name, [kinds], handler)"
                    )
                } else {
                    format!("the handler {handler_name:?} has no kind")
                }));
            }
            for kind in &handler.kinds {
                name::check("kind", kind)?;
            }
            if handler.settings.timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Err(Error::configuration(format!(
                    "the timeout of the handler {handler_name:?} is 0: set a time greater than 0"
                )));
            }
            if let Some(missing) = handler.requirements.iter().find(|one| !self.states.has(**one)) {
                return Err(Error::configuration(format!(
                    "the handler {handler_name:?} takes State<{0}>, but no such state was given: add .state(…) with a \
                     value of type {0}",
                    missing.name
                )));
            }
        }
        Ok(())
    }

    fn check_settings(&self) -> Result<(), Error> {
        let settings = self.settings;
        for (option, value) in [
            ("lock_timeout", settings.lock_timeout),
            ("handler_timeout", settings.handler_timeout),
            ("retention.period", settings.retention.period),
            ("retention.every", settings.retention.every),
        ] {
            if value.is_zero() {
                return Err(Error::configuration(format!("{option} is 0: set a time greater than 0")));
            }
        }
        if settings.max_batch == 0 || settings.max_in_flight == Some(0) {
            return Err(Error::configuration("max_batch or max_in_flight is 0: nothing would ever run"));
        }
        if settings.retention.batch == 0 {
            return Err(Error::configuration("retention.batch is 0: set at least 1"));
        }
        Ok(())
    }
}
