//! Drains: a worker that leaves takes nothing more, gives back what it has, and ends in time, whatever hangs.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_bus::{Bus, BusConfig, Subjects};
use continuum_schema::session::{self, SessionFilter};
use continuum_schema::{Payload, journal, migration};
use continuum_tests::{
    Answer, Held, PATIENCE, Proxy, World, ask, port_of, postgres_on_a_port, servers, until,
    until_ready,
};
use continuum_worker::dev::PrivatePostgres;
use continuum_worker::prelude::*;
use continuum_worker::{Client, Drained, RunHandle, Worker, WorkerConfig, registry};
use futures::future::join_all;
use nix::sys::signal::Signal;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::cli::{program_in, run_in, signal};

/// Dead sessions are found no sooner than this, so whatever goes on earlier was given back.
const LEASE: Duration = Duration::from_secs(60);

/// Far less than a lease lasts, and enough for a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(15);

/// A process of a user's program that serves a world and answers HTTP.
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
    log: JoinHandle<String>,
}

impl Served {
    /// Starts one, and waits until its port is open. `more` are further variables.
    pub(crate) async fn start(world: &World, name: &str, more: &[(&str, &str)]) -> Self {
        let mut command = program_in(world, &["worker", "--http", "127.0.0.1:0"]);
        command
            .env("CONTINUUM_WORKER_NAME", name)
            .env("CONTINUUM_BEAT_INTERVAL", "250ms")
            .env("CONTINUUM_SESSION_TTL", format!("{}s", LEASE.as_secs()))
            .env("CONTINUUM_POLL_INTERVAL", "200ms")
            .env("CONTINUUM_STOP_TIMEOUT", "2s")
            .envs(more.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut log = String::new();
        let address = loop {
            let line = lines.next_line().await.unwrap();
            let line = line.unwrap_or_else(|| panic!("it has ended: {log}"));
            log += &line;
            if let Some((_, address)) = line.split_once("http.listening address=") {
                break address.trim().parse().unwrap();
            }
        };
        let log = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                log.push('\n');
                log += &line;
            }
            log
        });
        Self {
            child,
            address,
            log,
        }
    }

    /// What a route answers; nothing when the process has ended.
    async fn get(&self, path: &str) -> Option<Answer> {
        ask(self.address, &format!("GET {path}")).await.ok()
    }

    pub(crate) async fn until_ready(&self) {
        let look = async || {
            let answer = self.get("/readyz").await?;
            (answer.json()["state"] == "ready").then_some(())
        };
        until("a worker is ready", look).await;
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(&self.child, which);
    }

    /// Waits until the process ends by itself: its exit code and its log.
    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let code = ended.expect("it ends in time").unwrap().code();
        (code, self.log.await.unwrap())
    }
}

/// How often a worker has asked Postgres for work.
fn claims(metrics: &Answer) -> f64 {
    metrics.metric("continuum_run_claims_total") + metrics.metric("continuum_activity_claims_total")
}

/// Watches a worker from the moment at which it says that it is not ready. Returns whether there was anything to see.
async fn assert_no_claim_after_readiness(worker: &Served) -> bool {
    while worker
        .get("/readyz")
        .await
        .is_some_and(|ready| ready.status == 200)
    {
        tokio::task::yield_now().await;
    }
    let Some(first) = worker.get("/metrics").await else {
        return false;
    };
    while let Some(later) = worker.get("/metrics").await {
        // Each of both services may have been between its last look and its question when readiness turned false.
        let more = claims(&later) - claims(&first);
        assert!(more <= 2.0, "{more} claims after readiness turned false");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// W1: rounds of a deploy under load.
const ROUNDS: u64 = 30;

/// Runs that begin in a round, with effects that go on beyond its end.
const RUNS: u64 = 30;
const ERRANDS: u64 = 12;

fn payload(value: &impl serde::Serialize) -> Payload {
    Payload::from_json(&serde_json::to_vec(value).unwrap()).unwrap()
}

async fn start_errands(client: &Client, round: u64) -> Vec<Uuid> {
    let runs = (0..RUNS).map(async |number| {
        let key = format!("{round}-{number}");
        let run = client
            .start_named("errands", payload(&ERRANDS))
            .key(key)
            .await;
        run.unwrap().run_id()
    });
    join_all(runs).await
}

/// The longest time between two events of a run.
async fn longest_pause(world: &World, run_id: Uuid) -> Duration {
    let rows = journal::history(&world.database, run_id, 0, 10_000).await;
    let rows = rows.unwrap();
    let pauses = rows.windows(2).map(|pair| pair[1].at - pair[0].at);
    pauses.max().unwrap().try_into().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn w1_a_term_signal_at_any_moment_under_load_drops_nothing_and_takes_nothing_more() {
    let world = World::new().await;
    let client = world.client().await;
    let mut chance = ChaCha8Rng::seed_from_u64(795);
    let mut runs = Vec::new();
    let mut seen = 0;
    let mut leaving = Served::start(&world, "w0", &[]).await;
    leaving.until_ready().await;
    for round in 1..=ROUNDS {
        let staying = Served::start(&world, &format!("w{round}"), &[]).await;
        staying.until_ready().await;
        runs.extend(start_errands(&client, round).await);
        tokio::time::sleep(Duration::from_millis(chance.random_range(0..200))).await;
        leaving.signal(Signal::SIGTERM);
        seen += u64::from(assert_no_claim_after_readiness(&leaving).await);
        let (code, log) = leaving.end().await;
        assert_eq!(code, Some(0), "round {round}: {log}");
        leaving = staying;
    }
    assert!(seen > ROUNDS / 2, "only {seen} drains were seen");

    let mut pauses = Vec::new();
    for run_id in runs {
        let run = client.run::<u64>(run_id);
        // An attempt that is lost fails its run: there is no second one.
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), 2 * ERRANDS);
        assert_eq!(world.attempts(run_id).await, []);
        pauses.push(longest_pause(&world, run_id).await);
    }
    let longest = pauses.iter().max().copied().unwrap_or_default();
    println!("the longest pause of a run: {longest:?}, {seen} of {ROUNDS} drains seen");
    assert!(longest < SOON, "a run stood still for {longest:?}");
    leaving.signal(Signal::SIGTERM);
    assert_eq!(leaving.end().await.0, Some(0));
    let filter = SessionFilter {
        closed: true,
        ..SessionFilter::default()
    };
    for session in session::list(&world.database, &filter, 1000).await.unwrap() {
        assert_eq!(session.close_reason.as_deref(), Some("drained"));
    }
    world.finish([]).await;
}

#[workflow(version = 1)]
async fn idle(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    Ok(ctx.signal::<()>("go").await?)
}

/// A worker that others don't find dead within the time of a test.
fn patient(world: &World) -> WorkerConfig {
    WorkerConfig {
        session_ttl: LEASE,
        stop_timeout: Duration::from_millis(500),
        ..world.worker_config()
    }
}

/// Runs that wait in the memory of a worker.
async fn start_idle(client: &Client, worker: &Worker, count: usize) -> Vec<RunHandle<()>> {
    let runs = (0..count).map(async |_| client.start(idle, ()).await.unwrap());
    let runs = join_all(runs).await;
    let look = async || (worker.residents() == count).then_some(());
    until("all runs are in memory", look).await;
    for run in &runs {
        // Not only claimed: begun, and waiting.
        let look = async || {
            let status = run.get().await.unwrap();
            (status.version_hash.is_some()).then_some(())
        };
        until("a run has begun", look).await;
    }
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn w5_a_thousand_idle_runs_are_given_back_in_a_statement_of_each_event_loop() {
    let world = World::new().await;
    let config = patient(&world);
    let loops = i64::try_from(config.shards).unwrap();
    let leaving = world.worker_with(registry![idle], config).await;
    let client = world.client().await;
    let runs = start_idle(&client, &leaving, 1000).await;

    let since = Instant::now();
    assert_eq!(leaving.stop().await, Drained::default());
    let took = since.elapsed();
    println!("1,000 idle runs were given back in {took:?}");
    assert!(took < SOON / 3, "it took {took:?}");
    let writers = world.writers_of_leases().await;
    assert!(writers <= loops, "{writers} statements gave them back");

    let staying = world.worker(registry![idle]).await;
    for run in &runs[..20] {
        run.signal("go", &()).await.unwrap();
        run.result_within(SOON).await.unwrap();
    }
    world.finish([leaving, staying]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_a_drain_gets_its_one_answer() {
    let world = World::new().await;
    let config = WorkerConfig {
        http: Some("127.0.0.1:0".parse().unwrap()),
        ..patient(&world)
    };
    let worker = world.worker_with(registry![idle], config).await;
    let client = world.client().await;
    start_idle(&client, &worker, 50).await;
    let session = worker.status().borrow().session.unwrap();
    let address = worker.http_address().unwrap();
    let bus = Bus::connect(BusConfig::new([world.nats_url()]))
        .await
        .unwrap();
    let subject = Subjects::new(&world.instance).drain(session);

    let over_nats = async {
        let answer = bus.request(&subject, Bytes::new(), PATIENCE).await;
        // It may have ended before it heard of this.
        drop(answer);
        worker.drained().await
    };
    let over_http = async {
        assert_eq!(ask(address, "POST /drain").await.unwrap().status, 202);
        worker.drained().await
    };
    let (over_nats, over_http, one, other) =
        tokio::join!(over_nats, over_http, worker.stop(), worker.stop());
    assert_eq!(
        [over_nats, over_http, one, other, worker.stop().await],
        [Drained::default(); 5]
    );
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_asked_for_over_http_ends_the_process() {
    let world = World::new().await;
    let worker = Served::start(&world, "asked", &[]).await;
    worker.until_ready().await;
    assert_eq!(
        ask(worker.address, "POST /drain").await.unwrap().status,
        202
    );
    let (code, log) = worker.end().await;
    assert_eq!(code, Some(0), "{log}");
    world.finish([]).await;
}

/// Waits until so many runs are in a worker's memory.
async fn until_resident(worker: &Served, count: u64) {
    let look = async || {
        let answer = worker.get("/readyz").await?;
        (answer.json()["resident_runs"] == count).then_some(())
    };
    until("its runs are in memory", look).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_in_a_lock_is_left_named_and_found_by_others() {
    let world = World::new().await;
    let client = world.client().await;
    let worker = Served::start(&world, "stuck", &[]).await;
    worker.until_ready().await;
    let runs = (0..3).map(async |_| {
        let run = client.start_named("approval", payload(&())).await.unwrap();
        client.run::<String>(run.run_id())
    });
    let runs = join_all(runs).await;
    until_resident(&worker, 3).await;
    let mut holder = Held::begin(&world).await;
    holder.lock_leases().await;

    let since = Instant::now();
    let asked = run_in(&world, &["workers", "drain", "stuck", "--wait"]).await;
    let (code, log) = worker.end().await;
    assert!(since.elapsed() < SOON, "it took {:?}", since.elapsed());
    assert_eq!(code, Some(7), "{log}");
    assert!(log.contains("left behind: 3 runs"), "{log}");
    let told = "worker stuck has drained; left behind: 3 runs";
    assert!(asked.assert_code(7).stderr.contains(told), "{asked:?}");

    holder.roll_back().await;
    let next = Served::start(&world, "next", &[]).await;
    for run in &runs {
        run.signal("approved", &"yes".to_owned()).await.unwrap();
        assert_eq!(run.result_within(SOON).await.unwrap(), "yes");
    }
    next.signal(Signal::SIGTERM);
    assert_eq!(next.end().await.0, Some(0));
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_while_postgres_swallows_every_packet() {
    let postgres = PrivatePostgres::start(postgres_on_a_port()).await.unwrap();
    let front = Proxy::to(port_of(&postgres)).await;
    let world = World::at(&postgres.url(), servers().await.nats.url());
    migration::migrate(&world.database).await.unwrap();
    let client = world.client().await;
    let url = front.postgres_url();
    let worker = Served::start(&world, "cut-off", &[("CONTINUUM_DATABASE_URL", &url)]).await;
    worker.until_ready().await;
    client.start_named("approval", payload(&())).await.unwrap();
    until_resident(&worker, 1).await;

    front.hole_for_ever();
    let since = Instant::now();
    worker.signal(Signal::SIGTERM);
    let (code, log) = worker.end().await;
    assert!(since.elapsed() < SOON, "it took {:?}", since.elapsed());
    assert_eq!(code, Some(7), "{log}");
    assert!(
        log.contains("left behind: 1 run, the open session"),
        "{log}"
    );
    world.finish([]).await;
}

/// What holds an attempt that a test never ends.
struct Count(tokio::sync::Semaphore);

#[activity(queue = "endless", retry(max_attempts = 1))]
async fn endless(ctx: ActivityContext, _input: ()) -> Result<u32, ActivityError> {
    let count = ctx.state::<Arc<Count>>();
    count.0.add_permits(1);
    match count.0.available_permits() {
        1 => std::future::pending().await,
        _ => Ok(ctx.attempt()),
    }
}

#[workflow(version = 1)]
async fn calls_endless(ctx: &WorkflowContext, _input: ()) -> Result<u32, WorkflowError> {
    Ok(ctx.activity(endless, ()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_does_not_end_in_time_is_handed_back_and_counts_for_nothing() {
    let world = World::new().await;
    let count = Arc::new(Count(tokio::sync::Semaphore::new(0)));
    let registry = || registry![calls_endless, endless].state(Arc::clone(&count));
    let leaving = world.worker_with(registry(), patient(&world)).await;
    let run = world.client().await.start(calls_endless, ()).await.unwrap();
    let look = async || (count.0.available_permits() == 1).then_some(());
    until("the attempt has begun", look).await;
    let staying = world.worker_with(registry(), patient(&world)).await;
    let drained = leaving.stop().await;
    assert_eq!(
        (drained.activities_handed_back, drained.is_clean()),
        (1, true)
    );
    // Its one attempt is there again.
    assert_eq!(run.result_within(SOON).await.unwrap(), 1);
    until_ready(&staying).await;
    world.finish([leaving, staying]).await;
}
