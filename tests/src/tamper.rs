//! What no program of Continuum does: damage, other versions, foreign roles.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use crate::World;

impl World {
    /// Overwrites the bytes of one event.
    ///
    /// # Panics
    /// If there is no such event.
    pub async fn damage_event(&self, run_id: Uuid, seq: i32) {
        let changed = self
            .tamper(format!(
                "UPDATE continuum_events SET payload = '\\x01c1'::bytea WHERE run_id = '{run_id}' AND seq = {seq}"
            ))
            .await;
        assert_eq!(changed, 1, "there is no event {seq}");
    }

    /// Gives one event a kind that no build knows yet.
    ///
    /// # Panics
    /// If there is no such event.
    pub async fn future_event(&self, run_id: Uuid, seq: i32) {
        let changed = self
            .tamper(format!(
                "UPDATE continuum_events SET kind = 99 WHERE run_id = '{run_id}' AND seq = {seq}"
            ))
            .await;
        assert_eq!(changed, 1, "there is no event {seq}");
    }

    /// Makes a run look as if it had been parked so often that its next retry is as far away as a retry can be.
    ///
    /// # Panics
    /// If nobody has its lease row.
    pub async fn often_parked(&self, run_id: Uuid) {
        let changed = self
            .tamper(format!(
                "UPDATE continuum_leases SET block_count = 16 WHERE run_id = '{run_id}'"
            ))
            .await;
        assert_eq!(changed, 1, "the run has no lease row");
    }

    /// Lets the database refuse every event of a kind; see [`World::take_events_again`].
    pub async fn refuse_events(&self, kind: i16) {
        self.tamper(format!(
            "ALTER TABLE continuum_events ADD CONSTRAINT refused CHECK (kind <> {kind}) NOT VALID"
        ))
        .await;
    }

    /// Ends what [`World::refuse_events`] began.
    pub async fn take_events_again(&self) {
        self.tamper("ALTER TABLE continuum_events DROP CONSTRAINT refused")
            .await;
    }

    /// Drops the last month of the journal, as if time had passed since the months ahead were made.
    pub async fn drop_last_month(&self) {
        self.tamper(
            "DO $$ BEGIN EXECUTE (
                 SELECT 'DROP TABLE ' || max(c.relname) FROM pg_class c
                 WHERE c.relnamespace = current_schema()::regnamespace AND c.relname ~ '^continuum_events_[0-9]{4}_[0-9]{2}$'
             ); END $$",
        )
        .await;
    }

    /// Gives the lease of a run to a session, as if that one had claimed it.
    ///
    /// # Panics
    /// If the run has no lease.
    pub async fn hand_over(&self, run_id: Uuid, session: Uuid) {
        let changed = self
            .tamper(format!(
                "UPDATE continuum_leases SET owner = '{session}', token = continuum_next_token(), ticket = NULL
                 WHERE run_id = '{run_id}'"
            ))
            .await;
        assert_eq!(changed, 1, "{run_id} has no lease");
    }

    /// Takes from a cold run whatever would wake it, and makes its mail and timers a day old.
    ///
    /// # Panics
    /// If somebody holds the run.
    pub async fn forget(&self, run_id: Uuid) {
        let changed = self
            .tamper(format!(
                "UPDATE continuum_leases SET ticket = NULL, next_timer_at = NULL
                 WHERE run_id = '{run_id}' AND owner IS NULL"
            ))
            .await;
        assert_eq!(changed, 1, "somebody holds {run_id}");
        let day = "interval '1 day'";
        self.tamper(format!(
            "UPDATE continuum_mailbox SET posted_at = posted_at - {day} WHERE chain_id = '{run_id}';
             UPDATE continuum_timers SET fire_at = now() - {day} WHERE run_id = '{run_id}'"
        ))
        .await;
    }

    /// Makes the database look as if an older build had migrated it.
    pub async fn make_older(&self) {
        self.tamper("DELETE FROM continuum_migrations WHERE version = (SELECT max(version) FROM continuum_migrations)")
            .await;
    }

    /// Makes the database look as if a newer build had migrated it.
    pub async fn make_newer(&self) {
        self.tamper(
            "INSERT INTO continuum_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'future', true, '\\x00'::bytea, 0)",
        )
        .await;
    }

    /// Makes a role that may log in and nothing else, and runs `grants` for it.
    pub async fn create_role(&self, role: &str, grants: &str) {
        self.tamper(format!("CREATE ROLE \"{role}\" LOGIN")).await;
        self.tamper(grants.to_owned()).await;
    }

    /// Takes a role away again; roles belong to the server and not to the instance.
    pub async fn drop_role(&self, role: &str) {
        self.tamper(format!("DROP OWNED BY \"{role}\"")).await;
        self.tamper(format!("DROP ROLE \"{role}\"")).await;
    }

    /// Runs statements in the instance's schema, and says how many rows they changed.
    async fn tamper(&self, statements: impl Into<String>) -> u64 {
        let config = self.database.config();
        let mut connection = PgConnection::connect(&config.url)
            .await
            .expect("Postgres answers");
        let path = config.schema.replace('"', "\"\"");
        let path = AssertSqlSafe(format!("SET search_path TO \"{path}\""));
        connection.execute(path).await.expect("the path is set");
        let done = connection.execute(AssertSqlSafe(statements.into())).await;
        let done = done.expect("the statements run");
        connection.close().await.expect("an orderly end");
        done.rows_affected()
    }
}
