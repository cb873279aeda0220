//! Checks on SQLite.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::str::FromStr;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqlitePool};

use super::check::DoctorCheck;
use crate::store::folder_of;

const MIB: u64 = 1024 * 1024;
/// Less free space than this is a warning.
const LITTLE_SPACE: u64 = 1024 * MIB;
/// Less free space than this is a problem.
const NO_SPACE: u64 = 64 * MIB;
/// A larger write-ahead log shows that checkpoints do not complete.
const LONG_WAL: u64 = 256 * MIB;

/// Checks of the file and its folder, without the store.
pub(super) async fn of_the_file(url: &str, file: &str) -> Vec<DoctorCheck> {
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
        DoctorCheck::from_result("journal_mode", journal_mode(url).await),
    ]
}

/// Checks on the store's connections.
pub(super) async fn of_the_store(pool: &SqlitePool, deep: bool) -> Vec<DoctorCheck> {
    let mut checks = vec![DoctorCheck::from_result("synchronous", synchronous(pool).await)];
    if deep {
        checks.push(DoctorCheck::from_result("integrity", integrity(pool).await));
    }
    checks
}

fn writable_file(path: &Path) -> DoctorCheck {
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => DoctorCheck::ok("file_writable", format!("{} is writable", path.display())),
        Err(error) => DoctorCheck::problem(
            "file_writable",
            format!("{} is not writable: {error}", path.display()),
            "give the user of the programs write permission",
        ),
    }
}

/// SQLite creates its journal beside the file.
fn writable_folder(folder: &Path) -> DoctorCheck {
    // By creating a file: permission bits are not the whole truth.
    match tempfile::tempfile_in(folder) {
        Ok(_) => DoctorCheck::ok("folder_writable", format!("{} is writable", folder.display())),
        Err(error) => DoctorCheck::problem(
            "folder_writable",
            format!("{} is not writable: {error}", folder.display()),
            "give the user of the programs write permission: SQLite creates its journal beside the database",
        ),
    }
}

fn free_space(folder: &Path) -> DoctorCheck {
    let id = "free_space";
    let free = match rustix::fs::statvfs(folder) {
        // Not `f_bfree`, which includes the blocks that are reserved for root.
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return DoctorCheck::unknown(id, error),
    };
    let message = format!("{} MiB free in {}", free / MIB, folder.display());
    let fix = "free some space, or move the database: a full disk accepts no messages";
    match free {
        0..NO_SPACE => DoctorCheck::problem(id, message, fix),
        NO_SPACE..LITTLE_SPACE => DoctorCheck::warning(id, message, fix),
        _ => DoctorCheck::ok(id, message),
    }
}

fn wal_size(path: &Path) -> DoctorCheck {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let bytes = fs::metadata(Path::new(&wal)).map_or(0, |wal| wal.len());
    let message = format!("the write-ahead log has {} MiB", bytes / MIB);
    match bytes > LONG_WAL {
        true => DoctorCheck::warning(
            "wal_size",
            message,
            "find the reader that keeps a transaction open: SQLite cannot shrink the log before it ends",
        ),
        false => DoctorCheck::ok("wal_size", message),
    }
}

/// The mode in the file, read on a connection that does not set one.
async fn journal_mode(url: &str) -> Result<DoctorCheck, sqlx::Error> {
    let mut conn = SqliteConnectOptions::from_str(url)?.create_if_missing(false).connect().await?;
    let mode: String = sqlx::query_scalar("pragma journal_mode").fetch_one(&mut conn).await?;
    Ok(check_of_journal_mode(&mode))
}

fn check_of_journal_mode(mode: &str) -> DoctorCheck {
    let id = "journal_mode";
    match mode {
        "wal" => DoctorCheck::ok(id, "wal"),
        "off" | "memory" => DoctorCheck::problem(
            id,
            format!("{mode}: a crash during a commit can destroy the database"),
            "set `journal_mode = WAL` on every connection",
        ),
        _ => DoctorCheck::warning(
            id,
            format!("{mode}: readers and the writer block each other"),
            "set `journal_mode = WAL`, as SqliteStore::connect does",
        ),
    }
}

async fn synchronous(pool: &SqlitePool) -> Result<DoctorCheck, sqlx::Error> {
    let level: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(pool).await?;
    Ok(check_of_synchronous(level))
}

/// A setting of each connection, not of the file.
fn check_of_synchronous(level: i64) -> DoctorCheck {
    let id = "synchronous";
    let name = match level {
        0 => "OFF",
        1 => "NORMAL",
        _ => {
            return DoctorCheck::ok(
                id,
                "FULL on the connections of SqliteStore::connect; a program with its own pool sets it itself",
            );
        }
    };
    DoctorCheck::problem(
        id,
        format!("{name}: a power failure can lose acknowledged messages"),
        "set `synchronous = FULL` on every connection",
    )
}

async fn integrity(pool: &SqlitePool) -> Result<DoctorCheck, sqlx::Error> {
    // Not `integrity_check`, which also compares every index with its table and takes much longer.
    let found: Vec<String> = sqlx::query_scalar("pragma quick_check").fetch_all(pool).await?;
    Ok(match &found[..] {
        [only] if only == "ok" => DoctorCheck::ok("integrity", "the whole file was read without errors"),
        _ => DoctorCheck::problem(
            "integrity",
            format!("the file is damaged: {}", found.join("; ")),
            "stop all programs, copy the file, and restore a backup or try `sqlite3 FILE .recover`",
        ),
    })
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqlitePoolOptions, SqliteSynchronous};

    use super::*;
    use crate::operate::doctor::check::CheckLevel;

    #[tokio::test]
    async fn a_setting_that_can_lose_a_commit_is_a_problem() {
        let levels = [
            (SqliteSynchronous::Off, CheckLevel::Problem),
            (SqliteSynchronous::Normal, CheckLevel::Problem),
            (SqliteSynchronous::Full, CheckLevel::Ok),
        ];
        for (level, expected) in levels {
            let options = SqliteConnectOptions::from_str("sqlite::memory:").unwrap().synchronous(level);
            let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
            let checks = of_the_store(&pool, true).await;
            assert_eq!(checks[0].level, expected, "{:?}", checks[0]);
            assert_eq!((checks[1].id, checks[1].level), ("integrity", CheckLevel::Ok));
        }
    }

    #[test]
    fn the_journal_mode_decides_the_level() {
        assert_eq!(check_of_journal_mode("wal").level, CheckLevel::Ok);
        assert_eq!(check_of_journal_mode("delete").level, CheckLevel::Warning);
        assert_eq!(check_of_journal_mode("off").level, CheckLevel::Problem);
    }
}
