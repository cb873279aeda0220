//! `oncebox serve`: the gateway. Messages come in over HTTP, are kept once, and go out to handlers until they are done.

mod answer;
mod connections;
mod http;
mod trouble;
mod welcome;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use oncebox::store::HandlerState;
use oncebox::{Inbox, KeyReuse, LogStore, Retention};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::Common;
use crate::config::{Config, Handler, exposed};
use crate::deliver;
use crate::exit::Usage;
use crate::serve::http::{Ended, Gateway};
use crate::store::{For, Opened, Target, with_store};
use crate::times::parse_duration;

/// What is in hand has so long to end, before the program ends without it. Nothing is lost: it is delivered again.
const GRACE: Duration = Duration::from_secs(30);
/// How often metrics are made smaller.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// How to serve.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Where to listen [default: http.listen of the configuration, else 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    /// Accept only: leave the handlers to other processes
    #[arg(long)]
    accept_only: bool,
    /// How long a sender has for the head of a request
    #[arg(long, hide = true, value_name = "DURATION", default_value = connections::HEAD_TIMEOUT, value_parser = parse_duration)]
    head_timeout: Duration,
}

/// Serves until it is told to stop.
pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let mut config = Config::load(common)?;
    match options.listen {
        Some(listen) => config.http.listen = listen,
        // In the words of the file, with its line.
        None => config.http.exposed.take().map_or(Ok(()), Err)?,
    }
    check_listen(&config)?;
    if !options.accept_only {
        config.check_programs()?;
    }
    log_to_stderr();
    let metrics = install_metrics()?;
    // Before the database: a second gateway by mistake should not even open it.
    let listener = TcpListener::bind(config.http.listen).await.with_context(|| {
        format!("listening on {}: if something else does, choose another with --listen", config.http.listen)
    })?;
    let opened = match config.migrate {
        true => migrated(&config.target).await?,
        false => config.target.open_ready(For::Working).await?,
    };
    let stop = stop_signals()?;
    with_store!(opened, store => {
        let inbox = inbox(store, &config, !options.accept_only).await?;
        serve(inbox, config, listener, metrics, stop, options).await
    })
}

/// The database, with the tables that this program needs.
async fn migrated(target: &Target) -> Result<Opened> {
    let opened = target.open_or_create(For::Working).await?;
    opened.migrate().await?;
    Ok(opened)
}

/// The inbox of a configuration, with its handlers or without.
pub(crate) async fn inbox<S: LogStore>(store: S, config: &Config, with_handlers: bool) -> Result<Inbox<S>> {
    if with_handlers {
        check_removed(&store, config).await?;
    }
    let mut builder = Inbox::builder(store)
        .stored()
        .key_reuse(KeyReuse::Reject)
        .max_body_bytes(config.http.max_body_bytes)
        .notify(config.notify);
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
        for handler in &config.handlers {
            builder = deliver::register(builder, handler)?;
        }
    }
    Ok(builder.build().await?)
}

async fn serve<S: LogStore>(
    inbox: Inbox<S>,
    config: Config,
    listener: TcpListener,
    metrics: PrometheusHandle,
    stop: watch::Receiver<bool>,
    options: &Options,
) -> Result<ExitCode> {
    let with_handlers = !options.accept_only;
    let address = listener.local_addr().context("listening")?;
    welcome::print(&config, address, S::NAME, S::GUARANTEE, with_handlers)?;
    let ended = Ended::default();
    let has_work = with_handlers && !config.handlers.is_empty();
    let working = has_work.then(|| {
        let (inbox, stop, ended) = (inbox.clone(), stopped(stop.clone()), ended.clone());
        tokio::spawn(async move {
            let report = inbox.run(stop).await;
            let _ = ended.set(match &report {
                Ok(_) => "the program is being stopped".to_owned(),
                Err(error) => {
                    tracing::error!(%error, "the workers have ended: messages are accepted, and not delivered");
                    format!("the workers have ended: {error}: start the program again")
                }
            });
            report
        })
    });
    let workers = working.as_ref().map(|workers| (workers.abort_handle(), ended));
    let gateway = Gateway::new(inbox.clone(), config, metrics, workers);
    let router = http::router(Arc::new(gateway));
    let serving = connections::serve(listener, router, options.head_timeout, stopped(stop.clone()));
    let all = async {
        serving.await;
        if let Some(working) = working {
            let report = working.await.context("the workers broke down")??;
            tracing::info!(
                done = report.done,
                failed = report.failed,
                dead = report.dead,
                "the workers have ended"
            );
        }
        inbox.close().await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = all => ended?,
        () = async { stopped(stop).await; tokio::time::sleep(GRACE).await } => {
            tracing::warn!("not everything in hand has ended in time: it will be delivered again");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write IP:PORT, as in 127.0.0.1:8080".to_owned())
}

/// A handler that was removed starts again only where that is said. The engine says so too, in words for those who write Rust.
async fn check_removed<S: LogStore>(store: &S, config: &Config) -> Result<()> {
    for known in store.handler_statuses().await? {
        let known = known.handler;
        let is_meant = |handler: &&Handler| handler.name == known.name && !handler.revive;
        if known.state == HandlerState::Removed
            && let Some(Handler { name, .. }) = config.handlers.iter().find(is_meant)
        {
            let file = config.file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default();
            return Err(Usage(format!(
                "{file}the handler {name} was removed: give [handlers.{name}] another name, or set revive = true there to let \
                 it begin again"
            ))
            .into());
        }
    }
    Ok(())
}

/// Anybody who can reach it may send messages: beyond this machine that takes a token.
fn check_listen(config: &Config) -> Result<(), Usage> {
    let listen = config.http.listen;
    if listen.ip().is_loopback() || config.http.token.is_some() {
        return Ok(());
    }
    Err(Usage(exposed(listen)))
}

/// Becomes true with SIGTERM or Ctrl-C; the second one ends the program at once.
pub(crate) fn stop_signals() -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        for times in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if times > 0 {
                std::process::exit(130);
            }
            tracing::info!("stopping: what is in hand is brought to an end; once more to end at once");
            stop.send_replace(true);
        }
    });
    Ok(stopped)
}

pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // The sender lives as long as the program.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn install_metrics() -> Result<PrometheusHandle> {
    const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
    let builder = PrometheusBuilder::new();
    let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS);
    let handle = builder.context("setting up metrics")?.install_recorder().context("setting up metrics")?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(METRICS_UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

pub(crate) fn log_to_stderr() {
    // The driver's own warnings are about what the program reports itself, or tries again.
    let filter = tracing_subscriber::EnvFilter::try_from_env("ONCEBOX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=error"));
    // A second one is a mistake of the program, not of its user.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
