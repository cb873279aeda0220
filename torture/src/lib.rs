//! Types that the harness and its workers share.

pub mod event;
pub mod kill_point;
pub mod protocol;
pub mod queues;
pub mod scenario;
