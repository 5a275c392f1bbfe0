//! kill -9 at random moments: nothing is lost, and no result that is in a journal is ever overwritten.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use continuum_schema::Event;
use continuum_tests::cluster::load::{slow, tangle, work, work_once};
use continuum_tests::{
    ProcessSettings, Seen, WorkerProcess, World, carried_out, carry_out, check, compare, serve,
};
use continuum_worker::prelude::*;
use continuum_worker::{Client, Registry, RunHandle, registry};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::NamedTempFile;
use uuid::Uuid;

/// The test that is a worker process.
pub(crate) const PROCESS: &str = "crash::worker_process";

const ROUNDS: u32 = 100;

/// Worker processes at a time.
const PROCESSES: usize = 3;

/// Runs that are kept in flight.
const IN_FLIGHT: usize = 12;

/// Fails at first; a later attempt takes so long that its run goes cold meanwhile.
#[activity(queue = "crash", retry(unlimited, initial = "1ms"))]
async fn wobble(ctx: ActivityContext, effect: String) -> Result<String, ActivityError> {
    if ctx.attempt() == 1 {
        return Err(ActivityError::new("Wobbly", "not at first"));
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    Ok(carry_out(ctx.run_id(), &effect, ctx.attempt()))
}

/// A run that comes by every commit point.
#[workflow(version = 1)]
pub(crate) async fn roundabout(ctx: &WorkflowContext, _input: ()) -> Result<Seen, WorkflowError> {
    let run_id = ctx.info().run_id;
    let first: String = ctx
        .step(
            "first",
            move || async move { Ok(carry_out(run_id, "first", 1)) },
        )
        .await?;
    let charge = ctx.activity(work, ("charge".to_owned(), 1)).await?;
    let wobbled = ctx.activity(wobble, "wobble".to_owned()).await?;
    let go: String = ctx.signal::<String>("go").await?;
    ctx.sleep(Duration::from_millis(5)).await?;
    let last: String = ctx
        .step(
            "last",
            move || async move { Ok(carry_out(run_id, "last", 1)) },
        )
        .await?;
    let seen = [
        ("first", first),
        ("charge", charge),
        ("wobble", wobbled),
        ("go", go),
        ("last", last),
    ];
    Ok(seen
        .into_iter()
        .map(|(effect, value)| (effect.to_owned(), value))
        .collect())
}

/// Runs until its input says `open`; it is what the recovery tests watch.
#[activity(queue = "crash", retry(unlimited, initial = "1ms"))]
async fn stubborn(ctx: ActivityContext, effect: String) -> Result<String, ActivityError> {
    let value = carry_out(ctx.run_id(), &effect, ctx.attempt());
    if ctx.attempt() == 1 {
        std::future::pending::<()>().await;
    }
    Ok(value)
}

#[activity(queue = "crash", retry(max_attempts = 1))]
async fn stubborn_once(ctx: ActivityContext, effect: String) -> Result<String, ActivityError> {
    carry_out(ctx.run_id(), &effect, ctx.attempt());
    std::future::pending().await
}

/// An activity that only another attempt ends.
#[workflow(version = 1)]
pub(crate) async fn second_try(ctx: &WorkflowContext, _input: ()) -> Result<String, WorkflowError> {
    Ok(ctx.activity(stubborn, "stubborn".to_owned()).await?)
}

/// An activity that never ends and has one attempt; the kind of its error.
#[workflow(version = 1)]
pub(crate) async fn only_try(ctx: &WorkflowContext, _input: ()) -> Result<String, WorkflowError> {
    match ctx.activity(stubborn_once, "once".to_owned()).await {
        Ok(value) => Ok(value),
        Err(error) => Ok(error.kind().to_owned()),
    }
}

/// Everything that a worker process can run.
fn registry() -> Registry {
    registry![
        tangle,
        work,
        work_once,
        roundabout,
        wobble,
        second_try,
        stubborn,
        only_try,
        stubborn_once,
        slow
    ]
}

/// Not a test: the program of the worker processes.
#[tokio::test(flavor = "multi_thread")]
async fn worker_process() {
    serve(registry()).await;
}

struct Storm {
    world: World,
    client: Client,
    log: NamedTempFile,
    chance: ChaCha8Rng,
    started: u32,
    processes: Vec<WorkerProcess>,
    /// The runs, and whether each got its signal.
    runs: Vec<(RunHandle<Seen>, bool)>,
    /// Histories as they were once seen; what came later must only have added to them.
    seen: HashMap<Uuid, Vec<Event>>,
}

impl Storm {
    async fn new(seed: u64) -> Self {
        let world = World::new().await;
        Self {
            client: world.client().await,
            world,
            log: NamedTempFile::new().expect("a temporary file"),
            chance: ChaCha8Rng::seed_from_u64(seed),
            started: 0,
            processes: Vec::new(),
            runs: Vec::new(),
            seen: HashMap::new(),
        }
    }

    fn start_process(&mut self) {
        let settings =
            ProcessSettings::new(&self.world, format!("w{}", self.started), self.log.path());
        self.started += 1;
        self.processes
            .push(WorkerProcess::start(PROCESS, &settings));
    }

    /// Keeps runs in flight, sends some of them their signal, kills one worker in the midst of it, starts another.
    async fn round(&mut self) {
        let open = self.runs.iter().filter(|(_, told)| !told).count();
        for _ in open..IN_FLIGHT {
            let number = u64::try_from(self.runs.len()).expect("few");
            let run = self
                .client
                .start(tangle, number)
                .key(format!("run {number}"))
                .await
                .expect("it starts");
            self.runs.push((run, false));
        }
        self.tell_some().await;
        let victim = self.chance.random_range(0..self.processes.len());
        let mut victim = self.processes.remove(victim);
        victim.session().await;
        tokio::time::sleep(Duration::from_micros(self.chance.random_range(0..250_000))).await;
        victim.kill().await;
        self.start_process();
        self.compare_some().await;
    }

    /// Signals go twice now and then, as a sender does that lost the answer.
    async fn tell_some(&mut self) {
        for (run, told) in self
            .runs
            .iter_mut()
            .filter(|(_, told)| !told)
            .take(IN_FLIGHT / 2)
        {
            if self.chance.random_bool(0.5) {
                *told = true;
                for _ in 0..self.chance.random_range(1..=2) {
                    let value = run.run_id().to_string();
                    run.signal("go", &value)
                        .delivery_id("go")
                        .await
                        .expect("it is stored");
                }
            }
        }
    }

    async fn compare_some(&mut self) {
        let newest = self.runs.len().saturating_sub(2 * IN_FLIGHT);
        for _ in 0..4 {
            let run_id = self.runs[self.chance.random_range(newest..self.runs.len())]
                .0
                .run_id();
            let history = self.world.history(run_id).await;
            let before = self
                .seen
                .insert(run_id, history.clone())
                .unwrap_or_default();
            assert!(
                history.starts_with(&before),
                "the history of {run_id} was rewritten"
            );
        }
    }

    /// Every run ends, with the values of executions that happened, each the one in its journal.
    async fn settle(mut self) {
        for (run, told) in &self.runs {
            if !told {
                run.signal("go", &run.run_id().to_string())
                    .await
                    .expect("it is stored");
            }
        }
        let mut notes: HashMap<Uuid, HashSet<(String, u32, String)>> = HashMap::new();
        let mut results = Vec::new();
        for (run, _) in &self.runs {
            let result = run.result_within(Duration::from_secs(60)).await;
            results.push((
                run.run_id(),
                result.unwrap_or_else(|e| panic!("run {}: {e}", run.run_id())),
            ));
        }
        for process in self.processes.drain(..) {
            process.kill().await;
        }
        for (run_id, effect, attempt, value) in carried_out(self.log.path()) {
            assert!(
                notes
                    .entry(run_id)
                    .or_default()
                    .insert((effect, attempt, value)),
                "a value came twice"
            );
        }
        for (run_id, result) in results {
            let history = self.world.history(run_id).await;
            let before = self.seen.remove(&run_id).unwrap_or_default();
            assert!(
                history.starts_with(&before),
                "the history of {run_id} was rewritten"
            );
            compare(run_id, &result, &history, &notes[&run_id]);
        }
        check(&self.world.database).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_random_moments_loses_nothing_and_overwrites_nothing() {
    let given = std::env::var("CONTINUUM_SEED").ok();
    let seed = given.map_or(20_260_801, |seed| {
        seed.parse().expect("CONTINUUM_SEED is a number")
    });
    println!("CONTINUUM_SEED={seed}");
    let mut storm = Storm::new(seed).await;
    for _ in 0..PROCESSES {
        storm.start_process();
    }
    for _ in 0..ROUNDS {
        storm.round().await;
    }
    storm.settle().await;
}
