//! Names of a store's operations for error texts, equal for every store: `SQLite could not claim keys`.

/// Connects.
pub const CONNECT: &str = "connect";
/// Reads the version of the schema.
pub const READ_VERSION: &str = "read the schema version";
/// Reads settings of the database.
pub const READ_SETTINGS: &str = "read the database's settings";
/// Migrates.
pub const MIGRATE: &str = "migrate the database";

/// Begins a transaction.
pub const BEGIN: &str = "begin a transaction";
/// Sets the limits of a handler.
pub const ARM: &str = "set the time limits of a handler";
/// Checks the transaction after a handler.
pub const GUARD: &str = "check the transaction after a handler";
/// Sets, keeps or undoes a savepoint.
pub const SAVEPOINT: &str = "set a savepoint";
/// Commits.
pub const COMMIT: &str = "commit";

/// Registers handlers.
pub const REGISTER: &str = "register the handlers";

/// Claims keys.
pub const CLAIM: &str = "claim keys";
/// Deletes the markers of claims.
pub const UNCLAIM: &str = "take claims back";
/// Stores results.
pub const RECORD_RESULTS: &str = "store results";
/// Imports processed keys.
pub const IMPORT_PROCESSED: &str = "import processed keys";
/// Reads markers.
pub const READ_MARKERS: &str = "read markers";

/// Appends messages.
pub const APPEND: &str = "append messages";
/// Moves an inline message to the log.
pub const SPILL: &str = "spill a message";
/// Imports accepted keys.
pub const IMPORT_ACCEPTED: &str = "import accepted keys";
/// Deletes messages.
pub const PRUNE: &str = "prune the log";
/// Deletes accept markers.
pub const SWEEP_ACCEPTED: &str = "sweep accept markers";
/// Notifies other processes.
pub const ANNOUNCE: &str = "notify other processes";
/// Listens for other processes.
pub const LISTEN: &str = "listen for other processes";

/// Writes messages to the outbox.
pub const CAPTURE: &str = "write to the outbox";
/// Moves messages from the outbox to the log.
pub const MOVE: &str = "move messages from the outbox to the log";
/// Reads the outbox.
pub const READ_OUTBOX: &str = "read the outbox";

/// Leases a lane to a process.
pub const LEASE_LANE: &str = "lease a lane";
/// Reads a range of messages.
pub const READ_RANGE: &str = "read a range of messages";
/// Records the outcome of a range.
pub const SETTLE_RANGE: &str = "record the outcome of a range";
/// Ends the lease of a lane.
pub const RELEASE_LANE: &str = "release a lane";

/// Looks for work.
pub const LOOK: &str = "look for work";
/// Takes messages.
pub const TAKE: &str = "take messages";
/// Takes tasks.
pub const TAKE_TASKS: &str = "take tasks";
/// Writes tasks.
pub const WRITE_TASKS: &str = "write tasks";
/// Writes dead letters.
pub const WRITE_DEAD_LETTERS: &str = "write dead letters";
/// Settles markers.
pub const SETTLE_MARKERS: &str = "settle markers";
/// Leases messages.
pub const LEASE: &str = "lease messages";
/// Writes the progress of a handler.
pub const ADVANCE: &str = "write a handler's progress";
/// Records how tasks ended.
pub const COMPLETE: &str = "record how tasks ended";

/// Notes an attempt.
pub const NOTE_ATTEMPT: &str = "note an attempt";
/// Removes the note of an attempt that did not run.
pub const GIVE_BACK_ATTEMPT: &str = "give an attempt back";
/// Removes the note of an attempt that ran.
pub const FORGET_ATTEMPT: &str = "forget an attempt";
/// Ends the care in a lane.
pub const END_CARE: &str = "end the care in a lane";

/// Adds a process.
pub const ENTER: &str = "add this process";
/// Writes the heartbeat of a process.
pub const BEAT_PROCESS: &str = "write this process's heartbeat";
/// Removes a process that ends.
pub const LEAVE: &str = "remove this process";
/// Reads the processes.
pub const READ_PROCESSES: &str = "read the processes";
/// Removes a process whose lease expired.
pub const REMOVE_CRASHED: &str = "take over from a crashed process";

/// Reads dead letters.
pub const READ_DEAD_LETTERS: &str = "read dead letters";
/// Acts on dead letters.
pub const ACT_ON_DEAD_LETTERS: &str = "act on dead letters";
/// Reads the audit.
pub const READ_AUDIT: &str = "read the audit";

/// Writes live time.
pub const BEAT: &str = "write live time";
/// Reads live time.
pub const READ_LIVE_TIME: &str = "read live time";
/// Deletes old markers.
pub const SWEEP: &str = "sweep old markers";
/// Deletes old live time.
pub const FORGET_LIVE_TIME: &str = "delete old live time";

/// Reads the status of the handlers.
pub const READ_HANDLERS: &str = "read the handlers' status";
/// Reads pending messages.
pub const READ_PENDING: &str = "read pending messages";
/// Reads messages.
pub const READ_MESSAGES: &str = "read messages";
/// Finds a message by its key.
pub const FIND_MESSAGE: &str = "find a message";
/// Reads tasks.
pub const READ_TASKS: &str = "read tasks";
/// Reads kinds.
pub const READ_KINDS: &str = "read the kinds";
