//! crates/oncebox-postgres
