//! The connection to Postgres: one pool, every connection with the same verified settings.

use std::str::FromStr;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, PgPool, Postgres, Row, Transaction};

use crate::{Error, Name};

const CONFIGURE: &str = include_str!("../queries/instance/configure.sql");
const LATENCY: &str = include_str!("../queries/instance/latency.sql");

/// What stands between a worker and Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or a pooler in session mode.
    #[default]
    None,
    /// A pooler in transaction mode. Prepared statements and session settings don't survive there, so each statement
    /// runs in an explicit transaction that sets what it needs, unprepared.
    Transaction,
}

/// How to reach Postgres.
#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// The schema that holds the instance's tables. Any name that Postgres can hold.
    pub schema: String,
    /// The most connections of this pool.
    pub connections: u32,
    /// What stands in between.
    pub pooler: Pooler,
    /// The longest that a statement may take.
    pub statement_timeout: Duration,
    /// The longest that a statement may wait for a lock.
    pub lock_timeout: Duration,
    /// The longest that a caller waits for a connection.
    pub acquire_timeout: Duration,
}

impl DatabaseConfig {
    /// The settings for an instance, everything else at its default: ten connections, statements of 30 s, locks of
    /// 5 s, ten seconds for a connection.
    #[must_use]
    pub fn new(url: impl Into<String>, instance: &Name) -> Self {
        Self {
            url: url.into(),
            schema: instance.to_string(),
            connections: 10,
            pooler: Pooler::None,
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(10),
        }
    }

    fn connect_options(&self) -> Result<PgConnectOptions, Error> {
        let options = PgConnectOptions::from_str(&self.url)
            .map_err(|e| Error::Config(format!("the Postgres URL is not usable: {e}")))?
            .application_name("continuum");
        Ok(match self.pooler {
            Pooler::None => options,
            Pooler::Transaction => options.statement_cache_capacity(0),
        })
    }
}

/// A pool of connections to one instance's schema. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
    config: std::sync::Arc<DatabaseConfig>,
}

impl Database {
    /// Prepares a pool; the first connection is made when it is needed, so this succeeds while Postgres is away.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL can't be read.
    pub fn new(config: DatabaseConfig) -> Result<Self, Error> {
        let options = config.connect_options()?;
        let config = std::sync::Arc::new(config);
        let for_connections = config.clone();
        let pool = PgPoolOptions::new()
            .max_connections(config.connections)
            .min_connections(0)
            .acquire_timeout(config.acquire_timeout)
            .idle_timeout(Duration::from_secs(600))
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let config = for_connections.clone();
                Box::pin(async move {
                    match config.pooler {
                        Pooler::None => configure(connection, &config, false).await,
                        Pooler::Transaction => Ok(()),
                    }
                })
            })
            .connect_lazy_with(options);
        Ok(Self { pool, config })
    }

    /// The schema of the instance.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.config.schema
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DatabaseConfig {
        &self.config
    }

    /// One round trip, to learn whether Postgres answers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not.
    pub async fn ping(&self) -> Result<(), Error> {
        self.one(self.query(LATENCY)).await.map(|_| ())
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    pub(crate) fn query(&self, sql: &'static str) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql).persistent(self.config.pooler == Pooler::None)
    }

    pub(crate) async fn connection(&self) -> Result<Connection, Error> {
        match self.config.pooler {
            Pooler::None => Ok(Connection::Plain(self.pool.acquire().await?)),
            Pooler::Transaction => {
                let mut transaction = self.pool.begin().await?;
                configure(&mut transaction, &self.config, true).await?;
                Ok(Connection::Transaction(transaction))
            }
        }
    }

    /// All rows of a statement.
    pub(crate) async fn all(
        &self,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Error> {
        let mut connection = self.connection().await?;
        let rows = query.fetch_all(connection.as_mut()).await;
        connection.finish(rows).await
    }

    /// The one row of a statement that has exactly one.
    pub(crate) async fn one(
        &self,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<PgRow, Error> {
        let mut connection = self.connection().await?;
        let row = query.fetch_one(connection.as_mut()).await;
        connection.finish(row).await
    }

    /// The row of a statement that has at most one.
    pub(crate) async fn optional(
        &self,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<Option<PgRow>, Error> {
        let mut connection = self.connection().await?;
        let row = query.fetch_optional(connection.as_mut()).await;
        connection.finish(row).await
    }

    /// How many rows a statement changed.
    pub(crate) async fn execute(
        &self,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<u64, Error> {
        let mut connection = self.connection().await?;
        let done = query.execute(connection.as_mut()).await;
        Ok(connection.finish(done).await?.rows_affected())
    }
}

/// A connection in the state that the pooler setting asks for.
pub(crate) enum Connection {
    Plain(PoolConnection<Postgres>),
    Transaction(Transaction<'static, Postgres>),
}

impl Connection {
    pub(crate) fn as_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Transaction(transaction) => transaction,
        }
    }

    /// Commits where there is something to commit. A connection that turned out to be dead, or to lead to a server
    /// that became a replica, leaves the pool.
    pub(crate) async fn finish<T>(self, result: Result<T, sqlx::Error>) -> Result<T, Error> {
        match (self, result) {
            (Self::Transaction(transaction), Ok(value)) => {
                transaction.commit().await?;
                Ok(value)
            }
            (Self::Plain(_), Ok(value)) => Ok(value),
            (connection, Err(error)) => {
                let error = Error::from(error);
                if let (Self::Plain(connection), Error::Unavailable(_)) = (connection, &error) {
                    drop(connection.detach());
                }
                Err(error)
            }
        }
    }
}

async fn configure(
    connection: &mut PgConnection,
    config: &DatabaseConfig,
    local: bool,
) -> Result<(), sqlx::Error> {
    let path = format!("\"{}\"", config.schema.replace('"', "\"\""));
    let row = sqlx::query(CONFIGURE)
        .bind(&path)
        .bind(millis(config.statement_timeout))
        .bind(millis(config.lock_timeout))
        .bind("10000")
        .bind(local)
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let set: String = row.try_get(0)?;
    if set == path {
        return Ok(());
    }
    Err(sqlx::Error::Configuration(
        format!("search_path is {set} although {path} was set").into(),
    ))
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}
