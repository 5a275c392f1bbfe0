//! Leases: who may append to a run, who takes it up next.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::journal::EventRow;
use crate::mailbox::Mail;
use crate::{Database, Error, Payload};

const CLAIM: Statement = statement!("lease/claim");
const RELEASE: Statement = statement!("lease/release");
const BLOCK: Statement = statement!("lease/block");
const SWEEP: Statement = statement!("lease/sweep");
const TICKET: Statement = statement!("lease/ticket");
const NEXT_TIMER: Statement = statement!("lease/next_timer");
const OWNED: Statement = statement!("lease/owned");
const DUE: Statement = statement!("lease/due");
const OVERDUE: Statement = statement!("lease/overdue");

/// The right to append to one run, as a claim gave it. It is checked again by every append: holding this value proves
/// nothing, it only names what is to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The chain that the lease row belongs to.
    pub chain_id: Uuid,
    /// The chain's current run.
    pub run_id: Uuid,
    /// The fencing token.
    pub token: i64,
}

/// What a worker can take: what it looks for, and what a run found so is pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimKey {
    /// `workflow` for runs that nobody has begun, `workflow@hash` for others.
    pub key: String,
    /// `workflow@hash`.
    pub pin: String,
}

impl ClaimKey {
    /// The key of runs that are bound to this code.
    #[must_use]
    pub fn pinned(workflow: &str, hash: &str) -> String {
        format!("{workflow}@{hash}")
    }
}

/// All that an engine needs to take up a run.
#[derive(Debug)]
pub struct ClaimedRun {
    /// The right to append.
    pub lease: Lease,
    /// The wake counter that the mail below belongs to.
    pub wake: i64,
    /// When the run was started, by the database's clock.
    pub created_at: OffsetDateTime,
    /// The workflow's name.
    pub workflow: String,
    /// The hash that the run is pinned to.
    pub hash: String,
    /// The idempotency key.
    pub key: Option<String>,
    /// The namespace.
    pub namespace: String,
    /// How often the run was parked before.
    pub block_count: i32,
    /// The run takes its workers down: it must not be loaded, only ended.
    pub quarantined: bool,
    /// The workflow's input.
    pub input: Payload,
    /// Its history, in order, not yet decoded.
    pub history: Vec<EventRow>,
    /// Its mail.
    pub mail: Vec<Mail>,
}

/// Claims at most `limit` due runs and loads them. Runs whose ticket is below `floor` are passed over.
///
/// # Errors
/// [`Error::SessionClosed`] if the session is not open any more.
pub async fn claim(
    database: &Database,
    session: Uuid,
    keys: &[ClaimKey],
    limit: i32,
    floor: i64,
) -> Result<Vec<ClaimedRun>, Error> {
    let query = database
        .query(CLAIM)
        .bind(session)
        .bind(keys.iter().map(|k| k.key.as_str()).collect::<Vec<_>>())
        .bind(keys.iter().map(|k| k.pin.as_str()).collect::<Vec<_>>())
        .bind(limit)
        .bind(floor);
    assemble(&database.all(query).await?)
}

/// Sorts the items of a claim to their runs.
fn assemble(rows: &[PgRow]) -> Result<Vec<ClaimedRun>, Error> {
    let mut runs: Vec<ClaimedRun> = Vec::new();
    let mut by_id: HashMap<Uuid, usize> = HashMap::new();
    for row in rows {
        let at = |id: Uuid| {
            by_id.get(&id).copied().ok_or_else(|| {
                Error::Damaged(format!(
                    "a claim brought an item of {id}, which it did not claim"
                ))
            })
        };
        match row.try_get::<i16, _>("o_item")? {
            1 => {
                let run = claimed_run(row)?;
                by_id.insert(run.lease.chain_id, runs.len());
                by_id.insert(run.lease.run_id, runs.len());
                runs.push(run);
            }
            2 => {
                let event = EventRow {
                    seq: row.try_get("o_seq")?,
                    kind: row.try_get("o_kind")?,
                    at: row.try_get("o_at")?,
                    payload: row.try_get("o_payload")?,
                };
                runs[at(row.try_get("o_run")?)?].history.push(event);
            }
            _ => {
                let mail = Mail {
                    mail_id: row.try_get("o_number")?,
                    kind: row.try_get::<i16, _>("o_kind")?.try_into()?,
                    name: row.try_get("o_name")?,
                    payload: Payload::from_bytes(row.try_get("o_payload")?),
                    delivery_id: row.try_get("o_key")?,
                };
                runs[at(row.try_get("o_chain")?)?].mail.push(mail);
            }
        }
    }
    Ok(runs)
}

fn claimed_run(row: &PgRow) -> Result<ClaimedRun, Error> {
    let pin: String = row.try_get("o_pin")?;
    let hash = pin
        .split_once('@')
        .map(|(_, hash)| hash.to_owned())
        .ok_or_else(|| Error::Damaged(format!("claim key {pin:?} holds no hash")))?;
    Ok(ClaimedRun {
        lease: Lease {
            chain_id: row.try_get("o_chain")?,
            run_id: row.try_get("o_run")?,
            token: row.try_get("o_token")?,
        },
        wake: row.try_get("o_number")?,
        created_at: row.try_get("o_at")?,
        workflow: row.try_get("o_name")?,
        hash,
        key: row.try_get("o_key")?,
        namespace: row.try_get("o_namespace")?,
        block_count: row.try_get("o_seq")?,
        quarantined: row.try_get::<i16, _>("o_kind")? == 1,
        input: Payload::from_bytes(row.try_get("o_payload")?),
        history: Vec::new(),
        mail: Vec::new(),
    })
}

/// What became of a run that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// It is cold.
    Released,
    /// It is nobody's and due: something arrived meanwhile. Ring `ready`.
    Due,
    /// It had been taken over before.
    NotMine,
    /// Somebody holds its row; it is still mine. Ask again.
    Busy,
}

impl ReleaseOutcome {
    /// The outcome behind a code of `continuum_release` or `continuum_block`.
    fn of(code: i16) -> Self {
        match code {
            0 => Self::Released,
            1 => Self::Due,
            3 => Self::Busy,
            _ => Self::NotMine,
        }
    }
}

/// Gives runs back. Each comes with the wake counter of the mail that its engine last read.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn release(
    database: &Database,
    session: Uuid,
    leases: &[(Lease, i64)],
) -> Result<Vec<ReleaseOutcome>, Error> {
    let query = database
        .query(RELEASE)
        .bind(session)
        .bind(leases.iter().map(|(l, _)| l.chain_id).collect::<Vec<_>>())
        .bind(leases.iter().map(|(l, _)| l.token).collect::<Vec<_>>())
        .bind(leases.iter().map(|(_, wake)| *wake).collect::<Vec<_>>());
    let outcomes: Vec<i16> = database.one(query).await?.try_get(0)?;
    Ok(outcomes.into_iter().map(ReleaseOutcome::of).collect())
}

/// Parks a run that can't go on, with its reason where people see it; `retry_ms` is when to try it again, if ever. It
/// comes with the wake counter of the mail that its engine last read: a request to stop that is newer makes it due.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn block(
    database: &Database,
    session: Uuid,
    (lease, wake): (&Lease, i64),
    reason: &str,
    detail: &serde_json::Value,
    retry_ms: Option<i64>,
) -> Result<ReleaseOutcome, Error> {
    let query = database
        .query(BLOCK)
        .bind(session)
        .bind(lease.chain_id)
        .bind(lease.token)
        .bind(wake)
        .bind(reason.to_owned())
        .bind(without_nul(detail.clone()).to_string())
        .bind(retry_ms);
    let outcome: i16 = database.one(query).await?.try_get(0)?;
    Ok(ReleaseOutcome::of(outcome))
}

/// Postgres can't store a NUL in JSON, and what a panic said must never keep a run from being parked.
fn without_nul(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(text.replace('\0', "\u{fffd}")),
        Value::Array(items) => items.into_iter().map(without_nul).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, without_nul(value)))
            .collect(),
        other => other,
    }
}

/// Makes at most `limit` runs of closed sessions claimable; returns how many. A run whose owners died `crash_limit`
/// times without a new event is quarantined.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn sweep(database: &Database, limit: i32, crash_limit: i32) -> Result<i32, Error> {
    let query = database.query(SWEEP).bind(limit).bind(crash_limit);
    Ok(database.one(query).await?.try_get(0)?)
}

/// How long until the first cold run with one of these keys has a timer due; nothing if none will. A timer that is due
/// already is no answer: a claim brings it.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn next_timer(database: &Database, keys: &[ClaimKey]) -> Result<Option<Duration>, Error> {
    let keys: Vec<&str> = keys.iter().map(|k| k.key.as_str()).collect();
    let row = database.one(database.query(NEXT_TIMER).bind(keys)).await?;
    let micros: Option<i64> = row.try_get(0)?;
    Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
}

/// The newest ready ticket. Tickets of transactions that are still open are below it.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn newest_ticket(database: &Database) -> Result<i64, Error> {
    Ok(database.one(database.query(TICKET)).await?.try_get(0)?)
}

/// What a session owns, from `after` on (nil at first), at most `limit` leases with their wake counters.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn owned(
    database: &Database,
    session: Uuid,
    after: Uuid,
    limit: i64,
) -> Result<Vec<(Lease, i64)>, Error> {
    let query = database.query(OWNED).bind(session).bind(after).bind(limit);
    let rows = database.all(query).await?;
    rows.iter()
        .map(|row| {
            let lease = Lease {
                chain_id: row.try_get("chain_id")?,
                run_id: row.try_get("run_id")?,
                token: row.try_get("token")?,
            };
            Ok((lease, row.try_get("wake")?))
        })
        .collect()
}

/// A run that is due and nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// Its chain.
    pub chain_id: Uuid,
    /// The run.
    pub run_id: Uuid,
    /// Its place in the order of due runs; the same ticket at a later look means that nobody has taken it since.
    pub ticket: i64,
}

/// The runs that have been due longest for each of these claim keys, at most `limit` a key.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn due(database: &Database, keys: &[String], limit: i64) -> Result<Vec<DueRun>, Error> {
    let query = database.query(DUE).bind(keys.to_vec()).bind(limit);
    let rows = database.all(query).await?;
    rows.iter()
        .map(|row| {
            Ok(DueRun {
                chain_id: row.try_get("chain_id")?,
                run_id: row.try_get("run_id")?,
                ticket: row.try_get("ticket")?,
            })
        })
        .collect()
}

/// How many runs with these claim keys are nobody's though a timer of theirs was due more than `seconds` ago; counted no
/// further than `limit` a key.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn overdue(
    database: &Database,
    keys: &[String],
    seconds: f64,
    limit: i64,
) -> Result<i64, Error> {
    let query = database
        .query(OVERDUE)
        .bind(keys.to_vec())
        .bind(seconds)
        .bind(limit);
    Ok(database.one(query).await?.try_get(0)?)
}
