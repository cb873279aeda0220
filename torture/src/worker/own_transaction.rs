//! Transactions that the application opens itself, on the pool of the store.

use oncebox::store::Store;

use crate::effects::EffectStore;

/// An open transaction of the application. If it is dropped before its end, its connection is closed: the pool must not get a
/// connection in an unknown state, and a silent one would not even be closed properly.
pub(crate) struct OwnTransaction<S: EffectStore> {
    session: Option<S::Session>,
}

impl<S: EffectStore> OwnTransaction<S> {
    pub(crate) async fn begin(store: &S) -> Result<Self, sqlx::Error> {
        let mut tx = Self { session: Some(store.session().await?) };
        S::execute(tx.conn()?, S::BEGIN).await?;
        Ok(tx)
    }

    pub(crate) fn conn(&mut self) -> Result<&mut <S as Store>::Conn, sqlx::Error> {
        self.session.as_deref_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        // In the driver's own spelling, by which the proxy knows a commit.
        self.end("COMMIT").await
    }

    pub(crate) async fn roll_back(self) -> Result<(), sqlx::Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        S::execute(self.conn()?, statement).await?;
        // Back to the pool.
        drop(self.session.take());
        Ok(())
    }
}

impl<S: EffectStore> Drop for OwnTransaction<S> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            S::discard(session);
        }
    }
}
