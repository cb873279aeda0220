//! Reading markers.

use oncebox_core::store::{Inspect, Marker, MarkerState, Unit, doing, row};
use oncebox_core::{Error, Fingerprint};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::claims::as_json;
use crate::fault::failed;
use crate::statements;
use crate::store::SqliteStore;

impl Inspect for SqliteStore {
    async fn marker(&self, unit: &Unit) -> Result<Option<Marker>, Error> {
        let mut conn = self.pool.acquire().await.map_err(failed(doing::READ_MARKERS))?;
        find_marker(&mut conn, unit).await
    }

    async fn markers(&self, units: &[Unit]) -> Result<Vec<Option<Marker>>, Error> {
        let mut conn = self.pool.acquire().await.map_err(failed(doing::READ_MARKERS))?;
        find_markers(&mut conn, units).await
    }
}

/// The markers of several units, in their order.
pub(crate) async fn find_markers(
    conn: &mut SqliteConnection,
    units: &[Unit],
) -> Result<Vec<Option<Marker>>, Error> {
    let doing = doing::READ_MARKERS;
    let rows = sqlx::query(statements::find_markers())
        .bind(as_json(units).map_err(failed(doing))?)
        .fetch_all(conn)
        .await
        .map_err(failed(doing))?;
    let mut markers = vec![None; units.len()];
    for row in &rows {
        let n: i64 = row.try_get("n").map_err(failed(doing))?;
        if let Some(marker) = usize::try_from(n).ok().and_then(|n| markers.get_mut(n)) {
            *marker = Some(read_marker(row).map_err(failed(doing))?);
        }
    }
    Ok(markers)
}

pub(crate) async fn find_marker(conn: &mut SqliteConnection, unit: &Unit) -> Result<Option<Marker>, Error> {
    let row = sqlx::query(statements::find_marker())
        .bind(&unit.handler)
        .bind(&unit.kind)
        .bind(unit.key.as_bytes())
        .fetch_optional(conn)
        .await
        .map_err(failed(doing::READ_MARKERS))?;
    row.map(|row| read_marker(&row)).transpose().map_err(failed(doing::READ_MARKERS))
}

fn read_marker(row: &SqliteRow) -> Result<Marker, sqlx::Error> {
    let key: &[u8] = row.try_get(2)?;
    let long_key: Option<&[u8]> = row.try_get(3)?;
    let fingerprint: Option<i64> = row.try_get(4)?;
    let state: &str = row.try_get(5)?;
    Ok(Marker {
        handler: row.try_get(0)?,
        kind: row.try_get(1)?,
        key: row::key(key, long_key),
        fingerprint: fingerprint.map(Fingerprint::from_i64),
        state: MarkerState::from_name(state),
        received_at: row::time_from_ms(row.try_get(6)?),
        processed_at: row::time_from_ms(row.try_get(7)?),
        result: row.try_get(8)?,
    })
}
