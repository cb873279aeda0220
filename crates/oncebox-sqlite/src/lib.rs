//! crates/oncebox-sqlite
