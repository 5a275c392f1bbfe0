//! The engines of this worker, compared with the leases that Postgres says it has.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use continuum_schema::{Database, Error, Lease, lease};
use uuid::Uuid;

use crate::engine::core::Core;
use crate::engine::shard::{Held, Message};

/// The leases of one page.
const PAGE: i64 = 500;

/// How long an event loop may take to tell what it holds. One that a workflow blocks is asked again later.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// How long a lease may have no engine: the answer to its claim may be on its way here, or its release to Postgres.
const ORPHAN_MIN: Duration = Duration::from_secs(5);

/// Leases without an engine, as of the last look.
#[derive(Default)]
pub(super) struct Engines {
    orphans: HashMap<Lease, Instant>,
}

impl Engines {
    /// Reaps engines whose lease is another's, and gives back leases that have no engine.
    ///
    /// An engine that is here and whose lease row names another owner or token is the zombie, whatever it believes; it
    /// is dropped, and the other is left alone.
    pub(super) async fn compare(
        &mut self,
        core: &Core,
        database: &Database,
        session: Uuid,
    ) -> Result<(), Error> {
        // In this order: an engine that was here before the look and that the look doesn't find has lost its lease.
        let Some(held) = held(core).await else {
            return Ok(());
        };
        let owned = owned(database, session).await?;
        if !core.is_current(session) {
            return Ok(());
        }
        for (lease, engine) in &held {
            if *engine == Held::Idle && owned.get(&lease.run_id) != Some(lease) {
                core.shards.send(lease.run_id, Message::Reap(*lease));
            }
        }
        self.give_back_orphans(core, &held, &owned);
        Ok(())
    }

    fn give_back_orphans(
        &mut self,
        core: &Core,
        held: &HashMap<Lease, Held>,
        owned: &HashMap<Uuid, Lease>,
    ) {
        let orphans = owned.values().filter(|lease| !held.contains_key(lease));
        let seen = std::mem::take(&mut self.orphans);
        for lease in orphans {
            let since = seen.get(lease).copied().unwrap_or_else(Instant::now);
            if since.elapsed() >= ORPHAN_MIN {
                core.shards.send(lease.run_id, Message::GiveBack(*lease));
            }
            self.orphans.insert(*lease, since);
        }
    }
}

/// What all event loops hold; `None` if one of them doesn't answer.
async fn held(core: &Core) -> Option<HashMap<Lease, Held>> {
    let answers = futures::future::try_join_all(core.shards.ask_held());
    let answers = tokio::time::timeout(ANSWER_MAX, answers).await.ok()?;
    Some(answers.ok()?.into_iter().flatten().collect())
}

async fn owned(database: &Database, session: Uuid) -> Result<HashMap<Uuid, Lease>, Error> {
    let mut owned = HashMap::new();
    let mut after = Uuid::nil();
    loop {
        let page = lease::owned(database, session, after, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = last.chain_id;
        owned.extend(page.iter().map(|(lease, _)| (lease.run_id, *lease)));
    }
    Ok(owned)
}
