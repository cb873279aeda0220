//! What is wrong with a configuration, part by part, and what its parts mean.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use oncebox::{DeadHead, Retry, Start};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::config::text::Text;
use crate::config::{Handler, Http, To, exposed, file};
use crate::deliver::{is_public, objection};
use crate::exit::Usage;
use crate::source::{Part, Source, is_left_out};
use crate::times::rough;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_MAX_BODY_BYTES: usize = 1 << 20;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Names stand in URLs and in front of keys.
pub(super) fn is_source_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        // Clients take a path with these apart.
        && !matches!(name, "." | "..")
}

const NAMES: &str = "it has 1 to 200 bytes, no control characters and no `@` in front";

/// What the engine takes for a handler or a kind.
fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len()) && !name.starts_with('@') && !name.contains(char::is_control)
}

pub(super) fn check_http(http: &file::Http, text: &Text<'_>) -> Result<Http, Usage> {
    let listen = match &http.listen {
        None => DEFAULT_LISTEN,
        Some(listen) => listen.get_ref().parse().map_err(|_| {
            text.at(listen, "this is no address: write IP:PORT, as in 127.0.0.1:8080, or [::]:8080 for all")
        })?,
    };
    let token = http.token.as_ref().map(|token| text.expand(token)).transpose()?;
    if let (Some(written), Some(token)) = (&http.token, &token)
        && (token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(
            text.at(written, "a token has 16 printable characters or more: try `openssl rand -hex 32`")
        );
    }
    let is_exposed = !listen.ip().is_loopback() && token.is_none();
    let exposed =
        http.listen.as_ref().filter(|_| is_exposed).map(|written| text.at(written, &exposed(listen)));
    let max_body_bytes = http.max_body_bytes.unwrap_or(DEFAULT_MAX_BODY_BYTES);
    Ok(Http { listen, token, max_body_bytes, exposed })
}

pub(super) fn check_source(
    name: &toml::Spanned<String>,
    source: &file::Source,
    text: &Text<'_>,
) -> Result<(String, Source), Usage> {
    if !is_source_name(name.get_ref()) {
        return Err(text.at(
            name,
            "a source's name has up to 64 letters, digits, `-`, `_` and `.`: it stands in the URL",
        ));
    }
    let part = |header: &Option<toml::Spanned<String>>, pointer: &Option<toml::Spanned<String>>| match (
        header, pointer,
    ) {
        (Some(_), Some(pointer)) => {
            Err(text.at(pointer, "there is a header for the same: keep one of the two"))
        }
        (Some(header), None) if HeaderName::from_bytes(header.get_ref().as_bytes()).is_err() => {
            Err(text.at(header, "this is no header's name"))
        }
        (Some(header), None) if is_left_out(header.get_ref()) => {
            Err(text.at(header, "this header is about the connection or secret, and not kept: take another"))
        }
        (Some(header), None) => Ok(Some(Part::Header(header.get_ref().clone()))),
        (None, Some(pointer)) if !pointer.get_ref().starts_with('/') => {
            Err(text.at(pointer, "a JSON pointer begins with a slash, as in /data/id"))
        }
        (None, Some(pointer)) => Ok(Some(Part::Pointer(pointer.get_ref().clone()))),
        (None, None) => Ok(None),
    };
    let checked = Source {
        kind: part(&source.kind_header, &source.kind_pointer)?,
        key: part(&source.key_header, &source.key_pointer)?,
        order: part(&source.order_header, &source.order_pointer)?,
        default_kind: source
            .kind
            .as_ref()
            .map_or_else(|| name.get_ref().clone(), |kind| kind.get_ref().clone()),
        ..Source::named(name.get_ref())
    };
    Ok((name.get_ref().clone(), checked))
}

pub(super) fn check_handler(
    name: &toml::Spanned<String>,
    handler: &file::Handler,
    text: &Text<'_>,
) -> Result<Handler, Usage> {
    if let Some(kind) = handler.kinds.get_ref().0.iter().find(|kind| !is_name(kind)) {
        return Err(text.at(&handler.kinds, &format!("{kind:?} is no kind: {NAMES}")));
    }
    if !is_name(name.get_ref()) {
        return Err(text.at(name, &format!("this is no handler's name: {NAMES}")));
    }
    if handler.kinds.get_ref().0.is_empty() {
        return Err(text.at(&handler.kinds, "a handler takes at least one kind of message"));
    }
    let to = match (&handler.url, &handler.command) {
        (Some(url), None) => check_endpoint(url, handler, text)?,
        (None, Some(command)) => check_command(command, handler, text)?,
        (Some(_), Some(command)) => {
            return Err(text.at(command, "a handler has a url or a command: keep one of the two"));
        }
        (None, None) => {
            return Err(text.at(name, "say where its messages go: url = \"https://…\" or command = [\"…\"]"));
        }
    };
    for (number, what) in [
        (handler.concurrency.as_ref().map(|n| (n.span(), *n.get_ref() == 0)), "concurrency"),
        (handler.max_open_tasks.as_ref().map(|n| (n.span(), *n.get_ref() == 0)), "max_open_tasks"),
        (handler.retry.max_attempts.as_ref().map(|n| (n.span(), *n.get_ref() == 0)), "max_attempts"),
    ] {
        if let Some((span, true)) = number {
            return Err(text.at_span(span, &format!("with {what} = 0 nothing would ever run: set 1 or more")));
        }
    }
    let ordered = match (handler.ordered, &handler.dead_head) {
        (false, Some(policy)) => return Err(text.at(policy, "dead_head is for handlers with ordered = true")),
        (false, None) => None,
        (true, Some(policy)) if matches!(policy.get_ref(), file::DeadHead::Skip) => Some(DeadHead::Skip),
        (true, _) => Some(DeadHead::Hold),
    };
    Ok(Handler {
        name: name.get_ref().clone(),
        kinds: handler.kinds.get_ref().0.clone(),
        to,
        timeout: handler.timeout.map_or(DEFAULT_TIMEOUT, |time| time.0),
        concurrency: handler.concurrency.as_ref().map_or(16, |n| *n.get_ref()),
        max_open_tasks: handler.max_open_tasks.as_ref().map(|n| *n.get_ref()),
        ordered,
        start: match handler.start {
            file::Start::Beginning => Start::Beginning,
            file::Start::Now => Start::Now,
        },
        revive: handler.revive,
        retry: check_retry(&handler.retry, text)?,
    })
}

fn check_retry(retry: &file::Retry, text: &Text<'_>) -> Result<Retry, Usage> {
    let (first, max) = (retry.first_delay.as_ref(), retry.max_delay.as_ref());
    let mut checked = Retry::default();
    if let Some(attempts) = &retry.max_attempts {
        checked = checked.max_attempts(*attempts.get_ref());
    }
    if let Some(delay) = first {
        checked = checked.first_delay(delay.get_ref().0);
    }
    if let Some(delay) = max {
        checked = checked.max_delay(delay.get_ref().0);
    }
    let (first_delay, max_delay) = checked.delays();
    match first.or(max) {
        Some(written) if first_delay > max_delay => Err(text.at(
            written,
            &format!(
                "first_delay is {} and max_delay is {}: set max_delay to first_delay or more",
                rough(first_delay),
                rough(max_delay)
            ),
        )),
        _ => Ok(checked),
    }
}

/// Whether a handler's program can be found, as it will be when it is run.
pub(super) fn check_program(handler: &file::Handler, text: &Text<'_>) -> Result<(), Usage> {
    let Some(command) = &handler.command else { return Ok(()) };
    let Some(program) = command.get_ref().0.first() else { return Ok(()) };
    let folder = handler.folder.as_ref().map_or_else(|| Path::new("."), |folder| folder.get_ref());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = match program.contains('/') {
        true => is_program(&folder.join(program)),
        false => std::env::split_paths(&path).any(|place| is_program(&folder.join(place).join(program))),
    };
    let problem = match program.contains('/') {
        true => format!("there is no program {program}, seen from {}", folder.display()),
        false => format!("there is no program {program} in any folder of PATH: write its whole path"),
    };
    if is_there { Ok(()) } else { Err(text.at(command, &problem)) }
}

/// A file that somebody may run.
fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn check_endpoint(
    url: &toml::Spanned<String>,
    handler: &file::Handler,
    text: &Text<'_>,
) -> Result<To, Usage> {
    let expanded = text.expand(url)?;
    let parsed =
        Url::parse(&expanded).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let Some(parsed) = parsed else {
        return Err(text.at(url, "this is no URL: write http://HOST/PATH or https://HOST/PATH"));
    };
    if let Some(folder) = &handler.folder {
        return Err(text.at(folder, "folder is for commands"));
    }
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if !handler.allow_private && (host == "localhost" || host.parse().is_ok_and(|ip| !is_public(ip))) {
        return Err(text.at(
            url,
            "this address is on this machine or in a private network: set allow_private = true if that is meant",
        ));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &handler.headers {
        let header = HeaderName::from_bytes(name.get_ref().as_bytes())
            .map_err(|_| text.at(name, "this is no header's name"))?;
        if let Some(objection) = objection(&header) {
            return Err(text.at(name, objection));
        }
        let mut expanded = HeaderValue::from_str(&text.expand(value)?)
            .map_err(|_| text.at(value, "this cannot stand in a header"))?;
        expanded.set_sensitive(true);
        headers.insert(header, expanded);
    }
    Ok(To::Endpoint { url: parsed, headers, allow_private: handler.allow_private })
}

fn check_command(
    command: &toml::Spanned<file::Words>,
    handler: &file::Handler,
    text: &Text<'_>,
) -> Result<To, Usage> {
    let Some((program, arguments)) =
        command.get_ref().0.split_first().filter(|(program, _)| !program.is_empty())
    else {
        return Err(text.at(command, "say which program: command = [\"./charge\", \"--live\"]"));
    };
    if let Some(name) = handler.headers.keys().next() {
        return Err(text.at(name, "headers are for urls: a command has its environment"));
    }
    let folder = handler.folder.as_ref();
    if let Some(folder) = folder
        && !folder.get_ref().is_dir()
    {
        return Err(text.at(folder, "there is no such folder"));
    }
    Ok(To::Command {
        program: program.clone(),
        arguments: arguments.to_vec(),
        folder: folder.map(|folder| folder.get_ref().clone()),
    })
}
