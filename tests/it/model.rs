//! The functions of the database against a model of what they promise.
//!
//! Each seed is one history: several sessions start, post, claim, append, release, end, close and die, in order and out
//! of it, and every answer is compared with the model's. `CONTINUUM_SEED=n` runs the history of one seed alone and
//! prints it; `CONTINUUM_SEQUENCES=n` runs more or fewer than usual.

mod script;
mod stage;
mod state;
mod words;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use continuum_schema::{Database, DatabaseConfig, invariant};
use continuum_tests::World;
use script::Script;
use stage::Stage;
use state::{Flaw, Model};
use tokio::task::JoinSet;

/// How many histories a usual run tries. The gate tries ten thousand, in a stage of its own: the histories keep both
/// cores busy, and other tests have heartbeats to send.
const SEQUENCES: u64 = 1_000;

/// From so many on, every kind of answer must have come up.
const THOROUGH: u64 = 10_000;

/// Worlds that work at the same time, so that neither the client nor the server waits for the other.
const WORLDS: usize = 4;

/// How many histories may pass before a wrong model is noticed.
const NOTICED_WITHIN: u64 = 300;

/// Answers that the histories of a thorough run must reach, or they prove less than they seem to.
const REACHED: &[&str] = &[
    "New",
    "Existing",
    "Conflict",
    "Accepted",
    "Duplicate",
    "NotFound",
    "Ended",
    "EndedNow",
    "append true",
    "append false",
    "Stale",
    "SessionClosed",
    "Cold",
    "Due",
    "NotMine",
    "completion true",
    "completion false",
    "quarantined",
    "pending",
    "unserved",
    "running",
    "waiting",
    "blocked",
    "completed",
    "failed",
    "cancelled",
];

/// What one history reached, or where it went wrong.
type Told = Result<BTreeSet<String>, String>;

/// Carries out one history.
async fn sequence(database: &Database, seed: u64, flaw: Option<Flaw>) -> Told {
    let mut script = Script::new(seed);
    let mut model = Model::new(flaw);
    let mut stage = Stage::new(database, seed);
    let mut told = String::new();
    let mut reached = BTreeSet::new();
    let print = number_from("CONTINUUM_SEED").is_some();
    while let Some(op) = script.next(&model) {
        writeln!(told, "  {op:?}").expect("a string takes everything");
        let expected = model.apply(&op);
        if print {
            println!("  {op:?}\n    {expected:?}");
        }
        let actual = stage.perform(&op, &expected).await;
        if actual != expected {
            return Err(format!(
                "the history of seed {seed} (CONTINUUM_SEED={seed} runs it alone):\n{told}the model says\n  \
                 {expected:?}\nPostgres says\n  {actual:?}"
            ));
        }
        reached.extend(expected.kinds());
        script.note(&op, &expected);
    }
    Ok(reached)
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
    )
}

/// A world and one connection to it. On a second one a call could come before Postgres has let go of the locks of the
/// call before, whose refusal it tells first; the answer would be "busy", as it should.
async fn world() -> (World, Database) {
    let world = World::new().await;
    let config = DatabaseConfig {
        connections: 1,
        ..world.database_config()
    };
    let database = Database::new(config).expect("a usable URL");
    (world, database)
}

/// Takes seeds from `next` up to `last`, in a world of its own.
async fn work(next: Arc<AtomicU64>, last: u64) -> Told {
    let (world, database) = world().await;
    let mut reached = BTreeSet::new();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed > last {
            break;
        }
        let told = sequence(&database, seed, None).await;
        if told.is_err() {
            next.store(last + 1, Ordering::Relaxed);
        }
        reached.extend(told?);
    }
    let violations = invariant::violations(&world.database, 0.0).await;
    let violations = violations.expect("Postgres answers");
    if violations.is_empty() {
        Ok(reached)
    } else {
        Err(format!("invariants are broken: {violations:#?}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_histories_go_as_the_model_says() {
    let alone = number_from("CONTINUUM_SEED");
    let first = alone.unwrap_or(1);
    let count = number_from("CONTINUUM_SEQUENCES").unwrap_or(SEQUENCES);
    let last = alone.unwrap_or(count);
    let next = Arc::new(AtomicU64::new(first));
    let mut workers = JoinSet::new();
    for _ in 0..WORLDS.min(usize::try_from(last - first + 1).unwrap_or(WORLDS)) {
        workers.spawn(work(next.clone(), last));
    }
    let mut reached = BTreeSet::new();
    for told in workers.join_all().await {
        reached.extend(told.unwrap_or_else(|broken| panic!("{broken}")));
    }
    if last - first + 1 >= THOROUGH {
        let missing: Vec<_> = REACHED
            .iter()
            .filter(|kind| !reached.contains(**kind))
            .collect();
        assert!(missing.is_empty(), "no history reached {missing:?}");
    }
}

/// The first history that goes otherwise than a wrong model says.
async fn notice(flaw: Flaw) -> Option<u64> {
    let (_world, database) = world().await;
    for seed in 1..=NOTICED_WITHIN {
        if sequence(&database, seed, Some(flaw)).await.is_err() {
            return Some(seed);
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_model_is_noticed() {
    let mut workers = JoinSet::new();
    for flaw in Flaw::ALL {
        workers.spawn(async move { (flaw, notice(flaw).await) });
    }
    for (flaw, seed) in workers.join_all().await {
        assert!(
            seed.is_some(),
            "{flaw:?} was not noticed in {NOTICED_WITHIN} histories"
        );
    }
}
