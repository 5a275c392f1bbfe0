//! A look behind the scenes: transactions that hold their locks for as long as a test wants, and who waits for whom.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use uuid::Uuid;

use crate::{PATIENCE, World};

/// How often Postgres is asked whether the awaited lock wait is there.
const POLL: Duration = Duration::from_millis(2);

/// An open transaction on a connection of its own. Dropping it rolls it back.
pub struct Held {
    /// The connection, for what takes part in a caller's own transaction. Its search path is the instance.
    pub connection: PgConnection,
    pid: i32,
}

impl Held {
    /// Connects and opens a transaction.
    ///
    /// # Panics
    /// If Postgres can't be reached.
    pub async fn begin(world: &World) -> Self {
        let mut connection = connect(world).await;
        connection.execute("BEGIN").await.expect("a transaction");
        let rows = ask(&mut connection, "SELECT pg_backend_pid()".to_owned()).await;
        Self {
            connection,
            pid: rows[0].get(0),
        }
    }

    /// The process that serves this connection.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Commits.
    ///
    /// # Errors
    /// What a deferred trigger says.
    pub async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.connection.execute("COMMIT").await.map(|_| ())
    }

    /// Rolls back.
    ///
    /// # Panics
    /// If the connection is lost.
    pub async fn roll_back(mut self) {
        self.connection
            .execute("ROLLBACK")
            .await
            .expect("the connection lives");
    }

    /// Takes a position of a journal, so that an append to it waits at its insert, after it has locked and read.
    pub async fn take_position(&mut self, run_id: Uuid, seq: i32) {
        let sql = format!(
            "INSERT INTO continuum_events (run_id, seq, token, kind, at, payload)
             VALUES ('{run_id}', {seq}, 0, 1, now(), '\\x00')"
        );
        ask(&mut self.connection, sql).await;
    }

    /// Locks lease rows as a post does.
    pub async fn lock_leases(&mut self) {
        let sql = "SELECT chain_id FROM continuum_leases ORDER BY chain_id FOR NO KEY UPDATE";
        ask(&mut self.connection, sql.to_owned()).await;
    }

    /// Lets nobody write to the mailbox.
    pub async fn lock_mailbox(&mut self) {
        let sql = "LOCK TABLE continuum_mailbox IN EXCLUSIVE MODE";
        ask(&mut self.connection, sql.to_owned()).await;
    }

    /// Posts a signal; the owner to wake.
    pub async fn post(&mut self, run_id: Uuid, name: &str) -> (i16, Option<Uuid>) {
        let sql = format!(
            "SELECT o_outcome, o_owner FROM continuum_post(ARRAY['{run_id}'::uuid], ARRAY[1::smallint],
                 ARRAY['{name}'], ARRAY['\\x01c0'::bytea], ARRAY[NULL::text], false)"
        );
        let rows = ask(&mut self.connection, sql).await;
        (rows[0].get(0), rows[0].get(1))
    }

    /// Posts a request to stop.
    pub async fn cancel(&mut self, run_id: Uuid) {
        let sql = format!(
            "SELECT o_outcome FROM continuum_post(ARRAY['{run_id}'::uuid], ARRAY[3::smallint], ARRAY[NULL::text],
                 ARRAY['\\x01c0'::bytea], ARRAY[NULL::text], false)"
        );
        ask(&mut self.connection, sql).await;
    }

    /// Claims what is due for one workflow; the tokens of the runs.
    pub async fn claim(&mut self, session: Uuid, key: &str, pin: &str) -> Vec<i64> {
        let sql = format!(
            "SELECT o_token FROM continuum_claim('{session}', ARRAY['{key}', '{pin}'], ARRAY['{pin}', '{pin}'], 100, 0)
             WHERE o_item = 1"
        );
        let rows = ask(&mut self.connection, sql).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Gives a run back; the outcome.
    pub async fn release(&mut self, session: Uuid, chain: Uuid, token: i64, wake: i64) -> i16 {
        let sql = format!(
            "SELECT (continuum_release('{session}', ARRAY['{chain}'::uuid], ARRAY[{token}::bigint], ARRAY[{wake}::bigint]))[1]"
        );
        ask(&mut self.connection, sql).await[0].get(0)
    }

    /// Frees the runs of closed sessions; how many.
    pub async fn sweep(&mut self) -> i32 {
        ask(
            &mut self.connection,
            "SELECT continuum_sweep(100, 20)".to_owned(),
        )
        .await[0]
            .get(0)
    }

    /// Closes a session.
    pub async fn close(&mut self, session: Uuid) {
        let sql = format!(
            "UPDATE continuum_sessions SET open = false, closed_at = now() WHERE session_id = '{session}'"
        );
        ask(&mut self.connection, sql).await;
    }
}

async fn connect(world: &World) -> PgConnection {
    let config = world.database_config();
    let mut connection = PgConnection::connect(&config.url)
        .await
        .expect("Postgres answers");
    let path = format!("SET search_path TO \"{}\"", config.schema);
    connection
        .execute(AssertSqlSafe(path))
        .await
        .expect("the path is set");
    connection
}

async fn ask(connection: &mut PgConnection, sql: String) -> Vec<PgRow> {
    connection
        .fetch_all(AssertSqlSafe(sql))
        .await
        .expect("the statement runs")
}

/// Who waits for whom, as Postgres sees it.
pub struct Waits(PgConnection);

impl Waits {
    /// A connection to look through.
    ///
    /// # Panics
    /// If Postgres can't be reached.
    pub async fn new(world: &World) -> Self {
        Self(connect(world).await)
    }

    /// Waits until `count` others wait for `pid`, or for somebody who does; their processes.
    ///
    /// # Panics
    /// If that does not come about within the patience of a test.
    pub async fn behind(&mut self, pid: i32, count: usize) -> Vec<i32> {
        let looking = async {
            loop {
                let sql = format!(
                    "WITH RECURSIVE waits AS (
                         SELECT a.pid, unnest(pg_blocking_pids(a.pid)) AS blocker FROM pg_stat_activity a
                     ), behind AS (
                         SELECT w.pid FROM waits w WHERE w.blocker = {pid}
                         UNION SELECT w.pid FROM waits w JOIN behind b ON w.blocker = b.pid
                     ) SELECT pid FROM behind ORDER BY pid"
                );
                let rows = ask(&mut self.0, sql).await;
                if rows.len() >= count {
                    return rows.iter().map(|row| row.get(0)).collect();
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let waiting = tokio::time::timeout(PATIENCE, looking).await;
        waiting.unwrap_or_else(|_| panic!("fewer than {count} wait for process {pid}"))
    }
}

impl World {
    /// The attempts of a run that did not end their activity: effect, attempt, outcome.
    ///
    /// # Panics
    /// If Postgres does not answer.
    pub async fn attempts(&self, run_id: Uuid) -> Vec<(i32, i32, String)> {
        let sql = format!(
            "SELECT effect, attempt, outcome FROM continuum_activity_attempts WHERE run_id = '{run_id}' ORDER BY 1, 2"
        );
        let rows = ask(&mut connect(self).await, sql).await;
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect()
    }

    /// Waits until nobody is connected to the server but whoever looks.
    ///
    /// # Panics
    /// If a connection is left, with what it did last.
    pub async fn until_unconnected(&self) {
        let mut connection = connect(self).await;
        let sql = "SELECT pid || ' ' || state || ': ' || left(query, 60) FROM pg_stat_activity
                   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let mut left = Vec::<String>::new();
        let looking = async {
            loop {
                let rows = ask(&mut connection, sql.to_owned()).await;
                left = rows.iter().map(|row| row.get(0)).collect();
                if left.is_empty() {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let alone = tokio::time::timeout(PATIENCE, looking).await;
        assert!(alone.is_ok(), "connections are left: {left:#?}");
    }

    /// For how many seconds the oldest transaction of a connection of Continuum's is open.
    ///
    /// # Panics
    /// If Postgres does not answer.
    pub async fn oldest_transaction(&self) -> f64 {
        let sql =
            "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
                   FROM pg_stat_activity WHERE application_name = 'continuum'";
        ask(&mut connect(self).await, sql.to_owned()).await[0].get(0)
    }

    /// How many months of the journal have a partition.
    ///
    /// # Panics
    /// If Postgres does not answer.
    pub async fn months(&self) -> i64 {
        let sql =
            "SELECT count(*) FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace
                   AND c.relname ~ '^continuum_events_[0-9]{4}_[0-9]{2}$'";
        ask(&mut connect(self).await, sql.to_owned()).await[0].get(0)
    }

    /// How many transactions wrote the lease rows as they are now.
    ///
    /// # Panics
    /// If Postgres does not answer.
    pub async fn writers_of_leases(&self) -> i64 {
        let sql = "SELECT count(DISTINCT xmin::text) FROM continuum_leases";
        ask(&mut connect(self).await, sql.to_owned()).await[0].get(0)
    }

    /// How many deadlocks Postgres has ended in this database.
    ///
    /// # Panics
    /// If Postgres does not answer.
    pub async fn deadlocks(&self) -> i64 {
        let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        ask(&mut connect(self).await, sql.to_owned()).await[0].get(0)
    }

    /// Why a session was closed; `None` while it is open.
    ///
    /// # Panics
    /// If there is no such session.
    pub async fn close_reason(&self, session: Uuid) -> Option<String> {
        let sql =
            format!("SELECT close_reason FROM continuum_sessions WHERE session_id = '{session}'");
        ask(&mut connect(self).await, sql).await[0].get(0)
    }
}
