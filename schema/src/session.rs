//! Sessions: one life of one worker process, kept alive by a heartbeat counter.

use std::time::Duration;

use sqlx::Row;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::{Database, Error};

const OPEN: Statement = statement!("session/open");
const BEAT: Statement = statement!("session/beat");
const CLOSE: Statement = statement!("session/close");
const WATCH: Statement = statement!("session/watch");
const LIST: Statement = statement!("session/list");
const HOLDS: Statement = statement!("session/holds");
const FORGET: Statement = statement!("session/forget");

/// What a worker says of itself.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// The worker's name.
    pub worker: String,
    /// Its build.
    pub build: String,
    /// The queues whose activities it runs.
    pub queues: Vec<String>,
    /// What it can take: see [`crate::lease::ClaimKey`].
    pub claim_keys: Vec<String>,
}

/// Opens a session.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn open(database: &Database, session: &NewSession) -> Result<Uuid, Error> {
    let query = database
        .query(OPEN)
        .bind(session.worker.clone())
        .bind(session.build.clone())
        .bind(session.queues.clone())
        .bind(session.claim_keys.clone());
    Ok(database.one(query).await?.try_get(0)?)
}

/// What a heartbeat brings back.
#[derive(Clone, Debug)]
pub struct Beat {
    /// The database's clock.
    pub now: OffsetDateTime,
    /// The WAL timeline; a change tells of a fail-over.
    pub timeline: String,
}

/// How a worker is, as it tells with a heartbeat. For people; nothing relies on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its state as a word.
    pub state: &'static str,
    /// Runs in its memory.
    pub resident: i64,
    /// Attempts of activities that it runs.
    pub activities: i64,
}

/// Shows that the session lives.
///
/// # Errors
/// [`Error::SessionClosed`] if somebody closed it.
pub async fn beat(database: &Database, session: Uuid) -> Result<Beat, Error> {
    renew(database, session, None).await
}

/// Shows that the session lives, and how its worker is.
///
/// # Errors
/// As [`beat`].
pub async fn beat_with(database: &Database, session: Uuid, report: Report) -> Result<Beat, Error> {
    renew(database, session, Some(report)).await
}

async fn renew(database: &Database, session: Uuid, report: Option<Report>) -> Result<Beat, Error> {
    let query = database
        .query(BEAT)
        .bind(session)
        .bind(report.map(|report| report.state))
        .bind(report.map(|report| report.resident))
        .bind(report.map(|report| report.activities));
    match database.optional(query).await? {
        Some(row) => Ok(Beat {
            now: row.try_get(0)?,
            timeline: row.try_get(1)?,
        }),
        None => Err(Error::SessionClosed),
    }
}

/// Closes a session whose counter still stands at `beat`; its own worker passes `None`. Returns whether it did.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn close(
    database: &Database,
    session: Uuid,
    beat: Option<i64>,
    reason: &str,
) -> Result<bool, Error> {
    let query = database
        .query(CLOSE)
        .bind(session)
        .bind(beat)
        .bind(reason.to_owned());
    Ok(database.execute(query).await? == 1)
}

/// The open sessions and their heartbeat counters.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn watch(database: &Database) -> Result<Vec<(Uuid, i64)>, Error> {
    let rows = database.all(database.query(WATCH)).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// Deletes at most 100 rows of sessions that were closed more than `seconds` ago and own nothing; returns how many.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn forget(database: &Database, seconds: f64) -> Result<u64, Error> {
    database.execute(database.query(FORGET).bind(seconds)).await
}

/// A session as people see it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its id.
    pub session_id: Uuid,
    /// The worker's name.
    pub worker: String,
    /// Its build.
    pub build: String,
    /// The queues whose activities it runs.
    pub queues: Vec<String>,
    /// What it can take: see [`crate::lease::ClaimKey`].
    pub claim_keys: Vec<String>,
    /// Its state, as it told with its last heartbeat.
    pub state: String,
    /// Whether it may own anything.
    pub open: bool,
    /// Runs in its memory at its last heartbeat.
    pub resident: i64,
    /// Attempts of activities that it ran at its last heartbeat.
    pub activities: i64,
    /// When it was opened.
    pub opened_at: OffsetDateTime,
    /// Since when it is open, by the database's clock.
    pub age: Duration,
    /// The age of its last heartbeat, by the database's clock.
    pub beat_age: Duration,
    /// When it was closed.
    pub closed_at: Option<OffsetDateTime>,
    /// Why.
    pub close_reason: Option<String>,
}

/// The sessions of an instance: those that are open, and with `closed` those whose rows are still kept.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Only the session of this id, or those of the worker of this name.
    pub of: Option<String>,
    /// Closed ones too.
    pub closed: bool,
}

/// Sessions for people, the open ones first.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn list(
    database: &Database,
    filter: &SessionFilter,
    limit: i64,
) -> Result<Vec<Session>, Error> {
    let query = database
        .query(LIST)
        .bind(filter.of.clone())
        .bind(filter.closed)
        .bind(limit);
    let rows = database.all(query).await?;
    rows.iter()
        .map(|row| {
            Ok(Session {
                session_id: row.try_get("session_id")?,
                worker: row.try_get("worker")?,
                build: row.try_get("build")?,
                queues: row.try_get("queues")?,
                claim_keys: row.try_get("claim_keys")?,
                state: row.try_get("state")?,
                open: row.try_get("open")?,
                resident: row.try_get("resident")?,
                activities: row.try_get("activities")?,
                opened_at: row.try_get("opened_at")?,
                age: span(row.try_get("age")?),
                beat_age: span(row.try_get("beat_age")?),
                closed_at: row.try_get("closed_at")?,
                close_reason: row.try_get("close_reason")?,
            })
        })
        .collect()
}

/// A clock that was set back makes nothing younger than new.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// What a session owns in Postgres, and what waits for code that it has. Counts stop at the limit of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// Leases of runs.
    pub leases: i64,
    /// Attempts of activities.
    pub attempts: i64,
    /// Runs that are due and nobody's.
    pub due: i64,
    /// How long the oldest due timer of a run that is nobody's has been due.
    pub lag: Option<Duration>,
}

/// Counts what a session owns, no further than `limit`; `None` if there is no such session.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn holds(database: &Database, session: Uuid, limit: i64) -> Result<Option<Holds>, Error> {
    let query = database.query(HOLDS).bind(session).bind(limit);
    let Some(row) = database.optional(query).await? else {
        return Ok(None);
    };
    Ok(Some(Holds {
        leases: row.try_get(0)?,
        attempts: row.try_get(1)?,
        due: row.try_get(2)?,
        lag: row.try_get::<Option<f64>, _>(3)?.map(span),
    }))
}
