//! Runs: starting them, and reading what became of them.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::event::Failure;
use crate::mailbox::Wake;
use crate::{Database, Error, Payload};

const START: Statement = statement!("run/start");
const GET: Statement = statement!("run/get");
const FIND: Statement = statement!("run/find");
const LIST: Statement = statement!("run/list");
const ENDINGS: Statement = statement!("run/endings");
const OWNER: Statement = statement!("run/owner");
const COUNT: Statement = statement!("run/count");

/// A run to be started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The soft tenant.
    pub namespace: String,
    /// The workflow's name.
    pub workflow: String,
    /// The idempotency key, unique in the namespace.
    pub key: Option<String>,
    /// The workflow's input.
    pub input: Payload,
    /// The W3C trace context of whoever starts it.
    pub trace_context: Option<String>,
}

/// What became of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// A new run.
    Started(Uuid),
    /// The key names this run, which has the same workflow and input.
    Existing(Uuid),
    /// The key names this run, which has another workflow or input.
    Conflict(Uuid),
}

/// Starts runs in one commit; the outcomes are in the order of `starts`.
///
/// # Errors
/// Any error concerns all of them. Only a start with a key may be repeated after [`Error::Unavailable`].
pub async fn start(database: &Database, starts: &[Start]) -> Result<Vec<StartOutcome>, Error> {
    let columns = StartColumns::of(starts);
    let query = database
        .query(START)
        .bind(columns.namespaces)
        .bind(columns.workflows)
        .bind(columns.keys)
        .bind(columns.inputs)
        .bind(columns.traces);
    start_outcomes(&database.all(query).await?, starts.len())
}

/// Starts a run inside the caller's own transaction: it exists when the caller commits. `schema` is the instance's.
///
/// # Errors
/// [`Error::Refused`] if a name breaks its rule.
pub async fn start_in(
    connection: &mut sqlx::PgConnection,
    schema: &str,
    start: &Start,
) -> Result<StartOutcome, Error> {
    let columns = StartColumns::of(std::slice::from_ref(start));
    let rows = sqlx::query(crate::tx::qualified(START.sql, schema))
        .persistent(false)
        .bind(columns.namespaces)
        .bind(columns.workflows)
        .bind(columns.keys)
        .bind(columns.inputs)
        .bind(columns.traces)
        .fetch_all(connection)
        .await?;
    start_outcomes(&rows, 1)?
        .first()
        .copied()
        .ok_or_else(|| Error::Damaged("a start gave no outcome".into()))
}

/// Starts as the arrays that the function takes.
struct StartColumns {
    namespaces: Vec<String>,
    workflows: Vec<String>,
    keys: Vec<Option<String>>,
    inputs: Vec<Vec<u8>>,
    traces: Vec<Option<String>>,
}

impl StartColumns {
    fn of(starts: &[Start]) -> Self {
        Self {
            namespaces: starts.iter().map(|s| s.namespace.clone()).collect(),
            workflows: starts.iter().map(|s| s.workflow.clone()).collect(),
            keys: starts.iter().map(|s| s.key.clone()).collect(),
            inputs: starts.iter().map(|s| s.input.as_bytes().to_vec()).collect(),
            traces: starts.iter().map(|s| s.trace_context.clone()).collect(),
        }
    }
}

fn start_outcomes(rows: &[PgRow], count: usize) -> Result<Vec<StartOutcome>, Error> {
    let mut outcomes = vec![None; count];
    for row in rows {
        let run: Uuid = row.try_get("o_run")?;
        let outcome = match row.try_get::<i16, _>("o_outcome")? {
            0 => StartOutcome::Started(run),
            1 => StartOutcome::Existing(run),
            _ => StartOutcome::Conflict(run),
        };
        let ix = row.try_get::<i32, _>("o_ix")?;
        if let Some(slot) = usize::try_from(ix - 1)
            .ok()
            .and_then(|i| outcomes.get_mut(i))
        {
            *slot = Some(outcome);
        }
    }
    outcomes
        .into_iter()
        .map(|outcome| outcome.ok_or_else(|| Error::Damaged("a start gave no outcome".into())))
        .collect()
}

/// A run as people see it.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its id.
    pub run_id: Uuid,
    /// The first run of its chain.
    pub chain_id: Uuid,
    /// The soft tenant.
    pub namespace: String,
    /// The workflow's name.
    pub workflow: String,
    /// The idempotency key.
    pub key: Option<String>,
    /// What it is doing.
    pub state: RunState,
    /// The workflow's input; empty in lists.
    pub input: Payload,
    /// What it returned; empty in lists.
    pub result: Option<Payload>,
    /// Why it failed or was cancelled.
    pub failure: Option<Failure>,
    /// The hash of the code that it is bound to.
    pub version_hash: Option<String>,
    /// Signals that it had not read when it ended.
    pub unread: i32,
    /// Mail that waits for it; 0 in lists.
    pub mail: i64,
    /// When it was started.
    pub created_at: OffsetDateTime,
    /// When it ended.
    pub ended_at: Option<OffsetDateTime>,
    /// The name of the worker that holds it.
    pub worker: Option<String>,
    /// When its earliest timer is due, while it is cold; when it is tried again, while it is blocked.
    pub next_timer_at: Option<OffsetDateTime>,
    /// Why it is blocked: a word and its details.
    pub blocked: Option<(String, serde_json::Value)>,
}

/// What a run is doing, told by its record and its lease row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Due; a worker will take it at once.
    Pending,
    /// Due, but no open session has code for it.
    Unserved,
    /// A worker holds it.
    Running,
    /// Cold: it waits for a signal, a timer or an activity.
    Waiting,
    /// It can't go on; see the reason.
    Blocked,
    /// Ended with a value.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended because it was asked to stop.
    Cancelled,
}

impl RunState {
    /// The word that people see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Unserved => "unserved",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    fn from_row(row: &PgRow) -> Result<Self, Error> {
        Ok(match row.try_get::<&str, _>("state")? {
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ if row.try_get::<Option<&str>, _>("blocked")?.is_some() => Self::Blocked,
            _ if row.try_get::<Option<Uuid>, _>("owner")?.is_some() => Self::Running,
            _ if !row.try_get::<bool, _>("served")? => Self::Unserved,
            _ if row.try_get::<Option<bool>, _>("due")?.unwrap_or(false) => Self::Pending,
            _ => Self::Waiting,
        })
    }
}

impl Run {
    fn from_row(row: &PgRow) -> Result<Self, Error> {
        let blocked: Option<String> = row.try_get("blocked")?;
        let detail: Option<String> = row.try_get("block_detail")?;
        let detail = detail.map_or(Ok(serde_json::Value::Null), |text| {
            serde_json::from_str(&text)
        });
        let detail = detail.map_err(|e| Error::Damaged(format!("block_detail: {e}")))?;
        Ok(Self {
            run_id: row.try_get("run_id")?,
            chain_id: row.try_get("chain_id")?,
            namespace: row.try_get("namespace")?,
            workflow: row.try_get("workflow")?,
            key: row.try_get("key")?,
            state: RunState::from_row(row)?,
            input: Payload::from_bytes(row.try_get("input")?),
            result: row
                .try_get::<Option<Vec<u8>>, _>("result")?
                .map(Payload::from_bytes),
            failure: read_failure(row)?,
            version_hash: row.try_get("version_hash")?,
            unread: row.try_get("unread")?,
            mail: row.try_get("mail")?,
            created_at: row.try_get("created_at")?,
            ended_at: row.try_get("ended_at")?,
            worker: row.try_get("worker")?,
            next_timer_at: row.try_get("next_timer_at")?,
            blocked: blocked.map(|reason| (reason, detail)),
        })
    }
}

/// The `failure` column of a row.
pub(crate) fn read_failure(row: &PgRow) -> Result<Option<Failure>, Error> {
    row.try_get::<Option<Vec<u8>>, _>("failure")?
        .map(|bytes| {
            Payload::from_bytes(bytes)
                .decode()
                .map_err(|e| Error::Damaged(format!("a failure doesn't decode: {e}")))
        })
        .transpose()
}

/// One run with all that is known of it.
///
/// # Errors
/// [`Error::NotFound`] if there is none.
pub async fn get(database: &Database, run_id: Uuid) -> Result<Run, Error> {
    match database.optional(database.query(GET).bind(run_id)).await? {
        Some(row) => Run::from_row(&row),
        None => Err(Error::NotFound(run_id.to_string())),
    }
}

/// The run that a key names in a namespace.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn find(database: &Database, namespace: &str, key: &str) -> Result<Option<Uuid>, Error> {
    let query = database
        .query(FIND)
        .bind(namespace.to_owned())
        .bind(key.to_owned());
    match database.optional(query).await? {
        Some(row) => Ok(Some(row.try_get(0)?)),
        None => Ok(None),
    }
}

/// Which runs to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only of this workflow.
    pub workflow: Option<String>,
    /// Only with this stored state: `active`, `completed`, `failed` or `cancelled`.
    pub state: Option<String>,
    /// Only of this namespace.
    pub namespace: Option<String>,
    /// Only those that can't go on.
    pub blocked: bool,
    /// Only older than this run: the last of the page before.
    pub before: Option<Uuid>,
}

/// A page of runs, newest first, without their payloads.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn list(database: &Database, filter: &Filter, limit: i64) -> Result<Vec<Run>, Error> {
    let query = database
        .query(LIST)
        .bind(filter.workflow.clone())
        .bind(filter.state.clone())
        .bind(filter.namespace.clone())
        .bind(filter.before)
        .bind(filter.blocked)
        .bind(limit);
    database
        .all(query)
        .await?
        .iter()
        .map(Run::from_row)
        .collect()
}

/// How many runs are in each stored state, for one workflow or all.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn count(
    database: &Database,
    workflow: Option<&str>,
) -> Result<Vec<(String, i64)>, Error> {
    let query = database.query(COUNT).bind(workflow.map(str::to_owned));
    let rows = database.all(query).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// It has not.
    Active,
    /// With a value.
    Completed(Payload),
    /// With an error.
    Failed(Failure),
    /// It was cancelled, for this reason.
    Cancelled(String),
}

/// How each of these runs ended, if it has: the cheap look of many waiters at once. `None` where there is no such run.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn endings(database: &Database, run_ids: &[Uuid]) -> Result<Vec<Option<Ending>>, Error> {
    let query = database.query(ENDINGS).bind(run_ids.to_vec());
    let mut endings = HashMap::new();
    for row in database.all(query).await? {
        let run_id: Uuid = row.try_get("run_id")?;
        endings.insert(run_id, Ending::from_row(&row, run_id)?);
    }
    Ok(run_ids.iter().map(|id| endings.get(id).cloned()).collect())
}

impl Ending {
    fn from_row(row: &PgRow, run_id: Uuid) -> Result<Self, Error> {
        let failure = || -> Result<Failure, Error> {
            read_failure(row)?
                .ok_or_else(|| Error::Damaged(format!("run {run_id} has ended without a failure")))
        };
        Ok(match row.try_get::<&str, _>("state")? {
            "completed" => Self::Completed(
                row.try_get::<Option<Vec<u8>>, _>("result")?
                    .map_or_else(Payload::unit, Payload::from_bytes),
            ),
            "failed" => Self::Failed(failure()?),
            "cancelled" => Self::Cancelled(failure()?.message),
            _ => Self::Active,
        })
    }
}

/// Whom to wake for a run; `None` if it has ended or never was.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn owner(database: &Database, run_id: Uuid) -> Result<Option<Wake>, Error> {
    let Some(row) = database
        .optional(database.query(OWNER).bind(run_id))
        .await?
    else {
        return Ok(None);
    };
    Ok(Some(Wake {
        run_id: row.try_get("run_id")?,
        owner: row.try_get("owner")?,
    }))
}
