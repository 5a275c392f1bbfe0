//! Residents: whatever becomes of the workers, one of them holds each, and what was written by it is written once.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use continuum_bus::Bus;
use continuum_examples::also_bought::{self, Ask, Edge, Purchase, Recorded, Reply, Store};
use continuum_schema::resident::{self, Seat};
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Database, Name};
use continuum_tests::{
    PATIENCE, ProcessSettings, Proxy, WorkerProcess, World, port_of, postgres_on_a_port, serve,
    servers, until, until_ready,
};
use continuum_worker::dev::{NatsOptions, PrivateNats, PrivatePostgres};
use continuum_worker::prelude::*;
use continuum_worker::{
    BoxError, BusSource, Client, Limits, Resident, ResidentContext, ResidentError, Worker,
    WorkerConfig, WorkerState,
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::sync::Semaphore;

/// The test that is a process with the rude resident.
const RUDE_PROCESS: &str = "residents::rude_process";

/// The test that is a process with the graph.
const GRAPH_PROCESS: &str = "residents::graph_process";

/// The resident that most of these tests are about.
const PROBE: &str = "probe";

/// An interval that no test waits for: whatever happens in time happened for another reason.
const NEVER: Duration = Duration::from_secs(600);

/// What became of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Built(String),
    Ready,
    Stopped,
    Dropped(String),
}

/// What the probes of one test share.
struct Fleet {
    events: Mutex<Vec<Event>>,
    alive: AtomicU32,
    most_alive: AtomicU32,
    /// What fails or waits while it is built: a permit lets one build pass.
    gate: Semaphore,
}

impl Fleet {
    fn new() -> Arc<Self> {
        Self::with_gate(Semaphore::MAX_PERMITS)
    }

    fn with_gate(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            events: Mutex::default(),
            alive: AtomicU32::new(0),
            most_alive: AtomicU32::new(0),
            gate: Semaphore::new(permits),
        })
    }

    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    fn count(&self, is_counted: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|e| is_counted(e)).count()
    }

    fn builds(&self) -> usize {
        self.count(|e| matches!(e, Event::Built(_)))
    }

    /// A worker of this fleet can hold the probe.
    fn registry(self: &Arc<Self>, worker: &str) -> Registry {
        let (fleet, worker) = (Arc::clone(self), worker.to_owned());
        Registry::new().resident(PROBE, move |ctx| {
            Probe::build(Arc::clone(&fleet), worker.clone(), ctx)
        })
    }

    /// Each term began after the one before had ended, and ended in order.
    fn assert_orderly(&self) {
        let events = self.events();
        for term in events.chunks(4) {
            let [Event::Built(worker), rest @ ..] = term else {
                panic!("a term began within another one: {events:?}")
            };
            let whole = [Event::Ready, Event::Stopped, Event::Dropped(worker.clone())];
            assert!(whole.starts_with(rest), "{events:?}");
        }
        assert_eq!(self.most_alive.load(Ordering::SeqCst), 1);
    }
}

/// A resident that tells who holds it, and does what it is told.
struct Probe {
    fleet: Arc<Fleet>,
    worker: String,
    ctx: ResidentContext,
}

#[derive(Serialize, Deserialize)]
enum Order {
    Tell,
    Fail,
    Panic,
    Wait,
    Resign,
    Fill(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    worker: String,
    token: i64,
    filling: String,
}

impl Probe {
    async fn build(
        fleet: Arc<Fleet>,
        worker: String,
        ctx: ResidentContext,
    ) -> Result<Self, BoxError> {
        let pass = fleet.gate.acquire().await?;
        pass.forget();
        fleet.note(Event::Built(worker.clone()));
        let alive = fleet.alive.fetch_add(1, Ordering::SeqCst) + 1;
        fleet.most_alive.fetch_max(alive, Ordering::SeqCst);
        Ok(Self { fleet, worker, ctx })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.fleet.alive.fetch_sub(1, Ordering::SeqCst);
        self.fleet.note(Event::Dropped(self.worker.clone()));
    }
}

impl Resident for Probe {
    type Request = Order;
    type Response = Told;

    async fn on_ready(&self) -> Result<(), BoxError> {
        self.fleet.note(Event::Ready);
        Ok(())
    }

    async fn handle(&self, order: Order) -> Result<Told, BoxError> {
        let mut filling = String::new();
        match order {
            Order::Tell => {}
            Order::Fail => return Err("as it was told".into()),
            Order::Panic => panic!("as it was told"),
            Order::Wait => std::future::pending().await,
            Order::Resign => self.ctx.resign("as it was told"),
            Order::Fill(bytes) => filling = "x".repeat(bytes),
        }
        Ok(Told {
            worker: self.worker.clone(),
            token: self.ctx.token(),
            filling,
        })
    }

    async fn on_stop(&self) {
        self.fleet.note(Event::Stopped);
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

async fn tell(client: &Client) -> Result<Told, ResidentError> {
    let asked = client.resident(PROBE).request(&Order::Tell);
    asked.within(PATIENCE).repeatable().await
}

async fn seat(database: &Database, resident: &str) -> Seat {
    let seats = resident::look(database, &[name(resident)]).await.unwrap();
    seats.into_iter().next().unwrap()
}

/// Nothing but hints and the end of a session can bring a resident to such a worker in the time of a test.
fn deaf_to_time(world: &World) -> WorkerConfig {
    WorkerConfig {
        resident_interval: NEVER,
        session_ttl: Duration::from_secs(60),
        ..world.worker_config()
    }
}

fn quick(world: &World) -> WorkerConfig {
    WorkerConfig {
        resident_interval: Duration::from_millis(100),
        ..world.worker_config()
    }
}

// ---- one holder -----------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn ten_workers_that_boot_at_once_build_one_and_hand_it_over_as_they_leave() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let boots = (0..10).map(|number| {
        let mut config = deaf_to_time(&world);
        config.database.connections = 3;
        Worker::start(fleet.registry(&number.to_string()), config)
    });
    let mut workers = Vec::new();
    for worker in futures::future::join_all(boots).await {
        workers.push(worker.unwrap());
    }
    for worker in &workers {
        until_ready(worker).await;
    }
    let client = world.client().await;
    let mut token = 0;
    for round in 1..=10 {
        let told = tell(&client).await.unwrap();
        assert!(told.token > token, "a later term has a higher token");
        token = told.token;
        for worker in &workers {
            assert_eq!(
                tell(&worker.client()).await.unwrap(),
                told,
                "all find the same"
            );
        }
        assert_eq!(fleet.builds(), round);

        let holder = seat(&world.database, PROBE).await.holder.unwrap().0;
        let at = workers
            .iter()
            .position(|worker| worker.status().borrow().session == Some(holder));
        let leaving = workers.remove(at.unwrap());
        let since = Instant::now();
        leaving.stop().await;
        if !workers.is_empty() {
            tell(&client).await.unwrap();
            let took = since.elapsed();
            assert!(took < Duration::from_secs(3), "the hand-over took {took:?}");
        }
    }
    fleet.assert_orderly();
    assert_eq!(fleet.count(|e| *e == Event::Stopped), 10);
    assert!(seat(&world.database, PROBE).await.is_free);
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_claims_at_once_postgres_grants_one() {
    let world = World::new().await;
    let mut sessions = Vec::new();
    for number in 0..8 {
        let new = NewSession {
            worker: number.to_string(),
            build: "test".into(),
            queues: Vec::new(),
            claim_keys: Vec::new(),
        };
        sessions.push(session::open(&world.database, &new).await.unwrap());
    }
    let (probe, mut last) = (name(PROBE), 0);
    for _ in 0..20 {
        let claims = sessions
            .iter()
            .map(|session| resident::claim(&world.database, *session, &probe));
        let claims = futures::future::join_all(claims).await;
        let granted: Vec<_> = sessions
            .iter()
            .zip(claims)
            .filter_map(|(session, claim)| claim.unwrap().map(|token| (*session, token)))
            .collect();
        let [(session, token)] = granted[..] else {
            panic!("not one: {granted:?}")
        };
        assert!(token > last);
        last = token;
        assert_eq!(
            seat(&world.database, PROBE).await.holder,
            Some((session, token))
        );
        let release = |token| resident::release(&world.database, session, &probe, token);
        assert!(!release(token - 1).await.unwrap(), "of an earlier term");
        assert!(release(token).await.unwrap());
        assert!(!release(token).await.unwrap(), "twice");
    }

    // A session that is over takes nothing, and holds nothing.
    let claimed = resident::claim(&world.database, sessions[0], &probe).await;
    assert!(claimed.unwrap().is_some());
    session::close(&world.database, sessions[0], None, "test")
        .await
        .unwrap();
    assert!(seat(&world.database, PROBE).await.is_free);
    let refused = resident::claim(&world.database, sessions[0], &probe).await;
    assert!(matches!(
        refused,
        Err(continuum_schema::Error::SessionClosed)
    ));
    let next = resident::claim(&world.database, sessions[1], &probe).await;
    assert!(next.unwrap().is_some_and(|token| token > last));
    world.finish([]).await;
}

/// As after a split, or an operator's hand: the row names another session although this one is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_row_names_another_reaps_its_own_within_two_looks() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let config = quick(&world);
    let interval = config.resident_interval;
    let worker = world.worker_with(fleet.registry("zombie"), config).await;
    let client = world.client().await;
    let told = tell(&client).await.unwrap();

    let new = NewSession {
        worker: "other".into(),
        build: "test".into(),
        queues: Vec::new(),
        claim_keys: Vec::new(),
    };
    let other = session::open(&world.database, &new).await.unwrap();
    let (holder, token) = seat(&world.database, PROBE).await.holder.unwrap();
    let probe = name(PROBE);
    assert!(
        resident::release(&world.database, holder, &probe, token)
            .await
            .unwrap()
    );
    // The holder itself may be quicker; then the row is taken from it again.
    let since = Instant::now();
    resident::claim(&world.database, other, &probe)
        .await
        .unwrap();
    let dropped = || async {
        fleet
            .events()
            .contains(&Event::Dropped("zombie".into()))
            .then_some(())
    };
    until("the zombie drops what it held", dropped).await;
    let took = since.elapsed();
    assert!(
        took < interval * 3 + Duration::from_secs(1),
        "it took {took:?}"
    );
    assert_eq!(
        fleet.count(|e| *e == Event::Stopped),
        0,
        "it has no say any more"
    );

    // The other one never beats, so it is found dead, and the resident comes back.
    let again = tell(&client).await.unwrap();
    assert!(again.token > told.token);
    fleet_of_one(&fleet);
    world.finish([worker]).await;
}

fn fleet_of_one(fleet: &Fleet) {
    assert_eq!(fleet.most_alive.load(Ordering::SeqCst), 1);
}

// ---- processes that die or halt -------------------------------------------------------------------------------------

fn note(path: &Path, line: &str) {
    let mut log = OpenOptions::new().append(true).open(path).unwrap();
    // One write of one line: lines of several processes don't mix.
    log.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// A resident that goes on writing whatever happens to it, as code that listens to nothing does.
struct Rude {
    log: std::path::PathBuf,
    worker: String,
    token: i64,
}

impl Rude {
    async fn build(
        settings: ProcessSettings,
        store: Store,
        ctx: ResidentContext,
    ) -> Result<Self, BoxError> {
        store.create().await?;
        store.raise_fence(ctx.token()).await?;
        let rude = Self {
            log: settings.log.clone(),
            worker: settings.name.clone(),
            token: ctx.token(),
        };
        rude.note("built");
        let (log, worker, token) = (rude.log.clone(), rude.worker.clone(), rude.token);
        tokio::spawn(async move {
            for number in 0.. {
                let purchase = Purchase {
                    id: format!("{token}/{number}"),
                    customer: worker.clone(),
                    item: "bread".into(),
                    quantity: 1,
                };
                if let Ok(recorded) = store.record(token, &purchase).await {
                    note(&log, &format!("{worker} {token} {recorded:?}"));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Ok(rude)
    }

    fn note(&self, what: &str) {
        note(&self.log, &format!("{} {} {what}", self.worker, self.token));
    }
}

impl Drop for Rude {
    fn drop(&mut self) {
        self.note("dropped");
    }
}

impl Resident for Rude {
    type Request = Order;
    type Response = Told;

    async fn handle(&self, _: Order) -> Result<Told, BoxError> {
        Ok(Told {
            worker: self.worker.clone(),
            token: self.token,
            filling: String::new(),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rude_process() {
    let Some(settings) = ProcessSettings::of_this_process() else {
        return;
    };
    let store = Store::new(&settings.postgres_url, name(&settings.instance)).unwrap();
    let registry = Registry::new().resident(PROBE, move |ctx| {
        Rude::build(settings.clone(), store.clone(), ctx)
    });
    serve(registry).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_process() {
    let Some(settings) = ProcessSettings::of_this_process() else {
        return;
    };
    let store = Store::new(&settings.postgres_url, name(&settings.instance)).unwrap();
    serve(also_bought::registry(store)).await;
}

/// Waits until the log holds a line of this worker with this word; its token.
async fn until_noted(log: &Path, worker: &str, word: &str) -> i64 {
    let look = || async {
        let text = std::fs::read_to_string(log).unwrap();
        text.lines().find_map(|line| {
            let [by, token, what] = line.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            (by == worker && what == word).then(|| token.parse().unwrap())
        })
    };
    until(&format!("{worker} notes {word}"), look).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holders_resident_is_built_elsewhere_long_before_its_session_times_out() {
    let world = World::new().await;
    let log = NamedTempFile::new().unwrap();
    let settings = ProcessSettings::new(&world, "first", log.path());
    let mut first = WorkerProcess::start(RUDE_PROCESS, &settings);
    first.session().await;
    let client = world.client().await;
    let told = tell(&client).await.unwrap();
    assert_eq!(told.worker, "first");
    let mut second = WorkerProcess::start(
        RUDE_PROCESS,
        &ProcessSettings {
            name: "second".into(),
            ..settings.clone()
        },
    );
    second.session().await;

    let died = Instant::now();
    first.kill().await;
    let moved = tell(&client).await.unwrap();
    assert_eq!(moved.worker, "second");
    assert!(moved.token > told.token);
    let took = died.elapsed();
    assert!(took < settings.session_ttl / 2, "it took {took:?}");
    second.kill().await;
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_halted_beyond_its_lease_reaps_its_own_and_its_late_writes_are_refused() {
    let world = World::new().await;
    let log = NamedTempFile::new().unwrap();
    let settings = ProcessSettings {
        session_ttl: Duration::from_millis(1_500),
        ..ProcessSettings::new(&world, "first", log.path())
    };
    let mut first = WorkerProcess::start(RUDE_PROCESS, &settings);
    first.session().await;
    let old = until_noted(log.path(), "first", "New").await;
    let client = world.client().await;
    assert_eq!(tell(&client).await.unwrap().worker, "first");
    let mut second = WorkerProcess::start(
        RUDE_PROCESS,
        &ProcessSettings {
            name: "second".into(),
            ..settings.clone()
        },
    );
    second.session().await;
    first.pause();
    let new = until_noted(log.path(), "second", "New").await;
    assert!(new > old);
    assert_eq!(tell(&client).await.unwrap().worker, "second");

    let woke = Instant::now();
    first.resume();
    // Who knows of the second one never hears the first again, though it may believe for a moment that it holds it.
    let asking = async {
        loop {
            assert_eq!(tell(&client).await.unwrap().token, new);
        }
    };
    tokio::select! {
        () = asking => {}
        _ = until_noted(log.path(), "first", "dropped") => {}
    }
    let took = woke.elapsed();
    // Two looks, and a moment for two busy processes.
    assert!(
        took < settings.resident_interval * 3 + Duration::from_secs(1),
        "it took {took:?}"
    );
    until_noted(log.path(), "first", "Refused").await;
    let text = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let refused = lines.iter().position(|line| line.ends_with("Refused"));
    let later = &lines[refused.unwrap()..];
    assert!(
        !later.contains(&&*format!("first {old} New")),
        "a zombie wrote: {later:?}"
    );
    // It works on, and stands ready again.
    first.session().await;
    second.kill().await;
    let back = tell(&client).await.unwrap();
    assert_eq!(back.worker, "first");
    assert!(back.token > new);
    first.kill().await;
    world.finish([]).await;
}

/// The process lives and answers pings; only its way to Postgres is cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_from_postgres_drops_it_before_another_may_take_it() {
    let postgres = PrivatePostgres::start(postgres_on_a_port()).await.unwrap();
    let front = Proxy::to(port_of(&postgres)).await;
    let world = World::at(&postgres.url(), servers().await.nats.url());
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let fleet = Fleet::new();
    let mut behind = quick(&world);
    behind.database.url = front.postgres_url();
    behind.database.statement_timeout = Duration::from_secs(1);
    behind.database.acquire_timeout = Duration::from_secs(1);
    let cut_off = world.worker_with(fleet.registry("cut off"), behind).await;
    let client = world.client().await;
    let told = tell(&client).await.unwrap();
    let other = world
        .worker_with(fleet.registry("other"), quick(&world))
        .await;

    front.hole();
    let built = || async { (fleet.builds() == 2).then_some(()) };
    until("the other worker takes it", built).await;
    let events = fleet.events();
    let began = [
        Event::Built("cut off".into()),
        Event::Ready,
        Event::Dropped("cut off".into()),
        Event::Built("other".into()),
    ];
    assert_eq!(events[..4], began, "dropped first, and without a last word");
    let moved = tell(&client).await.unwrap();
    assert_eq!(moved.worker, "other");
    assert!(moved.token > told.token);

    // It comes back, and leaves the other one alone.
    front.forward();
    until_ready(&cut_off).await;
    other.stop().await;
    assert_eq!(tell(&client).await.unwrap().worker, "cut off");
    fleet_of_one(&fleet);
    world.finish([cut_off]).await;
}

// ---- the author's code ----------------------------------------------------------------------------------------------

/// A resident that can't be built by some.
fn stubborn(fleet: &Arc<Fleet>, worker: &str, failures: u32) -> Registry {
    let (fleet, worker) = (Arc::clone(fleet), worker.to_owned());
    let tries = Arc::new(AtomicU32::new(0));
    Registry::new().resident(PROBE, move |ctx: ResidentContext| {
        let (fleet, worker, tries) = (Arc::clone(&fleet), worker.clone(), Arc::clone(&tries));
        async move {
            match tries.fetch_add(1, Ordering::SeqCst) {
                tried if tried >= failures => Probe::build(fleet, worker, ctx).await,
                tried if tried % 2 == 0 => Err("the source of truth is away".into()),
                _ => panic!("the source of truth is odd"),
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_or_panics_is_contained_and_another_worker_takes_over() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let broken = world
        .worker_with(stubborn(&fleet, "broken", u32::MAX), deaf_to_time(&world))
        .await;
    let client = world.client().await;
    // It has been taken, and given back.
    let given_back = || async {
        let seat = seat(&world.database, PROBE).await;
        (seat.is_free && seat.since.is_some()).then_some(())
    };
    until("the broken worker gives it back", given_back).await;
    let sound = world
        .worker_with(fleet.registry("sound"), deaf_to_time(&world))
        .await;
    assert_eq!(tell(&client).await.unwrap().worker, "sound");
    assert_eq!(broken.status().borrow().state, WorkerState::Ready);
    world.finish([broken, sound]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_is_tried_again_by_the_only_worker_there_is() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let worker = world
        .worker_with(stubborn(&fleet, "only", 4), deaf_to_time(&world))
        .await;
    assert_eq!(tell(&world.client().await).await.unwrap().worker, "only");
    assert_eq!(fleet.builds(), 1);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_request_fails_it_and_the_state_is_built_anew() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let worker = world
        .worker_with(fleet.registry("one"), quick(&world))
        .await;
    let client = world.client().await;
    let before = tell(&client).await.unwrap();
    let probe = client.resident(PROBE);
    let failed = probe.request::<Told>(&Order::Fail).await;
    assert_eq!(failed, Err(ResidentError::Failed("as it was told".into())));
    assert_eq!(
        tell(&client).await.unwrap(),
        before,
        "an error is an answer"
    );

    let panicked = probe.request::<Told>(&Order::Panic).await;
    let Err(ResidentError::Failed(text)) = panicked else {
        panic!("{panicked:?}")
    };
    assert!(text.contains("panicked: as it was told"), "{text}");
    let after = || async {
        tell(&client)
            .await
            .ok()
            .filter(|told| told.token > before.token)
    };
    until("it is built anew", after).await;
    assert_eq!(
        fleet.count(|e| *e == Event::Stopped),
        0,
        "a torn state has no last word"
    );
    assert_eq!(worker.status().borrow().state, WorkerState::Ready);
    fleet_of_one(&fleet);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resident_that_resigns_ends_in_order_and_is_built_anew() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let worker = world
        .worker_with(fleet.registry("one"), deaf_to_time(&world))
        .await;
    let client = world.client().await;
    let before = client
        .resident(PROBE)
        .request::<Told>(&Order::Resign)
        .await
        .unwrap();
    let after = || async {
        tell(&client)
            .await
            .ok()
            .filter(|told| told.token > before.token)
    };
    until("it is built anew", after).await;
    fleet.assert_orderly();
    assert_eq!(fleet.count(|e| *e == Event::Stopped), 1);
    world.finish([worker]).await;
}

// ---- requests -------------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn a_request_says_whether_nobody_was_there_or_not_ready_or_silent() {
    let (world, fleet) = (World::new().await, Fleet::with_gate(0));
    let short = Duration::from_millis(400);
    let client = world.client().await;
    let ask = |name: &str, order: Order| {
        let asked = client.resident(name).request::<Told>(&order);
        asked.within(short).into_future()
    };
    let nobody = ResidentError::NotHeld {
        name: "nobody".into(),
        after: short,
    };
    assert_eq!(ask("nobody", Order::Tell).await, Err(nobody));
    let odd = ask("no.body", Order::Tell).await;
    assert!(matches!(odd, Err(ResidentError::Invalid(_))), "{odd:?}");

    let worker = world
        .worker_with(fleet.registry("one"), deaf_to_time(&world))
        .await;
    let held = || async { seat(&world.database, PROBE).await.holder };
    until("the worker takes it", held).await;
    let not_ready = ask(PROBE, Order::Tell).await;
    let wanted = ResidentError::NotReady {
        name: PROBE.into(),
        after: short,
    };
    assert_eq!(not_ready, Err(wanted));

    // Who waits long enough is answered when it is ready.
    let patient = tokio::spawn({
        let client = client.clone();
        async move { tell(&client).await }
    });
    fleet.gate.add_permits(1);
    assert_eq!(patient.await.unwrap().unwrap().worker, "one");

    let silent = ask(PROBE, Order::Wait).await;
    assert!(
        matches!(silent, Err(ResidentError::TimedOut { .. })),
        "{silent:?}"
    );
    let wrong = client.resident(PROBE).request::<Told>(&17).await;
    assert!(matches!(wrong, Err(ResidentError::Invalid(_))), "{wrong:?}");
    let unlike = client.resident(PROBE).request::<u64>(&Order::Tell).await;
    assert!(
        matches!(unlike, Err(ResidentError::Invalid(_))),
        "{unlike:?}"
    );
    for bytes in [600 << 10, 2 << 20] {
        let large = ask(PROBE, Order::Fill(bytes)).await;
        assert!(
            matches!(large, Err(ResidentError::TooLarge(_))),
            "{large:?}"
        );
    }
    let large = client.resident(PROBE).request::<Told>(&"x".repeat(2 << 20));
    let large = large.await;
    assert!(
        matches!(large, Err(ResidentError::TooLarge(_))),
        "{large:?}"
    );
    assert_eq!(fleet.builds(), 1, "no request harmed it");
    world.finish([worker]).await;
}

async fn foreign(nats: &async_nats::Client, subject: &str, body: &'static str) -> Value {
    let answer = nats.request(subject.to_owned(), body.into()).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_any_language_asks_in_json_and_is_answered_in_json() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let worker = world
        .worker_with(fleet.registry("one"), quick(&world))
        .await;
    let token = tell(&world.client().await).await.unwrap().token;
    let nats = async_nats::connect(world.nats_url()).await.unwrap();
    let anybody = format!("continuum.{}.resident.{PROBE}", world.instance);
    assert_eq!(
        foreign(&nats, &anybody, "").await,
        json!({ "token": token })
    );
    let told = json!({"token": token, "result": {"worker": "one", "token": token, "filling": ""}});
    assert_eq!(foreign(&nats, &anybody, r#""Tell""#).await, told);
    let holder = format!("{anybody}.{token}");
    assert_eq!(foreign(&nats, &holder, r#""Tell""#).await, told);
    for (body, code) in [
        ("nonsense", "invalid"),
        ("17", "invalid"),
        (r#""Fail""#, "failed"),
    ] {
        let answer = foreign(&nats, &anybody, body).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_eq!(answer["token"], token);
    }
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bus_inside_the_process_reaches_residents_too() {
    let (world, fleet) = (World::new().await, Fleet::new());
    let Bus::Memory(hub) = Bus::memory() else {
        unreachable!("it was asked for")
    };
    let shared = || BusSource::Shared(Bus::Memory(hub.join()));
    let mut workers = Vec::new();
    for number in 0..2 {
        let config = WorkerConfig {
            bus: shared(),
            ..quick(&world)
        };
        let registry = fleet.registry(&number.to_string());
        workers.push(world.worker_with(registry, config).await);
    }
    let client = Client::connect(
        &world.instance,
        world.database_config(),
        shared(),
        Limits::default(),
    );
    let client = client.await.unwrap();
    let told = tell(&client).await.unwrap();
    let leaving = workers.remove(told.worker.parse().unwrap());
    leaving.stop().await;
    assert_ne!(tell(&client).await.unwrap().worker, told.worker);
    fleet.assert_orderly();
    world.finish(workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_one_worker_holds_it_and_when_nats_returns_it_is_asked_again() {
    let mut nats = PrivateNats::start(NatsOptions::default()).await.unwrap();
    let shared = servers().await;
    let world = World::at(&shared.postgres.url(), nats.url());
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let fleet = Fleet::new();
    let first = world
        .worker_with(fleet.registry("first"), quick(&world))
        .await;
    let client = world.client().await;
    let told = tell(&client).await.unwrap();

    nats.kill().await;
    let asked = client.resident(PROBE).request::<Told>(&Order::Tell);
    let unreachable = asked.within(Duration::from_millis(500)).await;
    assert!(
        matches!(
            unreachable,
            Err(ResidentError::Unavailable(_) | ResidentError::TimedOut { .. })
        ),
        "{unreachable:?}"
    );
    nats.restart().await.unwrap();
    assert_eq!(tell(&client).await.unwrap(), told, "nothing was built anew");

    // No hint arrives now: who takes over looks by itself.
    let second = world
        .worker_with(fleet.registry("second"), quick(&world))
        .await;
    nats.kill().await;
    first.stop().await;
    let built = || async { (fleet.builds() == 2).then_some(()) };
    until("the second worker takes over without a word", built).await;
    nats.restart().await.unwrap();
    assert_eq!(tell(&client).await.unwrap().worker, "second");
    fleet.assert_orderly();
    world.finish([second]).await;
}

// ---- the registry ---------------------------------------------------------------------------------------------------

#[test]
fn names_that_are_taken_reserved_or_impossible_are_refused_at_registration() {
    let fleet = Fleet::new();
    let refusal = |registering: &dyn Fn() -> Registry| {
        let refused = catch_unwind(AssertUnwindSafe(registering));
        let panic = refused.err().expect("it is refused");
        panic.downcast_ref::<String>().unwrap().clone()
    };
    let named = |name: &'static str| {
        let fleet = Arc::clone(&fleet);
        Registry::new().resident(name, move |ctx| {
            Probe::build(Arc::clone(&fleet), String::new(), ctx)
        })
    };
    let twice = refusal(&|| fleet.registry("a").merge(fleet.registry("b")));
    assert!(twice.contains("`probe` is taken twice"), "{twice}");
    let reserved = refusal(&|| named("continuum-partitions"));
    assert!(reserved.contains("begins with `continuum-`"), "{reserved}");
    let odd = refusal(&|| named("also.bought"));
    assert!(odd.contains("holds '.'"), "{odd}");
    drop(named("also_bought").merge(fleet.registry("a")));
}

// ---- the engine's own -----------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_of_the_fleet_cares_for_the_partitions() {
    let world = World::new().await;
    let months = world.months().await;
    let first = world.worker_with(Registry::new(), quick(&world)).await;
    let held = || async { seat(&world.database, "continuum-partitions").await.holder };
    let holder = until("the first worker has the duty", held).await;
    assert_eq!(Some(holder.0), first.status().borrow().session);
    let client = world.client().await;
    let () = client
        .resident("continuum-partitions")
        .request(&())
        .await
        .unwrap();
    let second = world.worker_with(Registry::new(), quick(&world)).await;

    world.drop_last_month().await;
    assert_eq!(world.months().await, months - 1);
    first.stop().await;
    let made = || async { (world.months().await == months).then_some(()) };
    until("who takes the duty looks at once", made).await;
    let holder = seat(&world.database, "continuum-partitions").await.holder;
    assert_eq!(holder.map(|h| h.0), second.status().borrow().session);
    world.finish([second]).await;
}

// ---- the example ----------------------------------------------------------------------------------------------------

/// Purchases of a test, and what they add up to.
#[derive(Default)]
struct Purchases {
    made: u32,
    sums: BTreeMap<(String, String), u64>,
}

impl Purchases {
    fn next(&mut self) -> Purchase {
        let number = self.made;
        self.made += 1;
        let purchase = Purchase {
            id: number.to_string(),
            customer: format!("customer-{}", number % 7),
            item: format!("item-{}", number % 11),
            quantity: 1 + number % 3,
        };
        let edge = (purchase.customer.clone(), purchase.item.clone());
        *self.sums.entry(edge).or_default() += u64::from(purchase.quantity);
        purchase
    }

    fn edges(&self) -> Vec<Edge> {
        let edges = self.sums.iter().map(|((customer, item), weight)| Edge {
            customer: customer.clone(),
            item: item.clone(),
            weight: *weight,
        });
        edges.collect()
    }
}

/// Reports it until it is told that it counts.
async fn report(client: &Client, purchase: Purchase) {
    let reported = || async { also_bought::bought(client, purchase.clone()).await.ok() };
    until("a purchase is counted", reported).await;
}

/// Every purchase is reported at least once, some twice, while holders are killed and halted.
#[tokio::test(flavor = "multi_thread")]
async fn no_weight_is_summed_twice_through_boots_kills_and_splits() {
    const ROUNDS: usize = 6;
    let world = World::new().await;
    let store = Store::new(&world.database_config().url, world.instance.clone()).unwrap();
    let log = NamedTempFile::new().unwrap();
    let client = world.client().await;
    let mut purchases = Purchases::default();
    let mut processes: Vec<(uuid::Uuid, WorkerProcess)> = Vec::new();
    let mut halted: Vec<WorkerProcess> = Vec::new();
    for round in 0..ROUNDS {
        // All that is missing boots at once.
        let mut booting = Vec::new();
        while processes.len() + booting.len() < 3 {
            let settings = ProcessSettings {
                session_ttl: Duration::from_millis(1_500),
                ..ProcessSettings::new(&world, format!("{round}-{}", booting.len()), log.path())
            };
            booting.push(WorkerProcess::start(GRAPH_PROCESS, &settings));
        }
        for mut process in booting {
            processes.push((process.session().await, process));
        }

        let batch: Vec<Purchase> = (0..120).map(|_| purchases.next()).collect();
        let reporting = batch.chunks(30).map(|part| {
            let client = client.clone();
            async move {
                for purchase in part {
                    report(&client, purchase.clone()).await;
                    if purchase.id.ends_with('7') {
                        report(&client, purchase.clone()).await;
                    }
                }
            }
        });
        let disturbing = async {
            let some = || async {
                let counted = also_bought::edges(&client).await.ok()?;
                let done: u64 = counted.iter().map(|edge| edge.weight).sum();
                let before = purchases
                    .edges()
                    .iter()
                    .map(|edge| edge.weight)
                    .sum::<u64>();
                (done + 200 > before).then_some(())
            };
            until("some of the batch is counted", some).await;
            // Who was halted wakes beside the present holder, with requests of its own time still unread: the split.
            for mut process in halted.drain(..) {
                process.resume();
                processes.push((process.session().await, process));
            }
            let held = || async {
                let holder = seat(&world.database, also_bought::NAME).await.holder?.0;
                processes.iter().position(|(session, _)| *session == holder)
            };
            let (_, holder) = processes.remove(until("somebody holds it", held).await);
            if round % 2 == 0 {
                holder.pause();
                halted.push(holder);
            } else {
                holder.kill().await;
            }
        };
        tokio::join!(futures::future::join_all(reporting), disturbing);
        let truth = store.load().await.unwrap();
        assert_eq!(
            truth,
            purchases.edges(),
            "round {round}: each purchase is stored once"
        );
        assert_eq!(
            also_bought::edges(&client).await.unwrap(),
            truth,
            "round {round}"
        );
    }
    for process in processes
        .into_iter()
        .map(|(_, process)| process)
        .chain(halted)
    {
        process.kill().await;
    }
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_graph_answers_what_else_was_bought_and_refuses_an_earlier_holders_purchase() {
    let world = World::new().await;
    let store = Store::new(&world.database_config().url, world.instance.clone()).unwrap();
    let worker = world
        .worker_with(also_bought::registry(store.clone()), quick(&world))
        .await;
    let client = world.client().await;
    let purchase = |id: &str, customer: &str, item: &str| Purchase {
        id: id.into(),
        customer: customer.into(),
        item: item.into(),
        quantity: 1,
    };
    for (id, customer, item) in [
        ("1", "ada", "bread"),
        ("2", "ada", "butter"),
        ("3", "bob", "bread"),
        ("4", "bob", "butter"),
        ("5", "bob", "jam"),
    ] {
        let bought = purchase(id, customer, item);
        assert_eq!(also_bought::bought(&client, bought.clone()).await, Ok(1));
        assert_eq!(
            also_bought::bought(&client, bought).await,
            Ok(1),
            "a repetition"
        );
    }
    let items = also_bought::also_bought(&client, "bread").await.unwrap();
    assert_eq!(items, [("butter".to_owned(), 2), ("jam".to_owned(), 1)]);
    let nothing = Ask::Bought(Purchase {
        quantity: 0,
        ..purchase("6", "ada", "air")
    });
    let refused = client
        .resident(also_bought::NAME)
        .request::<Reply>(&nothing)
        .await;
    assert!(
        matches!(refused, Err(ResidentError::Failed(_))),
        "{refused:?}"
    );

    // Somebody with a later token writes: the holder is refused, resigns, and builds anew under a token later still.
    let token = seat(&world.database, also_bought::NAME)
        .await
        .holder
        .unwrap()
        .1;
    assert!(store.raise_fence(token + 1).await.unwrap());
    let late = store
        .record(token, &purchase("7", "ada", "jam"))
        .await
        .unwrap();
    assert_eq!(late, Recorded::Refused);
    report(&client, purchase("7", "ada", "jam")).await;
    assert!(
        seat(&world.database, also_bought::NAME)
            .await
            .holder
            .unwrap()
            .1
            > token
    );
    assert_eq!(
        also_bought::edges(&client).await.unwrap(),
        store.load().await.unwrap()
    );
    world.finish([worker]).await;
}
