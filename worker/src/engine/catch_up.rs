//! Catch-up: compares what Postgres says this worker owns with what its engines have seen, so that a lost wake costs
//! delay and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::{Error, Lease, lease};
use uuid::Uuid;

use super::core::Core;
use super::shard::Message;
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
        match pass(&core, session).await {
            Ok(count) => tracing::trace!(count, asked, "caught up"),
            Err(error) => tracing::debug!(%error, "a catch-up pass failed"),
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

/// One pass over everything that the session owns, page by page, to the end.
async fn pass(core: &Core, session: Uuid) -> Result<usize, Error> {
    let since = Instant::now();
    let mut owned: Vec<(Lease, i64)> = Vec::new();
    let mut after = Uuid::nil();
    loop {
        let page = lease::owned(&core.database, session, after, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = last.chain_id;
        owned.extend(page);
    }
    let count = owned.len();
    let owned = Arc::new(owned);
    core.shards.broadcast(|| Message::CatchUp {
        session,
        owned: Arc::clone(&owned),
        since,
    });
    Ok(count)
}
