//! Databases for tests.

use oncebox_servers::database::TestDatabase;
use sqlx::{Connection, PgConnection};

use crate::server::server;

#[tokio::test]
async fn each_test_database_is_empty_and_its_own() {
    let Some(server) = server("each_test_database_is_empty_and_its_own").await else { return };
    for _ in 0..2 {
        let database = TestDatabase::create_on(&server.url()).await.unwrap();
        let mut connection = PgConnection::connect(&database.url()).await.unwrap();
        sqlx::raw_sql("CREATE TABLE mine ()").execute(&mut connection).await.unwrap();
    }
}

#[tokio::test]
async fn a_test_database_can_be_entered_as_another_role() {
    let Some(server) = server("a_test_database_can_be_entered_as_another_role").await else { return };
    let database = TestDatabase::create_on(&server.url()).await.unwrap();
    let mut admin = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql("CREATE ROLE reader LOGIN").execute(&mut admin).await.unwrap();

    let mut reader = PgConnection::connect(&database.url_as("reader")).await.unwrap();
    let user = "SELECT current_user::text || ' in ' || current_database()";
    let answer: String = sqlx::query_scalar(user).fetch_one(&mut reader).await.unwrap();
    assert!(answer.starts_with("reader in test_"), "{answer}");
}

#[tokio::test]
async fn many_test_databases_can_be_created_at_once() {
    let Some(server) = server("many_test_databases_can_be_created_at_once").await else { return };
    let creations: Vec<_> = (0..8)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move { TestDatabase::create_on(&url).await })
        })
        .collect();
    for creation in creations {
        creation.await.unwrap().unwrap();
    }
}
