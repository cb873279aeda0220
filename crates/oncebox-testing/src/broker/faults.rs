//! Faults on demand.

use super::MemoryBroker;

impl MemoryBroker {
    /// Ends all sessions, and refuses connections and messages until [`start`](Self::start). Queues keep their messages.
    pub fn stop(&self) {
        self.shared.change(|state| {
            state.is_stopped = true;
            state.end_all_sessions("the broker was stopped");
        });
    }

    /// Accepts connections again.
    pub fn start(&self) {
        self.shared.change(|state| state.is_stopped = false);
    }

    /// Ends all sessions of a queue, as a lost connection does. Their unsettled messages return to the queue.
    pub fn end_sessions(&self, queue: &str) {
        self.shared.change(|state| state.end_sessions(queue, "the connection was lost"));
    }

    /// Loses the next settlements. Their result is unknown, and the messages stay unsettled until their session ends.
    pub fn lose_settlements(&self, count: usize) {
        self.shared.change(|state| state.acks_to_lose = count);
    }

    /// Loses the next confirms of sinks: the messages are stored, and their verdict is unknown.
    pub fn lose_confirms(&self, count: usize) {
        self.shared.change(|state| state.confirms_to_lose = count);
    }

    /// Delivers nothing more from a queue, without an error, until [`resume`](Self::resume). What a session has been sent before is
    /// still received.
    pub fn pause(&self, queue: &str) {
        self.set_paused(queue, true);
    }

    /// Delivers messages of a queue again.
    pub fn resume(&self, queue: &str) {
        self.set_paused(queue, false);
    }

    fn set_paused(&self, name: &str, is_paused: bool) {
        self.shared.change(|state| {
            if let Some(queue) = state.queue(name) {
                queue.is_paused = is_paused;
            }
        });
    }

    /// Deletes a queue with its messages, and ends its sessions. [`queue`](Self::queue) creates it again.
    pub fn delete_queue(&self, queue: &str) {
        self.shared.change(|state| state.delete_queue(queue));
    }
}
