//! The connection to Postgres: one pool, every connection with the same verified settings.

use std::str::FromStr;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{Encode, PgConnection, PgPool, Postgres, Row, Type};

use crate::{Error, Name, fault};

const CONFIGURE: Statement = statement!("instance/configure");
const LATENCY: Statement = statement!("instance/latency");
const NOW: Statement = statement!("instance/now");
const BEGIN: Statement = statement!("instance/begin");
const COMMIT: Statement = statement!("instance/commit");

/// How much longer than the server's own limit a caller waits for its answer.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

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

    /// The database's time.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while Postgres is away.
    pub async fn now(&self) -> Result<time::OffsetDateTime, Error> {
        Ok(self.one(self.query(NOW)).await?.try_get(0)?)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// A call of a statement; bind its parameters, then run it.
    pub(crate) fn query(&self, statement: Statement) -> Call {
        Call {
            name: statement.name,
            query: sqlx::query(statement.sql).persistent(self.config.pooler == Pooler::None),
        }
    }

    /// A connection for several statements that belong together. The caller ends with [`Connection::finish`].
    pub(crate) async fn connection(&self) -> Result<Connection, Error> {
        let mut connection = Connection {
            pooled: self.pool.acquire().await?,
            in_transaction: self.config.pooler == Pooler::Transaction,
        };
        if connection.in_transaction {
            let begun = self.begin(connection.as_mut()).await;
            if let Err(error) = begun {
                return connection.finish(Err(error)).await;
            }
        }
        Ok(connection)
    }

    async fn begin(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(BEGIN.sql).execute(&mut *connection).await?;
        configure(connection, &self.config, true).await
    }

    /// All rows of a statement.
    pub(crate) async fn all(&self, call: Call) -> Result<Vec<PgRow>, Error> {
        self.run(call.name, async |connection| {
            call.query.fetch_all(connection).await
        })
        .await
    }

    /// The one row of a statement that has exactly one.
    pub(crate) async fn one(&self, call: Call) -> Result<PgRow, Error> {
        self.run(call.name, async |connection| {
            call.query.fetch_one(connection).await
        })
        .await
    }

    /// The row of a statement that has at most one.
    pub(crate) async fn optional(&self, call: Call) -> Result<Option<PgRow>, Error> {
        self.run(call.name, async |connection| {
            call.query.fetch_optional(connection).await
        })
        .await
    }

    /// How many rows a statement changed.
    pub(crate) async fn execute(&self, call: Call) -> Result<u64, Error> {
        let done = self.run(call.name, async |connection| {
            call.query.execute(connection).await
        });
        Ok(done.await?.rows_affected())
    }

    /// Runs one statement within its time. The server has a limit of its own; ours is a little longer, and is the only
    /// one that helps when the network swallows packets and no answer ever comes.
    async fn run<T>(
        &self,
        name: &'static str,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        let mut connection = self.connection().await?;
        let limit = self.config.statement_timeout + ANSWER_GRACE;
        fault::before(name);
        let result = match tokio::time::timeout(limit, statement(connection.as_mut())).await {
            Ok(result) => result,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        };
        let value = connection.finish(result).await?;
        fault::after(name)?;
        Ok(value)
    }
}

/// A statement, by its file `queries/<noun>/<verb>.sql`.
#[derive(Clone, Copy)]
pub(crate) struct Statement {
    /// `<noun>/<verb>`.
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// The statement in `queries/<noun>/<verb>.sql`.
macro_rules! statement {
    ($name:literal) => {
        $crate::database::Statement {
            name: $name,
            sql: include_str!(concat!("../queries/", $name, ".sql")),
        }
    };
}
pub(crate) use statement;

/// A statement with its parameters.
pub(crate) struct Call {
    name: &'static str,
    query: Query<'static, Postgres, PgArguments>,
}

impl Call {
    /// Binds the next parameter.
    pub(crate) fn bind<'t, T>(mut self, value: T) -> Self
    where
        T: Encode<'t, Postgres> + Type<Postgres>,
    {
        self.query = self.query.bind(value);
        self
    }
}

/// A connection in the state that the pooler setting asks for.
pub(crate) struct Connection {
    pooled: PoolConnection<Postgres>,
    in_transaction: bool,
}

impl Connection {
    pub(crate) fn as_mut(&mut self) -> &mut PgConnection {
        &mut self.pooled
    }

    /// Commits where there is something to commit. A connection that turned out to be dead, to lead to a server that
    /// became a replica, or to be in a transaction that failed, leaves the pool.
    pub(crate) async fn finish<T>(mut self, result: Result<T, sqlx::Error>) -> Result<T, Error> {
        let result = match result {
            Ok(value) if self.in_transaction => sqlx::raw_sql(COMMIT.sql)
                .execute(self.as_mut())
                .await
                .map(|_| value),
            other => other,
        };
        let result = result.map_err(Error::from);
        let keep = match &result {
            Ok(_) => true,
            Err(Error::Unavailable(_)) => false,
            Err(_) => !self.in_transaction,
        };
        if !keep {
            drop(self.pooled.detach());
        }
        result
    }
}

async fn configure(
    connection: &mut PgConnection,
    config: &DatabaseConfig,
    local: bool,
) -> Result<(), sqlx::Error> {
    let path = format!("\"{}\"", config.schema.replace('"', "\"\""));
    let row = sqlx::query(CONFIGURE.sql)
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
