//! Appends to journals, many runs a round trip, and reads of histories.

use sqlx::Row;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::clock::{Micros, from_micros};
use crate::database::{Statement, statement};
use crate::event::{EffectId, Event, EventError, Failure, Seq};
use crate::{Database, Error, Lease, Payload};

const APPEND: Statement = statement!("journal/append");
const HISTORY: Statement = statement!("journal/history");

/// One turn's events for one run, and what must become true together with them.
#[derive(Clone, Debug)]
pub struct Append {
    /// The right to append.
    pub lease: Lease,
    /// The position of the first event.
    pub first: Seq,
    /// The events, encoded.
    pub events: Vec<NewEvent>,
    /// Set when the last event ends the run.
    pub end: Option<End>,
    /// Mail that the events consume.
    pub mail: Vec<i64>,
    /// Timers that the events set.
    pub timers_set: Vec<(EffectId, Micros)>,
    /// Timers that fired or were dropped.
    pub timers_gone: Vec<EffectId>,
    /// Activities that were dropped.
    pub activities_dropped: Vec<EffectId>,
    /// Activities that this worker ran and whose completion is among the events, with their attempt.
    pub activities_completed: Vec<CompletedActivity>,
    /// Activities that the events schedule.
    pub activities: Vec<NewActivity>,
}

/// An encoded event.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// [`Event::kind`].
    pub kind: i16,
    /// When it happened, by the database's clock.
    pub at: Micros,
    /// [`Event::encode`].
    pub payload: Vec<u8>,
}

impl NewEvent {
    /// Encodes `event`.
    #[must_use]
    pub fn new(event: &Event, at: Micros) -> Self {
        Self {
            kind: event.kind(),
            at,
            payload: event.encode(),
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct End {
    /// The terminal state.
    pub state: RunEnd,
    /// The hash of the code that it ran.
    pub hash: String,
}

/// The terminal states with what they leave.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    /// The workflow returned this value.
    Completed(Payload),
    /// The workflow returned this error.
    Failed(Failure),
    /// The workflow was cancelled, for this reason.
    Cancelled(String),
}

/// A local completion: accepted only while the attempt is still this session's.
#[derive(Clone, Debug)]
pub struct CompletedActivity {
    /// Which effect.
    pub effect: EffectId,
    /// Its attempt.
    pub attempt: u32,
    /// The activity's name, its idempotency key and its value, where the author gave a key and the attempt succeeded.
    pub result: Option<(String, String, Payload)>,
}

/// An activity to be born with an append.
#[derive(Clone, Debug)]
pub struct NewActivity {
    /// Which effect.
    pub effect: EffectId,
    /// The position of its command event, which holds the input.
    pub seq: Seq,
    /// The queue that it goes to.
    pub queue: String,
    /// The activity's name.
    pub name: String,
    /// Attempts in all; 0 means without a limit.
    pub max_attempts: u32,
    /// Born leased to the appending session, whose worker starts it right after the commit.
    pub eager: bool,
}

/// What became of one run's part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It is in the journal, now or by an earlier try of the same append.
    Committed,
    /// The lease is somebody else's, or the position is: drop the engine.
    Refused,
    /// The run is ending and somebody holds its row: send it again.
    Busy,
}

impl Append {
    /// The bytes that the append brings to the database, roughly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.events
            .iter()
            .map(|e| e.payload.len() + 64)
            .sum::<usize>()
            + 128
    }
}

/// Appends for many runs in one round trip and one commit. Each run's part is all or nothing and independent of the
/// others. The outcomes are in the order of `appends`.
///
/// # Errors
/// Any error concerns the whole batch. After [`Error::Unavailable`] nobody knows whether it was committed: only
/// sending the same again tells. [`Error::Stale`] says that one run claims what is not there; halve the batch to find
/// it.
#[allow(
    clippy::too_many_lines,
    reason = "one bind for each column of the batch; splitting it would hide the order"
)]
pub async fn append(
    database: &Database,
    session: Uuid,
    appends: &[&Append],
) -> Result<Vec<AppendOutcome>, Error> {
    let runs = || appends.iter();
    let indexed = || (1_i32..).zip(appends.iter());
    let events = || {
        indexed().flat_map(|(ix, a)| {
            a.events
                .iter()
                .zip(a.first..)
                .map(move |(e, seq)| (ix, seq, e))
        })
    };
    let mail = || indexed().flat_map(|(ix, a)| a.mail.iter().map(move |id| (ix, *id)));
    let set = || indexed().flat_map(|(ix, a)| a.timers_set.iter().map(move |t| (ix, *t)));
    let gone = || indexed().flat_map(|(ix, a)| a.timers_gone.iter().map(move |e| (ix, *e)));
    let dropped =
        || indexed().flat_map(|(ix, a)| a.activities_dropped.iter().map(move |e| (ix, *e)));
    let completed =
        || indexed().flat_map(|(ix, a)| a.activities_completed.iter().map(move |c| (ix, c)));
    let results = || completed().filter_map(|(ix, c)| c.result.as_ref().map(|r| (ix, r)));
    let born = || indexed().flat_map(|(ix, a)| a.activities.iter().map(move |n| (ix, n)));

    let query = database
        .query(APPEND)
        .bind(session)
        .bind(runs().map(|a| a.lease.chain_id).collect::<Vec<_>>())
        .bind(runs().map(|a| a.lease.run_id).collect::<Vec<_>>())
        .bind(runs().map(|a| a.lease.token).collect::<Vec<_>>())
        .bind(runs().map(|a| a.first).collect::<Vec<_>>())
        .bind(
            runs()
                .map(|a| a.end.as_ref().map(|e| e.state.name()))
                .collect::<Vec<_>>(),
        )
        .bind(
            runs()
                .map(|a| a.end.as_ref().and_then(|e| e.state.result()))
                .collect::<Vec<_>>(),
        )
        .bind(
            runs()
                .map(|a| a.end.as_ref().and_then(|e| e.state.failure()))
                .collect::<Vec<_>>(),
        )
        .bind(
            runs()
                .map(|a| a.end.as_ref().map(|e| e.hash.as_str()))
                .collect::<Vec<_>>(),
        )
        .bind(events().map(|(ix, _, _)| ix).collect::<Vec<_>>())
        .bind(events().map(|(_, seq, _)| seq).collect::<Vec<_>>())
        .bind(events().map(|(_, _, e)| e.kind).collect::<Vec<_>>())
        .bind(
            events()
                .map(|(_, _, e)| from_micros(e.at))
                .collect::<Vec<_>>(),
        )
        .bind(
            events()
                .map(|(_, _, e)| e.payload.as_slice())
                .collect::<Vec<_>>(),
        )
        .bind(mail().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(mail().map(|(_, id)| id).collect::<Vec<_>>())
        .bind(set().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(
            set()
                .map(|(_, (effect, _))| int(effect))
                .collect::<Vec<_>>(),
        )
        .bind(
            set()
                .map(|(_, (_, at))| from_micros(at))
                .collect::<Vec<_>>(),
        )
        .bind(gone().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(gone().map(|(_, effect)| int(effect)).collect::<Vec<_>>())
        .bind(dropped().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(dropped().map(|(_, effect)| int(effect)).collect::<Vec<_>>())
        .bind(completed().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(completed().map(|(_, c)| int(c.effect)).collect::<Vec<_>>())
        .bind(completed().map(|(_, c)| int(c.attempt)).collect::<Vec<_>>())
        .bind(born().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(born().map(|(_, n)| int(n.effect)).collect::<Vec<_>>())
        .bind(born().map(|(_, n)| n.seq).collect::<Vec<_>>())
        .bind(born().map(|(_, n)| n.queue.as_str()).collect::<Vec<_>>())
        .bind(born().map(|(_, n)| n.name.as_str()).collect::<Vec<_>>())
        .bind(born().map(|(_, n)| int(n.max_attempts)).collect::<Vec<_>>())
        .bind(born().map(|(_, n)| n.eager).collect::<Vec<_>>())
        .bind(results().map(|(ix, _)| ix).collect::<Vec<_>>())
        .bind(
            results()
                .map(|(_, (name, _, _))| name.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            results()
                .map(|(_, (_, key, _))| key.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            results()
                .map(|(_, (_, _, value))| value.as_bytes())
                .collect::<Vec<_>>(),
        );
    let outcomes: Vec<i16> = database.one(query).await?.try_get(0)?;
    outcomes.into_iter().map(AppendOutcome::from_code).collect()
}

/// An effect number or a count as Postgres holds it.
pub(crate) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl AppendOutcome {
    fn from_code(code: i16) -> Result<Self, Error> {
        match code {
            0 | 3 => Ok(Self::Committed),
            1 => Ok(Self::Refused),
            2 => Ok(Self::Busy),
            other => Err(Error::Damaged(format!("append outcome {other}"))),
        }
    }
}

impl RunEnd {
    /// The name of the state, as stored.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled(_) => "cancelled",
        }
    }

    fn result(&self) -> Option<&[u8]> {
        match self {
            Self::Completed(value) => Some(value.as_bytes()),
            _ => None,
        }
    }

    fn failure(&self) -> Option<Vec<u8>> {
        match self {
            Self::Completed(_) => None,
            Self::Failed(failure) => Some(encode_failure(failure)),
            Self::Cancelled(reason) => Some(encode_failure(&Failure::cancelled(reason))),
        }
    }
}

/// A failure as stored in a `failure` column.
pub(crate) fn encode_failure(failure: &Failure) -> Vec<u8> {
    Payload::encode(failure)
        .expect("a failure holds only types that MessagePack can encode")
        .into_bytes()
}

/// One row of a journal as stored; [`EventRow::decode`] reads it.
#[derive(Clone, Debug)]
pub struct EventRow {
    /// Its position.
    pub seq: Seq,
    /// The kind column.
    pub kind: i16,
    /// When it happened, by the database's clock.
    pub at: OffsetDateTime,
    /// The encoded event.
    pub payload: Vec<u8>,
}

impl EventRow {
    /// Reads the event.
    ///
    /// # Errors
    /// [`EventError`] if the row is damaged or of a newer build.
    pub fn decode(&self) -> Result<Event, EventError> {
        Event::decode(self.kind, self.payload.clone())
    }
}

/// A run's history after position `after`, at most `limit` rows.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn history(
    database: &Database,
    run_id: Uuid,
    after: Seq,
    limit: i64,
) -> Result<Vec<EventRow>, Error> {
    let query = database.query(HISTORY).bind(run_id).bind(after).bind(limit);
    let rows = database.all(query).await?;
    rows.iter()
        .map(|row| {
            Ok(EventRow {
                seq: row.try_get("seq")?,
                kind: row.try_get("kind")?,
                at: row.try_get("at")?,
                payload: row.try_get("payload")?,
            })
        })
        .collect()
}
