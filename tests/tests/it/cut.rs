//! A store that loses its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::Error;
use oncebox_testing::{Faults, Point};

/// Loses the connection at a point, this many times.
#[derive(Clone)]
pub(crate) struct Cut {
    point: Point,
    pub(crate) left: Arc<AtomicU32>,
}

impl Cut {
    pub(crate) fn at(point: Point, times: u32) -> Self {
        Self { point, left: Arc::new(AtomicU32::new(times)) }
    }
}

impl Faults for Cut {
    async fn at(&self, point: Point) -> Result<(), Error> {
        let cut = point == self.point
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if cut {
            let reset = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
            return Err(Error::unavailable("the connection was cut", reset));
        }
        Ok(())
    }
}
