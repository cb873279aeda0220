//! The operating system's user for a server process.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

/// A user and its group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsAccount {
    /// The user.
    pub uid: u32,
    /// The user's own group.
    pub gid: u32,
}

impl OsAccount {
    /// The first of `names` that exists, when this process is root; otherwise `None`, since a process that is
    /// not root is unprivileged already and cannot become anyone else.
    pub fn unprivileged(names: &[&str]) -> Result<Option<OsAccount>> {
        if !is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        let account = names.iter().find_map(|name| find(&users, name)).with_context(|| {
            format!("servers do not run as root and there is none of the users {names:?}: create one of them")
        })?;
        Ok(Some(account))
    }

    /// Makes `command` run as this account.
    pub fn applies_to(self, command: &mut Command) {
        // The group first: an unprivileged user may not change it.
        command.gid(self.gid).uid(self.uid);
    }
}

/// Whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn find(users: &str, name: &str) -> Option<OsAccount> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(OsAccount { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\n\
                         # a comment\n\
                         post:x:7:8::/:/bin/false\n\
                         postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash\n";

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        assert_eq!(find(USERS, "postgres"), Some(OsAccount { uid: 101, gid: 104 }));
        assert_eq!(find(USERS, "postgr"), None);
    }
}
