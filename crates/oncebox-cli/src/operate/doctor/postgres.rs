//! Checks on PostgreSQL.

use std::time::Duration;

use sqlx::{FromRow, PgPool, Row};

use super::check::DoctorCheck;
use crate::times::rough;

/// A transaction that is open for longer is probably forgotten.
const OLD_TRANSACTION: Duration = Duration::from_secs(5 * 60);
const OLD_IDLE: Duration = Duration::from_secs(60);
/// The maximum share of used connections without a warning.
const USED_PERCENT_MAX: i64 = 80;

pub(super) async fn of_the_server(pool: &PgPool, schema: &str) -> Vec<DoctorCheck> {
    let mut checks = vec![DoctorCheck::from_result("server_version", server_version(pool).await)];
    checks.push(DoctorCheck::from_result("fsync", enabled(pool, "fsync").await));
    checks.push(DoctorCheck::from_result("full_page_writes", enabled(pool, "full_page_writes").await));
    checks.push(DoctorCheck::from_result("synchronous_commit", synchronous_commit(pool).await));
    checks.push(DoctorCheck::from_result("standbys", standbys(pool).await));
    checks.push(DoctorCheck::from_result("connections", connections(pool).await));
    checks.push(DoctorCheck::from_result("old_transactions", old_transactions(pool).await));
    checks.push(DoctorCheck::from_result("idle_transactions", idle_transactions(pool).await));
    checks.push(DoctorCheck::from_result("prepared_transactions", prepared_transactions(pool).await));
    checks.push(DoctorCheck::from_result("replication_slots", replication_slots(pool).await));
    checks.push(DoctorCheck::from_result("privileges", privileges(pool, schema).await));
    checks
}

async fn setting(pool: &PgPool, name: &str) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("select current_setting($1)").bind(name).fetch_one(pool).await
}

async fn server_version(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    let number = setting(pool, "server_version_num").await?;
    let version = setting(pool, "server_version").await?;
    Ok(match number.parse::<u32>().is_ok_and(|number| number < 130_000) {
        true => DoctorCheck::problem(
            "server_version",
            format!("PostgreSQL {version} is too old"),
            "upgrade to version 13 or newer",
        ),
        false => DoctorCheck::ok("server_version", format!("PostgreSQL {version}")),
    })
}

async fn enabled(pool: &PgPool, name: &'static str) -> Result<DoctorCheck, sqlx::Error> {
    Ok(match setting(pool, name).await?.as_str() {
        "off" => DoctorCheck::problem(
            name,
            "off: a crash can lose or damage acknowledged messages",
            format!("set `{name} = on`, and restart or reload the server"),
        ),
        value => DoctorCheck::ok(name, value),
    })
}

async fn synchronous_commit(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    let id = "synchronous_commit";
    // The value of this session, because a role or a database can override the server's value.
    let (value, standbys) = (setting(pool, id).await?, setting(pool, "synchronous_standby_names").await?);
    Ok(match value.as_str() {
        "off" => DoctorCheck::problem(
            id,
            "off: a crash can lose acknowledged messages",
            "set `synchronous_commit = on` for the server, the database and the role",
        ),
        // Without synchronous standbys `local` means the same as `on`.
        "local" if !standbys.is_empty() => DoctorCheck::problem(
            id,
            "local with synchronous standbys: a failover can lose acknowledged messages",
            "set `synchronous_commit = on`",
        ),
        _ => match &careless_roles(pool).await?[..] {
            [] => DoctorCheck::ok(id, value),
            roles => DoctorCheck::warning(
                id,
                format!(
                    "{value}, but off for {}: a crash can lose commits of theirs, after a relay has sent their messages",
                    roles.join(", ")
                ),
                "remove the setting: `alter role NAME reset synchronous_commit`, or `alter database NAME reset \
                 synchronous_commit`",
            ),
        },
    })
}

/// Roles with a setting of their own that programs other than this one use to publish.
async fn careless_roles(pool: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "select distinct coalesce('the role ' || r.rolname, 'all roles') \
         from pg_db_role_setting s \
         left join pg_roles r on r.oid = s.setrole \
         cross join lateral unnest(s.setconfig) as c(setting) \
         where (s.setdatabase = 0 or s.setdatabase = (select oid from pg_database where datname = current_database())) \
           and (s.setrole = 0 or r.rolcanlogin) \
           and c.setting ~* '^synchronous_commit=(off|false|no|0)$' \
         order by 1",
    )
    .fetch_all(pool)
    .await
}

/// Standbys that may lack the last commits.
async fn standbys(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    let id = "standbys";
    // Without backups and logical subscribers. Another role sees the number of connections only.
    let count: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_replication w \
         where coalesce(w.state, 'streaming') <> 'backup' and not exists ( \
            select from pg_replication_slots s where s.active_pid = w.pid and s.slot_type = 'logical' \
         )",
    )
    .fetch_one(pool)
    .await?;
    let is_synchronous = !setting(pool, "synchronous_standby_names").await?.is_empty();
    Ok(match (count, is_synchronous) {
        (0, false) => DoctorCheck::ok(id, "none connected"),
        (_, true) => DoctorCheck::ok(id, format!("{count} connected, and commits wait for synchronous ones")),
        (count, false) => DoctorCheck::warning(
            id,
            format!(
                "{count} connected, all asynchronous: a failover can lose acknowledged commits, and a message that a relay has \
                 sent then reports a change that no longer exists"
            ),
            "set `synchronous_standby_names`, and let only synchronous standbys take over",
        ),
    })
}

async fn connections(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    // Client backends only: background workers do not count towards max_connections.
    let row = sqlx::query(
        "select (select count(*) from pg_stat_activity where backend_type = 'client backend'), \
                current_setting('max_connections')::int8",
    )
    .fetch_one(pool)
    .await?;
    let (used, max): (i64, i64) = FromRow::from_row(&row)?;
    let message = format!("{used} of {max} connections are in use");
    Ok(match used * 100 > max * USED_PERCENT_MAX {
        true => DoctorCheck::warning(
            "connections",
            message,
            "raise max_connections, make the programs' pools smaller, or use a connection pooler",
        ),
        false => DoctorCheck::ok("connections", message),
    })
}

/// Long transactions, which keep vacuum from removing old rows.
async fn old_transactions(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    let row = sqlx::query(
        "select max(extract(epoch from clock_timestamp() - xact_start))::float8, \
                pg_has_role(current_user, 'pg_read_all_stats', 'usage') \
         from pg_stat_activity where xact_start is not null and pid <> pg_backend_pid() \
              and backend_type = 'client backend'",
    )
    .fetch_one(pool)
    .await?;
    let oldest = seconds(row.try_get(0)?);
    // PostgreSQL hides the times of other roles without an error.
    let sees_all: bool = row.try_get(1)?;
    let of = if sees_all { "" } else { " (only of this role: grant pg_read_all_stats to see all)" };
    Ok(match oldest {
        Some(age) if age > OLD_TRANSACTION => DoctorCheck::warning(
            "old_transactions",
            format!("the oldest has been open for {}{of}", rough(age)),
            "find it in pg_stat_activity by xact_start, and end it: until then vacuum cannot remove deleted rows",
        ),
        Some(age) => {
            DoctorCheck::ok("old_transactions", format!("the oldest has been open for {}{of}", rough(age)))
        }
        None => DoctorCheck::ok("old_transactions", format!("none{of}")),
    })
}

async fn idle_transactions(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    let row = sqlx::query(
        "select count(*), max(extract(epoch from clock_timestamp() - state_change))::float8 \
         from pg_stat_activity where state like 'idle in transaction%' \
              and clock_timestamp() - state_change > make_interval(secs => $1)",
    )
    .bind(OLD_IDLE.as_secs_f64())
    .fetch_one(pool)
    .await?;
    let (count, longest): (i64, Option<f64>) = FromRow::from_row(&row)?;
    Ok(match (count, seconds(longest)) {
        (0, _) | (_, None) => DoctorCheck::ok("idle_transactions", "none"),
        (count, Some(longest)) => DoctorCheck::warning(
            "idle_transactions",
            format!("{count} sessions are idle in a transaction, for up to {}", rough(longest)),
            "find their programs in pg_stat_activity, and set idle_in_transaction_session_timeout",
        ),
    })
}

async fn prepared_transactions(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    let row = sqlx::query(
        "select count(*), max(extract(epoch from clock_timestamp() - prepared))::float8 from pg_prepared_xacts",
    )
    .fetch_one(pool)
    .await?;
    let (count, oldest): (i64, Option<f64>) = FromRow::from_row(&row)?;
    Ok(match seconds(oldest) {
        Some(oldest) if oldest > OLD_TRANSACTION => DoctorCheck::warning(
            "prepared_transactions",
            format!("{count}, the oldest open for {}", rough(oldest)),
            "end those in pg_prepared_xacts with COMMIT PREPARED or ROLLBACK PREPARED: they hold locks and old rows",
        ),
        _ => DoctorCheck::ok(
            "prepared_transactions",
            if count == 0 { "none".into() } else { count.to_string() },
        ),
    })
}

/// Inactive slots, which keep old rows.
async fn replication_slots(pool: &PgPool) -> Result<DoctorCheck, sqlx::Error> {
    // Slots without an xmin keep WAL files but no rows, so they do not hold back vacuum.
    let idle: Vec<String> = sqlx::query_scalar(
        "select slot_name::text from pg_replication_slots \
         where not active and (xmin is not null or catalog_xmin is not null) order by 1",
    )
    .fetch_all(pool)
    .await?;
    Ok(match idle.is_empty() {
        true => DoctorCheck::ok("replication_slots", "no inactive slot keeps old rows"),
        false => DoctorCheck::warning(
            "replication_slots",
            format!("inactive, but keep old rows: {}", idle.join(", ")),
            "connect the standby, or drop the slot: select pg_drop_replication_slot('NAME')",
        ),
    })
}

/// The privileges that a running program needs, and `migrate grants` grants.
async fn privileges(pool: &PgPool, schema: &str) -> Result<DoctorCheck, sqlx::Error> {
    let id = "privileges";
    let role: String = sqlx::query_scalar("select current_user::text").fetch_one(pool).await?;
    let fix = format!("let the owner of the schema run the SQL that `oncebox migrate grants {role}` prints");
    let may_use: Option<bool> =
        sqlx::query_scalar("select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = $1")
            .bind(schema)
            .fetch_optional(pool)
            .await?;
    match may_use {
        None => return Ok(DoctorCheck::ok(id, format!("there is no schema {schema} yet"))),
        Some(false) => {
            return Ok(DoctorCheck::problem(id, format!("{role} may not use the schema {schema}"), fix));
        }
        Some(true) => {}
    }
    let missing: Vec<String> =
        sqlx::query_scalar(include_str!("privileges.sql")).bind(schema).fetch_all(pool).await?;
    Ok(match missing.is_empty() {
        true => DoctorCheck::ok(id, format!("{role} may read and write the tables in {schema}")),
        false => DoctorCheck::problem(id, format!("{role} may not {}", missing.join(", ")), fix),
    })
}

fn seconds(age: Option<f64>) -> Option<Duration> {
    // The age is negative if the server's clock was set back.
    age.and_then(|age| Duration::try_from_secs_f64(age.max(0.0)).ok())
}
