//! Recovery: finds sessions that died, closes them, and makes what they owned available again. Every worker does it and
//! none leads; each step is a compare-and-set or looks at what is, so any number may do it at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_bus::RequestError;
use continuum_schema::activity::{self, AttemptEnd, Completion, LostAttempt};
use continuum_schema::event::{Failure, Outcome};
use continuum_schema::{Error, Event, lease, session};
use uuid::Uuid;

use super::core::Core;
use crate::error::kind;
use crate::retry::jittered;

/// Runs and attempts of one statement.
const SWEEP_MAX: i32 = 500;

/// How long a session may take to answer a ping.
const PING_MAX: Duration = Duration::from_millis(500);

/// How long the row of a closed session is kept for people to look at.
const FORGET_AFTER_SECONDS: f64 = 86_400.0;

/// Watches and recovers until the worker stops.
pub(crate) async fn keep(core: Arc<Core>) {
    let mut watched = HashMap::new();
    loop {
        tokio::time::sleep(jittered(core.config.beat_interval)).await;
        if core.session().is_none() {
            // Without a session of our own, what we saw of others may be our own blindness.
            watched.clear();
            continue;
        }
        if let Err(error) = pass(&core, &mut watched).await {
            tracing::debug!(%error, "a recovery pass failed");
            watched.clear();
        }
    }
}

/// What a watcher has itself seen of another session.
struct Watched {
    beat: i64,
    since: Instant,
}

async fn pass(core: &Core, watched: &mut HashMap<Uuid, Watched>) -> Result<(), Error> {
    let open = session::watch(&core.control).await?;
    watched.retain(|id, _| open.iter().any(|(open, _)| open == id));
    for (id, beat) in open {
        let seen = watched.entry(id).or_insert(Watched {
            beat,
            since: Instant::now(),
        });
        if seen.beat != beat {
            *seen = Watched {
                beat,
                since: Instant::now(),
            };
        }
        let silent = seen.since.elapsed();
        if core.is_current(id) || silent < core.config.beat_interval * 2 {
            continue;
        }
        if let Some(reason) = death(core, id, silent).await {
            close(core, id, beat, reason).await?;
        }
    }
    sweep(core).await?;
    session::forget(&core.control, FORGET_AFTER_SECONDS).await?;
    Ok(())
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

async fn close(core: &Core, id: Uuid, beat: i64, reason: &str) -> Result<(), Error> {
    if session::close(&core.control, id, Some(beat), reason).await? {
        tracing::warn!(session = %id, reason, "reconciler.closed: a worker died");
        core.ring_residents();
    }
    Ok(())
}

/// Makes available what closed sessions own, page by page, to the end.
async fn sweep(core: &Core) -> Result<(), Error> {
    let mut released = 0;
    loop {
        let count = lease::sweep(&core.control, SWEEP_MAX, core.config.crashes_max).await?;
        released += count;
        if count < SWEEP_MAX {
            break;
        }
    }
    if released > 0 {
        tracing::info!(runs = released, "reconciler.released");
        core.ring_ready(0);
    }
    for lost in activity::lost(&core.control, SWEEP_MAX.into()).await? {
        recover_attempt(core, &lost).await?;
    }
    Ok(())
}

/// An attempt whose worker died counts: nobody knows how far it came.
async fn recover_attempt(core: &Core, lost: &LostAttempt) -> Result<(), Error> {
    let last = lost.max_attempts != 0 && lost.attempt.attempt >= lost.max_attempts;
    if !last {
        let again = activity::retry(
            &core.control,
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
    for wake in activity::complete(&core.control, lost.session, &[completion])
        .await?
        .into_iter()
        .flatten()
    {
        core.wake(&wake);
    }
    Ok(())
}
