//! The dispatcher: claims due runs while there is room for them.
//!
//! It acts on a hint at once and looks by itself at the poll interval, so a lost hint costs no more than that. At most
//! one claim is in flight; hints that arrive meanwhile make one more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::lease::{self, ClaimKey};
use uuid::Uuid;

use super::core::Core;
use super::shard::Message;
use crate::metrics::tally;
use crate::retry::{Backoff, jittered};

/// The most runs of one claim.
const CLAIM_MAX: usize = 100;

/// How often a claim looks at all tickets. A transaction that took its ticket long before it committed is found then.
const FULL_PASS: Duration = Duration::from_secs(10);

/// Claims until the worker drains.
pub(crate) async fn dispatch(core: Arc<Core>) {
    let mut keys = core.claim_keys();
    let mut floor = Floor::new();
    let mut backoff = Backoff::new(Duration::from_secs(2));
    while core
        .draining
        .run_until_cancelled(due(&core))
        .await
        .is_some()
    {
        let Some(session) = core.session() else {
            continue;
        };
        match claim_all(&core, session, &mut keys, &mut floor).await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                tracing::debug!(%error, "a claim failed");
                core.pause(backoff.next()).await;
            }
        }
    }
}

async fn due(core: &Core) {
    let poll = jittered(core.config.poll_interval);
    // Either way there is a reason to look.
    drop(tokio::time::timeout(poll, core.runs_due.notified()).await);
}

/// Claims until nothing is due or there is no room.
async fn claim_all(
    core: &Arc<Core>,
    session: Uuid,
    keys: &mut [ClaimKey],
    floor: &mut Floor,
) -> Result<(), continuum_schema::Error> {
    if keys.is_empty() {
        return Ok(());
    }
    loop {
        let room = core.claim_room();
        if room == 0 {
            if core.residents() >= core.config.residents_max {
                core.shards.make_room(CLAIM_MAX);
            }
            return Ok(());
        }
        let limit = room.min(CLAIM_MAX);
        let from = floor.begin(core).await?;
        if core.draining.is_cancelled() {
            return Ok(());
        }
        core.metrics.runs.claims.inc();
        let began = Instant::now();
        let runs = lease::claim(
            &core.database,
            session,
            keys,
            i32::try_from(limit).unwrap_or(i32::MAX),
            from,
        )
        .await?;
        let count = runs.len();
        if count > 0 {
            core.metrics.runs.claimed.inc_by(tally(count));
            tracing::trace!(count, "runs claimed");
        }
        core.residents_changed(isize::try_from(count).unwrap_or(0));
        for run in runs {
            let run_id = run.lease.run_id;
            core.shards.send(
                run_id,
                Message::Claimed {
                    session,
                    run: Box::new(run),
                    advancing: core.advance(),
                },
            );
        }
        // No workflow stands behind another for ever.
        keys.rotate_left(1);
        if count < limit {
            floor.exhausted(began);
            return Ok(());
        }
    }
}

/// The ticket below which nothing can be due. It spares a claim the index entries of runs that were claimed before,
/// which stay until a vacuum that some old snapshot may prevent.
///
/// A pass that found all there was proves that nothing committed is left below the newest ticket at its start; a
/// transaction that was open then may still bring an older one. So the floor rises only when a second such pass has
/// begun [`Floor::LINGER`] later; what lingers longer is found by the full pass.
struct Floor {
    floor: i64,
    candidate: Option<Candidate>,
    full: Instant,
}

struct Candidate {
    ticket: i64,
    since: Instant,
    /// Whether a pass has found all there was since the ticket was read.
    proven: bool,
}

impl Floor {
    const LINGER: Duration = Duration::from_secs(1);

    fn new() -> Self {
        Self {
            floor: 0,
            candidate: None,
            full: Instant::now(),
        }
    }

    /// The floor of the pass that begins now.
    async fn begin(&mut self, core: &Core) -> Result<i64, continuum_schema::Error> {
        if self.candidate.is_none() {
            self.candidate = Some(Candidate {
                ticket: lease::newest_ticket(&core.database).await?,
                since: Instant::now(),
                proven: false,
            });
        }
        if self.full.elapsed() >= FULL_PASS {
            self.full = Instant::now();
            return Ok(0);
        }
        Ok(self.floor)
    }

    /// The pass that began at `began` found all there was.
    fn exhausted(&mut self, began: Instant) {
        let Some(candidate) = &mut self.candidate else {
            return;
        };
        if candidate.proven && began >= candidate.since + Self::LINGER {
            self.floor = candidate.ticket;
            self.candidate = None;
        } else {
            candidate.proven = true;
        }
    }
}
