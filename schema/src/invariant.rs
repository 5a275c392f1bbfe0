//! What must hold in every database at rest, whatever died on the way there.

use sqlx::Row;

use crate::database::{Statement, statement};
use crate::{Database, Error};

const VIOLATIONS: Statement = statement!("invariant/violations");

/// A rule that does not hold, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: String,
    /// The run, chain, activity or connection that breaks it.
    pub subject: String,
}

/// Everything that breaks a rule. It reads whole tables: for tests, and for an operator who suspects damage.
/// `patience` is how long, in seconds, something may be due without an owner.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn violations(database: &Database, patience: f64) -> Result<Vec<Violation>, Error> {
    let rows = database
        .all(database.query(VIOLATIONS).bind(patience))
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Violation {
                rule: row.try_get("rule")?,
                subject: row.try_get("subject")?,
            })
        })
        .collect()
}
