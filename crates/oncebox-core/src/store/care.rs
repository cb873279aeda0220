//! Crash care: finds the message that crashes its process.

use crate::Error;
use crate::store::{HandlerId, Place, ProcessId, Store};

/// Counts the crashes that one message causes.
///
/// It is optional. The defaults are for a store that does not count crashes. Its [`look`](crate::store::Work::look) never
/// requests crash care, and a message that crashes its process does so for ever.
pub trait Care: Store {
    /// Writes a durable note that a message is about to run in a lane that needs crash care.
    ///
    /// Returns the number of crashes that are attributed to the message: 1 for the crash that started the care, and 1 for each
    /// earlier note whose process no longer exists. An earlier note of this process does not count. `None` if another running
    /// process has a note on the message too.
    fn note_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> impl Future<Output = Result<Option<u32>, Error>> + Send {
        let _ = (handler, place, process);
        async { Ok(Some(1)) }
    }

    /// Deletes the note of a message that did not run after all, so that everything is as before it.
    fn give_back_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (handler, place, process);
        async { Ok(()) }
    }

    /// Ends the crash care in a lane, because no message there can have caused the crash.
    fn end_care(&self, handler: HandlerId, lane: u16) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (handler, lane);
        async { Ok(()) }
    }
}
