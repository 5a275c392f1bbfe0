//! Catch-up: compares the wake counters of what Postgres says this worker owns with what its engines have seen, so that
//! a lost wake costs delay and nothing else.
//!
//! Runs that nobody owns are the dispatcher's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::{Error, lease, mailbox};
use uuid::Uuid;

use super::core::Core;
use super::shard::CaughtUp;
use crate::metrics::tally;
use crate::retry::jittered;

/// The leases of one page.
const PAGE: i64 = 500;

/// Catches up at its interval, and at once when it is asked to. Without a link to NATS no wake arrives, so the interval
/// is then the poll interval.
pub(crate) async fn keep(core: Arc<Core>) {
    loop {
        let asked = tokio::time::timeout(interval(&core), core.catch_up.notified())
            .await
            .is_ok();
        let Some(session) = core.session() else {
            continue;
        };
        let began = Instant::now();
        let metrics = &core.metrics.catch_up;
        match pass(&core, session).await {
            Ok(found) => {
                tracing::trace!(asked, ?found, took = ?began.elapsed(), "caught up");
                metrics.passes.inc();
                metrics.status.set(1);
                metrics
                    .oldest_wake_age
                    .set(found.oldest_wake_age.as_secs_f64());
            }
            Err(error) => {
                tracing::debug!(%error, "a catch-up pass failed");
                metrics.passes_failed.inc();
                metrics.status.set(0);
            }
        }
    }
}

fn interval(core: &Core) -> Duration {
    let connected = core.bus.status().borrow().is_connected();
    jittered(if connected {
        core.config.catch_up_interval
    } else {
        core.config.poll_interval
    })
}

/// What a pass came to.
#[derive(Debug, Default)]
struct Found {
    scanned: usize,
    woken: usize,
    oldest_wake_age: Duration,
}

/// One pass over everything that the session owns, page by page, to the end.
async fn pass(core: &Core, session: Uuid) -> Result<Found, Error> {
    let metrics = &core.metrics.catch_up;
    let mut found = Found::default();
    let mut after = Uuid::nil();
    loop {
        let page = lease::owned(&core.database, session, after, PAGE).await?;
        let Some((last, _)) = page.last() else {
            return Ok(found);
        };
        after = last.chain_id;
        metrics.pages.inc();
        metrics.scanned.inc_by(tally(page.len()));
        found.scanned += page.len();
        let CaughtUp { matched, woken } = core.shards.catch_up(session, page).await;
        metrics.matched.inc_by(tally(matched));
        metrics.woken.inc_by(tally(woken.len()));
        found.woken += woken.len();
        if !woken.is_empty() {
            let age = mailbox::age(&core.database, &woken).await?;
            found.oldest_wake_age = found.oldest_wake_age.max(age.unwrap_or_default());
        }
    }
}
