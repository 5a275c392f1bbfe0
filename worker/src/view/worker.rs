//! Workers and their sessions as people and programs see them.

use std::time::Duration;

use continuum_schema::session::{Holds, Session};
use serde::Serialize;
use uuid::Uuid;

use super::run::timestamp;
use crate::engine::{WorkerState, left_by_drain};

/// How a session is: what its worker said of itself, unless others know better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing<'s> {
    /// What its worker said with its last heartbeat.
    Told(&'s str),
    /// It is open, and its heartbeats have stopped.
    Silent,
    /// Its worker closed it after a drain.
    Drained,
    /// It was closed in another way.
    Closed,
}

impl<'s> Standing<'s> {
    /// How `session` is, where a heartbeat that is older than `silent_after` tells nothing any more.
    pub(crate) fn of(session: &'s Session, silent_after: Duration) -> Self {
        let reason = session.close_reason.as_deref().unwrap_or_default();
        match session.open {
            true if session.beat_age > silent_after => Self::Silent,
            true => Self::Told(&session.state),
            false if left_by_drain(reason).is_some() => Self::Drained,
            false => Self::Closed,
        }
    }

    /// As a word.
    pub(crate) fn name(&self) -> &'s str {
        match self {
            Self::Told(state) => state,
            Self::Silent => "silent",
            Self::Drained => WorkerState::Drained.name(),
            Self::Closed => "closed",
        }
    }
}

/// A worker in a list of a JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct SessionView {
    worker: String,
    session: Uuid,
    state: String,
    build: String,
    queues: Vec<String>,
    resident_runs: i64,
    running_activities: i64,
    heartbeat_age_seconds: f64,
    opened_at: String,
    closed_at: Option<String>,
    close_reason: Option<String>,
}

impl SessionView {
    pub(crate) fn new(session: &Session, silent_after: Duration) -> Self {
        Self {
            worker: session.worker.clone(),
            session: session.session_id,
            state: Standing::of(session, silent_after).name().to_owned(),
            build: session.build.clone(),
            queues: session.queues.clone(),
            resident_runs: session.resident,
            running_activities: session.activities,
            heartbeat_age_seconds: session.beat_age.as_secs_f64(),
            opened_at: timestamp(session.opened_at),
            closed_at: session.closed_at.map(timestamp),
            close_reason: session.close_reason.clone(),
        }
    }
}

/// A worker by itself in a JSON document: everything that is known.
#[derive(Debug, Serialize)]
pub(crate) struct SessionDetailView {
    #[serde(flatten)]
    session: SessionView,
    workflows: Vec<LoadedView>,
    leases: i64,
    attempts: i64,
    due: i64,
    counted_up_to: i64,
    lag_seconds: Option<f64>,
}

/// A version of a workflow that a worker has loaded.
#[derive(Debug, Serialize)]
struct LoadedView {
    workflow: String,
    version: String,
}

impl SessionDetailView {
    /// `limit` is how far was counted.
    pub(crate) fn new(
        session: &Session,
        holds: &Holds,
        limit: i64,
        silent_after: Duration,
    ) -> Self {
        Self {
            session: SessionView::new(session, silent_after),
            workflows: loaded(session)
                .map(|(workflow, version)| LoadedView {
                    workflow: workflow.to_owned(),
                    version: version.to_owned(),
                })
                .collect(),
            leases: holds.leases,
            attempts: holds.attempts,
            due: holds.due,
            counted_up_to: limit,
            lag_seconds: holds.lag.map(|lag| lag.as_secs_f64()),
        }
    }
}

/// The workflows that a session's worker has loaded, each with a version. New runs of a name are bound to one of them.
pub(crate) fn loaded(session: &Session) -> impl Iterator<Item = (&str, &str)> {
    session
        .claim_keys
        .iter()
        .filter_map(|key| key.split_once('@'))
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    fn session(open: bool, beat_age: u64, close_reason: &str) -> Session {
        Session {
            session_id: Uuid::nil(),
            worker: "a-1".into(),
            build: "1".into(),
            queues: vec!["default".into()],
            claim_keys: vec!["flow".into(), "flow@aa".into(), "flow@bb".into()],
            state: "degraded".into(),
            open,
            resident: 3,
            activities: 2,
            opened_at: OffsetDateTime::UNIX_EPOCH,
            age: Duration::from_secs(60),
            beat_age: Duration::from_secs(beat_age),
            closed_at: (!open).then_some(OffsetDateTime::UNIX_EPOCH),
            close_reason: (!open).then(|| close_reason.to_owned()),
        }
    }

    #[test]
    fn what_a_worker_told_counts_until_it_falls_silent_or_is_closed() {
        for (session, word) in [
            (session(true, 6, ""), "degraded"),
            (session(true, 7, ""), "silent"),
            (session(false, 0, "drained"), "drained"),
            (session(false, 9, "drained; left behind: 1 run"), "drained"),
            (session(false, 9, "its process is gone"), "closed"),
        ] {
            assert_eq!(
                Standing::of(&session, Duration::from_secs(6)).name(),
                word,
                "{session:?}"
            );
        }
    }

    #[test]
    fn programs_get_every_version_that_is_loaded() {
        let holds = Holds {
            leases: 3,
            attempts: 2,
            due: 100,
            lag: Some(Duration::from_millis(1500)),
        };
        let session = session(true, 1, "");
        let view = SessionDetailView::new(&session, &holds, 100, Duration::from_secs(6));
        let document = serde_json::to_value(&view).unwrap();
        assert_eq!(document["workflows"][1]["version"], "bb");
        assert_eq!(document["workflows"].as_array().unwrap().len(), 2);
        assert_eq!(document["lag_seconds"], 1.5);
        assert_eq!(document["state"], "degraded");
        assert_eq!(document["closed_at"], serde_json::Value::Null);
    }
}
