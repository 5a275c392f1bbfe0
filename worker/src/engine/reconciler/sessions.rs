//! Sessions of workers that died: found, closed, and what they owned made available again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_bus::RequestError;
use continuum_schema::activity::{self, AttemptEnd, Completion, LostAttempt};
use continuum_schema::event::{Failure, Outcome};
use continuum_schema::{Database, Error, Event, lease, session};
use uuid::Uuid;

use crate::engine::core::Core;
use crate::error::kind;
use crate::metrics::{level, tally};

/// Runs and attempts of one statement.
const SWEEP_MAX: i32 = 500;

/// How long a session may take to answer a ping.
const PING_MAX: Duration = Duration::from_millis(500);

/// How long the row of a closed session is kept for people to look at.
const FORGET_AFTER_SECONDS: f64 = 86_400.0;

/// What this worker has itself seen of the others' sessions.
#[derive(Default)]
pub(super) struct Sessions(HashMap<Uuid, Watched>);

struct Watched {
    beat: i64,
    since: Instant,
}

impl Sessions {
    /// Begins anew: without a session of our own, what we saw of others may be our own blindness.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Closes the sessions of workers that are gone.
    pub(super) async fn watch(&mut self, core: &Core, database: &Database) -> Result<(), Error> {
        let open = session::watch(database).await?;
        self.0
            .retain(|id, _| open.iter().any(|(open, _)| open == id));
        for (id, beat) in open {
            let silent = self.silence(id, beat);
            if core.is_current(id) || silent < core.config.beat_interval * 2 {
                continue;
            }
            if let Some(reason) = death(core, id, silent).await {
                close(core, database, id, beat, reason).await?;
            }
        }
        Ok(())
    }

    /// For how long this worker has seen the same heartbeat counter.
    fn silence(&mut self, session: Uuid, beat: i64) -> Duration {
        let since = Instant::now();
        let seen = self.0.entry(session).or_insert(Watched { beat, since });
        if seen.beat != beat {
            *seen = Watched { beat, since };
        }
        seen.since.elapsed()
    }
}

/// Why a silent session may be closed. A process that is gone has nobody on its ping subject; that is quick to learn,
/// and safe: tokens fence, and a session closed too early only repeats work.
async fn death(core: &Core, session: Uuid, silent: Duration) -> Option<&'static str> {
    if silent >= core.config.session_ttl {
        return Some("its heartbeat stopped");
    }
    if !core.bus.status().borrow().is_connected() {
        return None;
    }
    let ping = core.subjects.ping(session);
    match core.bus.request(&ping, Bytes::new(), PING_MAX).await {
        Err(RequestError::NoResponders(_)) => Some("its process is gone"),
        _ => None,
    }
}

async fn close(
    core: &Core,
    database: &Database,
    id: Uuid,
    beat: i64,
    reason: &str,
) -> Result<(), Error> {
    if session::close(database, id, Some(beat), reason).await? {
        core.metrics.reconciler.sessions_closed.inc();
        tracing::warn!(session = %id, reason, "reconciler.closed: a worker died");
        core.ring_residents();
    }
    Ok(())
}

/// Makes available what closed sessions own, page by page, to the end.
pub(super) async fn sweep(core: &Core, database: &Database) -> Result<(), Error> {
    let mut released = 0;
    loop {
        let count = lease::sweep(database, SWEEP_MAX, core.config.crashes_max).await?;
        released += count;
        if count < SWEEP_MAX {
            break;
        }
    }
    if released > 0 {
        let count = u64::try_from(released).unwrap_or_default();
        core.metrics.reconciler.released_runs.inc_by(count);
        tracing::info!(runs = released, "reconciler.released");
        core.ring_ready(0);
    }
    let lost = activity::lost(database, SWEEP_MAX.into()).await?;
    let metrics = &core.metrics.reconciler;
    metrics.expired_attempts.set(level(lost.len()));
    for attempt in &lost {
        recover_attempt(core, database, attempt).await?;
    }
    if !lost.is_empty() {
        metrics.attempts_recovered.inc_by(tally(lost.len()));
        tracing::info!(attempts = lost.len(), "reconciler.attempts");
    }
    session::forget(database, FORGET_AFTER_SECONDS).await?;
    Ok(())
}

/// An attempt whose worker died counts: nobody knows how far it came.
async fn recover_attempt(
    core: &Core,
    database: &Database,
    lost: &LostAttempt,
) -> Result<(), Error> {
    let last = lost.max_attempts != 0 && lost.attempt.attempt >= lost.max_attempts;
    if !last {
        let again = activity::retry(
            database,
            lost.session,
            lost.attempt,
            &AttemptEnd::Unknown,
            0,
        )
        .await?;
        if again {
            core.activities.ring(core, &lost.queue);
        }
        return Ok(());
    }
    let outcome = Outcome::Err(Failure {
        kind: kind::WORKER_LOST.into(),
        message:
            "the worker was lost in the middle of the last attempt; nobody knows how far it came"
                .into(),
        retryable: false,
        details: None,
        causes: Vec::new(),
    });
    let completion = Completion {
        attempt: lost.attempt,
        event: Event::ActivityCompleted {
            effect: lost.attempt.effect,
            attempt: lost.attempt.attempt,
            outcome,
        },
        result: None,
    };
    for wake in activity::complete(database, lost.session, &[completion])
        .await?
        .into_iter()
        .flatten()
    {
        core.wake(&wake);
    }
    Ok(())
}
