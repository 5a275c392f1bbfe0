//! The HTTP port: what it says through the life of a worker.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use continuum_bus::BusConfig;
use continuum_schema::migration;
use continuum_tests::{
    Answer, PATIENCE, Proxy, World, ask, port_of, postgres_on_a_port, servers, until,
};
use continuum_worker::dev::PrivatePostgres;
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, Registry, Worker, WorkerConfig, WorkerState, metrics, registry};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::cli::{program_in, run};

const ANY_PORT: &str = "127.0.0.1:0";

/// The settings of a worker that answers on some free port.
fn with_port(world: &World) -> WorkerConfig {
    WorkerConfig {
        http: Some(ANY_PORT.parse().unwrap()),
        ..world.worker_config()
    }
}

async fn start(registry: Registry, config: WorkerConfig) -> (Worker, SocketAddr) {
    let worker = Worker::start(registry, config).await.unwrap();
    let address = worker.http_address().unwrap();
    (worker, address)
}

async fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, &format!("GET {path}")).await.unwrap()
}

async fn until_state(worker: &Worker, state: WorkerState) {
    let mut status = worker.status();
    let reached = status.wait_for(|status| status.state == state);
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    drop(
        reached
            .unwrap_or_else(|_| panic!("it never is {state}"))
            .unwrap(),
    );
}

/// All that the port says of a worker in `state`: alive in each, ready in those in which it takes up work.
async fn assert_state(address: SocketAddr, state: WorkerState) -> Answer {
    let alive = get(address, "/livez").await;
    assert_eq!(alive.status, 200, "{alive:?}");
    let ready = get(address, "/readyz").await;
    let wanted = if state.is_serving() { 200 } else { 503 };
    assert_eq!(ready.status, wanted, "{ready:?}");
    assert_eq!(ready.json()["state"], state.name(), "{ready:?}");
    let metrics = get(address, "/metrics").await;
    assert_eq!(metrics.status, 200);
    for each in WorkerState::ALL {
        let value = metrics.metric(&format!("continuum_worker_state{{state=\"{each}\"}}"));
        assert_eq!(value, f64::from(u8::from(each == state)), "{each}");
    }
    ready
}

#[workflow(version = 1)]
async fn idle(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    Ok(ctx.signal::<()>("go").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_alive_but_not_ready_until_it_reaches_postgres() {
    let postgres = PrivatePostgres::start(postgres_on_a_port()).await.unwrap();
    // Nobody listens there.
    let front = Proxy::to(1).await;
    let world = World::at(&postgres.url(), servers().await.nats.url());
    migration::migrate(&world.database).await.unwrap();
    let mut config = with_port(&world);
    config.database.url = front.postgres_url();
    let (worker, address) = start(registry![idle], config).await;

    let starting = assert_state(address, WorkerState::Starting).await;
    let reason = starting.json()["reasons"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("no session in Postgres"), "{reason}");
    assert_eq!(starting.json()["session"], serde_json::Value::Null);

    front.switch(port_of(&postgres));
    until_state(&worker, WorkerState::Ready).await;
    let ready = assert_state(address, WorkerState::Ready).await;
    assert_eq!(ready.json()["reasons"], serde_json::json!([]));
    assert!(ready.json()["session"].is_string(), "{ready:?}");
    assert_eq!(
        get(address, "/metrics")
            .await
            .metric("continuum_session_opened_total"),
        1.0
    );
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_a_worker_is_degraded_and_stays_ready() {
    let world = World::new().await;
    let url = world.nats_url();
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let front = Proxy::to(port).await;
    let config = WorkerConfig {
        bus: BusSource::Nats(Box::new(BusConfig::new([format!(
            "nats://127.0.0.1:{}",
            front.port()
        )]))),
        ..with_port(&world)
    };
    let (worker, address) = start(registry![idle], config).await;
    until_state(&worker, WorkerState::Ready).await;
    let metrics = get(address, "/metrics").await;
    assert_eq!(metrics.metric("continuum_nats_connected"), 1.0);

    drop(front);
    until_state(&worker, WorkerState::Degraded).await;
    let degraded = assert_state(address, WorkerState::Degraded).await;
    let reason = degraded.json()["reasons"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("work goes on by polling"), "{reason}");
    let metrics = get(address, "/metrics").await;
    assert_eq!(metrics.metric("continuum_nats_connected"), 0.0);
    world.finish([worker]).await;
}

/// Lets activities end.
static OPEN: Semaphore = Semaphore::const_new(0);

#[activity(queue = "held")]
async fn held(_ctx: ActivityContext, _input: ()) -> Result<(), ActivityError> {
    OPEN.acquire().await.expect("nobody closes it").forget();
    Ok(())
}

#[workflow(version = 1)]
async fn holds(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    Ok(ctx.activity(held, ()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_tells_of_a_drain_from_its_begin_beyond_its_end() {
    let world = World::new().await;
    let (worker, address) = start(registry![holds, held], with_port(&world)).await;
    until_state(&worker, WorkerState::Ready).await;
    let run = world.client().await.start(holds, ()).await.unwrap();
    let look = async || {
        let ready = get(address, "/readyz").await.json();
        (ready["running_activities"] == 1 && ready["resident_runs"] == 1).then_some(())
    };
    until("the activity runs", look).await;

    for _ in 0..2 {
        let accepted = ask(address, "POST /drain").await.unwrap();
        assert_eq!(accepted.status, 202, "{accepted:?}");
        assert_eq!(accepted.json()["state"], "draining");
    }
    let draining = assert_state(address, WorkerState::Draining).await;
    assert_eq!(
        draining.json()["reasons"][0],
        "a drain was asked for by HTTP"
    );

    OPEN.add_permits(1);
    worker.drained().await;
    until_state(&worker, WorkerState::Drained).await;
    let drained = assert_state(address, WorkerState::Drained).await;
    assert_eq!(drained.json()["reasons"][0], "nothing is left behind");
    drop(worker);
    let look = async || ask(address, "GET /livez").await.err();
    until("the port is closed with the worker", look).await;

    let next = world.worker(registry![holds, held]).await;
    run.result_within(PATIENCE).await.unwrap();
    world.finish([next]).await;
}

#[tokio::test]
async fn what_the_port_does_not_know_is_refused() {
    let world = World::new().await;
    let (worker, address) = start(registry![idle], with_port(&world)).await;
    until_state(&worker, WorkerState::Ready).await;
    for (request, status) in [("GET /", 404), ("GET /drain", 405), ("POST /metrics", 405)] {
        let answer = ask(address, request).await.unwrap();
        assert_eq!(answer.status, status, "{request}");
    }
    assert_state(address, WorkerState::Ready).await;
    world.finish([worker]).await;
}

/// Whether the blocked event loop may go on.
static UNBLOCKED: Mutex<bool> = Mutex::new(false);
static UNBLOCK: Condvar = Condvar::new();

/// What no workflow may do: it keeps the thread.
fn block() {
    let open = UNBLOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    drop(
        UNBLOCK
            .wait_timeout_while(open, PATIENCE, |open| !*open)
            .unwrap_or_else(PoisonError::into_inner),
    );
}

#[workflow(version = 1)]
async fn blocks(_ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    block();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_event_loop_that_a_workflow_blocks_is_no_life() {
    let world = World::new().await;
    let (worker, address) = start(registry![blocks], with_port(&world)).await;
    until_state(&worker, WorkerState::Ready).await;
    let run = world.client().await.start(blocks, ()).await.unwrap();
    let look = async || {
        let answer = get(address, "/livez").await;
        (answer.status == 503).then_some(answer)
    };
    let dead = until("the blocked loop is noticed", look).await;
    assert!(dead.body.contains("did not answer within"), "{dead:?}");
    *UNBLOCKED.lock().unwrap() = true;
    UNBLOCK.notify_all();
    run.result_within(PATIENCE).await.unwrap();
    assert_state(address, WorkerState::Ready).await;
    world.finish([worker]).await;
}

#[tokio::test]
async fn a_port_in_use_is_refused_before_anything_begins() {
    let world = World::new().await;
    let taken = TcpListener::bind(ANY_PORT).await.unwrap();
    let address = taken.local_addr().unwrap();
    let config = WorkerConfig {
        http: Some(address),
        ..world.worker_config()
    };
    let Err(refused) = Worker::start(registry![idle], config).await else {
        panic!("it started")
    };
    assert_eq!(refused.setting, "http");

    let http = address.to_string();
    let ended = run(program_in(&world, &["worker", "--http", &http])).await;
    let told = format!("{address} can't be listened on");
    assert!(
        ended.assert_code(2).stderr.contains(&told) && ended.stderr.contains("CONTINUUM_HTTP"),
        "{ended:?}"
    );
    world.finish([]).await;
}

/// How long a health check of a container waits.
const PROBE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn the_health_command_asks_the_port() {
    let world = World::new().await;
    let (worker, address) = start(registry![idle], with_port(&world)).await;
    until_state(&worker, WorkerState::Ready).await;
    let http = address.to_string();
    let timeout = format!("{}s", PROBE.as_secs());
    let health = |probe: &'static str| {
        let arguments = [
            "health",
            "--http",
            &http,
            "--probe",
            probe,
            "--timeout",
            &timeout,
        ];
        run(program_in(&world, &arguments))
    };
    assert_eq!(health("ready").await.assert_code(0).stdout, "ready\n");
    worker.stop().await;
    let drained = health("ready").await;
    assert!(
        drained
            .assert_code(5)
            .stderr
            .contains("is not ready: drained"),
        "{drained:?}"
    );
    health("live").await.assert_code(0);
    world.finish([worker]).await;
}

/// `UPDATE_DOCS=1 cargo test -p continuum-tests metrics_are_documented` writes the page anew.
#[test]
fn metrics_are_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let wanted = metrics::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/metrics.md is out of date: run the tests once with UPDATE_DOCS=1"
    );
}

#[tokio::test]
async fn a_worker_serves_the_metrics_that_are_documented_and_no_others() {
    let world = World::new().await;
    let (worker, address) = start(registry![idle], with_port(&world)).await;
    until_state(&worker, WorkerState::Ready).await;
    let text = get(address, "/metrics").await.body;
    let samples: HashSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let names = metrics::names();
    let documented: HashSet<&str> = names.iter().map(String::as_str).collect();
    let unknown: Vec<_> = samples.difference(&documented).collect();
    assert!(unknown.is_empty(), "served and not documented: {unknown:?}");
    for name in documented.difference(&samples) {
        // A histogram has parts, and no sample of its own name.
        assert!(
            text.contains(&format!("\n{name}_bucket")),
            "{name} is not served"
        );
    }
    world.finish([worker]).await;
}
