//! The configuration: read, checked, and completed with the program's defaults.

pub(crate) mod check;
mod check_broker;
mod check_relay;
mod file;
mod text;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use oncebox::source::SourceRules;
use oncebox::{DeadHead, Retention, Retry, Start};
use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::cli::CommonArgs;
use crate::config::check::{
    SOURCE_NAME_RULE, check_handler, check_http, check_program, check_source, is_source_name,
};
use crate::config::check_broker::{check_broker, check_broker_source};
use crate::config::check_relay::check_relay;
use crate::config::text::ConfigText;
use crate::exit::Usage;
use crate::store::{DEFAULT_URL, DatabaseTarget, IN_MEMORY};
use crate::times::rough;

/// The file that is read if it exists and no other one is named.
pub(crate) const DEFAULT_FILE: &str = "oncebox.toml";

/// The checked configuration. `None` means the library's default.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
    pub(crate) target: DatabaseTarget,
    /// Whether `serve` creates and upgrades the tables.
    pub(crate) migrate: bool,
    pub(crate) lanes: Option<u16>,
    pub(crate) workers: Option<usize>,
    /// Whether workers of other processes are notified immediately, on PostgreSQL.
    pub(crate) notify: bool,
    pub(crate) http: HttpConfig,
    /// How long duplicates are recognised.
    pub(crate) keep_markers: Option<Duration>,
    /// How long a message is kept after all its handlers have passed it.
    pub(crate) keep_messages: Option<Duration>,
    pub(crate) brokers: BTreeMap<String, BrokerConfig>,
    pub(crate) sources: Sources,
    /// The sources that brokers deliver.
    pub(crate) broker_sources: Vec<BrokerSourceConfig>,
    pub(crate) handlers: Vec<HandlerConfig>,
    pub(crate) relays: Vec<RelayConfig>,
    /// The maximum time after which a source redelivers a message, if it is configured.
    pub(crate) redelivery: Option<Duration>,
    /// The error for a handler's command that does not exist. Only commands that run handlers report it.
    missing_program: Option<Usage>,
}

/// The error text for an address that other machines can reach, without a token.
pub(crate) fn exposed(listen: SocketAddr) -> String {
    format!(
        "{listen} is reachable from other machines, but no token is configured: set one, for example\n\n    [http]\n    \
         token = \"${{ONCEBOX_TOKEN}}\"\n\nor listen on 127.0.0.1"
    )
}

/// The gateway's HTTP settings.
#[derive(Debug)]
pub(crate) struct HttpConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) token: Option<String>,
    pub(crate) max_body_bytes: Option<usize>,
    /// The error for an address in the file that needs a token. The command line may name another address.
    pub(crate) exposed: Option<Usage>,
}

/// The sources of messages.
#[derive(Debug)]
pub(crate) struct Sources {
    known: BTreeMap<String, SourceRules>,
    /// Whether every valid name is a source, because none is configured.
    open: bool,
}

impl Sources {
    /// The source of that name.
    pub(crate) fn find(&self, name: &str) -> Option<SourceRules> {
        let unknown = || (self.open && is_source_name(name)).then(|| SourceRules::new(name));
        self.known.get(name).cloned().or_else(unknown)
    }

    /// The error text for a name that is no source.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let names = self.names();
        match names.is_empty() {
            true => format!("invalid source name {name:?}: {SOURCE_NAME_RULE}"),
            false => format!("unknown source {name:?}: the configured sources are {}", names.join(", ")),
        }
    }

    /// The configured names.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.known.keys().map(String::as_str).collect()
    }
}

/// A configured handler.
#[derive(Clone, Debug)]
pub(crate) struct HandlerConfig {
    pub(crate) name: String,
    pub(crate) kinds: Vec<String>,
    pub(crate) to: Destination,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) max_open_tasks: Option<u32>,
    pub(crate) ordered: Option<DeadHead>,
    pub(crate) start: Start,
    pub(crate) revive: bool,
    pub(crate) retry: Retry,
}

/// The destination of a handler's messages.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// An HTTP endpoint.
    Endpoint(EndpointConfig),
    /// A command's standard input.
    Command { program: String, arguments: Vec<String>, folder: Option<PathBuf> },
}

/// An HTTP endpoint.
#[derive(Clone, Debug)]
pub(crate) struct EndpointConfig {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Whether the address may be on this machine or in a private network.
    pub(crate) allow_private: bool,
}

/// A broker.
#[derive(Clone, Debug)]
pub(crate) struct BrokerConfig {
    pub(crate) name: String,
    pub(crate) url: SecretUrl,
    pub(crate) tls: TlsFiles,
    pub(crate) allow_plaintext: bool,
}

/// A URL that may hold a password.
#[derive(Clone)]
pub(crate) struct SecretUrl(pub(crate) String);

impl std::fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Files in PEM format: certificates to trust, and this program's own.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// A source that a broker delivers.
#[derive(Clone, Debug)]
pub(crate) struct BrokerSourceConfig {
    pub(crate) name: String,
    pub(crate) broker: String,
    pub(crate) queue: String,
    pub(crate) prefetch: Option<usize>,
    pub(crate) declare: DeclareTopology,
    /// The exchange for fault messages.
    pub(crate) fault: Option<String>,
    pub(crate) rules: SourceRules,
}

/// Whether queues are checked or created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeclareTopology {
    Check,
    Create,
    Nothing,
}

/// The destination of a relay.
#[derive(Clone, Debug)]
pub(crate) enum RelayDestination {
    Endpoint(EndpointConfig),
    Exchange(ExchangeConfig),
}

/// An exchange of a broker.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeConfig {
    pub(crate) broker: String,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
}

/// A configured relay.
#[derive(Clone, Debug)]
pub(crate) struct RelayConfig {
    pub(crate) name: String,
    pub(crate) to: RelayDestination,
    pub(crate) kinds: Option<Vec<String>>,
    pub(crate) ordered: Option<DeadHead>,
    pub(crate) in_flight: usize,
    pub(crate) max_open_tasks: Option<u32>,
    pub(crate) keep_sent: Option<Duration>,
    pub(crate) start: Start,
    pub(crate) revive: bool,
    pub(crate) retry: Retry,
}

impl Config {
    /// Whether there is anything that delivers messages: a handler or a relay.
    pub(crate) fn delivers(&self) -> bool {
        !self.handlers.is_empty() || !self.relays.is_empty()
    }

    /// Reads the file; options of the command line win.
    pub(crate) fn load(common: &CommonArgs) -> Result<Self> {
        let path = match &common.config {
            Some(path) => Some(path.clone()),
            None => Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()),
        };
        let mut config = match path {
            None => Self::check(file::ConfigFile::default(), &ConfigText::new(Path::new(DEFAULT_FILE), ""))?,
            Some(path) => {
                let read = std::fs::read_to_string(&path);
                let content = read.map_err(|error| {
                    Usage(format!(
                        "cannot read the configuration {}: {error}: check --config",
                        path.display()
                    ))
                })?;
                Self { file: Some(path.clone()), ..Self::parse(&path, &content)? }
            }
        };
        if let Some(url) = &common.store {
            // Without the schema of the file, which belongs to the database of the file.
            config.target = DatabaseTarget { url: url.clone(), schema: None };
        }
        if common.schema.is_some() {
            config.target.schema.clone_from(&common.schema);
        }
        Ok(config)
    }

    pub(crate) fn parse(path: &Path, content: &str) -> Result<Self, Usage> {
        let text = ConfigText::new(path, content);
        let file: file::ConfigFile = toml::from_str(content).map_err(|error| text.parse_error(&error))?;
        Self::check(file, &text)
    }

    /// Checks that the commands of all handlers exist.
    pub(crate) fn check_programs(&mut self) -> Result<(), Usage> {
        self.missing_program.take().map_or(Ok(()), Err)
    }

    fn check(file: file::ConfigFile, text: &ConfigText<'_>) -> Result<Self, Usage> {
        let target = DatabaseTarget {
            url: file
                .store
                .url
                .as_ref()
                .map(|url| text.expand(url))
                .transpose()?
                .unwrap_or(DEFAULT_URL.to_owned()),
            schema: file.store.schema.as_ref().map(|schema| schema.get_ref().clone()),
        };
        // Opening the database checks this too, but only the error here can name the line of the file.
        if let Some(url) = &file.store.url
            && !target.is_sqlite()
            && !target.is_postgres()
        {
            return Err(text.at(url, &target.invalid_url()));
        }
        if let Some(url) = &file.store.url
            && target.is_in_memory()
        {
            return Err(text.at(url, IN_MEMORY));
        }
        if let Some(schema) = &file.store.schema
            && target.is_sqlite()
        {
            return Err(
                text.at(schema, "schema applies to PostgreSQL only: on SQLite use one file per inbox")
            );
        }
        if let Some(lanes) = &file.store.lanes
            && *lanes.get_ref() == 0
        {
            return Err(text.at(lanes, "lanes is 0: set 1 or more, or remove it for the default"));
        }
        if let Some(workers) = &file.store.workers
            && *workers.get_ref() == 0
        {
            return Err(text.at(workers, "workers is 0: set 1 or more, or remove it for the default"));
        }
        let redelivery = file.sources.values().filter_map(|source| source.redelivers_for.as_ref());
        let redelivery = redelivery.max_by_key(|time| time.get_ref().0);
        let keep_markers = file.retention.markers.map(|time| time.0);
        // A duplicate that arrives after its marker was deleted would take effect again.
        let kept = keep_markers.unwrap_or(Retention::DEFAULT_PERIOD);
        if let Some(redelivery) = redelivery
            && kept < redelivery.get_ref().0
        {
            let problem = format!(
                "the source redelivers for {}, but duplicates are recognised for {} only: set retention.markers to more",
                rough(redelivery.get_ref().0),
                rough(kept)
            );
            return Err(text.at(redelivery, &problem));
        }
        let redelivery = redelivery.map(|time| time.get_ref().0);
        // As soon as one source is configured, a misspelt name must be an error.
        let open = file.sources.is_empty();
        let brokers = file.brokers.iter().map(|(name, broker)| check_broker(name, broker, text));
        let brokers = brokers.collect::<Result<BTreeMap<_, _>, _>>()?;
        let (mut http_sources, mut broker_sources) = (BTreeMap::new(), Vec::new());
        for (name, source) in &file.sources {
            let rules = check_source(name, source, text)?;
            match check_broker_source(name, source, &rules, &file.brokers, text)? {
                Some(delivered) => broker_sources.push(delivered),
                None => _ = http_sources.insert(rules.name.clone(), rules),
            }
        }
        let handlers = file.handlers.iter().map(|(name, handler)| check_handler(name, handler, text));
        let relays = file.relays.iter().map(|(name, relay)| {
            // Operators name both in the same way.
            match file.handlers.keys().any(|handler| handler.get_ref() == name.get_ref()) {
                true => Err(text.at(
                    name,
                    &format!("a handler and a relay are both named {:?}: rename one of them", name.get_ref()),
                )),
                false => check_relay(name, relay, &file.brokers, text),
            }
        });
        // Only remembered: `status` must work on a machine without the programs.
        let missing_program = file.handlers.values().find_map(|handler| check_program(handler, text).err());
        Ok(Self {
            file: None,
            target,
            migrate: file.store.migrate,
            lanes: file.store.lanes.map(toml::Spanned::into_inner),
            workers: file.store.workers.map(toml::Spanned::into_inner),
            notify: file.store.notify,
            http: check_http(&file.http, text)?,
            keep_markers,
            keep_messages: file.retention.messages.map(|time| time.0),
            brokers,
            sources: Sources { known: http_sources, open },
            broker_sources,
            handlers: handlers.collect::<Result<_, _>>()?,
            relays: relays.collect::<Result<_, _>>()?,
            redelivery,
            missing_program,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(content: &str) -> Result<Config, Usage> {
        Config::parse(Path::new("oncebox.toml"), content)
    }

    fn refused(content: &str) -> String {
        parse(content).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_configuration_is_valid() {
        let config = parse("").unwrap();
        assert_eq!(config.target.url, DEFAULT_URL);
        assert_eq!(config.http.listen.to_string(), "127.0.0.1:8080");
        assert!(config.sources.find("anything").is_some() && config.handlers.is_empty());
        assert!(config.sources.find("no/name").is_none() && config.sources.find("").is_none());
    }

    #[test]
    fn every_key_is_read() {
        let config = parse(
            r#"
            [store]
            url = "postgres://ann@127.0.0.1/shop"
            schema = "inbox"
            migrate = false
            lanes = 4
            workers = 2
            notify = true
            [http]
            listen = "0.0.0.0:80"
            token = "0123456789abcdef"
            max_body_bytes = 10
            [retention]
            markers = "30d"
            messages = "2d"
            [brokers.main]
            url = "amqps://svc:secret@mq.example.com:5671/%2f"
            tls = { ca = "ca.pem", cert = "me.pem", key = "me.key" }
            [brokers.remote]
            url = "amqp://mq.example.com"
            allow_plaintext = true
            [sources.orders]
            type = "rabbitmq"
            broker = "main"
            queue = "orders.in"
            prefetch = 50
            declare = "create"
            key_header = "x-event-id"
            fault = "oncebox.fault"
            [sources.shop]
            kind = "order.paid"
            key_pointer = "/id"
            kind_header = "x-event"
            order_pointer = "/customer"
            redelivers_for = "3d"
            [handlers.receipts]
            kinds = ["order.paid", "order.refunded"]
            url = "https://example.com/hook"
            headers = { authorization = "Bearer x" }
            timeout = "5s"
            concurrency = 4
            max_open_tasks = 10
            ordered = true
            dead_head = "skip"
            start = "now"
            retry = { max_attempts = 3, first_delay = "100ms", max_delay = "1m" }
            [handlers.archive]
            kinds = ["order.paid"]
            command = ["cat", "-"]
            folder = "/"
            [relays.billing]
            url = "http://127.0.0.1:9000/in/orders"
            headers = { authorization = "Bearer y" }
            allow_private = true
            kinds = ["order.*", "note"]
            ordered = true
            dead_head = "skip"
            in_flight = 8
            max_open_tasks = 5
            keep_sent = "1h"
            start = "now"
            revive = true
            retry = { max_attempts = 3, first_delay = "2s", max_delay = "1m" }
            [relays.everything]
            url = "https://example.com/events"
            [relays.events]
            broker = "main"
            exchange = "events"
            routing_key = "shop.{kind}"
            [relays.queue]
            broker = "remote"
            exchange = ""
            "#,
        )
        .unwrap();
        assert_eq!(config.target.schema.as_deref(), Some("inbox"));
        assert!(!config.migrate && config.notify && config.http.token.is_some());
        assert_eq!(config.redelivery, Some(Duration::from_secs(3 * 86400)));
        assert!(config.sources.find("shop").is_some() && config.sources.find("other").is_none());
        let receipts = config.handlers.iter().find(|handler| handler.name == "receipts").unwrap();
        assert_eq!(receipts.ordered, Some(DeadHead::Skip));
        assert_eq!(receipts.retry.delays(), (Duration::from_millis(100), Duration::from_secs(60)));
        assert!(matches!(&receipts.to, Destination::Endpoint(to) if !to.allow_private));
        let [billing, events, everything, queue] = &config.relays[..] else { panic!("{:?}", config.relays) };
        let exchange = |relay: &RelayConfig| match &relay.to {
            RelayDestination::Exchange(to) => {
                (to.broker.clone(), to.exchange.clone(), to.routing_key.clone())
            }
            RelayDestination::Endpoint(to) => panic!("{to:?}"),
        };
        assert_eq!(exchange(events), ("main".into(), "events".into(), "shop.{kind}".into()));
        assert_eq!(exchange(queue), ("remote".into(), String::new(), "{kind}".into()));
        assert_eq!(queue.in_flight, 1_000);
        let main = &config.brokers["main"];
        assert!(main.tls.ca.is_some() && main.tls.key.is_some() && config.brokers["remote"].allow_plaintext);
        let [orders] = &config.broker_sources[..] else { panic!("{:?}", config.broker_sources) };
        assert_eq!(
            (&*orders.queue, orders.prefetch, orders.declare),
            ("orders.in", Some(50), DeclareTopology::Create)
        );
        assert_eq!(orders.fault.as_deref(), Some("oncebox.fault"));
        assert_eq!(orders.rules.key, Some(oncebox::source::FieldLocation::header("x-event-id")));
        assert!(config.sources.find("orders").is_none(), "it takes no requests");
        assert_eq!(billing.kinds.as_deref(), Some(&["order.*".to_owned(), "note".to_owned()][..]));
        assert_eq!((billing.ordered, billing.in_flight), (Some(DeadHead::Skip), 8));
        assert_eq!((billing.max_open_tasks, billing.keep_sent), (Some(5), Some(Duration::from_secs(3600))));
        let RelayDestination::Endpoint(to) = &billing.to else { panic!("{:?}", billing.to) };
        assert!(billing.revive && billing.start == Start::Now && to.allow_private);
        assert_eq!(to.headers["authorization"], "Bearer y");
        assert_eq!(billing.retry.delays().0, Duration::from_secs(2));
        assert_eq!((everything.ordered, everything.in_flight), (Some(DeadHead::Hold), 64));
        assert_eq!((&everything.kinds, everything.keep_sent), (&None, None));
    }

    #[test]
    fn an_error_names_the_line_the_value_and_the_remedy() {
        let table = [
            ("[sources.s]\nredelivers_for = \"30d\"", "oncebox.toml:2", "retention.markers"),
            ("[sources.s]\nkey_header = \"Authorization\"", "oncebox.toml:2", "use another one"),
            ("[store]\nurl = \"mysql://x/y\"", "oncebox.toml:2", "sqlite://FILE"),
            ("[store]\nschema = \"x\"", "oncebox.toml:2", "PostgreSQL only"),
            ("[store]\nurl = \"sqlite::memory:\"", "oncebox.toml:2", "use a file"),
            (
                "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"x\"]\nretry = { first_delay = \"10m\", max_delay = \"1s\" }",
                "oncebox.toml:4",
                "set max_delay to first_delay or more",
            ),
            (
                "[handlers.h]\nkinds = \"k\"\ncommand = [\"x\"]",
                "oncebox.toml:2",
                "for example [\"one\", \"two\"]",
            ),
            ("[handlers.h]\nkinds = [\"k\"]\ncommand = \"x\"", "oncebox.toml:3", "a list of strings"),
            (
                "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"x\"]\ntimeout = 5",
                "oncebox.toml:4",
                "for example \"5s\"",
            ),
            (
                "[handlers.h]\nkinds = [\"\"]\ncommand = [\"x\"]",
                "oncebox.toml:2",
                "invalid kind \"\": use 1 to 200 bytes",
            ),
            (
                "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"x\"]\ntimeout = \"0s\"",
                "oncebox.toml:4",
                "\"0s\": it must be greater than 0",
            ),
            ("[stor]\n", "oncebox.toml:1", "unknown field `stor`"),
            ("[http]\nlisten = \"here\"", "oncebox.toml:2", "invalid listen address \"here\": write IP:PORT"),
            ("[http]\n\ntoken = \"short\"", "oncebox.toml:3", "16 or more printable"),
            ("[sources.\"a b\"]\n", "oncebox.toml:1", "invalid source name \"a b\": use 1 to 64 letters"),
            (
                "[sources.s]\nkey_pointer = \"id\"",
                "oncebox.toml:2",
                "invalid JSON pointer \"id\": start it with '/'",
            ),
            (
                "[sources.s]\nkey_pointer = \"/id\"\nkey_header = \"x\"",
                "oncebox.toml:2",
                "key_header and key_pointer are both set",
            ),
            ("[handlers.h]\nurl = \"http://example.com\"", "oncebox.toml:1", "missing field `kinds`"),
            ("[handlers.h]\nkinds = [\"k\"]", "oncebox.toml:1", "no destination: set url"),
            ("[handlers.h]\nkinds = [\"k\"]\nurl = \"ftp://x\"", "oncebox.toml:3", "http://HOST"),
            (
                "[handlers.h]\nkinds = [\"k\"]\nurl = \"http://127.0.0.1:1/\"",
                "oncebox.toml:3",
                "allow_private = true",
            ),
            (
                "[handlers.h]\nkinds = [\"k\"]\nurl = \"http://[::ffff:10.0.0.1]/\"",
                "oncebox.toml:3",
                "allow_private = true",
            ),
            ("[handlers.h]\nkinds = [\"k\"]\ncommand = []", "oncebox.toml:3", "command has no program"),
            (
                "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"x\"]\ntimeout = \"5\"",
                "oncebox.toml:4",
                "500ms, 30s",
            ),
            (
                "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"x\"]\nconcurrency = 0",
                "oncebox.toml:4",
                "1 or more",
            ),
            (
                "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"x\"]\ndead_head = \"skip\"",
                "oncebox.toml:4",
                "ordered = true",
            ),
            (
                "[store]\nurl = \"postgres://${ONCEBOX_NO_SUCH_VARIABLE}@x/y\"",
                "oncebox.toml:2",
                "ONCEBOX_NO_SUCH_VARIABLE",
            ),
            (
                "[retention]\nmarkers = \"1d\"\n[sources.s]\nredelivers_for = \"3d\"",
                "oncebox.toml:4",
                "retention.markers",
            ),
            ("[relays.r]\nkinds = [\"k\"]", "oncebox.toml:1", "no destination: set url"),
            ("[relays.r]\nbroker = \"b\"", "oncebox.toml:1", "no exchange: set exchange"),
            (
                "[relays.r]\nbroker = \"b\"\nexchange = \"e\"",
                "oncebox.toml:2",
                "add [brokers.b] with its url",
            ),
            (
                "[relays.r]\nbroker = \"b\"\nurl = \"https://x\"",
                "oncebox.toml:2",
                "url and broker are both set",
            ),
            ("[relays.r]\nurl = \"https://x\"\nexchange = \"e\"", "oncebox.toml:3", "apply to brokers only"),
            ("[brokers.b]\nurl = \"http://x\"", "oncebox.toml:2", "amqps://user:password@host"),
            (
                "[brokers.b]\nurl = \"amqp://localhost\"\ntls = { cert = \"c\" }",
                "oncebox.toml:3",
                "set tls.key",
            ),
            ("[sources.s]\nqueue = \"q\"", "oncebox.toml:2", "set type = \"rabbitmq\""),
            ("[sources.s]\ntype = \"rabbitmq\"", "oncebox.toml:1", "no queue: set queue"),
            ("[sources.s]\ntype = \"rabbitmq\"\nqueue = \"q\"", "oncebox.toml:1", "no broker is named"),
            ("[sources.s]\ntype = \"kafka\"", "oncebox.toml:2", "unknown variant `kafka`"),
            ("[relays.r]\nurl = \"ftp://x\"", "oncebox.toml:2", "http://HOST"),
            ("[relays.r]\nurl = \"http://10.0.0.1/\"", "oncebox.toml:2", "allow_private = true"),
            ("[relays.r]\nurl = \"http://localhost/\"", "oncebox.toml:2", "allow_private = true"),
            (
                "[relays.r]\nurl = \"https://${ONCEBOX_NO_SUCH_VARIABLE}/\"",
                "oncebox.toml:2",
                "ONCEBOX_NO_SUCH_VARIABLE",
            ),
            ("[relays.r]\ntimeout = \"5s\"", "oncebox.toml:2", "unknown field `timeout`"),
            ("[relays.r]\nurl = 7", "oncebox.toml:2", "expected a string"),
            ("[relays.\"@r\"]\nurl = \"https://example.com\"", "oncebox.toml:1", "invalid relay name \"@r\""),
            (
                "[relays.r]\nurl = \"https://example.com\"\nheaders = { ce-id = \"1\" }",
                "oncebox.toml:3",
                "the header ce-id is reserved",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nheaders = { \"a b\" = \"1\" }",
                "oncebox.toml:3",
                "invalid header name \"a b\"",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nheaders = { x = \"\\n\" }",
                "oncebox.toml:3",
                "invalid value of the header x",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkinds = []",
                "oncebox.toml:3",
                "kinds is empty: list kinds, or remove it to send all of them",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkinds = \"order\"",
                "oncebox.toml:3",
                "for example [\"one\", \"two\"]",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkinds = [\"*.paid\"]",
                "oncebox.toml:3",
                "invalid kind \"*.paid\": write a kind, or its beginning with one '*' behind it",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkinds = [\"order.**\"]",
                "oncebox.toml:3",
                "invalid kind \"order.**\"",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkinds = [\"\"]",
                "oncebox.toml:3",
                "invalid kind \"\": use 1 to 200 bytes",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nordered = false\ndead_head = \"skip\"",
                "oncebox.toml:4",
                "dead_head needs ordered = true",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\ndead_head = \"drop\"",
                "oncebox.toml:3",
                "`hold` or `skip`",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nstart = \"end\"",
                "oncebox.toml:3",
                "`beginning` or `now`",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nin_flight = 0",
                "oncebox.toml:3",
                "in_flight is 0, so the relay would never send: set 1 or more",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nmax_open_tasks = 0",
                "oncebox.toml:3",
                "max_open_tasks is 0",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nretry = { max_attempts = 0 }",
                "oncebox.toml:3",
                "max_attempts is 0",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nretry = { first_delay = \"10m\", max_delay = \"1s\" }",
                "oncebox.toml:3",
                "set max_delay to first_delay or more",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkeep_sent = 5",
                "oncebox.toml:3",
                "for example \"5s\"",
            ),
            (
                "[relays.r]\nurl = \"https://example.com\"\nkeep_sent = \"0s\"",
                "oncebox.toml:3",
                "it must be greater than 0",
            ),
            (
                "[handlers.x]\nkinds = [\"k\"]\ncommand = [\"x\"]\n[relays.x]\nurl = \"https://example.com\"",
                "oncebox.toml:4",
                "a handler and a relay are both named \"x\": rename one of them",
            ),
        ];
        for (content, place, advice) in table {
            let error = refused(content);
            assert!(error.starts_with(place) && error.contains(advice), "{content}\n{error}");
        }
    }

    /// Reading needs no programs, and an address of the command line counts instead of the file's.
    #[test]
    fn only_commands_that_need_them_check_programs_and_addresses() {
        let handler = |more: &str| format!("[handlers.h]\nkinds = [\"k\"]\n{more}");
        let programs = |more: &str| parse(&handler(more)).unwrap().check_programs();
        programs("command = [\"cat\", \"-\"]").unwrap();
        programs("command = [\"/bin/sh\"]").unwrap();
        programs("command = [\"./sh\"]\nfolder = \"/bin\"").unwrap();
        for missing in ["no-such-program", "./no-such-program", "/etc/passwd", "/etc"] {
            let error = programs(&format!("command = [\"{missing}\"]")).unwrap_err().to_string();
            assert!(error.starts_with("oncebox.toml:3") && error.contains(missing), "{error}");
        }
        let listen =
            |more: &str| parse(&format!("[http]\nlisten = \"0.0.0.0:80\"\n{more}")).unwrap().http.exposed;
        assert!(listen("").unwrap().to_string().starts_with("oncebox.toml:2"));
        assert!(listen("token = \"0123456789abcdef\"").is_none());
    }
}
