//! The RabbitMQ server that the tests share.

use std::path::PathBuf;

use anyhow::{Result, bail};
use oncebox_servers::apt;
use oncebox_servers::rabbitmq::{self, PACKAGE, RABBITMQ_BIN, RabbitOptions, RabbitServer};

use crate::interrupt::Interrupted;
use crate::provision::Provision;
use crate::steps::Steps;

const STEP: &str = "RabbitMQ";

/// Starts a private server. Installs RabbitMQ first if it is missing and installing is allowed.
pub(crate) async fn provide(
    may_install: bool,
    steps: &mut Steps,
) -> Result<Provision<RabbitServer>, Interrupted> {
    let bin = match rabbitmq::find() {
        Ok(Some(bin)) => bin,
        Ok(None) => match install(may_install) {
            Ok(bin) => bin,
            Err(error) => return Ok(Provision::do_without(STEP, &error, steps)),
        },
        // A wrong ONCEBOX_RABBITMQ_BIN is a mistake to correct, no reason to skip.
        Err(error) => {
            steps.fail(STEP, format!("{error:#}"));
            return Ok(Provision::without());
        }
    };
    let what = format!("starting a private server from {}", bin.display());
    let start = RabbitServer::start(RabbitOptions::default().bin(bin));
    Ok(steps.perform(STEP, &what, start).await?.map_or_else(Provision::without, Provision::Running))
}

fn install(may_install: bool) -> Result<PathBuf> {
    if !may_install {
        bail!(
            "its server programs are not installed, and --no-install is set: install the package \
             `{PACKAGE}`, or set {RABBITMQ_BIN} to the folder with rabbitmq-server and rabbitmqctl"
        );
    }
    if apt::is_available() {
        println!("\n==> RabbitMQ is not installed: installing the distribution's package `{PACKAGE}`");
    }
    rabbitmq::install()
}
