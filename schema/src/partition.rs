//! Months of the journal.

use sqlx::Row;

use crate::database::{Statement, statement};
use crate::{Database, Error};

const ENSURE: Statement = statement!("partition/ensure");
const OVERFLOW: Statement = statement!("partition/overflow");

/// How many months ahead of the current one have a partition.
pub const MONTHS_AHEAD: i32 = 4;

/// Makes the partitions of the current month and of `months` ahead; returns how many were missing.
///
/// # Errors
/// [`Error::Contended`] if a long reader stood in the way; [`Error::Refused`] without the right to create tables.
pub async fn ensure(database: &Database, months: i32) -> Result<i32, Error> {
    Ok(database
        .one(database.query(ENSURE).bind(months))
        .await?
        .try_get(0)?)
}

/// Whether rows fell into the default partition because their month had none.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn has_overflow(database: &Database) -> Result<bool, Error> {
    Ok(database.one(database.query(OVERFLOW)).await?.try_get(0)?)
}
