//! What the benchmarks look at, and what they bring about that no worker would: a million cold runs within minutes, a
//! snapshot that is held. No part of the engine.

use sqlx::Row;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Connection, Statement, statement};
use crate::{Database, Error, Seq};

const COPY: Statement = statement!("bench/copy");
const CENSUS: Statement = statement!("bench/census");
const REACHED: Statement = statement!("bench/reached");
const SIZES: Statement = statement!("bench/sizes");
const ENDS: Statement = statement!("bench/ends");
const PARTITIONS: Statement = statement!("bench/partitions");
const SNAPSHOT: Statement = statement!("bench/snapshot");

/// Makes so many copies of a cold run, with all rows that a worker left of it; returns how many were made, which is
/// none if the run is not cold.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn copy(database: &Database, cold_run: Uuid, count: i32) -> Result<i64, Error> {
    let query = database.query(COPY).bind(cold_run).bind(count);
    Ok(database.one(query).await?.try_get(0)?)
}

/// The active runs, by what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// In some worker's memory.
    pub owned: i64,
    /// Nobody's, and to be claimed.
    pub due: i64,
    /// Nobody's, and waiting.
    pub cold: i64,
}

/// Counts the active runs.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn census(database: &Database) -> Result<Census, Error> {
    let row = database.one(database.query(CENSUS)).await?;
    Ok(Census {
        owned: row.try_get("owned")?,
        due: row.try_get("due")?,
        cold: row.try_get("cold")?,
    })
}

/// How many runs have come to this position of their journal.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn reached(database: &Database, seq: Seq) -> Result<i64, Error> {
    let row = database.one(database.query(REACHED).bind(seq)).await?;
    Ok(row.try_get(0)?)
}

/// Bytes of the tables that hold active runs.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of the tables themselves.
    pub tables: i64,
    /// Of their indexes.
    pub indexes: i64,
}

/// Reads the sizes.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn sizes(database: &Database) -> Result<Sizes, Error> {
    let row = database.one(database.query(SIZES)).await?;
    Ok(Sizes {
        tables: row.try_get("tables")?,
        indexes: row.try_get("indexes")?,
    })
}

/// A run with a key that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its key.
    pub key: String,
    /// How it ended.
    pub state: String,
    /// When, by the database's clock.
    pub at: OffsetDateTime,
}

/// All runs with keys that have ended.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn ends(database: &Database) -> Result<Vec<Ended>, Error> {
    let rows = database.all(database.query(ENDS)).await?;
    rows.iter()
        .map(|row| {
            Ok(Ended {
                key: row.try_get("key")?,
                state: row.try_get("state")?,
                at: row.try_get("ended_at")?,
            })
        })
        .collect()
}

/// How often each partition of the journal was looked into, since statistics began.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn partitions(database: &Database) -> Result<Vec<(String, i64)>, Error> {
    let rows = database.all(database.query(PARTITIONS)).await?;
    rows.iter()
        .map(|row| Ok((row.try_get("partition")?, row.try_get("scans")?)))
        .collect()
}

/// A transaction that stays open with its snapshot: until this is dropped, no vacuum takes away what died since.
pub struct HeldSnapshot {
    _connection: Connection,
}

/// Takes a snapshot and holds it.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn hold_snapshot(database: &Database) -> Result<HeldSnapshot, Error> {
    let mut connection = database.connection().await?;
    sqlx::raw_sql(SNAPSHOT.sql)
        .execute(connection.as_mut())
        .await?;
    Ok(HeldSnapshot {
        _connection: connection,
    })
}
