//! A URL with one host or several, in the manner of libpq.
//!
//! `postgres://user@one:5432,two:5433/db?target_session_attrs=read-write`. The driver knows one host only, so a URL with several
//! becomes one URL for each, and everything else in it is read by the driver.

use std::str::FromStr;

use oncebox_core::{Error, ErrorKind};
use sqlx::postgres::PgConnectOptions;
use sqlx_core::percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sqlx_core::url::form_urlencoded;

use crate::target::Target;

/// What a URL says.
#[derive(Clone)]
pub(crate) struct Hosts {
    /// How to connect to each, in the order of the URL; at least one.
    pub(crate) options: Vec<PgConnectOptions>,
    /// Which of them will do; `None` for a single host of which nothing is asked.
    pub(crate) target: Option<Target>,
}

impl Hosts {
    // No error shows any part of the URL: where a password is not encoded, any part may be of the password.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let (head, query) = match url.split_once('?') {
            Some((head, query)) => (head, query),
            None => (url, ""),
        };
        let Query { rest, hosts, ports, target } = Query::parse(query)?;
        let split = head.split_once("://").map(|(scheme, rest)| {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let (user, places) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
            (scheme, user, places, path)
        });
        let Some((scheme, user, places, path)) = split.filter(|(scheme, ..)| is_postgres(scheme)) else {
            return Err(unreadable("use postgres://user:password@host:5432/database"));
        };
        let hosts = match hosts {
            Some(hosts) => hosts,
            None => places.split(',').map(str::to_owned).collect(),
        };
        if hosts.len() == 1 && target.is_none() {
            let options = PgConnectOptions::from_str(url)
                .map_err(|_| unreadable("use postgres://user:password@host:5432/database"))?;
            return Ok(Self { options: vec![options], target: None });
        }
        if hosts.iter().any(String::is_empty) && hosts.len() > 1 {
            return Err(unreadable("a host is missing beside a comma; use host1:5432,host2:5433"));
        }
        if ports.len() > 1 && ports.len() != hosts.len() {
            return Err(unreadable("give one port for all hosts, or one for each"));
        }
        let mut options = Vec::with_capacity(hosts.len());
        for (n, host) in hosts.iter().enumerate() {
            // Given as a parameter, one port counts for every host. Of several, each belongs to its own host.
            let port = match &ports[..] {
                [] => String::new(),
                [port] => format!("&port={port}"),
                ports => format!("&port={}", ports[n]),
            };
            let url = format!("{scheme}://{user}{host}{path}?{rest}{port}");
            let parsed = PgConnectOptions::from_str(&url).map_err(|_| {
                let n = n + 1;
                unreadable(format!("host {n} or what follows the hosts is wrong; use host1:5432,host2:5433"))
            })?;
            options.push(parsed);
        }
        // An inbox that cannot write is of no use.
        Ok(Self { options, target: Some(target.unwrap_or(Target::ReadWrite)) })
    }
}

fn is_postgres(scheme: &str) -> bool {
    scheme == "postgres" || scheme == "postgresql"
}

fn unreadable(what_to_do: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, format!("the PostgreSQL URL cannot be read: {what_to_do}"))
}

/// The part of a URL behind the question mark.
struct Query {
    /// As it was, without what is of concern here.
    rest: String,
    /// `host=`, as it is written before the path.
    hosts: Option<Vec<String>>,
    /// `port=`.
    ports: Vec<String>,
    target: Option<Target>,
}

impl Query {
    fn parse(query: &str) -> Result<Self, Error> {
        let mut read = Self { rest: String::new(), hosts: None, ports: Vec::new(), target: None };
        for part in query.split('&') {
            let Some((key, value)) = form_urlencoded::parse(part.as_bytes()).next() else { continue };
            match &*key {
                "host" => read.hosts = Some(value.split(',').map(in_authority).collect()),
                "port" => read.ports = value.split(',').map(str::to_owned).collect(),
                "hostaddr" if value.contains(',') => {
                    return Err(unreadable("hostaddr takes one address; give several as hosts"));
                }
                "target_session_attrs" => {
                    let target = Target::from_name(&value).ok_or_else(|| {
                        unreadable(
                            "target_session_attrs is read-write, primary or any here: an inbox must be able to write",
                        )
                    })?;
                    read.target = Some(target);
                }
                _ => {
                    if !read.rest.is_empty() {
                        read.rest.push('&');
                    }
                    read.rest.push_str(part);
                }
            }
        }
        if read.ports.iter().any(|port| port.parse::<u16>().is_err()) {
            return Err(unreadable("port is a number, or one for each host with commas between"));
        }
        Ok(read)
    }
}

/// A host from the query as it is written before the path.
fn in_authority(host: &str) -> String {
    match host {
        _ if host.starts_with('/') => utf8_percent_encode(host, NON_ALPHANUMERIC).to_string(),
        _ if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        _ => host.to_owned(),
    }
}

/// Where a server is, for people.
pub(crate) fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> (Vec<String>, Option<Target>) {
        let hosts = Hosts::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        (hosts.options.iter().map(place).collect(), hosts.target)
    }

    fn error(url: &str) -> String {
        Hosts::parse(url).err().unwrap_or_else(|| panic!("{url} can be read")).to_string()
    }

    #[test]
    fn one_host_stays_one_host_of_which_nothing_is_asked() {
        assert_eq!(read("postgres://u@db:5433/app"), (vec!["db:5433".into()], None));
        assert_eq!(read("postgresql://u:p@[::1]/app?sslmode=disable"), (vec!["[::1]:5432".into()], None));
        assert_eq!(read("postgres:///app?host=/run/postgresql"), (vec!["/run/postgresql".into()], None));
        let one = read("postgres://u@db/app?target_session_attrs=primary");
        assert_eq!(one, (vec!["db:5432".into()], Some(Target::Primary)));
    }

    #[test]
    fn several_hosts_have_their_own_ports_or_the_usual_one() {
        let several = |places: &[&str]| {
            (places.iter().map(|&place| place.to_owned()).collect::<Vec<_>>(), Some(Target::ReadWrite))
        };
        assert_eq!(
            read("postgres://u@one:5433,two,three:1/db"),
            several(&["one:5433", "two:5432", "three:1"])
        );
        assert_eq!(read("postgres://u@[::1]:5433,[fe80::2]/db"), several(&["[::1]:5433", "[fe80::2]:5432"]));
        assert_eq!(read("postgres://one,two"), several(&["one:5432", "two:5432"]));
        assert_eq!(read("postgres://u@one,two/db?port=6000"), several(&["one:6000", "two:6000"]));
        assert_eq!(read("postgres://u@one,two/db?port=1,2"), several(&["one:1", "two:2"]));
        assert_eq!(read("postgres:///db?host=one,::1&port=1%2C2"), several(&["one:1", "[::1]:2"]));
        assert_eq!(read("postgres://%2Frun%2Fone,%2Frun%2Ftwo/db"), several(&["/run/one", "/run/two"]));
        assert_eq!(read("postgres:///db?host=/run/one,/run/two"), several(&["/run/one", "/run/two"]));
    }

    #[test]
    fn what_is_not_of_the_hosts_goes_to_each_of_them() {
        let url = "postgres://a%40b:s%2Cec%40ret%2F@one,two:2/d%20b?sslmode=disable&target_session_attrs=any\
                   &application_name=a%26b";
        let Hosts { options, target } = Hosts::parse(url).unwrap();
        assert_eq!(target, Some(Target::Any));
        for options in options {
            assert_eq!((options.get_username(), options.get_database()), ("a@b", Some("d b")));
            assert_eq!(options.get_application_name(), Some("a&b"));
            assert!(matches!(options.get_ssl_mode(), sqlx::postgres::PgSslMode::Disable));
            assert!(format!("{options:?}").contains("s,ec@ret/"), "the password is read");
        }
    }

    #[test]
    fn a_comma_or_an_at_sign_in_a_password_is_no_host() {
        let (places, _) = read("postgres://me:p@ss,word@one,two/db");
        assert_eq!(places, ["one:5432", "two:5432"]);
        assert_eq!(read("postgres://me:pass,word@one/db").0, ["one:5432"]);
    }

    #[test]
    fn errors_say_what_to_do_and_show_nothing_of_the_url() {
        let table = [
            ("secret", "postgres://user:password@host"),
            ("mysql://u:secret@one,two/db", "postgres://user:password@host"),
            ("postgres://u:secret@one:port/db", "postgres://user:password@host"),
            ("postgres://u:secret@one,,two/db", "missing beside a comma"),
            ("postgres://u:secret@one,/db", "missing beside a comma"),
            ("postgres://u:secret@one,two:port/db", "host 2 or what follows"),
            ("postgres://u:se/cret@one,two/db", "postgres://user:password@host"),
            ("postgres://u:secret@one,two,three/db?port=1,2", "one for each"),
            ("postgres://u:secret@one,two/db?port=secret", "port is a number"),
            ("postgres://u:secret@one,two/db?target_session_attrs=standby", "read-write, primary or any"),
            ("postgres://u:secret@one,two/db?target_session_attrs=secret", "read-write, primary or any"),
            ("postgres://u:secret@one,two/db?hostaddr=1.1.1.1,2.2.2.2", "give several as hosts"),
            ("postgres://u:secret@one,two/db?sslmode=secret", "what follows the hosts is wrong"),
        ];
        for (url, what_to_do) in table {
            let error = error(url);
            assert!(error.contains(what_to_do), "{url}: {error}");
            assert!(!error.contains("secret") && !error.contains("cret@"), "{url}: {error}");
        }
    }
}
