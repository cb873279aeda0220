//! Tests without a server.

use std::fs;

use oncebox_servers::database::{TEST_POSTGRES, test_database};
use oncebox_servers::skip::SKIPPED;

use crate::running::{another_process, is_another_process};

#[tokio::test]
async fn without_a_server_a_test_skips_at_a_desk_and_fails_in_ci() {
    if is_another_process() {
        assert!(test_database("the_test").await.is_none());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let skipped = folder.path().join("skipped");
    let mut command = another_process("skip::without_a_server_a_test_skips_at_a_desk_and_fails_in_ci");
    command.env_remove(TEST_POSTGRES).env_remove("CI").env(SKIPPED, &skipped);

    for _ in 0..2 {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("SKIPPED: the_test: "), "{output:?}");
    }
    let lines = fs::read_to_string(&skipped).unwrap();
    assert_eq!(lines.lines().count(), 2);
    assert!(lines.starts_with("the_test: ONCEBOX_TEST_POSTGRES is not set"), "{lines}");

    let output = command.env("CI", "true").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cargo xtask test"), "{output:?}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_a_failure_and_no_skip() {
    if is_another_process() {
        test_database("the_test").await;
        return;
    }
    let mut command = another_process("skip::a_server_that_does_not_answer_is_a_failure_and_no_skip");
    command.env(TEST_POSTGRES, "postgres://postgres@127.0.0.1:1/postgres");
    let output = command.env_remove("CI").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the_test gets no database"), "{output:?}");
}
