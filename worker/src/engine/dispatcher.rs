//! The dispatcher: claims due runs while there is room for them.
//!
//! It acts on a hint at once and looks by itself at the poll interval, so a lost hint costs no more than that. At most
//! one claim is in flight; hints that arrive meanwhile make one more.
//!
//! Nobody rings for a timer of a cold run. Whenever the dispatcher looks by itself it asks when the next one is due, and
//! looks again then; so does every worker of the fleet, and together they share what comes due at one moment.

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
    let mut timer = NextTimer::new();
    let mut backoff = Backoff::new(Duration::from_secs(2));
    while core
        .draining
        .run_until_cancelled(due(&core, &timer))
        .await
        .is_some()
    {
        let Some(session) = core.session() else {
            continue;
        };
        match look(&core, session, &mut keys, &mut floor, &mut timer).await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                tracing::debug!(%error, "a claim failed");
                core.pause(backoff.next()).await;
            }
        }
    }
}

async fn due(core: &Core, timer: &NextTimer) {
    let poll = jittered(core.config.poll_interval);
    // A worker with its hands full leaves timers to the others, and is told when it has a hand free.
    let wait = if core.claim_room() > 0 {
        timer.wait(poll)
    } else {
        poll
    };
    // Either way there is a reason to look.
    drop(tokio::time::timeout(wait, core.runs_due.notified()).await);
}

async fn look(
    core: &Arc<Core>,
    session: Uuid,
    keys: &mut [ClaimKey],
    floor: &mut Floor,
    timer: &mut NextTimer,
) -> Result<(), continuum_schema::Error> {
    // In this order: what comes due after the question is its answer, what came due before it is the claim's.
    timer.ask(core, keys).await?;
    claim_all(core, session, keys, floor).await
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

/// When the next timer of a cold run is due, as far as this worker has asked.
struct NextTimer {
    at: Option<Instant>,
    asked: Option<Instant>,
}

impl NextTimer {
    /// Timers that are due within this time share a claim.
    const GATHER: Duration = Duration::from_millis(20);

    fn new() -> Self {
        Self {
            at: None,
            asked: None,
        }
    }

    /// How long to wait for it, `poll` at the longest.
    fn wait(&self, poll: Duration) -> Duration {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        self.at.map_or(poll, |at| until(at).min(poll))
    }

    /// Asks, if the one that was known is due, or if a nearer one may have come up since the last question. Hints bring
    /// passes by the hundred, and few questions.
    async fn ask(&mut self, core: &Core, keys: &[ClaimKey]) -> Result<(), continuum_schema::Error> {
        let is_over = self.at.is_some_and(|at| at <= Instant::now());
        let is_old = self
            .asked
            .is_none_or(|asked| asked.elapsed() >= core.config.poll_interval / 2);
        if !is_over && !is_old {
            return Ok(());
        }
        let now = Instant::now();
        let next = lease::next_timer(&core.database, keys).await?;
        self.at = next.map(|wait| now + wait.max(Self::GATHER));
        self.asked = Some(now);
        Ok(())
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
