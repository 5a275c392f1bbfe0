//! The worker's session: opened, kept alive by heartbeats, given up in time.
//!
//! The worker's own trust in its session ends a margin before others may take over, counted from before the heartbeat
//! was *sent*, so a slow round trip can't stretch it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::session::{self, Beat, NewSession};
use continuum_schema::{Error, migration};
use uuid::Uuid;

use super::core::Core;
use super::{Fatal, WorkerError};
use crate::retry::Backoff;

/// The longest pause between two tries to reach Postgres.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Keeps a session open until the worker has given back what it holds.
pub(crate) async fn keep(core: Arc<Core>, fatal: Fatal) {
    let leaving = core.leaving.clone();
    leaving
        .run_until_cancelled(Box::pin(keep_open(core, fatal)))
        .await;
}

async fn keep_open(core: Arc<Core>, fatal: Fatal) {
    let mut timeline: Option<String> = None;
    loop {
        // A worker that drains holds nothing without a session, so it needs no other one.
        let opened = core.draining.run_until_cancelled(open(&core, &fatal)).await;
        let Some(Some((session, beat, sent))) = opened else {
            return;
        };
        if note_timeline(&mut timeline, &beat) {
            leave_old_server(&core);
        }
        super::listener::attach(&core, session).await;
        core.metrics.session.opened.inc();
        tracing::info!(%session, worker = core.config.name, "session opened");
        core.session.send_replace(Some(session));
        core.runs_due.notify_one();
        core.activities.kick();
        core.catch_up.notify_one();
        let reason = beat_until_lost(&core, session, sent, &mut timeline).await;
        give_up(&core, session, reason).await;
    }
}

fn note_timeline(timeline: &mut Option<String>, beat: &Beat) -> bool {
    let changed = timeline
        .as_ref()
        .is_some_and(|known| *known != beat.timeline);
    *timeline = Some(beat.timeline.clone());
    changed
}

/// A server that was replaced may live on as a replica, and would still answer what only reads, from its own past.
fn leave_old_server(core: &Core) {
    core.database.renew_connections();
    core.control.renew_connections();
}

/// Opens a session as soon as Postgres can be reached and is at the right version. `None` if it never can work.
async fn open(core: &Core, fatal: &Fatal) -> Option<(Uuid, Beat, Instant)> {
    let new = NewSession {
        worker: core.config.name.clone(),
        build: core.config.build.clone(),
        queues: core.activities.queues().to_vec(),
        claim_keys: core.claim_keys().into_iter().map(|k| k.key).collect(),
    };
    let mut backoff = Backoff::new(PAUSE_MAX);
    let mut reported = false;
    loop {
        match try_open(core, &new).await {
            Ok(opened) => return Some(opened),
            Err(error) if error.is_transient() || matches!(error, Error::SessionClosed) => {
                if !reported {
                    tracing::warn!(%error, "no session yet; the worker waits for Postgres");
                    reported = true;
                }
            }
            Err(error) => {
                tracing::error!(%error, "the worker can't work");
                fatal.send_replace(Some(Arc::new(WorkerError::Database(error))));
                return None;
            }
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn try_open(core: &Core, new: &NewSession) -> Result<(Uuid, Beat, Instant), Error> {
    migration::check(&core.control).await?;
    let session = session::open(&core.control, new).await?;
    let (beat, sent) = beat(core, session).await?;
    Ok((session, beat, sent))
}

/// One heartbeat; the database's clock comes with it.
async fn beat(core: &Core, session: Uuid) -> Result<(Beat, Instant), Error> {
    let sent = Instant::now();
    let beat = session::beat_with(&core.control, session, core.report())
        .await
        .inspect_err(|_| {
            core.metrics.session.renewals_failed.inc();
        })?;
    core.metrics.session.renewals.inc();
    core.clock.set(beat.now, sent + sent.elapsed() / 2);
    Ok((beat, sent))
}

/// Beats until the session is lost, and says why.
async fn beat_until_lost(
    core: &Core,
    session: Uuid,
    opened: Instant,
    timeline: &mut Option<String>,
) -> &'static str {
    let trust = core.config.session_ttl - core.config.session_margin();
    let mut deadline = opened + trust;
    let mut pause = core.config.beat_interval;
    let mut told_to_drain = false;
    let mut missed = false;
    loop {
        let waited = tokio::time::timeout_at(deadline.into(), async {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // The fleet learns of it at once.
                () = core.draining.cancelled(), if !told_to_drain => told_to_drain = true,
            }
            beat(core, session).await
        });
        match waited.await {
            Ok(Ok((beat, sent))) => {
                if note_timeline(timeline, &beat) {
                    leave_old_server(core);
                    return "Postgres failed over";
                }
                deadline = sent + trust;
                pause = core.config.beat_interval;
                // What kept the heartbeat away may have kept wakes away as well.
                if std::mem::take(&mut missed) {
                    core.catch_up.notify_one();
                }
            }
            Ok(Err(Error::SessionClosed)) => return "somebody closed it",
            Ok(Err(error)) => {
                tracing::debug!(%session, %error, "a heartbeat failed");
                pause = core.config.beat_interval / 8;
                missed = true;
            }
            Err(_) => return "Postgres didn't answer in time",
        }
    }
}

/// Drops everything that was begun under the session, before anybody else may begin it again.
async fn give_up(core: &Core, session: Uuid, reason: &str) {
    tracing::warn!(%session, reason, "session lost: every run and activity of it is dropped");
    core.metrics.session.lost.inc();
    core.session.send_replace(None);
    core.shards.session_lost();
    core.activities.cancel_all();
    // What it owns in Postgres must not wait for others to notice. While Postgres is away this can't be done, and the
    // time-out of the watchers does it.
    match session::close(&core.control, session, None, reason).await {
        Ok(_) => core.ring_residents(),
        Err(error) => {
            tracing::debug!(%session, %error, "the session could not be closed; others will")
        }
    }
}
