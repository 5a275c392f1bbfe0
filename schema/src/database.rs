//! The connection to Postgres: one pool, every connection with the same verified settings.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{Encode, PgConnection, PgPool, Postgres, Row, Type};
use tokio::sync::OnceCell;

use crate::pooler::{self, Pooler};
use crate::{Error, Name, fault};

const CONFIGURE: Statement = statement!("instance/configure");
const LATENCY: Statement = statement!("instance/latency");
const NOW: Statement = statement!("instance/now");
pub(crate) const BEGIN: Statement = statement!("instance/begin");
pub(crate) const COMMIT: Statement = statement!("instance/commit");

/// How much longer than the server's own limit a caller waits for its answer.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// The pause before a server that starts up is tried again.
const START_PAUSE: Duration = Duration::from_millis(100);

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
            .application_name("continuum")
            // Poolers refuse what they don't know, this among it; numbers travel in binary form, so nobody needs it.
            .extra_float_digits(None);
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
    config: Arc<DatabaseConfig>,
    /// Set once it is known that what stands in between is what the settings say.
    checked: Arc<OnceCell<()>>,
    doubt: Arc<Doubt>,
}

/// How many connections a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// All that are open.
    pub open: u32,
    /// Those that nobody uses.
    pub idle: u32,
}

/// Since when older connections are not trusted: a call got no answer at all, so the network may have forgotten all of
/// them, and each would cost its user the whole time-out; or there is another server now.
#[derive(Debug, Default)]
struct Doubt(Mutex<Option<Instant>>);

impl Doubt {
    fn raise(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_about(&self, made_at: Instant) -> bool {
        let raised = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.is_some_and(|raised| made_at <= raised)
    }
}

impl Database {
    /// Prepares a pool; the first connection is made when it is needed, so this succeeds while Postgres is away.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL can't be read.
    pub fn new(config: DatabaseConfig) -> Result<Self, Error> {
        let options = config.connect_options()?;
        let config = Arc::new(config);
        let for_connections = Arc::clone(&config);
        let doubt = Arc::new(Doubt::default());
        let for_idle = Arc::clone(&doubt);
        let pool = PgPoolOptions::new()
            .max_connections(config.connections)
            .min_connections(0)
            .acquire_timeout(config.acquire_timeout)
            .idle_timeout(Duration::from_secs(600))
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let config = Arc::clone(&for_connections);
                Box::pin(async move {
                    match config.pooler {
                        Pooler::None => configure(connection, &config, false).await,
                        Pooler::Transaction => Ok(()),
                    }
                })
            })
            .before_acquire(move |_, meta| {
                let made_at = Instant::now().checked_sub(meta.age);
                let doubtful = made_at.is_none_or(|made_at| for_idle.is_about(made_at));
                Box::pin(async move { Ok(!doubtful) })
            })
            .connect_lazy_with(options);
        Ok(Self {
            pool,
            config,
            checked: Arc::default(),
            doubt,
        })
    }

    /// The connections that are open now.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections {
            open: self.pool.size(),
            idle: u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX),
        }
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

    /// Uses no connection again that was made before now: those may lead to a server that is not the one any more.
    pub fn renew_connections(&self) {
        self.doubt.raise();
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
        self.acquire(self.config.pooler == Pooler::Transaction)
            .await
    }

    /// A connection in a transaction, whatever stands in between. [`Connection::finish`] commits it.
    pub(crate) async fn transaction(&self) -> Result<Connection, Error> {
        self.acquire(true).await
    }

    async fn acquire(&self, in_transaction: bool) -> Result<Connection, Error> {
        self.check_pooler().await?;
        let mut connection = Connection {
            pooled: self.pool.acquire().await?,
            in_transaction,
            is_sound: false,
            doubt: Arc::clone(&self.doubt),
            limit: self.config.statement_timeout + ANSWER_GRACE,
        };
        if in_transaction {
            connection
                .answered(async |raw| {
                    sqlx::raw_sql(BEGIN.sql).execute(&mut *raw).await?;
                    configure(raw, &self.config, true).await
                })
                .await?;
        }
        Ok(connection)
    }

    /// Once a pool: looks whether what stands in between is what the settings say. A server that starts up is waited
    /// for, as when a connection is acquired.
    async fn check_pooler(&self) -> Result<(), Error> {
        let options = self.pool.connect_options();
        let check = self.checked.get_or_try_init(async || {
            loop {
                match pooler::check(self.config.pooler, &options).await {
                    Err(Error::Unavailable(error)) if starts_up(&error) => {
                        tokio::time::sleep(START_PAUSE).await;
                    }
                    checked => return checked,
                }
            }
        });
        match tokio::time::timeout(self.config.acquire_timeout, check).await {
            Ok(checked) => checked.map(|_| ()),
            Err(_) => Err(Error::Unavailable(sqlx::Error::PoolTimedOut)),
        }
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

    async fn run<T>(
        &self,
        name: &'static str,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        let mut connection = self.connection().await?;
        fault::before(name);
        let result = connection.answered(statement).await;
        let value = connection.finish(result).await?;
        fault::after(name)?;
        Ok(value)
    }
}

/// Whether a server that can't be reached may only need a moment.
fn starts_up(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(io) => io.kind() == std::io::ErrorKind::ConnectionRefused,
        sqlx::Error::Database(error) => error.is_transient_in_connect_phase(),
        _ => false,
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

/// A connection in the state that the pooler setting asks for. One that is dropped before [`Connection::finish`], with
/// its statement or its caller cancelled, leaves the pool: nobody knows what is under way on it.
pub(crate) struct Connection {
    pooled: PoolConnection<Postgres>,
    in_transaction: bool,
    /// Whether others may use it next.
    is_sound: bool,
    doubt: Arc<Doubt>,
    limit: Duration,
}

impl Connection {
    pub(crate) fn as_mut(&mut self) -> &mut PgConnection {
        &mut self.pooled
    }

    /// Waits for an answer. The server has a limit of its own; ours is a little longer, and is the only one that helps
    /// when the network swallows packets and no answer ever comes.
    async fn answered<T>(
        &mut self,
        ask: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let limit = self.limit;
        let answer = tokio::time::timeout(limit, ask(self.as_mut())).await;
        answer.unwrap_or_else(|_| {
            self.doubt.raise();
            Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
        })
    }

    /// Commits where there is something to commit. A connection that turned out to be dead, to lead to a server that
    /// became a replica, or to be in a transaction that failed, leaves the pool.
    pub(crate) async fn finish<T>(mut self, result: Result<T, sqlx::Error>) -> Result<T, Error> {
        let result = match result {
            Ok(value) if self.in_transaction => self
                .answered(async |raw| sqlx::raw_sql(COMMIT.sql).execute(raw).await)
                .await
                .map(|_| value),
            other => other,
        };
        let result = result.map_err(Error::from);
        self.is_sound = match &result {
            Ok(_) => true,
            Err(Error::Unavailable(_)) => false,
            Err(_) => !self.in_transaction,
        };
        result
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_sound {
            // The pool takes a connection back after one more round trip, for which it would wait without a limit; the
            // place in the pool would be lost for as long as a dead connection goes unnoticed.
            tokio::spawn(tokio::time::timeout(
                ANSWER_GRACE,
                self.pooled.return_to_pool(),
            ));
        } else {
            self.pooled.close_on_drop();
        }
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
