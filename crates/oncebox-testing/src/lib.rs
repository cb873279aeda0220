//! crates/oncebox-testing
