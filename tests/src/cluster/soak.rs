//! The soak: a cluster under traffic suffers the random plan of a seed, and everything must end well.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use continuum_schema::session::{self, SessionFilter};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cluster, ClusterOptions, Plan, Step, Tally, Traffic};

/// The longest that any run may take to end once the last fault is lifted.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// What one episode is made of.
#[derive(Clone, Copy, Debug)]
pub struct Episode {
    /// The program of its workers; see [`ClusterOptions::process`].
    pub process: &'static str,
    /// The seed of its plan.
    pub seed: u64,
    /// How many workers there are.
    pub workers: usize,
    /// How long faults are injected.
    pub length: Duration,
}

/// What was injected, and what was survived.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How often each fault was injected.
    pub injected: BTreeMap<String, u64>,
    /// Why sessions ended, and how many.
    pub sessions: BTreeMap<String, u64>,
    /// What the traffic came to.
    pub tally: Tally,
}

impl Report {
    /// Takes in the report of another episode.
    pub fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.injected, &other.injected),
            (&mut self.sessions, &other.sessions),
        ] {
            for (name, count) in from {
                *to.entry(name.clone()).or_default() += count;
            }
        }
        self.tally += other.tally;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        writeln!(f, "injected")?;
        for (name, count) in &self.injected {
            writeln!(f, "  {name:<58}{count:>8}")?;
        }
        writeln!(f, "sessions that ended, and why")?;
        for (name, count) in &self.sessions {
            writeln!(f, "  {name:<58}{count:>8}")?;
        }
        writeln!(f, "survived, with every invariant")?;
        for (name, count) in [
            ("runs that completed", tally.completed),
            ("runs that were cancelled and cleaned up", tally.cancelled),
            ("signals consumed, each once", tally.consumed),
            ("signals reported as unread", tally.unread),
            ("effects carried out", tally.carried_out),
            ("of them carried out again after a loss", tally.repeated),
        ] {
            writeln!(f, "  {name:<58}{count:>8}")?;
        }
        Ok(())
    }
}

/// Runs one episode on servers of its own.
///
/// # Panics
/// If anything is lost, doubled or late.
pub async fn episode(episode: Episode) -> Report {
    let plan = Plan::new(episode.seed, episode.workers, episode.length);
    let options = ClusterOptions {
        fsync: true,
        settings: |settings| {
            settings.beat_interval = Duration::from_millis(300);
            settings.session_ttl = Duration::from_secs(2);
            settings.statement_timeout = Duration::from_secs(3);
            settings.idle_max = Duration::from_millis(300);
            // Here workers die because they are killed, and not because of what they run.
            settings.crashes_max = 1_000;
        },
        ..ClusterOptions::new(episode.process, episode.workers)
    };
    let cluster = Arc::new(Cluster::start(&options).await);
    let mut traffic = Traffic::new(&cluster).await;
    let stop = CancellationToken::new();
    let suffering = suffer(Arc::clone(&cluster), plan, stop.clone());
    let (injected, ()) = tokio::join!(suffering, traffic.flow(stop));
    let tally = traffic.settle(&cluster, SETTLE_MAX).await;
    let sessions = ended_sessions(&cluster).await;
    let cluster = Arc::into_inner(cluster).expect("all faults are lifted");
    cluster.finish().await;
    Report {
        injected,
        sessions,
        tally,
    }
}

/// Carries the plan out, and says to `stop` when every fault is lifted.
async fn suffer(
    cluster: Arc<Cluster>,
    plan: Plan,
    stop: CancellationToken,
) -> BTreeMap<String, u64> {
    let begin = Instant::now();
    // One for each worker, and one for the servers: a step waits if the one before it took longer than planned.
    let lanes: Vec<_> = (0..=cluster.size()).map(|_| Arc::default()).collect();
    let mut steps = JoinSet::new();
    for step in plan.steps {
        let lane = match step.fault.is_of_a_server() {
            true => cluster.size(),
            false => step.victim,
        };
        let lane = Arc::clone(&lanes[lane]);
        steps.spawn(carry_out(Arc::clone(&cluster), step, begin, lane));
    }
    let mut injected = BTreeMap::new();
    while let Some(done) = steps.join_next().await {
        let name = done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        *injected.entry(name).or_default() += 1;
    }
    stop.cancel();
    injected
}

async fn carry_out(
    cluster: Arc<Cluster>,
    step: Step,
    begin: Instant,
    lane: Arc<Mutex<()>>,
) -> String {
    tokio::time::sleep_until(begin + step.at).await;
    let _alone = lane.lock().await;
    let injected = cluster.inject(step.fault, step.victim).await;
    tokio::time::sleep(step.lasts).await;
    match cluster.lift(injected).await {
        true => step.fault.to_string(),
        false => format!("{}: NOT POSSIBLE HERE", step.fault),
    }
}

async fn ended_sessions(cluster: &Cluster) -> BTreeMap<String, u64> {
    let filter = SessionFilter {
        of: None,
        closed: true,
    };
    let sessions = session::list(&cluster.world.database, &filter, 10_000)
        .await
        .expect("Postgres answers");
    let mut reasons = BTreeMap::new();
    for reason in sessions.into_iter().filter_map(|s| s.close_reason) {
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}
