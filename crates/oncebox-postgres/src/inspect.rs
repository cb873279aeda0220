//! Reading markers.

use oncebox_core::store::{Inspect, Marker, MarkerState, Unit, doing, row};
use oncebox_core::{Error, Fingerprint};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::connection::{AnyConnection, TimedConnection};
use crate::fault::failed;
use crate::statements::Statements;
use crate::store::PostgresStore;

impl Inspect for PostgresStore {
    async fn marker(&self, unit: &Unit) -> Result<Option<Marker>, Error> {
        let mut conn = self.connections.open(doing::READ_MARKERS).await?;
        find_marker(&self.statements, &mut conn, unit).await
    }

    async fn markers(&self, units: &[Unit]) -> Result<Vec<Option<Marker>>, Error> {
        let doing = doing::READ_MARKERS;
        let find = sqlx::query(self.statements.find_markers.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(units.iter().map(|unit| &*unit.handler).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| &*unit.kind).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| unit.key.as_bytes()).collect::<Vec<_>>());
        let rows = self.connections.fetch_all(doing, find).await?;
        let mut markers = vec![None; units.len()];
        for row in &rows {
            let ordinal: i64 = row.try_get("n").map_err(failed(doing))?;
            if let Some(slot) = usize::try_from(ordinal - 1).ok().and_then(|n| markers.get_mut(n)) {
                *slot = Some(read_marker(row).map_err(failed(doing))?);
            }
        }
        Ok(markers)
    }
}

pub(crate) async fn find_marker(
    statements: &Statements,
    conn: &mut TimedConnection<impl AnyConnection>,
    unit: &Unit,
) -> Result<Option<Marker>, Error> {
    let find = sqlx::query(statements.find_marker.clone())
        // Planned anew each time: a plan made while the table was small would scan it for ever.
        .persistent(false)
        .bind(&unit.handler)
        .bind(&unit.kind)
        .bind(unit.key.as_bytes());
    let row = conn.fetch_optional(find).await.map_err(failed(doing::READ_MARKERS))?;
    row.map(|row| read_marker(&row)).transpose().map_err(failed(doing::READ_MARKERS))
}

fn read_marker(row: &PgRow) -> Result<Marker, sqlx::Error> {
    let key: &[u8] = row.try_get("key")?;
    let long_key: Option<&[u8]> = row.try_get("long_key")?;
    let fingerprint: Option<i64> = row.try_get("fingerprint")?;
    let state: &str = row.try_get("state")?;
    Ok(Marker {
        handler: row.try_get("handler")?,
        kind: row.try_get("kind")?,
        key: row::key(key, long_key),
        fingerprint: fingerprint.map(Fingerprint::from_i64),
        state: MarkerState::from_name(state),
        received_at: row::time_from_ms(row.try_get("received_ms")?),
        processed_at: row::time_from_ms(row.try_get("processed_ms")?),
        result: row.try_get("body")?,
    })
}
