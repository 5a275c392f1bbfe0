//! Strays: mail and timers that should have woken their run long ago. By the rules of posting and releasing there are
//! none; the reconciler looks all the same, a page at a time, and makes their runs due.

use sqlx::Row;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::{Database, Error};

const MAIL: Statement = statement!("stray/mail");
const TIMERS: Statement = statement!("stray/timers");
const REVIVE: Statement = statement!("stray/revive");

/// Where a page of the mailbox ended, to begin the next one with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailPlace {
    chain_id: Uuid,
    mail_id: i64,
}

/// Mail that nobody has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayMail {
    /// Its chain.
    pub chain_id: Uuid,
    /// The mail.
    pub mail_id: i64,
    /// The chain's current run.
    pub run_id: Uuid,
    /// Who holds the run.
    pub owner: Option<Uuid>,
}

/// One page of a walk.
#[derive(Debug)]
pub struct Page<T, P> {
    /// What strays on it.
    pub strays: Vec<T>,
    /// Where the next page begins; the start again after the last one.
    pub next: P,
}

/// Looks at the `limit` rows of the mailbox from `place` on for mail that has waited for more than `seconds`.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn mail(
    database: &Database,
    place: MailPlace,
    seconds: f64,
    limit: i64,
) -> Result<Page<StrayMail, MailPlace>, Error> {
    let query = database
        .query(MAIL)
        .bind(place.chain_id)
        .bind(place.mail_id)
        .bind(seconds)
        .bind(limit);
    let rows = database.all(query).await?;
    let mut page = Page {
        strays: Vec::new(),
        next: MailPlace::default(),
    };
    for row in &rows {
        let at = MailPlace {
            chain_id: row.try_get("chain_id")?,
            mail_id: row.try_get("mail_id")?,
        };
        page.next = at;
        if row.try_get("is_stray")? {
            page.strays.push(StrayMail {
                chain_id: at.chain_id,
                mail_id: at.mail_id,
                run_id: row.try_get("run_id")?,
                owner: row.try_get("owner")?,
            });
        }
    }
    if is_last(rows.len(), limit) {
        page.next = MailPlace::default();
    }
    Ok(page)
}

/// Where a page of the timers ended, to begin the next one with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerPlace {
    run_id: Uuid,
    effect: i32,
}

/// Looks at the `limit` timers from `place` on for those that were due more than `seconds` ago and that nothing would
/// fire; answers with their chains.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn timers(
    database: &Database,
    place: TimerPlace,
    seconds: f64,
    limit: i64,
) -> Result<Page<Uuid, TimerPlace>, Error> {
    let query = database
        .query(TIMERS)
        .bind(place.run_id)
        .bind(place.effect)
        .bind(seconds)
        .bind(limit);
    let rows = database.all(query).await?;
    let mut page = Page {
        strays: Vec::new(),
        next: TimerPlace::default(),
    };
    for row in &rows {
        page.next = TimerPlace {
            run_id: row.try_get("run_id")?,
            effect: row.try_get("effect")?,
        };
        if row.try_get("is_stray")? {
            page.strays.push(row.try_get("chain_id")?);
        }
    }
    if is_last(rows.len(), limit) {
        page.next = TimerPlace::default();
    }
    Ok(page)
}

fn is_last(rows: usize, limit: i64) -> bool {
    i64::try_from(rows).is_ok_and(|rows| rows < limit)
}

/// Makes those of these chains due that are nobody's and that nothing would wake; returns their current runs.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn revive(database: &Database, chains: &[Uuid]) -> Result<Vec<Uuid>, Error> {
    let rows = database
        .all(database.query(REVIVE).bind(chains.to_vec()))
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
