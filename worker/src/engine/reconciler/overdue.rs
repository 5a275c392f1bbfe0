//! Work that should have been taken up long ago: due runs that nobody claims, timers and mail that wake nobody.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use continuum_schema::mailbox::Wake;
use continuum_schema::stray::{MailPlace, StrayMail, TimerPlace};
use continuum_schema::{Database, Error, lease, stray};
use uuid::Uuid;

use crate::engine::core::Core;
use crate::metrics::{level, tally};

/// The rows of one page, and the most due runs of one workflow that are remembered.
const PAGE: i64 = 500;

/// Mail is revived once; so many pieces are remembered.
const REVIVED_MAX: usize = 10_000;

/// What this worker has seen of the work that its code can do.
#[derive(Default)]
pub(super) struct Overdue {
    /// The ticket of each due run, and since when this worker has seen it. By this clock and not by the database's, so a
    /// step of that one makes nothing overdue.
    due: HashMap<Uuid, (i64, Instant)>,
    is_told: bool,
    mail: MailPlace,
    timers: TimerPlace,
    /// Mail whose run has been revived. A turn that has no use for a result leaves it where it is.
    revived: HashSet<i64>,
}

impl Overdue {
    pub(super) async fn look(&mut self, core: &Core, database: &Database) -> Result<(), Error> {
        let keys: Vec<String> = core.claim_keys().into_iter().map(|key| key.key).collect();
        let grace = grace(core);
        let ownerless = self.ownerless(database, &keys, grace).await?;
        let timers = lease::overdue(database, &keys, grace.as_secs_f64(), PAGE).await?;
        let metrics = &core.metrics.reconciler;
        metrics.ownerless_runs.set(level(ownerless));
        metrics.overdue_timers.set(timers);
        self.report(core, ownerless, timers);
        self.revive_mail(core, database, grace).await?;
        self.revive_timers(core, database, grace).await
    }

    /// How many runs have been due for longer than the grace.
    async fn ownerless(
        &mut self,
        database: &Database,
        keys: &[String],
        grace: Duration,
    ) -> Result<usize, Error> {
        let due = lease::due(database, keys, PAGE).await?;
        let seen = std::mem::take(&mut self.due);
        for run in due {
            let since = match seen.get(&run.chain_id) {
                Some((ticket, since)) if *ticket == run.ticket => *since,
                _ => Instant::now(),
            };
            self.due.insert(run.chain_id, (run.ticket, since));
        }
        let waits = |(_, since): &&(i64, Instant)| since.elapsed() >= grace;
        Ok(self.due.values().filter(waits).count())
    }

    /// Nobody may have heard of them; or the fleet is full, which a ring does not change and people must know.
    fn report(&mut self, core: &Core, ownerless: usize, timers: i64) {
        let is_overdue = ownerless > 0 || timers > 0;
        if is_overdue {
            core.ring_ready(0);
        }
        if is_overdue && !self.is_told {
            let grace = grace(core);
            tracing::warn!(
                ownerless,
                timers,
                ?grace,
                "reconciler.overdue: runs have been due for longer than the grace and nobody has taken them; workers that \
                 have their code are missing, full or stuck"
            );
        }
        if !is_overdue && self.is_told {
            tracing::info!("reconciler.overdue: every due run has been taken");
        }
        self.is_told = is_overdue;
    }

    async fn revive_mail(
        &mut self,
        core: &Core,
        database: &Database,
        grace: Duration,
    ) -> Result<(), Error> {
        let page = stray::mail(database, self.mail, grace.as_secs_f64(), PAGE).await?;
        self.mail = page.next;
        core.metrics
            .reconciler
            .stale_mailbox
            .set(level(page.strays.len()));
        if self.revived.len() > REVIVED_MAX {
            self.revived.clear();
        }
        let strays: Vec<StrayMail> = page
            .strays
            .into_iter()
            .filter(|mail| self.revived.insert(mail.mail_id))
            .collect();
        for mail in strays.iter().filter(|mail| mail.owner.is_some()) {
            let (run_id, owner) = (mail.run_id, mail.owner);
            tracing::info!(%run_id, mail = mail.mail_id, "reconciler.woken");
            core.wake(&Wake { run_id, owner });
        }
        let unowned = strays.iter().filter(|mail| mail.owner.is_none());
        let chains: Vec<Uuid> = unowned.map(|mail| mail.chain_id).collect();
        revive(core, database, &chains, "mail").await
    }

    async fn revive_timers(
        &mut self,
        core: &Core,
        database: &Database,
        grace: Duration,
    ) -> Result<(), Error> {
        let page = stray::timers(database, self.timers, grace.as_secs_f64(), PAGE).await?;
        self.timers = page.next;
        revive(core, database, &page.strays, "timer").await
    }
}

/// A recovery that goes as it should takes no longer than the session TTL and some looks.
fn grace(core: &Core) -> Duration {
    core.config.session_ttl + core.config.reconcile_grace
}

async fn revive(
    core: &Core,
    database: &Database,
    chains: &[Uuid],
    because_of: &str,
) -> Result<(), Error> {
    if chains.is_empty() {
        return Ok(());
    }
    let revived = stray::revive(database, chains).await?;
    for run_id in &revived {
        tracing::warn!(%run_id, because_of, "reconciler.revived: nothing would have woken this run");
    }
    core.metrics.reconciler.revived.inc_by(tally(revived.len()));
    core.ring_ready(0);
    Ok(())
}
