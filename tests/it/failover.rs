//! Postgres goes away in the ways that tell nobody: a replica that lags takes over, or the network swallows everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::session::{self, NewSession};
use continuum_schema::{Database, DatabaseConfig, Error, Lease, Pooler, lease, migration, run};
use continuum_tests::{
    Held, PATIENCE, PostgresNode, Proxy, Waits, World, port_of, postgres_on_a_port, servers, until,
    until_ready,
};
use continuum_worker::dev::PrivatePostgres;
use continuum_worker::prelude::*;
use continuum_worker::{Client, RunHandle, Worker, registry};
use futures::StreamExt as _;
use futures::future::join_all;
use uuid::Uuid;

#[activity(queue = "trip", retry(unlimited, initial = "10ms"))]
async fn hop(_ctx: ActivityContext, number: u64) -> Result<u64, ActivityError> {
    Ok(number + 1)
}

/// Hops, waits for a word, hops again, waits for another.
#[workflow(version = 1)]
async fn trip(ctx: &WorkflowContext, start: u64) -> Result<(u64, String), WorkflowError> {
    let mut place = start;
    for _ in 0..3 {
        place = ctx.activity(hop, place).await?;
    }
    let mut word: String = ctx.signal::<String>("first").await?;
    for _ in 0..3 {
        place = ctx.activity(hop, place).await?;
    }
    word += &ctx.signal::<String>("second").await?;
    Ok((place, word))
}

/// Hops until it is told to end.
#[workflow(version = 1)]
async fn wander(ctx: &WorkflowContext, hops: u64) -> Result<u64, WorkflowError> {
    let mut place = 0;
    while place < hops {
        place = ctx.activity(hop, place).await?;
        ctx.sleep(Duration::from_millis(5)).await?;
    }
    Ok(place)
}

type Trip = RunHandle<(u64, String)>;

async fn start(client: &Client, numbers: std::ops::Range<u64>) -> Vec<Trip> {
    join_all(numbers.map(async |number| {
        let key = format!("trip {number}");
        client.start(trip, number).key(key).await.unwrap()
    }))
    .await
}

/// The same signal however often it is sent.
async fn tell(runs: &[Trip], name: &'static str) {
    let told = runs.iter().map(async |run| {
        let signal = run.signal(name, &name.to_owned());
        signal.delivery_id(name).await.unwrap();
    });
    join_all(told).await;
}

/// Waits until each run has at least so many events in this database.
async fn until_events(world: &World, runs: &[Trip], count: usize) {
    for run in runs {
        let look = async || {
            let rows = continuum_schema::journal::history(&world.database, run.run_id(), 0, 1000);
            let rows = rows.await.expect("Postgres answers");
            (rows.len() >= count).then_some(())
        };
        until(&format!("a run has {count} events"), look).await;
    }
}

async fn session_of(worker: &Worker, other_than: Option<Uuid>) -> Uuid {
    let mut status = worker.status();
    let opened = status.wait_for(|s| s.session.is_some() && s.session != other_than);
    let opened = tokio::time::timeout(PATIENCE, opened).await;
    let status = opened.expect("a session opens in time").unwrap().clone();
    status.session.unwrap()
}

async fn owned(database: &Database, session: Uuid) -> Vec<Lease> {
    let owned = lease::owned(database, session, Uuid::nil(), 1000)
        .await
        .unwrap();
    owned.into_iter().map(|(lease, _)| lease).collect()
}

/// Events of a trip that waits for its first word: its begin, and two for each hop but what shares an append.
const AT_FIRST_WORD: usize = 7;

#[tokio::test(flavor = "multi_thread")]
async fn after_the_promotion_of_a_lagging_replica_every_run_goes_on_from_what_is_left() {
    let primary = PostgresNode::primary().await;
    let replication = Proxy::to(port_of(&primary.postgres)).await;
    let replica = PostgresNode::follow(replication.port()).await;
    let front = Proxy::to(port_of(&primary.postgres)).await;

    let world = World::at(&front.postgres_url(), servers().await.nats.url());
    let instance = world.instance.clone();
    let directly = |cluster: &PostgresNode| {
        let url = cluster.postgres.url();
        Database::new(DatabaseConfig::new(url, &instance)).unwrap()
    };
    let (on_primary, on_replica) = (directly(&primary), directly(&replica));
    migration::migrate(&world.database).await.unwrap();
    let worker = world.worker(registry![trip, hop]).await;
    let session = session_of(&worker, None).await;
    let client = world.client().await;
    let runs = start(&client, 0..20).await;
    until_events(&world, &runs, AT_FIRST_WORD).await;
    let look = async || {
        let history = continuum_schema::journal::history;
        for run in &runs {
            let rows = history(&on_replica, run.run_id(), 0, 1000).await.ok()?;
            (rows.len() >= AT_FIRST_WORD).then_some(())?;
        }
        Some(())
    };
    until("the replica has what the primary has", look).await;

    // From here on everything is acknowledged, and lost: words, hops, the claims of new runs.
    replication.hole();
    tell(&runs[..10], "first").await;
    until_events(&world, &runs[..10], AT_FIRST_WORD + 7).await;
    let lost = start(&client, 20..60).await;
    until_events(&world, &lost, AT_FIRST_WORD).await;
    let tokens_before: HashMap<i64, Uuid> = owned(&on_primary, session)
        .await
        .iter()
        .map(|lease| (lease.token, session))
        .collect();
    assert_eq!(tokens_before.len(), 60);

    // The old primary lives on as something that can be read. What is connected to it stays connected.
    primary.set_read_only();
    let look = async || {
        let beat = session::beat(&on_primary, Uuid::nil()).await;
        matches!(beat, Err(Error::Unavailable(_))).then_some(())
    };
    until("the old primary takes no writes", look).await;
    replica.promote().await;
    front.switch(port_of(&replica.postgres));
    // Those who only read are not told: the test's own pool would go on to read the past.
    world.database.renew_connections();

    let next = session_of(&worker, Some(session)).await;
    assert_eq!(
        world.close_reason(session).await.as_deref(),
        Some("Postgres failed over")
    );
    let found = run::find(&on_replica, "default", "trip 25").await.unwrap();
    assert_eq!(found, None, "the replica did not lag");
    // Whoever was told "done" says it again; what was not lost is not done twice.
    let client = world.client().await;
    let again = start(&client, 20..60).await;
    let all: Vec<Trip> = runs.into_iter().chain(again).collect();
    tell(&all, "first").await;
    until_events(&world, &all, AT_FIRST_WORD + 7).await;
    for lease in owned(&on_replica, next).await {
        let before = tokens_before.get(&lease.token);
        assert_eq!(before, None, "a token was given to two owners");
    }
    tell(&all, "second").await;
    for (number, run) in all.iter().enumerate() {
        let result = run.result_within(PATIENCE).await.unwrap();
        assert_eq!(result, (number as u64 + 6, "firstsecond".to_owned()));
    }
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_packets_are_swallowed_gives_up_in_time_and_recovers_by_itself() {
    let postgres = PrivatePostgres::start(postgres_on_a_port()).await.unwrap();
    let front = Proxy::to(port_of(&postgres)).await;
    let world = World::at(&postgres.url(), servers().await.nats.url());
    migration::migrate(&world.database).await.unwrap();
    let mut config = world.worker_config();
    config.database.url = front.postgres_url();
    config.database.statement_timeout = Duration::from_secs(1);
    config.database.acquire_timeout = Duration::from_secs(1);
    let ttl = config.session_ttl;
    let worker = world.worker_with(registry![wander, hop], config).await;
    let first = session_of(&worker, None).await;
    let client = world.client().await;
    let runs = join_all((0..40).map(async |_| client.start(wander, 60).await.unwrap())).await;
    let look = async || (worker.residents() == runs.len()).then_some(());
    until("all runs are under way", look).await;

    // Twice: connections that come back, and connections that never do.
    let mut session = first;
    for hole in [Proxy::hole, Proxy::hole_for_ever] {
        hole(&front);
        let began = Instant::now();
        let mut status = worker.status();
        let lost = status.wait_for(|s| s.session.is_none());
        drop(tokio::time::timeout(PATIENCE, lost).await.unwrap().unwrap());
        assert!(began.elapsed() < ttl, "it took {:?}", began.elapsed());
        front.forward();
        session = session_of(&worker, Some(session)).await;
    }
    until_ready(&worker).await;
    for run in runs {
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), 60);
    }
    world.finish([worker]).await;
}

/// The most connections of the pool that is tested.
const CONNECTIONS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn no_place_in_a_pool_is_lost_to_connections_that_are_swallowed() {
    let postgres = PrivatePostgres::start(postgres_on_a_port()).await.unwrap();
    let world = World::at(&postgres.url(), servers().await.nats.url());
    migration::migrate(&world.database).await.unwrap();
    let new = NewSession {
        worker: "pool".into(),
        build: String::new(),
        queues: Vec::new(),
        claim_keys: Vec::new(),
    };
    let session = session::open(&world.database, &new).await.unwrap();
    for pooler in [Pooler::None, Pooler::Transaction] {
        let front = Proxy::to(port_of(&postgres)).await;
        let pool = Database::new(DatabaseConfig {
            url: front.postgres_url(),
            pooler,
            connections: CONNECTIONS as u32,
            statement_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(3),
            ..world.database_config()
        });
        let pool = Arc::new(pool.unwrap());
        all_at_once(&world, &pool, session).await;

        // Some answers never come, some callers stop waiting, some connections are idle meanwhile.
        front.hole_for_ever();
        let calls = (0..4).map(async |number| match number % 2 {
            0 => pool.now().await.map(|_| ()),
            _ => tokio::time::timeout(Duration::from_millis(100), pool.ping())
                .await
                .unwrap_or(Err(Error::SessionClosed)),
        });
        for ended in join_all(calls).await {
            assert!(ended.is_err());
        }
        front.forward();
        // The pool says that it is full until the connections that it closes are closed.
        let look = async || pool.now().await.ok();
        until("the pool answers again", look).await;
        all_at_once(&world, &pool, session).await;
        pool.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_calls_that_are_given_up_midway_leave_the_pool_whole() {
    const CALLS: u64 = 10_000;
    let world = World::new().await;
    let new = NewSession {
        worker: "pool".into(),
        build: String::new(),
        queues: Vec::new(),
        claim_keys: Vec::new(),
    };
    let session = session::open(&world.database, &new).await.unwrap();
    let pool = Arc::new(
        Database::new(DatabaseConfig {
            connections: CONNECTIONS as u32,
            ..world.database_config()
        })
        .unwrap(),
    );
    let calls = futures::stream::iter(0..CALLS).map(|number| {
        let pool = Arc::clone(&pool);
        async move {
            let patience = Duration::from_micros(number * 37 % 1_500);
            tokio::time::timeout(patience, pool.now()).await.is_err()
        }
    });
    let given_up: Vec<bool> = calls.buffer_unordered(20).collect().await;
    let given_up = given_up.into_iter().filter(|given_up| *given_up).count();
    assert!(given_up > 100, "only {given_up} calls were given up");
    until("the pool answers", async || pool.now().await.ok()).await;
    all_at_once(&world, &pool, session).await;
    pool.close().await;
}

/// Uses all connections at the same time: each waits for a row that is held.
async fn all_at_once(world: &World, pool: &Arc<Database>, session: Uuid) {
    let mut holder = Held::begin(world).await;
    holder.close(session).await;
    let beats = (0..CONNECTIONS).map(|_| {
        let pool = Arc::clone(pool);
        tokio::spawn(async move { session::beat(&pool, session).await.map(|_| ()) })
    });
    let beats: Vec<_> = beats.collect();
    let mut waits = Waits::new(world).await;
    waits.behind(holder.pid(), CONNECTIONS).await;
    holder.roll_back().await;
    for beat in beats {
        beat.await.unwrap().unwrap();
    }
}
