//! A fresh virtual host for one test.

use std::env;
use std::path::Path;

use anyhow::{Context, Result};
use uuid::Uuid;

use super::node::Node;
use crate::skip::skip_or_fail;

/// The environment variable with the address of the server for tests, as [`RabbitServer::test_url`](super::RabbitServer::test_url)
/// returns it.
pub const TEST_RABBITMQ: &str = "ONCEBOX_TEST_RABBITMQ";

/// An empty virtual host of its own; it goes away with its server.
#[derive(Clone, Debug)]
pub struct TestVhost {
    node: Node,
    name: String,
}

impl TestVhost {
    /// Creates a virtual host on the server at this address.
    pub async fn create_at(test_url: &str) -> Result<TestVhost> {
        TestVhost::create_on(node_at(test_url)?).await
    }

    pub(super) async fn create_on(node: Node) -> Result<TestVhost> {
        let name = format!("test_{}", Uuid::now_v7().simple());
        // One call instead of `add_vhost` and `set_permissions`, each of which starts an Erlang machine.
        // The name is made of letters and digits only.
        let program = format!(
            "ok = rabbit_vhost:add(<<\"{name}\">>, <<\"tests\">>), \
             ok = rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, <<\"{name}\">>, <<\".*\">>, <<\".*\">>, \
             <<\".*\">>, <<\"tests\">>)."
        );
        node.ctl(&["eval", &program]).await.context("creating a virtual host for a test")?;
        Ok(TestVhost { node, name })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address as the user `guest`.
    #[must_use]
    pub fn url(&self) -> String {
        address(self.node.ports.amqp, &self.name)
    }

    /// Runs a command of `rabbitmqctl` on this virtual host, and returns what it prints.
    pub async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let (command, rest) = arguments.split_first().context("rabbitmqctl without a command")?;
        let arguments: Vec<&str> =
            [*command, "--vhost", &self.name].into_iter().chain(rest.iter().copied()).collect();
        self.node.ctl(&arguments).await
    }
}

/// The address of a virtual host.
pub(super) fn address(port: u16, vhost: &str) -> String {
    let vhost = vhost.replace('/', "%2f");
    format!("amqp://guest:guest@127.0.0.1:{port}/{vhost}")
}

/// The node that an address of [`TEST_RABBITMQ`] describes.
fn node_at(test_url: &str) -> Result<Node> {
    let parts = || {
        let (server, options) = test_url.split_once('?')?;
        let port = server.rsplit_once(':')?.1.split('/').next()?.parse().ok()?;
        let option =
            |name: &str| options.split('&').find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
        Some((port, option("epmd")?.parse().ok()?, option("folder")?))
    };
    let (amqp, epmd, folder) = parts().with_context(|| {
        format!("the address in {TEST_RABBITMQ} is not one of `cargo xtask test`, which starts the server")
    })?;
    Node::of_another_process(Path::new(folder), amqp, epmd)
}

/// A fresh virtual host for `test`. `None` if there is no server; the test returns then.
///
/// # Panics
///
/// Where `CI` is `true` and there is no server; and when the server that the environment names does not work.
pub async fn test_vhost(test: &str) -> Option<TestVhost> {
    let Ok(url) = env::var(TEST_RABBITMQ) else {
        skip_or_fail(
            test,
            &format!("{TEST_RABBITMQ} is not set; `cargo xtask test` starts a server and sets it"),
        );
        return None;
    };
    match TestVhost::create_at(&url).await {
        Ok(vhost) => Some(vhost),
        Err(error) => panic!("{test} gets no virtual host from the server in {TEST_RABBITMQ}: {error:#}"),
    }
}
