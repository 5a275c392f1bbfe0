//! Activity tasks: open activities, their attempts, their results.

use sqlx::Row;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::event::{ActivityScheduled, EffectId, Event, Failure};
use crate::journal::{encode_failure, int};
use crate::mailbox::Wake;
use crate::{Database, Error, Payload};

const CLAIM: Statement = statement!("activity/claim");
const COMPLETE: Statement = statement!("activity/complete");
const RETRY: Statement = statement!("activity/retry");
const LOST: Statement = statement!("activity/lost");
const HELD: Statement = statement!("activity/held");
const RESULT: Statement = statement!("activity/result");
const OPEN: Statement = statement!("activity/open");

/// One attempt of one activity: the fence of everything that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The run that asked for it.
    pub run_id: Uuid,
    /// Which effect of the run.
    pub effect: EffectId,
    /// Which attempt, from 1.
    pub attempt: u32,
}

/// An attempt that was claimed from a queue, with what it needs.
#[derive(Clone, Debug)]
pub struct ClaimedActivity {
    /// The attempt.
    pub attempt: Attempt,
    /// The namespace of its run.
    pub namespace: String,
    /// Name, input and options.
    pub scheduled: ActivityScheduled,
}

/// Claims at most `limit` activities of these names from these queues.
///
/// # Errors
/// [`Error::SessionClosed`] if the session is not open any more; [`Error::Damaged`] if the command event of one of
/// them can't be read.
pub async fn claim(
    database: &Database,
    session: Uuid,
    queues: &[String],
    names: &[String],
    limit: i32,
) -> Result<Vec<ClaimedActivity>, Error> {
    let query = database
        .query(CLAIM)
        .bind(session)
        .bind(queues.to_vec())
        .bind(names.to_vec())
        .bind(limit);
    let rows = database.all(query).await?;
    rows.iter()
        .map(|row| {
            let event = Event::decode(2, row.try_get("o_payload")?)
                .map_err(|e| Error::Damaged(e.to_string()))?;
            let Event::ActivityScheduled(scheduled) = event else {
                return Err(Error::Damaged(
                    "an activity's event is of another kind".into(),
                ));
            };
            Ok(ClaimedActivity {
                attempt: Attempt {
                    run_id: row.try_get("o_run")?,
                    effect: unsigned(row.try_get("o_effect")?),
                    attempt: unsigned(row.try_get("o_attempt")?),
                },
                namespace: row.try_get("o_namespace")?,
                scheduled,
            })
        })
        .collect()
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The end of an activity.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The attempt that ended it.
    pub attempt: Attempt,
    /// The completion event.
    pub event: Event,
    /// The activity's name, its idempotency key and its value, where the author gave a key and the attempt succeeded.
    pub result: Option<(String, String, Payload)>,
}

/// Ends activities: each completion goes to its chain's mailbox if the attempt is still `session`'s. `None` means that
/// it was not, and that the completion was discarded.
///
/// # Errors
/// Any error concerns all of them; each may be sent again.
pub async fn complete(
    database: &Database,
    session: Uuid,
    completions: &[Completion],
) -> Result<Vec<Option<Wake>>, Error> {
    let each = || completions.iter();
    let result = |f: fn(&(String, String, Payload)) -> Vec<u8>| {
        each().map(|c| c.result.as_ref().map(f)).collect::<Vec<_>>()
    };
    let query = database
        .query(COMPLETE)
        .bind(session)
        .bind(each().map(|c| c.attempt.run_id).collect::<Vec<_>>())
        .bind(each().map(|c| int(c.attempt.effect)).collect::<Vec<_>>())
        .bind(each().map(|c| int(c.attempt.attempt)).collect::<Vec<_>>())
        .bind(each().map(|c| c.event.encode()).collect::<Vec<_>>())
        .bind(
            each()
                .map(|c| c.result.as_ref().map(|r| r.0.as_str()))
                .collect::<Vec<_>>(),
        )
        .bind(
            each()
                .map(|c| c.result.as_ref().map(|r| r.1.as_str()))
                .collect::<Vec<_>>(),
        )
        .bind(result(|r| r.2.as_bytes().to_vec()));
    let mut wakes = vec![None; completions.len()];
    for row in &database.all(query).await? {
        let ix = row.try_get::<i32, _>("o_ix")?;
        let accepted = row.try_get::<i16, _>("o_outcome")? == 0;
        if let (Some(slot), true) = (
            usize::try_from(ix - 1).ok().and_then(|i| wakes.get_mut(i)),
            accepted,
        ) {
            *slot = Some(Wake {
                run_id: row.try_get("o_run")?,
                owner: row.try_get("o_owner")?,
            });
        }
    }
    Ok(wakes)
}

/// Why an attempt ended without ending its activity.
#[derive(Clone, Debug)]
pub enum AttemptEnd {
    /// It failed and is tried again.
    Failed(Failure),
    /// Its worker died.
    Unknown,
    /// It was handed back; the attempt doesn't count.
    Released,
}

/// Records such an end and makes the activity available again after `delay_ms`. Returns false when the attempt was
/// not `session`'s any more.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn retry(
    database: &Database,
    session: Uuid,
    attempt: Attempt,
    end: &AttemptEnd,
    delay_ms: i64,
) -> Result<bool, Error> {
    let (outcome, failure) = match end {
        AttemptEnd::Failed(failure) => ("failed", Some(encode_failure(failure))),
        AttemptEnd::Unknown => ("unknown", None),
        AttemptEnd::Released => ("released", None),
    };
    let query = database
        .query(RETRY)
        .bind(session)
        .bind(attempt.run_id)
        .bind(int(attempt.effect))
        .bind(int(attempt.attempt))
        .bind(outcome)
        .bind(failure)
        .bind(delay_ms);
    Ok(database.one(query).await?.try_get(0)?)
}

/// An attempt whose session is closed.
#[derive(Clone, Debug)]
pub struct LostAttempt {
    /// The attempt.
    pub attempt: Attempt,
    /// Attempts in all; 0 means without a limit.
    pub max_attempts: u32,
    /// The closed session.
    pub session: Uuid,
    /// The queue to ring when it is available again.
    pub queue: String,
}

/// At most `limit` attempts of closed sessions.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn lost(database: &Database, limit: i64) -> Result<Vec<LostAttempt>, Error> {
    let rows = database.all(database.query(LOST).bind(limit)).await?;
    rows.iter()
        .map(|row| {
            Ok(LostAttempt {
                attempt: Attempt {
                    run_id: row.try_get("run_id")?,
                    effect: unsigned(row.try_get("effect")?),
                    attempt: unsigned(row.try_get("attempt")?),
                },
                max_attempts: unsigned(row.try_get("max_attempts")?),
                session: row.try_get("owner")?,
                queue: row.try_get("queue")?,
            })
        })
        .collect()
}

/// The attempts that a session holds; what it runs beyond these was dropped, ended or taken over.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn held(database: &Database, session: Uuid) -> Result<Vec<Attempt>, Error> {
    let rows = database.all(database.query(HELD).bind(session)).await?;
    rows.iter()
        .map(|row| {
            Ok(Attempt {
                run_id: row.try_get("run_id")?,
                effect: unsigned(row.try_get("effect")?),
                attempt: unsigned(row.try_get("attempt")?),
            })
        })
        .collect()
}

/// The committed result of an idempotency key.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn result(
    database: &Database,
    namespace: &str,
    name: &str,
    key: &str,
) -> Result<Option<Payload>, Error> {
    let query = database
        .query(RESULT)
        .bind(namespace.to_owned())
        .bind(name.to_owned())
        .bind(key.to_owned());
    match database.optional(query).await? {
        Some(row) => Ok(Some(Payload::from_bytes(row.try_get(0)?))),
        None => Ok(None),
    }
}

/// An open activity, for people.
#[derive(Clone, Debug)]
pub struct OpenActivity {
    /// Which effect.
    pub effect: EffectId,
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// The attempt that runs or ran last; 0 before the first.
    pub attempt: u32,
    /// Attempts in all; 0 means without a limit.
    pub max_attempts: u32,
    /// Whether a worker holds it.
    pub running: bool,
    /// When the next attempt is due.
    pub due_at: Option<OffsetDateTime>,
    /// Why the last attempt failed.
    pub failure: Option<Failure>,
}

/// The open activities of a run.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn open(database: &Database, run_id: Uuid) -> Result<Vec<OpenActivity>, Error> {
    let rows = database.all(database.query(OPEN).bind(run_id)).await?;
    rows.iter()
        .map(|row| {
            Ok(OpenActivity {
                effect: unsigned(row.try_get("effect")?),
                name: row.try_get("name")?,
                queue: row.try_get("queue")?,
                attempt: unsigned(row.try_get("attempt")?),
                max_attempts: unsigned(row.try_get("max_attempts")?),
                running: row.try_get("running")?,
                due_at: row.try_get("due_at")?,
                failure: crate::run::read_failure(row)?,
            })
        })
        .collect()
}
