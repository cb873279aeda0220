//! Oncebox as a whole: every store, real processes, real deaths.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[allow(dead_code, reason = "shared with the store's own tests")]
#[path = "../../../crates/oncebox-postgres/tests/it/fixture.rs"]
mod postgres;
#[allow(dead_code, reason = "shared with the store's own tests")]
#[path = "../../../crates/oncebox-sqlite/tests/it/fixture.rs"]
mod sqlite;

mod batching;
mod build;
mod cancellation;
mod coming_from;
mod commit_unknown;
mod contention;
mod copies_in_flight;
mod cut;
mod every_store;
mod failover;
mod fairness;
mod faults;
mod half_open;
mod handlers;
mod hostile_input;
mod http_storm;
mod kill_storm;
mod limits;
mod observation;
mod outbox_backlog;
mod outbox_fixture;
mod outbox_order;
mod outbox_outage;
mod outbox_outputs;
mod outbox_restored;
mod outbox_rollback;
mod outbox_stopped;
mod processes;
mod rabbitmq;
mod rabbitmq_storm;
mod rolling_deploy;
mod services;
mod sessions;
mod stored_accept_batch;
mod stored_acceptors;
mod stored_commit_unknown;
mod stored_conservation;
mod stored_contention;
mod stored_failed_rows;
mod stored_fixture;
mod stored_hostile;
mod stored_leases;
mod stored_mixed;
mod stored_order;
mod stored_outage;
mod stored_plans;
mod stored_poison;
mod stored_races;
mod stored_spill;
mod stored_three_handlers;
mod stored_transient;
mod stored_unstorable;
mod transient;
mod upkeep;
mod worker;
