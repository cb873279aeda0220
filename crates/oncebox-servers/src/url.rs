//! Addresses of databases on one server.

use std::fmt::Write;

use anyhow::{Context, Result};

/// A `postgres://user@host:port/database?options` address in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseUrl {
    // `postgres://`
    scheme: String,
    // `user:password`, encoded
    credentials: String,
    // `host:port`
    server: String,
    database: String,
    // `?options` or nothing
    options: String,
}

impl DatabaseUrl {
    pub(crate) fn parse(url: &str) -> Result<DatabaseUrl> {
        let parts = || {
            let scheme_len = url.find("://")? + "://".len();
            let (scheme, rest) = url.split_at(scheme_len);
            let (rest, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
            let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
            let (credentials, server) = authority.rsplit_once('@')?;
            Some((scheme, credentials, server, database, options))
        };
        // The address itself may hold a password, so the message does not show it.
        let (scheme, credentials, server, database, options) =
            parts().context("a database address reads postgres://user@host:port/database")?;
        Ok(DatabaseUrl {
            scheme: scheme.into(),
            credentials: credentials.into(),
            server: server.into(),
            database: database.into(),
            options: options.into(),
        })
    }

    pub(crate) fn with_database(&self, database: &str) -> DatabaseUrl {
        DatabaseUrl { database: encode(database), ..self.clone() }
    }

    /// Without a password: that of the former user would be wrong.
    pub(crate) fn with_user(&self, user: &str) -> DatabaseUrl {
        DatabaseUrl { credentials: encode(user), ..self.clone() }
    }
}

impl std::fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DatabaseUrl { scheme, credentials, server, database, options } = self;
        write!(f, "{scheme}{credentials}@{server}/{database}{options}")
    }
}

fn encode(name: &str) -> String {
    name.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_parsing() {
        for url in [
            "postgres://postgres@127.0.0.1:20000/postgres",
            "postgresql://me:s%40cret@db.example:5432/app?sslmode=disable&application_name=a/b",
        ] {
            assert_eq!(DatabaseUrl::parse(url).unwrap().to_string(), url);
        }
    }

    #[test]
    fn database_and_user_are_replaced_and_the_password_goes() {
        let url =
            DatabaseUrl::parse("postgres://me:secret@127.0.0.1:20000/postgres?sslmode=disable").unwrap();
        assert_eq!(
            url.with_database("fresh").with_user("a reader").to_string(),
            "postgres://a%20reader@127.0.0.1:20000/fresh?sslmode=disable"
        );
    }

    #[test]
    fn a_wrong_address_is_refused_without_showing_it() {
        for url in ["", "127.0.0.1", "postgres://127.0.0.1/secret"] {
            let error = DatabaseUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("postgres://user@host"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
