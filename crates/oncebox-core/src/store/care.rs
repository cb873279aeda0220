//! Crash care: finding the message that crashes its process.

use crate::Error;
use crate::store::{HandlerId, Place, ProcessId, Store};

/// Counts the crashes that one message causes. A capability: the defaults are for a store that does not count them. Its
/// [`look`](crate::store::Work::look) then never asks for care, and a message that crashes its process does so for ever.
pub trait Care: Store {
    /// Notes, durably, that a message is about to run in a lane where processes have crashed. How many crashes are put down to it:
    /// 1 for the one that is the reason for the note, and one more for each note before it whose process is gone. `None` if another
    /// process that is alive has noted it too. A process that has noted it itself is not counted.
    fn note_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> impl Future<Output = Result<Option<u32>, Error>> + Send {
        let _ = (handler, place, process);
        async { Ok(Some(1)) }
    }

    /// Takes a note back whose message did not run after all: everything is as before it.
    fn give_back_attempt(
        &self,
        handler: HandlerId,
        place: Place,
        process: ProcessId,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (handler, place, process);
        async { Ok(()) }
    }

    /// No message of a lane could have been the reason: no more care is needed there.
    fn end_care(&self, handler: HandlerId, lane: u16) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (handler, lane);
        async { Ok(()) }
    }
}
