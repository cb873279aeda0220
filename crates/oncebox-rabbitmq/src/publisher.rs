//! Confirmed publishing: one connection for all, opened when it is needed, and a few channels.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use oncebox_core::{Error, ErrorKind};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use crate::broker::Settings;
use crate::errors::{failed, no_response};
use crate::link::{Link, within};

/// The maximum number of channels.
const CHANNELS: usize = 8;

/// The maximum number of unconfirmed messages of a channel, and of bytes in their bodies.
const WINDOW_MESSAGES: usize = 1000;
const WINDOW_BYTES: usize = 4 * 1024 * 1024;

/// A message to publish.
#[derive(Debug)]
pub(crate) struct Post<'a> {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    /// Whether a message that reaches no queue is returned.
    pub(crate) is_mandatory: bool,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Cow<'a, [u8]>,
}

/// What became of a message.
#[derive(Clone, Debug)]
pub(crate) enum Posted {
    /// The broker has stored it.
    Confirmed,
    /// It reached no queue.
    Returned,
    /// The broker refused it: `basic.nack`.
    Nacked,
    /// It is not known whether the broker has it.
    Unknown(Arc<Error>),
}

/// Publishes messages and waits for their confirms.
#[derive(Debug)]
pub(crate) struct Publisher {
    settings: Settings,
    permits: Semaphore,
    link: Mutex<Option<Arc<Link>>>,
    /// Channels of that link on which nothing is unconfirmed.
    idle: StdMutex<Vec<PublishChannel>>,
}

/// A channel with confirms, and the link that it belongs to.
#[derive(Debug)]
struct PublishChannel {
    channel: Channel,
    link: Arc<Link>,
}

impl PublishChannel {
    fn works(&self) -> bool {
        self.link.works() && self.channel.status().connected()
    }
}

impl Publisher {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            permits: Semaphore::new(CHANNELS),
            link: Mutex::new(None),
            idle: StdMutex::default(),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Publishes messages, and returns one result for each, in their order. Dropped at an await, it leaves no message behind that a
    /// later call could take for its own.
    pub(crate) async fn publish(&self, posts: &[Post<'_>]) -> Vec<Posted> {
        let mut posted = Vec::with_capacity(posts.len());
        if posts.is_empty() {
            return posted;
        }
        let Ok(_permit) = self.permits.acquire().await else {
            return unknown(posts.len(), Error::new(ErrorKind::Closed, "the publisher is closed"));
        };
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(error) => return unknown(posts.len(), error),
        };
        for window in windows(posts) {
            match self.publish_window(&channel, window).await {
                Ok(results) => posted.extend(results),
                // The channel is dropped: confirms that arrive late would be taken for those of other messages.
                Err(error) => {
                    posted.extend(unknown(posts.len() - posted.len(), error));
                    return posted;
                }
            }
        }
        self.idle().push(channel);
        posted
    }

    /// Publishes messages on a channel of their own, and judges them when all confirms are in.
    ///
    /// The client gives the oldest returned message to whichever confirm comes next. So a confirm says nothing of its own message
    /// until all are in: then the returned messages are known, and found by what they are.
    async fn publish_window(
        &self,
        channel: &PublishChannel,
        window: &[Post<'_>],
    ) -> Result<Vec<Posted>, Error> {
        if channel.link.is_blocked() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "RabbitMQ at {} does not accept messages now, because it runs out of memory or disk: free some, see \
                     `rabbitmqctl status`",
                    self.settings.address
                ),
            ));
        }
        let publishing = join_all(window.iter().map(|post| async {
            let options = BasicPublishOptions { mandatory: post.is_mandatory, immediate: false };
            let (exchange, routing_key) = (post.exchange.clone(), post.routing_key.clone());
            let channel = &channel.channel;
            let confirm =
                channel.basic_publish(exchange, routing_key, options, &post.body, post.properties.clone());
            confirm.await?.await
        }));
        let doing = "publishing";
        let limit = self.settings.timeout;
        let confirms =
            timeout(limit, publishing).await.map_err(|_| no_response(&self.settings, doing, limit))?;
        let confirms: Result<Vec<Confirmation>, lapin::Error> = confirms.into_iter().collect();
        judge(window, confirms.map_err(|error| failed(&self.settings, doing, error))?)
    }

    /// An unused channel.
    async fn channel(&self) -> Result<PublishChannel, Error> {
        let idle = std::iter::from_fn(|| self.idle().pop()).find(PublishChannel::works);
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let link = self.link().await?;
        let opened = async {
            let channel = link.channel().await?;
            let selecting = channel.confirm_select(ConfirmSelectOptions::default());
            within(&self.settings, "requesting confirms", selecting).await?;
            Ok(channel)
        };
        match opened.await {
            Ok(channel) => Ok(PublishChannel { channel, link }),
            Err(error) => {
                self.replace(&link).await;
                Err(error)
            }
        }
    }

    /// The connection that works, or a new one.
    async fn link(&self) -> Result<Arc<Link>, Error> {
        // Held while connecting, so that others wait for the same connection.
        let mut current = self.link.lock().await;
        if let Some(link) = current.as_ref().filter(|link| link.works()) {
            return Ok(link.clone());
        }
        let link = Arc::new(Link::open(&self.settings, "publisher").await?);
        *current = Some(link.clone());
        Ok(link)
    }

    /// Gives a connection up on which not even a channel can be opened.
    async fn replace(&self, broken: &Arc<Link>) {
        let mut current = self.link.lock().await;
        if current.as_ref().is_some_and(|link| Arc::ptr_eq(link, broken)) {
            *current = None;
        }
        broken.cut();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PublishChannel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(count: usize, error: Error) -> Vec<Posted> {
    let error = Arc::new(error);
    (0..count).map(|_| Posted::Unknown(error.clone())).collect()
}

/// Parts of a wave that may be unconfirmed together.
fn windows<'p, 'b>(posts: &'p [Post<'b>]) -> impl Iterator<Item = &'p [Post<'b>]> {
    let mut rest = posts;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |post: &Post<'_>| {
            bytes += post.body.len();
            bytes <= WINDOW_BYTES
        };
        let fitting = rest.iter().take(WINDOW_MESSAGES).take_while({
            let mut fits = fits;
            move |post| fits(post)
        });
        // One that is too large alone goes alone.
        let count = fitting.count().max(1).min(rest.len());
        let (window, later) = rest.split_at(count);
        rest = later;
        (!window.is_empty()).then_some(window)
    })
}

/// What a message is known by when it is returned. Messages that share this share their route, except at an exchange that routes
/// by other headers; there, messages need ids.
type Identity = (String, String, Option<String>);

fn identity(exchange: &ShortString, routing_key: &ShortString, properties: &BasicProperties) -> Identity {
    let id = properties.message_id().as_ref().map(ToString::to_string);
    (exchange.to_string(), routing_key.to_string(), id)
}

/// What became of the messages of a window, all of whose confirms are in.
fn judge(window: &[Post<'_>], confirms: Vec<Confirmation>) -> Result<Vec<Posted>, Error> {
    let mut returned = HashSet::new();
    let mut posted = Vec::with_capacity(window.len());
    for confirm in confirms {
        posted.push(match &confirm {
            Confirmation::Ack(_) => Posted::Confirmed,
            Confirmation::Nack(_) => Posted::Nacked,
            Confirmation::NotRequested => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "confirms were not requested on this channel: the messages are sent again",
                ));
            }
        });
        if let Some(message) = confirm.take_message() {
            returned.insert(identity(&message.exchange, &message.routing_key, &message.properties));
        }
    }
    for (post, posted) in window.iter().zip(&mut posted) {
        if !returned.is_empty()
            && returned.contains(&identity(&post.exchange, &post.routing_key, &post.properties))
        {
            *posted = Posted::Returned;
        }
    }
    Ok(posted)
}

impl Posted {
    /// The reason why a message is not known to be stored.
    pub(crate) fn failure(&self, post: &Post<'_>) -> Option<Error> {
        let to =
            format!("exchange {:?}, routing key {:?}", post.exchange.as_str(), post.routing_key.as_str());
        Some(match self {
            Self::Confirmed => return None,
            Self::Returned => Error::new(
                ErrorKind::Unavailable,
                format!("no queue receives messages of {to}: create the queue, or bind one to the exchange"),
            ),
            Self::Nacked => Error::new(
                ErrorKind::Unavailable,
                format!("RabbitMQ refused a message of {to}: a queue behind it is full or not available"),
            ),
            Self::Unknown(error) => {
                let text = format!("it is not known whether RabbitMQ has stored a message of {to}");
                Error::unavailable(text, error.clone())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use lapin::message::BasicReturnMessage;

    use super::*;

    fn post<'a>(key: &str, id: Option<&str>, body: &'a [u8]) -> Post<'a> {
        let properties = BasicProperties::default();
        Post {
            exchange: "events".into(),
            routing_key: key.into(),
            is_mandatory: true,
            properties: match id {
                Some(id) => properties.with_message_id(id.into()),
                None => properties,
            },
            body: body.into(),
        }
    }

    fn sizes(posts: &[Post<'_>]) -> Vec<usize> {
        windows(posts).map(<[_]>::len).collect()
    }

    #[test]
    fn a_wave_is_cut_into_windows_by_number_and_size() {
        let small: Vec<_> = (0..2100).map(|_| post("k", None, b"x")).collect();
        assert_eq!(sizes(&small), [1000, 1000, 100]);
        let body = vec![0; WINDOW_BYTES / 2];
        let large: Vec<_> = (0..5).map(|_| post("k", None, &body)).collect();
        assert_eq!(sizes(&large), [2, 2, 1]);
        let body = vec![0; WINDOW_BYTES + 1];
        let huge = [post("k", None, b"x"), post("k", None, &body), post("k", None, b"x")];
        assert_eq!(sizes(&huge), [1, 1, 1]);
        assert!(sizes(&[]).is_empty());
    }

    #[test]
    fn a_confirm_that_was_not_requested_is_a_failure() {
        let window = [post("k", Some("1"), b"")];
        assert!(judge(&window, vec![Confirmation::NotRequested]).is_err());
        let nacked = judge(&window, vec![Confirmation::Nack(None::<BasicReturnMessage>)]).unwrap();
        assert!(matches!(nacked[..], [Posted::Nacked]));
    }
}
