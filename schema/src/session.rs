//! Sessions: one life of one worker process, kept alive by a heartbeat counter.

use sqlx::Row;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::{Database, Error};

const OPEN: Statement = statement!("session/open");
const BEAT: Statement = statement!("session/beat");
const CLOSE: Statement = statement!("session/close");
const WATCH: Statement = statement!("session/watch");
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

/// Shows that the session lives.
///
/// # Errors
/// [`Error::SessionClosed`] if somebody closed it.
pub async fn beat(database: &Database, session: Uuid) -> Result<Beat, Error> {
    match database
        .optional(database.query(BEAT).bind(session))
        .await?
    {
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
