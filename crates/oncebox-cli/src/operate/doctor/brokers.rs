//! Checks of the brokers: each source and each relay connects, and looks for its queue or exchange.

use super::check::DoctorCheck;
use crate::broker::Brokers;
use crate::config::{Config, RelayDestination};
use crate::exit::error_text;

/// Checks all sources and relays that use a broker.
pub(super) async fn of_the_brokers(config: &Config) -> Vec<DoctorCheck> {
    let brokers = match Brokers::new(&config.brokers) {
        Ok(brokers) => brokers,
        Err(error) => {
            let fix = "correct [brokers] in the configuration";
            return vec![DoctorCheck::problem("brokers", error_text(&error), fix)];
        }
    };
    let mut checks = Vec::new();
    for source in &config.broker_sources {
        let name = &source.name;
        let checked = async { Ok(brokers.source(source)?.check().await?) };
        checks.push(match checked.await {
            Ok(warnings) if warnings.is_empty() => {
                DoctorCheck::ok("source", format!("{name} can consume the queue {}", source.queue))
            }
            Ok(warnings) => DoctorCheck::warning(
                "source",
                format!("{name}: {}", warnings.join("; ")),
                "change the queues as the text says, or set declare = \"create\" before they exist",
            ),
            Err(error) => unusable("source", name, &error),
        });
    }
    for relay in &config.relays {
        let RelayDestination::Exchange(to) = &relay.to else { continue };
        let checked = async { anyhow::Ok(brokers.sink(to)?.check().await?) };
        checks.push(match checked.await {
            Ok(()) => DoctorCheck::ok(
                "relay",
                format!("{} can publish to the exchange {:?} of {}", relay.name, to.exchange, to.broker),
            ),
            Err(error) => unusable("relay", &relay.name, &error),
        });
    }
    checks
}

fn unusable(id: &'static str, name: &str, error: &anyhow::Error) -> DoctorCheck {
    let fix = "correct [brokers] and the section of this name in the configuration, or start the broker";
    DoctorCheck::problem(id, format!("{name}: {}", error_text(error)), fix)
}
