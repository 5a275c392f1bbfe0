//! The floors: what the same Postgres on the same machine gives without the engine. Ratios to them mean the same on
//! every machine; absolute figures don't.

use std::time::{Duration, Instant};

use anyhow::ensure;
use continuum_schema::journal::{self, Append, AppendOutcome, NewEvent};
use continuum_schema::lease::{self, ClaimKey};
use continuum_schema::run::{self, Start};
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Database, Lease, Payload, Seq, clock, floor};
use futures::future::try_join_all;
use uuid::Uuid;

use crate::report::Percentiles;
use crate::stage::{Servers, Stage};

/// Rows of one insert, and runs of one append.
const BATCH: usize = 100;

/// Bytes of one inserted row.
const ROW_BYTES: usize = 200;

/// Bytes of one appended event.
const EVENT_BYTES: usize = 100;

/// The kind of event that is appended: a step's completion.
const EVENT_KIND: i16 = 4;

/// The floors' own instance. What is measured here can be measured between two parts of a load, which is how ratios
/// stay true on a machine that has other work.
pub(crate) struct Floors {
    stage: Stage,
    appender: Appender,
}

impl Floors {
    pub(crate) async fn open(servers: &Servers) -> anyhow::Result<Self> {
        let stage = servers.stage("floors").await?;
        floor::create(&stage.database).await?;
        let appender = Appender::open(&stage.database).await?;
        Ok(Self { stage, appender })
    }

    /// How long a commit of one row takes, on one connection and with nothing else to do.
    pub(crate) async fn commit(&self) -> anyhow::Result<Duration> {
        let row = [vec![0_u8; ROW_BYTES]];
        let began = Instant::now();
        floor::insert(&self.stage.database, &row).await?;
        Ok(began.elapsed())
    }

    /// The same, so many times.
    pub(crate) async fn commits(&self, count: usize) -> anyhow::Result<Percentiles> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            times.push(self.commit().await?);
        }
        Ok(Percentiles::of(times))
    }

    /// Rows a second of inserts of [`BATCH`] rows, on so many connections.
    pub(crate) async fn rows_per_s(
        &self,
        connections: u32,
        window: Duration,
    ) -> anyhow::Result<f64> {
        let database = self.stage.place.database(connections)?;
        let began = Instant::now();
        let inserted =
            try_join_all((0..connections).map(|_| insert_for(&database, window))).await?;
        let rate = rate(inserted.iter().sum(), began);
        database.close().await;
        Ok(rate)
    }

    /// Events a second of the journal's own append function, one event for each of [`BATCH`] runs a call, on one
    /// connection.
    pub(crate) async fn append_steps_per_s(&mut self, window: Duration) -> anyhow::Result<f64> {
        self.appender
            .steps_per_s(&self.stage.database, window)
            .await
    }
}

async fn insert_for(database: &Database, window: Duration) -> anyhow::Result<usize> {
    let rows = vec![vec![0_u8; ROW_BYTES]; BATCH];
    let began = Instant::now();
    let mut inserted = 0;
    while began.elapsed() < window {
        floor::insert(database, &rows).await?;
        inserted += BATCH;
    }
    Ok(inserted)
}

/// Runs that no worker knows, claimed by a session that no worker has.
struct Appender {
    session: Uuid,
    leases: Vec<Lease>,
    /// The position of the next event, in every run.
    next: Seq,
    at: clock::Micros,
}

impl Appender {
    async fn open(database: &Database) -> anyhow::Result<Self> {
        let session = open_session(database).await?;
        Ok(Self {
            leases: claim_runs(database, session).await?,
            next: 1,
            at: clock::to_micros(session::beat(database, session).await?.now),
            session,
        })
    }

    async fn steps_per_s(&mut self, database: &Database, window: Duration) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut appended = 0;
        while began.elapsed() < window {
            let appends: Vec<Append> = self
                .leases
                .iter()
                .map(|lease| self.one_event(*lease))
                .collect();
            let outcomes =
                journal::append(database, self.session, &appends.iter().collect::<Vec<_>>())
                    .await?;
            ensure!(
                outcomes
                    .iter()
                    .all(|outcome| *outcome == AppendOutcome::Committed),
                "an append was refused"
            );
            appended += appends.len();
            self.next += 1;
        }
        Ok(rate(appended, began))
    }

    fn one_event(&self, lease: Lease) -> Append {
        Append {
            lease,
            first: self.next,
            events: vec![NewEvent {
                kind: EVENT_KIND,
                at: self.at,
                payload: vec![0; EVENT_BYTES],
            }],
            end: None,
            mail: Vec::new(),
            timers_set: Vec::new(),
            timers_gone: Vec::new(),
            activities_dropped: Vec::new(),
            activities_completed: Vec::new(),
            activities: Vec::new(),
        }
    }
}

async fn open_session(database: &Database) -> anyhow::Result<Uuid> {
    let session = NewSession {
        worker: "floor".into(),
        build: env!("CARGO_PKG_VERSION").into(),
        queues: Vec::new(),
        claim_keys: Vec::new(),
    };
    Ok(session::open(database, &session).await?)
}

/// Starts runs that no worker knows and claims them.
async fn claim_runs(database: &Database, session: Uuid) -> anyhow::Result<Vec<Lease>> {
    let start = Start {
        namespace: "default".into(),
        workflow: "floor".into(),
        key: None,
        input: Payload::unit(),
        trace_context: None,
    };
    run::start(database, &vec![start; BATCH]).await?;
    let key = ClaimKey {
        key: "floor".into(),
        pin: ClaimKey::pinned("floor", "floor"),
    };
    let claimed = lease::claim(database, session, &[key], i32::try_from(BATCH)?, 0).await?;
    ensure!(
        claimed.len() == BATCH,
        "{} runs were claimed instead of {BATCH}",
        claimed.len()
    );
    Ok(claimed.into_iter().map(|run| run.lease).collect())
}

fn rate(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}
