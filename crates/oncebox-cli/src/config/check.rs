//! Checks each section of a configuration, and completes it with defaults.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use oncebox::source::{FieldLocation, SourceRules};
use oncebox::{DeadHead, Retry, Start};
use oncebox_http::delivery::{header_problem, is_public};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::config::text::ConfigText;
use crate::config::{Destination, EndpointConfig, HandlerConfig, HttpConfig, exposed, file};
use crate::exit::Usage;
use crate::source::{invalid_pointer, is_left_out, not_stored};
use crate::times::rough;

/// The only default of this file. The library has those of the engine.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Source names are part of URLs, and the prefix of stored keys.
pub(super) fn is_source_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        // Clients resolve these in a path.
        && !matches!(name, "." | "..")
}

/// How to write a source's name.
pub(super) const SOURCE_NAME_RULE: &str = "use 1 to 64 letters, digits, '-', '_' and '.'";
pub(super) const NAME_RULE: &str = "use 1 to 200 bytes without control characters, and no '@' at the start";

/// The engine's rule for names of handlers, relays and kinds.
pub(super) fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len()) && !name.starts_with('@') && !name.contains(char::is_control)
}

pub(super) fn check_http(http: &file::HttpSection, text: &ConfigText<'_>) -> Result<HttpConfig, Usage> {
    let listen = match &http.listen {
        None => DEFAULT_LISTEN,
        Some(listen) => {
            listen.get_ref().parse().map_err(|_| text.at(listen, &invalid_listen(listen.get_ref())))?
        }
    };
    let token = http.token.as_ref().map(|token| text.expand(token)).transpose()?;
    if let (Some(written), Some(token)) = (&http.token, &token)
        // A short token could be guessed, and a space would split the Authorization header.
        && (token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(
            // Without the value, which is a secret.
            text.at(
                written,
                "invalid token: use 16 or more printable characters, for example from `openssl rand -hex 32`",
            ),
        );
    }
    // Only remembered: `--listen` may replace the address.
    let is_exposed = !listen.ip().is_loopback() && token.is_none();
    let exposed =
        http.listen.as_ref().filter(|_| is_exposed).map(|written| text.at(written, &exposed(listen)));
    Ok(HttpConfig { listen, token, max_body_bytes: http.max_body_bytes, exposed })
}

/// The error text of a listen address, on the command line too.
pub(crate) fn invalid_listen(address: &str) -> String {
    format!(
        "invalid listen address {address:?}: write IP:PORT, for example 127.0.0.1:8080, or [::]:8080 for all interfaces"
    )
}

fn invalid_header_name(name: &str) -> String {
    format!("invalid header name {name:?}: use letters, digits and '-'")
}

pub(super) fn check_source(
    name: &toml::Spanned<String>,
    source: &file::SourceSection,
    text: &ConfigText<'_>,
) -> Result<SourceRules, Usage> {
    if !is_source_name(name.get_ref()) {
        return Err(text.at(
            name,
            &format!(
                "invalid source name {:?}: {SOURCE_NAME_RULE}, because the name is part of the URL",
                name.get_ref()
            ),
        ));
    }
    let location = |part: &str,
                    header: &Option<toml::Spanned<String>>,
                    pointer: &Option<toml::Spanned<String>>| match (header, pointer) {
        // No order of preference: a fallback to the second location would give one message two keys.
        (Some(_), Some(pointer)) => {
            let problem = format!("{part}_header and {part}_pointer are both set: remove one of them");
            Err(text.at(pointer, &problem))
        }
        (Some(header), None) if HeaderName::from_bytes(header.get_ref().as_bytes()).is_err() => {
            Err(text.at(header, &invalid_header_name(header.get_ref())))
        }
        // The gateway drops these headers before it applies the rules, so this rule would never find a value.
        (Some(header), None) if is_left_out(header.get_ref()) => {
            Err(text.at(header, &format!("{}: use another one", not_stored(header.get_ref()))))
        }
        (Some(header), None) => Ok(Some(FieldLocation::Header(header.get_ref().clone()))),
        (None, Some(pointer)) if !pointer.get_ref().starts_with('/') => {
            Err(text.at(pointer, &invalid_pointer(pointer.get_ref())))
        }
        (None, Some(pointer)) => Ok(Some(FieldLocation::Pointer(pointer.get_ref().clone()))),
        (None, None) => Ok(None),
    };
    let mut rules = SourceRules::new(name.get_ref());
    rules.kind = location("kind", &source.kind_header, &source.kind_pointer)?;
    rules.key = location("key", &source.key_header, &source.key_pointer)?;
    rules.order = location("order", &source.order_header, &source.order_pointer)?;
    if let Some(kind) = &source.kind {
        rules.default_kind.clone_from(kind.get_ref());
    }
    Ok(rules)
}

pub(super) fn check_handler(
    name: &toml::Spanned<String>,
    handler: &file::HandlerSection,
    text: &ConfigText<'_>,
) -> Result<HandlerConfig, Usage> {
    if let Some(kind) = handler.kinds.get_ref().0.iter().find(|kind| !is_name(kind)) {
        return Err(text.at(&handler.kinds, &format!("invalid kind {kind:?}: {NAME_RULE}")));
    }
    if !is_name(name.get_ref()) {
        return Err(text.at(name, &format!("invalid handler name {:?}: {NAME_RULE}", name.get_ref())));
    }
    if handler.kinds.get_ref().0.is_empty() {
        return Err(text.at(&handler.kinds, "kinds is empty: list one or more kinds of message"));
    }
    let to = match (&handler.url, &handler.command) {
        (Some(url), None) => {
            if let Some(folder) = &handler.folder {
                return Err(text.at(folder, "folder applies to commands only: remove it"));
            }
            let written =
                WrittenEndpoint { url, headers: &handler.headers, allow_private: handler.allow_private };
            Destination::Endpoint(check_endpoint(&written, header_problem, text)?)
        }
        (None, Some(command)) => check_command(command, handler, text)?,
        (Some(_), Some(command)) => {
            return Err(text.at(command, "url and command are both set: remove one of them"));
        }
        (None, None) => {
            return Err(
                text.at(name, "the handler has no destination: set url = \"https://…\" or command = [\"…\"]")
            );
        }
    };
    let never = "the handler would never run";
    check_not_zero(handler.concurrency.as_ref(), "concurrency", never, text)?;
    check_not_zero(handler.max_open_tasks.as_ref(), "max_open_tasks", never, text)?;
    check_not_zero(handler.retry.max_attempts.as_ref(), "max_attempts", never, text)?;
    Ok(HandlerConfig {
        name: name.get_ref().clone(),
        kinds: handler.kinds.get_ref().0.clone(),
        to,
        timeout: handler.timeout.map(|time| time.0),
        concurrency: handler.concurrency.as_ref().map(|n| *n.get_ref()),
        max_open_tasks: handler.max_open_tasks.as_ref().map(|n| *n.get_ref()),
        ordered: check_order(handler.ordered, handler.dead_head.as_ref(), text)?,
        start: start(handler.start),
        revive: handler.revive,
        retry: check_retry(&handler.retry, text)?,
    })
}

/// Checks a number that stops all work if it is 0.
pub(super) fn check_not_zero<N: Copy + Default + PartialEq>(
    number: Option<&toml::Spanned<N>>,
    what: &str,
    never: &str,
    text: &ConfigText<'_>,
) -> Result<(), Usage> {
    match number {
        Some(written) if *written.get_ref() == N::default() => {
            Err(text.at(written, &format!("{what} is 0, so {never}: set 1 or more")))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_order(
    ordered: bool,
    dead_head: Option<&toml::Spanned<file::DeadHeadSetting>>,
    text: &ConfigText<'_>,
) -> Result<Option<DeadHead>, Usage> {
    match (ordered, dead_head) {
        (false, Some(policy)) => {
            Err(text.at(policy, "dead_head needs ordered = true: set it, or remove dead_head"))
        }
        (false, None) => Ok(None),
        (true, Some(policy)) if matches!(policy.get_ref(), file::DeadHeadSetting::Skip) => {
            Ok(Some(DeadHead::Skip))
        }
        (true, _) => Ok(Some(DeadHead::Hold)),
    }
}

pub(super) fn start(start: file::StartSetting) -> Start {
    match start {
        file::StartSetting::Beginning => Start::Beginning,
        file::StartSetting::Now => Start::Now,
    }
}

pub(super) fn check_retry(retry: &file::RetrySection, text: &ConfigText<'_>) -> Result<Retry, Usage> {
    // Each value by itself: the others keep the library's defaults.
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
    // The error needs a line of the file, and the defaults fit each other.
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

/// Checks that a handler's program exists, by the same rules as when it is run.
pub(super) fn check_program(handler: &file::HandlerSection, text: &ConfigText<'_>) -> Result<(), Usage> {
    let Some(command) = &handler.command else { return Ok(()) };
    let Some(program) = command.get_ref().0.first() else { return Ok(()) };
    let folder = handler.folder.as_ref().map_or_else(|| Path::new("."), |folder| folder.get_ref());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let exists = match program.contains('/') {
        true => is_program(&folder.join(program)),
        // An entry of PATH may be relative. It is relative to the folder in which the command runs.
        false => std::env::split_paths(&path).any(|entry| is_program(&folder.join(entry).join(program))),
    };
    let problem = match program.contains('/') {
        true => format!("program not found: {program}, relative to {}: correct the path", folder.display()),
        false => format!("program not found in PATH: {program}: install it, or write its full path"),
    };
    if exists { Ok(()) } else { Err(text.at(command, &problem)) }
}

/// Whether a file is executable, for any user.
fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// An endpoint as it is written in the file.
pub(super) struct WrittenEndpoint<'a> {
    pub(super) url: &'a toml::Spanned<String>,
    pub(super) headers: &'a BTreeMap<toml::Spanned<String>, toml::Spanned<String>>,
    pub(super) allow_private: bool,
}

/// Checks an endpoint. `header_problem` says which headers cannot be configured.
pub(super) fn check_endpoint(
    written: &WrittenEndpoint<'_>,
    header_problem: impl Fn(&str) -> Option<String>,
    text: &ConfigText<'_>,
) -> Result<EndpointConfig, Usage> {
    let WrittenEndpoint { url, allow_private, .. } = *written;
    let expanded = text.expand(url)?;
    let parsed =
        Url::parse(&expanded).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let Some(parsed) = parsed else {
        return Err(text.at(
            url, // As it is written: a variable may hold a secret.
            &format!("invalid URL {:?}: write http://HOST/PATH or https://HOST/PATH", url.get_ref()),
        ));
    };
    // Names are checked again on each connection, because they may resolve to another address later.
    // An IPv6 host has brackets.
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if !allow_private && (host == "localhost" || host.parse().is_ok_and(|ip| !is_public(ip))) {
        return Err(text.at(
            url,
            &format!(
                "{host} is on this machine or in a private network: set allow_private = true to allow it"
            ),
        ));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in written.headers {
        let header = HeaderName::from_bytes(name.get_ref().as_bytes())
            .map_err(|_| text.at(name, &invalid_header_name(name.get_ref())))?;
        if let Some(problem) = header_problem(header.as_str()) {
            return Err(text.at(name, &problem));
        }
        let mut expanded = HeaderValue::from_str(&text.expand(value)?).map_err(|_| {
            text.at(value, &format!("invalid value of the header {header}: use visible ASCII characters"))
        })?;
        // The HTTP client leaves sensitive values out of its debug output.
        expanded.set_sensitive(true);
        headers.insert(header, expanded);
    }
    Ok(EndpointConfig { url: parsed, headers, allow_private })
}

fn check_command(
    command: &toml::Spanned<file::StringList>,
    handler: &file::HandlerSection,
    text: &ConfigText<'_>,
) -> Result<Destination, Usage> {
    let Some((program, arguments)) =
        command.get_ref().0.split_first().filter(|(program, _)| !program.is_empty())
    else {
        return Err(text.at(
            command,
            "command has no program: write it first, for example command = [\"./charge\", \"--live\"]",
        ));
    };
    if let Some(name) = handler.headers.keys().next() {
        return Err(text.at(name, "headers apply to URLs only: a command gets environment variables instead"));
    }
    let folder = handler.folder.as_ref();
    if let Some(folder) = folder
        && !folder.get_ref().is_dir()
    {
        return Err(text.at(
            folder,
            &format!("folder not found: {}: create it, or correct the path", folder.get_ref().display()),
        ));
    }
    Ok(Destination::Command {
        program: program.clone(),
        arguments: arguments.to_vec(),
        folder: folder.map(|folder| folder.get_ref().clone()),
    })
}
