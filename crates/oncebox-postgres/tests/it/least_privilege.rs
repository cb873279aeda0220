//! The documented role can run the inbox, and cannot do more.

use crate::fixture;

#[tokio::test]
async fn the_program_s_role_cannot_alter_or_drop_anything() {
    let Some(postgres) =
        fixture::as_least_privileged("the_program_s_role_cannot_alter_or_drop_anything").await
    else {
        return;
    };
    for statement in [
        "drop table oncebox.marker",
        "alter table oncebox.marker drop column state",
        "truncate oncebox.marker",
        "insert into oncebox.version (version) values (99)",
        "create table oncebox.other (n int)",
    ] {
        let error = sqlx::query(statement).execute(postgres.store.pool()).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "42501", "{statement}: {error}");
    }
}
