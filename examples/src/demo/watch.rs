//! The stage manager: watches how far the orders are, and has a worker killed in the middle.

use std::collections::BTreeMap;
use std::time::Duration;

use continuum_examples::{Entry, Totals};
use continuum_worker::schema::run::{self, Filter, Run};
use tokio::time::interval;
use uuid::Uuid;

use super::crew::Crew;
use super::progress::Progress;
use super::shop::{self, Shop};
use super::stage::Stage;

const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Watch<'a> {
    stage: &'a Stage,
    shop: &'a Shop<'a>,
    progress: Progress,
    entries: Vec<Entry>,
    killed: Option<Killed>,
}

/// The worker that was killed, and the runs that it held.
#[derive(Clone)]
pub(super) struct Killed {
    pub(super) worker: String,
    pub(super) runs: Vec<Uuid>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(stage: &'a Stage, shop: &'a Shop<'a>, progress: Progress) -> Self {
        Self {
            stage,
            shop,
            progress,
            entries: Vec::new(),
            killed: None,
        }
    }

    pub(super) fn killed(&self) -> Option<Killed> {
        self.killed.clone()
    }

    pub(super) fn finish(&self) {
        self.progress.finish();
    }

    /// Watches until every order has ended.
    pub(super) async fn until_done(&mut self, crew: &mut Crew) -> anyhow::Result<()> {
        let mut clock = interval(LOOK_INTERVAL);
        loop {
            clock.tick().await;
            crew.check()?;
            let new = self.stage.ledger.entries_after(self.entries.len())?;
            self.entries.extend(new);
            let totals = Totals::of(&self.entries);
            let ended = self.ended().await?;
            self.progress.show(self.shop.placed(), totals, ended);
            if self.killed.is_none() && totals.charges * 2 >= self.shop.orders() {
                let killed = self.kill(crew).await?;
                self.killed = Some(killed);
            }
            if ended >= self.shop.orders() {
                return Ok(());
            }
        }
    }

    async fn ended(&self) -> anyhow::Result<usize> {
        let counts = run::count(&self.stage.database, Some(shop::workflow())).await?;
        let ended = counts.iter().filter(|(state, _)| state != "active");
        Ok(usize::try_from(ended.map(|(_, count)| count).sum::<i64>())?)
    }

    async fn kill(&self, crew: &mut Crew) -> anyhow::Result<Killed> {
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for worker in self
            .active()
            .await?
            .into_iter()
            .filter_map(|run| run.worker)
        {
            *held.entry(worker).or_default() += 1;
        }
        let victim = crew.kill_busiest(&held).await?;
        // The dead can't give anything back, and the others have not noticed yet: this is what it held.
        let active = self.active().await?;
        let left = active
            .iter()
            .filter(|run| run.worker.as_deref() == Some(&victim.name));
        let runs: Vec<Uuid> = left.map(|run| run.run_id).collect();
        self.progress.say(&format!(
            "         kill -9 {}: {} is dead, and held {} unfinished orders.\n         The others will miss its heartbeat in a few seconds.",
            victim.pid,
            victim.name,
            runs.len()
        ));
        Ok(Killed {
            worker: victim.name,
            runs,
        })
    }

    async fn active(&self) -> anyhow::Result<Vec<Run>> {
        let filter = Filter {
            workflow: Some(shop::workflow().to_owned()),
            state: Some("active".to_owned()),
            ..Filter::default()
        };
        let limit = i64::try_from(self.shop.orders())?;
        Ok(self.stage.client.list(&filter, limit).await?)
    }
}
