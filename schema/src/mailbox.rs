//! Mailboxes: durable inputs that wait for a chain.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::event::{Event, Failure};
use crate::{Database, Error, Payload};

const READ: Statement = statement!("mailbox/read");
const POST: Statement = statement!("mailbox/post");
const INGEST: Statement = statement!("mailbox/ingest");
const CANCEL: Statement = statement!("mailbox/cancel");
const DEFER: Statement = statement!("mailbox/defer");
const AGE: Statement = statement!("mailbox/age");
const REJECTED: Statement = statement!("mailbox/rejected");

/// What a piece of mail is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailKind {
    /// A signal.
    Signal = 1,
    /// An activity's completion; the payload is the encoded event.
    ActivityResult = 2,
    /// A request to stop; the payload is the reason.
    Cancel = 3,
}

impl TryFrom<i16> for MailKind {
    type Error = Error;
    fn try_from(code: i16) -> Result<Self, Error> {
        match code {
            1 => Ok(Self::Signal),
            2 => Ok(Self::ActivityResult),
            3 => Ok(Self::Cancel),
            other => Err(Error::Damaged(format!("mail kind {other}"))),
        }
    }
}

/// One piece of mail.
#[derive(Clone, Debug)]
pub struct Mail {
    /// Its number; numbers follow commit order within a chain.
    pub mail_id: i64,
    /// What it is.
    pub kind: MailKind,
    /// The signal's name.
    pub name: Option<String>,
    /// What it carries.
    pub payload: Payload,
    /// The sender's delivery id.
    pub delivery_id: Option<String>,
}

/// A chain's whole mailbox with the wake counter that it belongs to.
#[derive(Debug)]
pub struct Mailbox {
    /// Whose it is.
    pub chain_id: Uuid,
    /// The wake counter; a release compares with it.
    pub wake: i64,
    /// All mail, oldest first.
    pub mail: Vec<Mail>,
}

/// The mailboxes of those `chains` that `session` owns. Always whole mailboxes, never from a cursor on.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn read(
    database: &Database,
    session: Uuid,
    chains: &[Uuid],
) -> Result<Vec<Mailbox>, Error> {
    let query = database.query(READ).bind(session).bind(chains.to_vec());
    let mut boxes: Vec<Mailbox> = Vec::new();
    for row in &database.all(query).await? {
        let chain_id: Uuid = row.try_get("chain_id")?;
        if boxes.last().is_none_or(|b| b.chain_id != chain_id) {
            boxes.push(Mailbox {
                chain_id,
                wake: row.try_get("wake")?,
                mail: Vec::new(),
            });
        }
        if let (Some(mail), Some(mailbox)) = (read_mail(row)?, boxes.last_mut()) {
            mailbox.mail.push(mail);
        }
    }
    Ok(boxes)
}

fn read_mail(row: &PgRow) -> Result<Option<Mail>, Error> {
    let Some(mail_id) = row.try_get::<Option<i64>, _>("mail_id")? else {
        return Ok(None);
    };
    Ok(Some(Mail {
        mail_id,
        kind: row.try_get::<i16, _>("kind")?.try_into()?,
        name: row.try_get("name")?,
        payload: Payload::from_bytes(row.try_get("payload")?),
        delivery_id: row.try_get("delivery_id")?,
    }))
}

/// A signal to be posted.
#[derive(Clone, Debug)]
pub struct Signal {
    /// Any run of the chain.
    pub run_id: Uuid,
    /// The signal's name.
    pub name: String,
    /// What it carries.
    pub payload: Payload,
    /// Counts once for its chain and name.
    pub delivery_id: Option<String>,
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostOutcome {
    /// It is in the mailbox.
    Posted(Wake),
    /// This delivery had been accepted before.
    Duplicate,
    /// There is no such run; nothing was stored.
    NotFound,
    /// The run has ended; nothing was stored.
    Ended,
    /// Somebody holds the chain's row; nothing was stored. Send it again.
    Busy,
}

/// Whom to tell about new mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The chain's current run.
    pub run_id: Uuid,
    /// The session that owns it; when nobody does, ring `ready`.
    pub owner: Option<Uuid>,
}

fn post_outcomes(rows: &[PgRow], count: usize) -> Result<Vec<PostOutcome>, Error> {
    let mut outcomes = vec![PostOutcome::NotFound; count];
    for row in rows {
        let ix = row.try_get::<i32, _>("o_ix")?;
        let slot = usize::try_from(ix - 1)
            .ok()
            .and_then(|i| outcomes.get_mut(i))
            .ok_or_else(|| Error::Damaged(format!("post outcome for place {ix}")))?;
        *slot = post_outcome(row)?;
    }
    Ok(outcomes)
}

fn post_outcome(row: &PgRow) -> Result<PostOutcome, Error> {
    Ok(match row.try_get::<i16, _>("o_outcome")? {
        0 => PostOutcome::Posted(Wake {
            run_id: row.try_get("o_run")?,
            owner: row.try_get("o_owner")?,
        }),
        1 => PostOutcome::Duplicate,
        2 => PostOutcome::NotFound,
        3 => PostOutcome::Ended,
        4 => PostOutcome::Busy,
        other => return Err(Error::Damaged(format!("post outcome {other}"))),
    })
}

/// Posts signals in one commit; the outcomes are in the order of `signals`.
///
/// # Errors
/// Any error concerns all of them. With a delivery id each may be sent again safely.
pub async fn signal(database: &Database, signals: &[Signal]) -> Result<Vec<PostOutcome>, Error> {
    let query = database
        .query(POST)
        .bind(signals.iter().map(|s| s.run_id).collect::<Vec<_>>())
        .bind(vec![MailKind::Signal as i16; signals.len()])
        .bind(signals.iter().map(|s| s.name.as_str()).collect::<Vec<_>>())
        .bind(
            signals
                .iter()
                .map(|s| s.payload.as_bytes())
                .collect::<Vec<_>>(),
        )
        .bind(
            signals
                .iter()
                .map(|s| s.delivery_id.as_deref())
                .collect::<Vec<_>>(),
        );
    post_outcomes(&database.all(query).await?, signals.len())
}

/// A message from the signal stream that can't be taken.
#[derive(Clone, Debug)]
pub struct RejectedSignal {
    /// The subject that it came on.
    pub subject: String,
    /// The rule that it broke.
    pub reason: String,
    /// Its delivery id.
    pub delivery_id: Option<String>,
    /// Its body, cut to what is worth keeping.
    pub payload: Vec<u8>,
    /// The size of the whole body in bytes.
    pub size: i64,
}

/// Stores a batch from the signal stream in one commit, good and bad. `subjects` are those of `signals`. Unknown and
/// ended runs become rejected rows as well. After the commit everything but [`PostOutcome::Busy`] may be acknowledged.
///
/// # Errors
/// Any error concerns the whole batch; nothing of it may be acknowledged.
pub async fn ingest(
    database: &Database,
    signals: &[Signal],
    subjects: &[String],
    rejected: &[RejectedSignal],
) -> Result<Vec<PostOutcome>, Error> {
    let query = database
        .query(INGEST)
        .bind(signals.iter().map(|s| s.run_id).collect::<Vec<_>>())
        .bind(signals.iter().map(|s| s.name.as_str()).collect::<Vec<_>>())
        .bind(
            signals
                .iter()
                .map(|s| s.payload.as_bytes())
                .collect::<Vec<_>>(),
        )
        .bind(
            signals
                .iter()
                .map(|s| s.delivery_id.as_deref())
                .collect::<Vec<_>>(),
        )
        .bind(subjects.to_vec())
        .bind(
            rejected
                .iter()
                .map(|r| r.subject.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            rejected
                .iter()
                .map(|r| r.reason.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            rejected
                .iter()
                .map(|r| r.delivery_id.as_deref())
                .collect::<Vec<_>>(),
        )
        .bind(
            rejected
                .iter()
                .map(|r| r.payload.as_slice())
                .collect::<Vec<_>>(),
        )
        .bind(rejected.iter().map(|r| r.size).collect::<Vec<_>>());
    post_outcomes(&database.all(query).await?, signals.len())
}

/// What became of a cancel request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It is in the mailbox; the run will see it.
    Requested(Wake),
    /// Nobody had begun the run; it is cancelled now.
    Cancelled(Uuid),
    /// There is no such run.
    NotFound,
    /// The run has ended.
    Ended,
}

/// Asks a run to stop.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away; the request may be repeated.
pub async fn cancel(
    database: &Database,
    run_id: Uuid,
    reason: &str,
) -> Result<CancelOutcome, Error> {
    let event = Event::Cancelled {
        reason: reason.to_owned(),
        unread: Vec::new(),
    };
    let failure = crate::journal::encode_failure(&Failure::cancelled(reason));
    let reason = Payload::encode(reason).map_err(|e| Error::Config(e.to_string()))?;
    let query = database
        .query(CANCEL)
        .bind(run_id)
        .bind(reason.into_bytes())
        .bind(event.encode())
        .bind(event.kind())
        .bind(failure);
    let row = database.one(query).await?;
    if row.try_get::<i16, _>("o_outcome")? == 5 {
        return Ok(CancelOutcome::Cancelled(row.try_get("o_run")?));
    }
    Ok(match post_outcome(&row)? {
        PostOutcome::Posted(wake) => CancelOutcome::Requested(wake),
        PostOutcome::Ended => CancelOutcome::Ended,
        _ => CancelOutcome::NotFound,
    })
}

/// Posts a signal when the caller's own transaction commits. Until then nothing is locked. `schema` is the
/// instance's. If the run has ended by then, the commit fails with SQLSTATE `CTM02`.
///
/// # Errors
/// [`Error::NotFound`] at once if there is no such run.
pub async fn signal_in(
    connection: &mut sqlx::PgConnection,
    schema: &str,
    signal: &Signal,
) -> Result<(), Error> {
    sqlx::query(crate::tx::qualified(DEFER.sql, schema))
        .bind(signal.run_id)
        .bind(&signal.name)
        .bind(signal.payload.as_bytes())
        .bind(&signal.delivery_id)
        .persistent(false)
        .execute(connection)
        .await
        .map_err(|error| match Error::from(error) {
            Error::NotFound(_) => Error::NotFound(signal.run_id.to_string()),
            other => other,
        })?;
    Ok(())
}

/// A stored rejected signal, as listed.
#[derive(Clone, Debug)]
pub struct RejectedRow {
    /// The subject that it came on.
    pub subject: String,
    /// The rule that it broke.
    pub reason: String,
    /// Its delivery id.
    pub delivery_id: Option<String>,
    /// The size of its body in bytes.
    pub size: i64,
    /// When it was rejected.
    pub at: OffsetDateTime,
}

/// The newest rejected signals.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn rejected(database: &Database, limit: i64) -> Result<Vec<RejectedRow>, Error> {
    let rows = database.all(database.query(REJECTED).bind(limit)).await?;
    rows.iter()
        .map(|row| {
            Ok(RejectedRow {
                subject: row.try_get("subject")?,
                reason: row.try_get("reason")?,
                delivery_id: row.try_get("delivery_id")?,
                size: row.try_get("size")?,
                at: row.try_get("at")?,
            })
        })
        .collect()
}

/// How long ago the oldest mail of these chains was posted, by the database's clock; `None` if they have none.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn age(database: &Database, chains: &[Uuid]) -> Result<Option<Duration>, Error> {
    let query = database.query(AGE).bind(chains.to_vec());
    let seconds: Option<f64> = database.one(query).await?.try_get(0)?;
    // A clock that was set back makes nothing younger than new.
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}
