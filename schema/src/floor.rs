//! What the benchmarks measure the engine against: the bare cost of a commit in a table that nothing else uses, and
//! Postgres's own counters. No part of the engine.

use sqlx::Row;

use crate::database::{Statement, statement};
use crate::{Database, Error};

const CREATE: Statement = statement!("floor/create");
const INSERT: Statement = statement!("floor/insert");
const COUNTERS: Statement = statement!("floor/counters");

/// Creates the scratch table in the instance's schema.
///
/// # Errors
/// [`Error::Refused`] without the right to create tables, or if the table exists.
pub async fn create(database: &Database) -> Result<(), Error> {
    database.execute(database.query(CREATE)).await.map(|_| ())
}

/// Inserts these rows in one statement and one commit.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn insert(database: &Database, payloads: &[Vec<u8>]) -> Result<(), Error> {
    let query = database.query(INSERT).bind(payloads.to_vec());
    database.execute(query).await.map(|_| ())
}

/// Postgres's counters, since its statistics began.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Committed transactions of this database, reads included.
    pub commits: i64,
    /// Flushes of the WAL to the disk.
    pub wal_flushes: i64,
    /// Bytes of WAL.
    pub wal_bytes: i64,
}

/// Reads the counters.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn counters(database: &Database) -> Result<Counters, Error> {
    let row = database.one(database.query(COUNTERS)).await?;
    Ok(Counters {
        commits: row.try_get("xact_commit")?,
        wal_flushes: row.try_get("wal_sync")?,
        wal_bytes: row.try_get("wal_bytes")?,
    })
}
