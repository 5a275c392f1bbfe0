//! The drain: a worker leaves without dropping work.
//!
//! Whoever asks first begins it, and all who ask get its one answer. In this order: the worker says that it is draining;
//! it claims nothing more; runs are given back as they reach a wait, activities end; what did not end in time is handed
//! back as well; the session is closed. Every step has a bound of its own, so a drain ends also where Postgres swallows
//! every packet, and then says what it had to leave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::session;
use tokio::sync::{oneshot, watch};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::activities;
use super::core::Core;
use super::shard::Message;
use super::{WorkerState, WorkerStatus};
use crate::config::BusSource;

/// Activities get this much longer to end than runs.
const ACTIVITY_GRACE: Duration = Duration::from_secs(7);

/// How long giving back what did not end in time may take.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// How long closing the session may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// How long the services may take to end.
const SERVICES_MAX: Duration = Duration::from_secs(1);

/// What a drain came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Activities that did not end in time and were handed back; the attempts don't count.
    pub activities_handed_back: usize,
    /// Activities that did not end in time and could not be handed back; these attempts count.
    pub activities_left: usize,
    /// Runs that could not be given back.
    pub runs_left: usize,
    /// Whether the session could not be closed; others close it when they miss its heartbeat.
    pub session_left: bool,
}

impl Drained {
    /// Whether nothing was left to be found by others.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.runs_left == 0 && self.activities_left == 0 && !self.session_left
    }
}

impl std::fmt::Display for Drained {
    /// What was left, in words.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut left = Vec::new();
        match self.runs_left {
            0 => {}
            1 => left.push("1 run".to_owned()),
            count => left.push(format!("{count} runs")),
        }
        match self.activities_left {
            0 => {}
            1 => left.push("1 activity".to_owned()),
            count => left.push(format!("{count} activities")),
        }
        if self.session_left {
            left.push("the open session".to_owned());
        }
        match left.is_empty() {
            true => f.write_str("nothing is left behind"),
            false => write!(f, "left behind: {}", left.join(", ")),
        }
    }
}

/// How the reason of a session begins that its own worker closed after a drain; what was left follows, if anything was.
const CLOSED_BY_DRAIN: &str = "drained";

impl Drained {
    /// Why its session is closed, for people.
    fn close_reason(&self) -> String {
        match self.is_clean() {
            true => CLOSED_BY_DRAIN.to_owned(),
            false => format!("{CLOSED_BY_DRAIN}; {self}"),
        }
    }
}

/// What the reason of a closed session says that its drain left; `None` where it did not end by a drain, an empty text
/// where nothing was left.
pub(crate) fn left_by_drain(close_reason: &str) -> Option<&str> {
    let left = close_reason.strip_prefix(CLOSED_BY_DRAIN)?;
    match left.is_empty() {
        true => Some(left),
        false => left.strip_prefix("; "),
    }
}

/// What ends in the course of a drain.
#[derive(Clone, Default)]
pub(super) struct Tasks {
    /// What takes up work; it ends when the worker begins to drain.
    pub(super) claims: TaskTracker,
    /// What holds cluster residents; it ends when the worker begins to drain.
    pub(super) wardens: TaskTracker,
    /// Everything else.
    pub(super) services: TaskTracker,
}

/// Waits until a drain is asked for, then does it.
pub(super) async fn keep(core: Arc<Core>, tasks: Tasks, drained: watch::Sender<Option<Drained>>) {
    core.draining.cancelled().await;
    let outcome = drain(&core, &tasks).await;
    core.status.send_replace(WorkerStatus {
        state: WorkerState::Drained,
        reasons: vec![outcome.to_string()],
        session: None,
    });
    drained.send_replace(Some(outcome));
}

async fn drain(core: &Arc<Core>, tasks: &Tasks) -> Drained {
    let deadline = Instant::now() + core.config.stop_timeout;
    // A claim that is under way still brings runs and attempts, which are to be given back as well.
    tasks.claims.close();
    drop(tokio::time::timeout_at(deadline.into(), tasks.claims.wait()).await);
    let runs = give_back_runs(core, deadline);
    let attempts = activities::drain(core, deadline + ACTIVITY_GRACE, RELEASE_MAX);
    let residents = leave_residents(tasks, deadline + ACTIVITY_GRACE);
    let ((), attempts, ()) = tokio::join!(runs, attempts, residents);
    let mut drained = Drained {
        activities_handed_back: attempts.handed_back,
        activities_left: attempts.left,
        runs_left: core.residents() + core.releasing(),
        session_left: false,
    };
    core.leaving.cancel();
    if let Some(session) = core.session() {
        drained.session_left = !close_session(core, session, &drained).await;
    }
    leave_bus(core, tasks).await;
    drained
}

/// Runs are given back as they become idle; at the deadline also those that are not.
async fn give_back_runs(core: &Core, deadline: Instant) {
    let Some(session) = core.session() else {
        return;
    };
    let give_back = async {
        let idle = tokio::time::timeout_at(deadline.into(), drain_shards(core, false));
        if idle.await.is_err() {
            drop(tokio::time::timeout(RELEASE_MAX, drain_shards(core, true)).await);
        }
    };
    tokio::select! {
        () = give_back => {}
        // Whatever was held under it is void by now.
        () = core.session_ended(session) => {}
    }
}

async fn drain_shards(core: &Core, force: bool) {
    let answers = std::sync::Mutex::new(Vec::new());
    core.shards.broadcast(|| {
        let (done, answer) = oneshot::channel();
        answers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(answer);
        Message::Drain { force, done }
    });
    let answers = answers
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    futures::future::join_all(answers).await;
}

async fn leave_residents(tasks: &Tasks, deadline: Instant) {
    tasks.wardens.close();
    let left = tokio::time::timeout_at(deadline.into(), tasks.wardens.wait()).await;
    if left.is_err() {
        tracing::warn!("a resident did not end in time; others take it when the session is closed");
    }
}

/// Closes the session, so that others go on at once with whatever is left. Returns whether it could be.
async fn close_session(core: &Core, session: Uuid, drained: &Drained) -> bool {
    let reason = drained.close_reason();
    let close = session::close(&core.control, session, None, &reason);
    let closed = matches!(tokio::time::timeout(CLOSE_MAX, close).await, Ok(Ok(_)));
    if !closed {
        tracing::warn!(%session, "the session could not be closed; others will when they miss its heartbeat");
    }
    closed
}

/// Tells others that there is something to take, and ends every service.
async fn leave_bus(core: &Arc<Core>, tasks: &Tasks) {
    core.ring_ready(1);
    core.ring_residents();
    core.stop.cancel();
    // What still tries to reach Postgres for this session gives up.
    core.session.send_replace(None);
    tasks.services.close();
    drop(tokio::time::timeout(SERVICES_MAX, tasks.services.wait()).await);
    if let BusSource::Nats(_) = core.config.bus {
        core.bus.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_is_read_back_from_the_reason() {
        let clean = Drained::default();
        assert_eq!(left_by_drain(&clean.close_reason()), Some(""));
        let left = Drained {
            runs_left: 1,
            activities_left: 2,
            ..clean
        };
        assert_eq!(
            left_by_drain(&left.close_reason()),
            Some("left behind: 1 run, 2 activities")
        );
        assert_eq!(left_by_drain("its process is gone"), None);
        assert_eq!(left_by_drain("drained by others"), None);
    }
}
