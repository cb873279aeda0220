//! What is checked on SQLite.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::str::FromStr;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqlitePool};

use super::check::Check;
use crate::store::folder_of;

const MIB: u64 = 1024 * 1024;
/// Less than that is soon used up.
const LITTLE_SPACE: u64 = 1024 * MIB;
const NO_SPACE: u64 = 64 * MIB;
/// A WAL that grows beyond that is not brought back into the database.
const LONG_WAL: u64 = 256 * MIB;

/// What can be seen from outside, and what is written in the file.
pub(super) async fn of_the_file(url: &str, file: &str) -> Vec<Check> {
    let path = Path::new(file);
    if !path.exists() {
        return Vec::new();
    }
    let folder = folder_of(path);
    vec![
        writable_file(path),
        writable_folder(folder),
        free_space(folder),
        wal_size(path),
        Check::from_result("journal_mode", journal_mode(url).await),
    ]
}

/// What holds for the connections that the store makes.
pub(super) async fn of_the_store(pool: &SqlitePool, deep: bool) -> Vec<Check> {
    let mut checks = vec![Check::from_result("synchronous", synchronous(pool).await)];
    if deep {
        checks.push(Check::from_result("integrity", integrity(pool).await));
    }
    checks
}

fn writable_file(path: &Path) -> Check {
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => Check::ok("file_writable", format!("{} can be written", path.display())),
        Err(error) => Check::problem(
            "file_writable",
            format!("{} cannot be written: {error}", path.display()),
            "give the user that runs the program the right to write it",
        ),
    }
}

/// SQLite makes its journal beside the file.
fn writable_folder(folder: &Path) -> Check {
    match tempfile::tempfile_in(folder) {
        Ok(_) => Check::ok("folder_writable", format!("{} can be written", folder.display())),
        Err(error) => Check::problem(
            "folder_writable",
            format!("{} cannot be written: {error}", folder.display()),
            "give the user that runs the program the right to write it: the journal is made beside the database",
        ),
    }
}

fn free_space(folder: &Path) -> Check {
    let id = "free_space";
    let free = match rustix::fs::statvfs(folder) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return Check::unknown(id, error),
    };
    let message = format!("{} MiB are free where {} is", free / MIB, folder.display());
    let fix = "make room, or move the database: nothing can be accepted when it is full";
    match free {
        0..NO_SPACE => Check::problem(id, message, fix),
        NO_SPACE..LITTLE_SPACE => Check::warning(id, message, fix),
        _ => Check::ok(id, message),
    }
}

fn wal_size(path: &Path) -> Check {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let bytes = fs::metadata(Path::new(&wal)).map_or(0, |wal| wal.len());
    let message = format!("the write-ahead log has {} MiB", bytes / MIB);
    match bytes > LONG_WAL {
        true => Check::warning(
            "wal_size",
            message,
            "find the reader that keeps a transaction open: the log is not brought back into the database before it ends",
        ),
        false => Check::ok("wal_size", message),
    }
}

/// As it is in the file, on a connection that sets nothing.
async fn journal_mode(url: &str) -> Result<Check, sqlx::Error> {
    let mut conn = SqliteConnectOptions::from_str(url)?.create_if_missing(false).connect().await?;
    let mode: String = sqlx::query_scalar("pragma journal_mode").fetch_one(&mut conn).await?;
    Ok(judge_journal_mode(&mode))
}

fn judge_journal_mode(mode: &str) -> Check {
    let id = "journal_mode";
    match mode {
        "wal" => Check::ok(id, "wal"),
        "off" | "memory" => Check::problem(
            id,
            format!("{mode}: a crash in the middle of a commit can destroy the database"),
            "set `journal_mode = WAL` on every connection",
        ),
        _ => Check::warning(
            id,
            format!("{mode}: readers and the writer block each other"),
            "set `journal_mode = WAL`; a program that opens it with SqliteStore::connect does",
        ),
    }
}

async fn synchronous(pool: &SqlitePool) -> Result<Check, sqlx::Error> {
    let level: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(pool).await?;
    Ok(judge_synchronous(level))
}

/// Not in the file, but set by each connection.
fn judge_synchronous(level: i64) -> Check {
    let id = "synchronous";
    let name = match level {
        0 => "OFF",
        1 => "NORMAL",
        _ => {
            return Check::ok(
                id,
                "FULL on the connections of SqliteStore::connect; a program with a pool of its own sets it itself",
            );
        }
    };
    Check::problem(
        id,
        format!("{name}: a power failure can lose acknowledged messages"),
        "set `synchronous = FULL` on every connection",
    )
}

async fn integrity(pool: &SqlitePool) -> Result<Check, sqlx::Error> {
    let found: Vec<String> = sqlx::query_scalar("pragma quick_check").fetch_all(pool).await?;
    Ok(match &found[..] {
        [only] if only == "ok" => Check::ok("integrity", "the whole file was read, and is sound"),
        _ => Check::problem(
            "integrity",
            format!("the file is damaged: {}", found.join("; ")),
            "stop all programs, keep a copy of the file, and restore a backup or try `sqlite3 FILE .recover`",
        ),
    })
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqlitePoolOptions, SqliteSynchronous};

    use super::*;
    use crate::operate::doctor::check::Level;

    #[tokio::test]
    async fn what_could_lose_a_commit_is_found() {
        let levels = [
            (SqliteSynchronous::Off, Level::Problem),
            (SqliteSynchronous::Normal, Level::Problem),
            (SqliteSynchronous::Full, Level::Ok),
        ];
        for (level, expected) in levels {
            let options = SqliteConnectOptions::from_str("sqlite::memory:").unwrap().synchronous(level);
            let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
            let checks = of_the_store(&pool, true).await;
            assert_eq!(checks[0].level, expected, "{:?}", checks[0]);
            assert_eq!((checks[1].id, checks[1].level), ("integrity", Level::Ok));
        }
    }

    #[test]
    fn a_journal_that_cannot_be_relied_on_is_found() {
        assert_eq!(judge_journal_mode("wal").level, Level::Ok);
        assert_eq!(judge_journal_mode("delete").level, Level::Warning);
        assert_eq!(judge_journal_mode("off").level, Level::Problem);
    }
}
