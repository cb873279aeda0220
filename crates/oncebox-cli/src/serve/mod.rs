//! `oncebox serve`: the gateway. It accepts messages over HTTP, stores each one once, and delivers it until its handlers succeed.

mod accept_health;
mod connections;
mod consumers;
mod http;
mod response;
mod start_message;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use oncebox::{Inbox, LogStore};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::CommonArgs;
use crate::config::check::invalid_listen;
use crate::config::{Config, exposed};
use crate::deliver;
use crate::exit::{Usage, chain_text};
use crate::serve::consumers::Consumers;
pub(crate) use crate::serve::consumers::SourceReport;
use crate::serve::http::{Gateway, WorkersEnd};
pub(crate) use crate::serve::start_message::reachable;
use crate::store::{DatabaseTarget, OpenPurpose, Opened, with_store};
use crate::times::parse_duration;

/// The maximum duration of a graceful shutdown. Unfinished work is delivered again.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which the recorder compacts its histograms.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Options of `serve`.
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// The address to listen on [default: http.listen of the configuration, otherwise 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    /// Accept messages only; other processes run the handlers and relays
    #[arg(long)]
    accept_only: bool,
    /// The time limit for the head of a request
    #[arg(long, hide = true, value_name = "DURATION", default_value = connections::HEAD_TIMEOUT, value_parser = parse_duration)]
    head_timeout: Duration,
}

/// Serves until a signal stops it.
pub(crate) async fn run(common: &CommonArgs, options: &ServeArgs) -> Result<ExitCode> {
    let mut config = Config::load(common)?;
    match options.listen {
        Some(listen) => config.http.listen = listen,
        // This error names the line of the file.
        None => config.http.exposed.take().map_or(Ok(()), Err)?,
    }
    check_listen(&config)?;
    if !options.accept_only {
        // Not with `--accept-only`: the programs may exist only on the machines that run the handlers.
        config.check_programs()?;
    }
    log_to_stderr();
    let metrics = install_metrics()?;
    // Before the database is opened, so that a second gateway by mistake changes nothing.
    let listener = TcpListener::bind(config.http.listen).await.with_context(|| {
        format!(
            "cannot listen on {}: choose another address with --listen if it is in use",
            config.http.listen
        )
    })?;
    let opened = match config.migrate {
        true => migrated(&config.target).await?,
        false => config.target.open_ready(OpenPurpose::Run).await?,
    };
    let stop = stop_signals()?;
    if !options.accept_only {
        deliver::check_removed(&opened, &config).await?;
    }
    with_store!(opened, store => {
        let inbox = deliver::inbox(store, &config, !options.accept_only).await?;
        serve(inbox, config, listener, metrics, stop, options).await
    })
}

/// Opens the database, and creates or upgrades its tables.
async fn migrated(target: &DatabaseTarget) -> Result<Opened> {
    let opened = target.open_or_create(OpenPurpose::Run).await?;
    opened.migrate().await?;
    Ok(opened)
}

async fn serve<S: LogStore>(
    inbox: Inbox<S>,
    config: Config,
    listener: TcpListener,
    metrics: PrometheusHandle,
    stop: watch::Receiver<bool>,
    options: &ServeArgs,
) -> Result<ExitCode> {
    let with_handlers = !options.accept_only;
    let address = listener.local_addr().context("cannot read the address of the listener")?;
    start_message::print(&config, address, S::NAME, S::GUARANTEE, with_handlers)?;
    let workers_end = WorkersEnd::default();
    // Without handlers and relays there are no workers, and no worker whose end could make the gateway unhealthy.
    let has_work = with_handlers && config.delivers();
    let working = has_work.then(|| {
        let (inbox, stop, workers_end) = (inbox.clone(), stopped(stop.clone()), workers_end.clone());
        tokio::spawn(async move {
            let report = inbox.run(stop).await;
            let _ = workers_end.set(match &report {
                Ok(_) => "the program is shutting down".to_owned(),
                Err(error) => {
                    let error = chain_text(error);
                    tracing::error!(error, "the workers stopped: messages are accepted, but not delivered");
                    format!("the workers stopped: {error}: restart the program")
                }
            });
            report
        })
    });
    let consumers = Consumers::start(&inbox, &config, &stop)?;
    let workers = working.as_ref().map(|workers| (workers.abort_handle(), workers_end));
    let gateway = Gateway::new(inbox.clone(), config, metrics, workers, consumers.watches());
    let router = http::router(Arc::new(gateway));
    let serving = connections::serve(listener, router, options.head_timeout, stopped(stop.clone()));
    let all = async {
        serving.await;
        consumers.finish().await;
        if let Some(working) = working {
            let report = working.await.context("the workers crashed")??;
            tracing::info!(
                done = report.done,
                failed = report.failed,
                dead = report.dead,
                "the workers stopped"
            );
        }
        inbox.close().await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = all => ended?,
        () = async { stopped(stop).await; tokio::time::sleep(SHUTDOWN_TIMEOUT).await } => {
            tracing::warn!("shutdown timed out: unfinished work will be delivered again");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| invalid_listen(text))
}

/// An address that other machines can reach needs a token, because any machine that reaches it could send messages.
fn check_listen(config: &Config) -> Result<(), Usage> {
    let listen = config.http.listen;
    if listen.ip().is_loopback() || config.http.token.is_some() {
        return Ok(());
    }
    Err(Usage(exposed(listen)))
}

/// Becomes true with SIGTERM or Ctrl-C. The second signal quits immediately.
pub(crate) fn stop_signals() -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot receive SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot receive Ctrl-C")?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        for times in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if times > 0 {
                // The code by which shells report a program that was interrupted.
                std::process::exit(130);
            }
            tracing::info!("stopping: finishing in-flight work; press Ctrl-C again to quit now");
            stop.send_replace(true);
        }
    });
    Ok(stopped)
}

pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error cannot happen: the sender lives as long as the program.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn install_metrics() -> Result<PrometheusHandle> {
    const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
    let builder = PrometheusBuilder::new();
    // Without buckets the exporter writes summaries, which cannot be added up over processes.
    let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS);
    let handle =
        builder.context("cannot set up metrics")?.install_recorder().context("cannot set up metrics")?;
    // `install_recorder` starts no upkeep by itself. Without it the samples of histograms pile up in memory.
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
    // The driver's warnings are about errors that the program reports itself or retries.
    let filter = tracing_subscriber::EnvFilter::try_from_env("ONCEBOX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=error"));
    // An error means that a logger is installed already, which is no reason to stop.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
