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

/// Keeps a session open until the worker stops.
pub(crate) async fn keep(core: Arc<Core>, fatal: Fatal) {
    let mut timeline: Option<String> = None;
    loop {
        let Some((session, beat, sent)) = open(&core, &fatal).await else {
            return;
        };
        if note_timeline(&mut timeline, &beat) {
            leave_old_server(&core);
        }
        super::listener::attach(&core, session).await;
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
    let beat = session::beat(&core.control, session).await?;
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
    loop {
        let waited = tokio::time::timeout_at(deadline.into(), async {
            tokio::time::sleep(pause).await;
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
            }
            Ok(Err(Error::SessionClosed)) => return "somebody closed it",
            Ok(Err(error)) => {
                tracing::debug!(%session, %error, "a heartbeat failed");
                pause = core.config.beat_interval / 8;
            }
            Err(_) => return "Postgres didn't answer in time",
        }
    }
}

/// Drops everything that was begun under the session, before anybody else may begin it again.
async fn give_up(core: &Core, session: Uuid, reason: &str) {
    tracing::warn!(%session, reason, "session lost: every run and activity of it is dropped");
    core.session.send_replace(None);
    core.shards.session_lost();
    core.activities.cancel_all();
    // What it owns in Postgres must not wait for others to notice. While Postgres is away this can't be done, and the
    // time-out of the watchers does it.
    if let Err(error) = session::close(&core.control, session, None, reason).await {
        tracing::debug!(%session, %error, "the session could not be closed; others will");
    }
}
