//! The claim by itself, as a dispatcher calls it, on tables in whatever state they are. No worker works meanwhile.

use std::time::Instant;

use anyhow::ensure;
use continuum_schema::lease::{self, ClaimKey};
use continuum_schema::run::{self, Start};
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Database, Payload};
use serde::Serialize;
use uuid::Uuid;

use crate::report::Percentiles;
use crate::stage::Stage;

/// Claims of each kind.
const COUNT: usize = 300;

/// Runs that one claim may take, as in a dispatcher.
const LIMIT: i32 = 100;

/// The workflow whose runs are claimed: that of W1, whose index entries lie in the way.
const WORKFLOW: &str = "sequential_steps";

/// How long claims take.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Claims {
    /// With one due run.
    pub(crate) one: Percentiles,
    /// With nothing due.
    pub(crate) none: Percentiles,
    /// With nothing due, and a look at all tickets, which happens every ten seconds.
    pub(crate) none_full_pass: Percentiles,
}

/// Claims again and again.
pub(crate) async fn measure(stage: &Stage) -> anyhow::Result<Claims> {
    let database = &stage.database;
    let new = NewSession {
        worker: "claims".into(),
        build: env!("CARGO_PKG_VERSION").into(),
        queues: Vec::new(),
        claim_keys: Vec::new(),
    };
    let session = session::open(database, &new).await?;
    let (mut one, mut none, mut full) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..COUNT {
        let floor = lease::newest_ticket(database).await?;
        none.push(claim(database, session, floor, 0).await?);
        full.push(claim(database, session, 0, 0).await?);
        start(database).await?;
        one.push(claim(database, session, floor, 1).await?);
    }
    // What was claimed stays with a session that is closed, and a worker that comes later takes it over.
    session::close(database, session, None, "measured").await?;
    Ok(Claims {
        one: Percentiles::of(one),
        none: Percentiles::of(none),
        none_full_pass: Percentiles::of(full),
    })
}

async fn claim(
    database: &Database,
    session: Uuid,
    floor: i64,
    due: usize,
) -> anyhow::Result<std::time::Duration> {
    let keys = [
        ClaimKey {
            key: WORKFLOW.into(),
            pin: ClaimKey::pinned(WORKFLOW, "claims"),
        },
        ClaimKey {
            key: ClaimKey::pinned(WORKFLOW, "claims"),
            pin: ClaimKey::pinned(WORKFLOW, "claims"),
        },
    ];
    let began = Instant::now();
    let claimed = lease::claim(database, session, &keys, LIMIT, floor).await?;
    let took = began.elapsed();
    ensure!(
        claimed.len() == due,
        "{} runs were claimed instead of {due}",
        claimed.len()
    );
    Ok(took)
}

async fn start(database: &Database) -> anyhow::Result<()> {
    let start = Start {
        namespace: "default".into(),
        workflow: WORKFLOW.into(),
        key: None,
        input: Payload::encode(&1_u64)?,
        trace_context: None,
    };
    run::start(database, &[start]).await?;
    Ok(())
}
