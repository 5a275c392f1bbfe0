//! Faults that are promised to be survived: code that is missing, changed, panics or misbehaves; a damaged history; a
//! cancel at any moment; servers that are away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use continuum_bus::{Bus, BusConfig, BusStatus, Subjects};
use continuum_schema::event::Outcome;
use continuum_schema::lease::{self, ClaimKey};
use continuum_schema::run::RunState;
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Event, Name, Payload, migration};
use continuum_tests::{PATIENCE, World, until, until_ready};
use continuum_worker::dev::{NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};
use continuum_worker::error::kind;
use continuum_worker::prelude::*;
use continuum_worker::{
    BusSource, Client, ClientError, Limits, Worker, WorkerConfig, WorkerState, nondeterministic,
};

/// Longer than any test.
const FOREVER: Duration = Duration::from_secs(86_400);

/// How often something was really done.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Counter {
    fn up(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[workflow(version = 1)]
async fn healthy(_ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    Ok(number + 1)
}

/// The worker goes on as if nothing had been.
async fn still_works(client: &Client) {
    let run = client.start(healthy, 1).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 2);
}

fn failure(ended: Result<impl std::fmt::Debug, ClientError>) -> continuum_worker::RunFailure {
    match ended {
        Err(ClientError::Failed(failure)) => failure,
        other => panic!("not a failed run: {other:?}"),
    }
}

// ---- code that is missing or changed -------------------------------------------------------------------------------

#[workflow(version = 1)]
async fn late_to_the_party(_ctx: &WorkflowContext, text: String) -> Result<String, WorkflowError> {
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_no_worker_has_code_for_waits_visibly_and_starts_when_one_joins() {
    let world = World::new().await;
    let without = world.worker(registry![healthy]).await;
    let client = world.client().await;
    let session = without.status().borrow().session;
    let input = Payload::encode("at last").unwrap();
    let run = client
        .start_named("late_to_the_party", input)
        .await
        .unwrap();
    // Everybody has looked at what is due since.
    still_works(&client).await;
    still_works(&client).await;
    let seen = run.get().await.unwrap();
    assert_eq!(seen.state, RunState::Unserved);
    assert_eq!(
        (seen.worker, seen.blocked, seen.version_hash),
        (None, None, None)
    );
    assert!(world.history(run.run_id()).await.is_empty());
    assert_eq!(without.residents(), 0);
    assert_eq!(without.status().borrow().session, session);
    assert_eq!(without.status().borrow().state, WorkerState::Ready);

    let with = world.worker(registry![late_to_the_party]).await;
    let result = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(result.decode::<String>().unwrap(), "at last");
    world.finish([without, with]).await;
}

#[activity(queue = "drift")]
async fn pack(_ctx: ActivityContext, _input: ()) -> Result<String, ActivityError> {
    Ok("packed".to_owned())
}

#[activity(queue = "drift")]
async fn ship(_ctx: ActivityContext, _input: ()) -> Result<String, ActivityError> {
    Ok("shipped".to_owned())
}

/// The code as it was released first.
mod original {
    use super::*;

    #[workflow(version = 1)]
    pub(super) async fn deliver(
        ctx: &WorkflowContext,
        _input: (),
    ) -> Result<Vec<String>, WorkflowError> {
        let packed = ctx.activity(pack, ()).await?;
        let shipped = ctx.activity(ship, ()).await?;
        let signed: String = ctx.signal::<String>("signed").await?;
        Ok(vec![packed, shipped, signed])
    }
}

/// Claims to go on with runs of the original and can't: it ships first.
mod swapped {
    use super::*;

    #[workflow(version = 2, compatible = ["n1:3d494b23d285b0940a273e4eefd85d43"])]
    pub(super) async fn deliver(
        ctx: &WorkflowContext,
        _input: (),
    ) -> Result<Vec<String>, WorkflowError> {
        let shipped = ctx.activity(ship, ()).await?;
        let packed = ctx.activity(pack, ()).await?;
        let signed: String = ctx.signal::<String>("signed").await?;
        Ok(vec![packed, shipped, signed])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_drifts_is_blocked_alone_and_goes_on_with_the_code_that_it_knows() {
    let original_hash = <original::deliver as continuum_worker::Workflow>::HASH;
    assert!(
        <swapped::deliver as continuum_worker::Workflow>::COMPATIBLE.contains(&original_hash),
        "write {original_hash} into `compatible`"
    );
    let world = World::new().await;
    let client = world.client().await;
    let old = world.worker(registry![original::deliver, pack, ship]).await;
    let run = client.start(original::deliver, ()).await.unwrap();
    let events = until("both activities are done", || async {
        let history = world.history(run.run_id()).await;
        (history
            .iter()
            .filter(|e| e.name() == "activity_completed")
            .count()
            == 2)
            .then_some(history)
    })
    .await;
    old.stop().await;

    let new = world
        .worker(registry![swapped::deliver, pack, ship, healthy])
        .await;
    run.signal("signed", &"by Ada".to_owned()).await.unwrap();
    let blocked = world.until_blocked(run.run_id(), "drift").await;
    let (_, detail) = blocked.blocked.unwrap();
    let message = detail["message"].as_str().unwrap();
    for word in ["replay drift at seq 2", "pack", "ship", "faults.rs:"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(blocked.mail, 1, "the signal waits");
    assert_eq!(
        world.history(run.run_id()).await,
        events,
        "nothing was written"
    );
    // Others are not concerned, not even of the same workflow.
    still_works(&client).await;
    let other = client.start(swapped::deliver, ()).await.unwrap();
    other.signal("signed", &"by Bob".to_owned()).await.unwrap();
    assert_eq!(
        other.result_within(PATIENCE).await.unwrap(),
        ["packed", "shipped", "by Bob"]
    );
    new.stop().await;

    let old_again = world.worker(registry![original::deliver, pack, ship]).await;
    assert_eq!(
        run.result_within(PATIENCE).await.unwrap(),
        ["packed", "shipped", "by Ada"]
    );
    world.finish([old, new, old_again]).await;
}

/// Breaks down before it has written anything.
mod broken {
    use super::*;

    #[workflow(version = 1)]
    pub(super) async fn greet(
        _ctx: &WorkflowContext,
        _name: String,
    ) -> Result<String, WorkflowError> {
        panic!("there are no words yet")
    }
}

/// Says nothing of the broken code.
mod mended {
    use super::*;

    #[workflow(version = 2)]
    pub(super) async fn greet(
        _ctx: &WorkflowContext,
        name: String,
    ) -> Result<String, WorkflowError> {
        Ok(format!("hello {name}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_panicked_in_its_first_turn_is_bound_to_no_code_and_goes_on_with_any_other() {
    let world = World::new().await;
    let client = world.client().await;
    let old = world.worker(registry![broken::greet]).await;
    let run = client.start(broken::greet, "Ada".into()).await.unwrap();
    let blocked = world.until_blocked(run.run_id(), "panicked").await;
    assert_eq!(blocked.version_hash, None);
    assert!(world.history(run.run_id()).await.is_empty());
    old.stop().await;

    let new = world.worker(registry![mended::greet]).await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "hello Ada");
    world.finish([old, new]).await;
}

// ---- code that misbehaves ------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Where {
    Workflow,
    Step,
    Activity,
}

#[activity(queue = "panics", retry(max_attempts = 2, initial = "1ms"))]
async fn explode(_ctx: ActivityContext, text: String) -> Result<(), ActivityError> {
    panic!("{text}");
}

#[workflow(version = 1)]
async fn panics(
    ctx: &WorkflowContext,
    (place, text): (Where, String),
) -> Result<(), WorkflowError> {
    match place {
        Where::Workflow => panic!("{text}"),
        Where::Step => {
            ctx.step("explode", move || async move {
                if !text.is_empty() {
                    panic!("{text}");
                }
                Ok(())
            })
            .await?;
        }
        Where::Activity => ctx.activity(explode, text).await?,
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_step_or_an_activity_is_its_error_and_in_a_workflow_blocks_that_run() {
    let world = World::new().await;
    let worker = world.worker(registry![panics, explode, healthy]).await;
    let client = world.client().await;
    let session = worker.status().borrow().session;
    for text in ["boom", "a\0b 🦀"].map(str::to_owned) {
        for place in [Where::Step, Where::Activity] {
            let run = client.start(panics, (place, text.clone())).await.unwrap();
            let failure = failure(run.result_within(PATIENCE).await);
            assert_eq!(failure.kind(), kind::PANICKED, "{failure}");
            assert!(failure.message().contains(&text), "{failure}");
        }
        let run = client
            .start(panics, (Where::Workflow, text.clone()))
            .await
            .unwrap();
        let blocked = world.until_blocked(run.run_id(), "panicked").await;
        let (_, detail) = blocked.blocked.unwrap();
        let message = detail["message"].as_str().unwrap();
        assert!(
            message.contains(&text.replace('\0', "\u{fffd}")),
            "{message}"
        );
        still_works(&client).await;
        assert!(
            world.history(run.run_id()).await.is_empty(),
            "nothing of the turn was written"
        );
        assert!(
            run.cancel("it will never work").await.unwrap(),
            "a run without a history ends at once"
        );
    }
    assert_eq!(worker.status().borrow().session, session);
    world.finish([worker]).await;
}

#[workflow(version = 1)]
async fn strays(_ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    nondeterministic!("to see that it is caught", tokio::time::sleep(FOREVER)).await;
    Ok(())
}

#[workflow(version = 1)]
async fn spins(_ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_awaits_what_the_journal_knows_nothing_of_is_blocked() {
    let world = World::new().await;
    let worker = world.worker(registry![strays, spins, healthy]).await;
    let client = world.client().await;
    let stray = client.start(strays, ()).await.unwrap();
    let spinner = client.start(spins, ()).await.unwrap();
    for run in [&stray, &spinner] {
        let blocked = world.until_blocked(run.run_id(), "foreign").await;
        let (_, detail) = blocked.blocked.unwrap();
        assert!(!detail["message"].as_str().unwrap().is_empty());
    }
    still_works(&client).await;
    world.finish([worker]).await;
}

// ---- a damaged history ---------------------------------------------------------------------------------------------

/// Waits for the signal `go` after one event.
#[workflow(version = 1)]
async fn parks(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    let _: () = ctx.step("parked", || async { Ok(()) }).await?;
    let more: u64 = ctx.signal::<u64>("go").await?;
    Ok(number + more)
}

/// A worker that keeps no run in memory that only waits.
fn forgetful(world: &World) -> WorkerConfig {
    WorkerConfig {
        idle_max: Duration::from_millis(10),
        ..world.worker_config()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_history_is_damaged_is_blocked_with_its_position_and_others_go_on() {
    let world = World::new().await;
    let worker = world
        .worker_with(registry![parks, healthy], forgetful(&world))
        .await;
    let client = world.client().await;
    let sound = client.start(parks, 1).await.unwrap();
    let damaged = client.start(parks, 2).await.unwrap();
    let future = client.start(parks, 3).await.unwrap();
    for run in [&sound, &damaged, &future] {
        world.until_event(run.run_id(), "step_completed").await;
        world.until_state(run.run_id(), RunState::Waiting).await;
    }
    world.damage_event(damaged.run_id(), 2).await;
    world.future_event(future.run_id(), 2).await;
    for run in [&sound, &damaged, &future] {
        run.signal("go", &40).await.unwrap();
    }
    for (run, reason) in [
        (&damaged, "don't decode"),
        (&future, "kind 99 is unknown to this build"),
    ] {
        let blocked = world.until_blocked(run.run_id(), "corrupt").await;
        let (_, detail) = blocked.blocked.unwrap();
        assert_eq!(detail["seq"], 2, "{detail}");
        assert!(
            detail["message"].as_str().unwrap().contains(reason),
            "{detail}"
        );
        assert_eq!(blocked.mail, 1, "the signal waits");
    }
    assert_eq!(sound.result_within(PATIENCE).await.unwrap(), 41);
    still_works(&client).await;
    world.finish([worker]).await;
}

// ---- eviction ------------------------------------------------------------------------------------------------------

#[workflow(version = 1)]
async fn naps(ctx: &WorkflowContext, millis: u64) -> Result<u64, WorkflowError> {
    ctx.sleep(Duration::from_millis(millis)).await?;
    Ok(millis)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_leaves_memory_and_a_signal_or_its_timer_brings_it_back() {
    let world = World::new().await;
    let worker = world
        .worker_with(registry![parks, naps], forgetful(&world))
        .await;
    let client = world.client().await;
    let parked = client.start(parks, 1).await.unwrap();
    let napping = client.start(naps, 3_000).await.unwrap();
    let long = client
        .start(naps, u64::try_from(FOREVER.as_millis()).unwrap())
        .await
        .unwrap();
    for run in [parked.run_id(), napping.run_id(), long.run_id()] {
        let cold = world.until_state(run, RunState::Waiting).await;
        assert_eq!(cold.worker, None);
    }
    assert_eq!(worker.residents(), 0);
    assert!(napping.get().await.unwrap().next_timer_at.is_some());
    parked.signal("go", &1).await.unwrap();
    assert_eq!(parked.result_within(PATIENCE).await.unwrap(), 2);
    assert_eq!(napping.result_within(PATIENCE).await.unwrap(), 3_000);
    long.cancel("too long").await.unwrap();
    assert!(matches!(
        long.result_within(PATIENCE).await,
        Err(ClientError::Cancelled(_))
    ));
    world.finish([worker]).await;
}

// ---- cancel --------------------------------------------------------------------------------------------------------

#[activity(queue = "cleaning")]
async fn clean(ctx: ActivityContext, _input: ()) -> Result<u32, ActivityError> {
    Ok(ctx.state::<Counter>().up())
}

/// Sleeps for ever; cleans up when it is told to stop.
#[workflow(version = 1)]
async fn tidy_sleeper(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    let slept = ctx.sleep(FOREVER).await;
    assert!(ctx.is_cancelled());
    let refused = ctx.activity(clean, ()).await;
    assert!(refused.is_err(), "nothing new outside of a shield");
    ctx.shield(ctx.activity(clean, ())).await?;
    Ok(slept?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_nobody_has_begun_is_cancelled_without_a_worker() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(tidy_sleeper, ()).await.unwrap();
    let waiting = tokio::spawn({
        let run = run.clone();
        async move { run.result_within(PATIENCE).await }
    });
    assert!(run.cancel("changed my mind").await.unwrap());
    let ended = waiting.await.unwrap();
    assert!(
        matches!(&ended, Err(ClientError::Cancelled(why)) if why == "changed my mind"),
        "{ended:?}"
    );
    let seen = run.get().await.unwrap();
    assert_eq!(seen.state, RunState::Cancelled);
    assert!(seen.ended_at.is_some());
    let again = run.cancel("once more").await;
    assert!(
        matches!(again, Err(ClientError::Ended(id)) if id == run.run_id()),
        "{again:?}"
    );
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_run_wakes_at_a_cancel_cleans_up_under_its_shield_and_ends_cancelled() {
    let world = World::new().await;
    let cleaned = Counter::default();
    let worker = world
        .worker_with(
            registry![tidy_sleeper, clean].state(cleaned.clone()),
            forgetful(&world),
        )
        .await;
    let client = world.client().await;
    let resident = client.start(tidy_sleeper, ()).await.unwrap();
    world.until_event(resident.run_id(), "timer_started").await;
    let cold = client.start(tidy_sleeper, ()).await.unwrap();
    world.until_state(cold.run_id(), RunState::Waiting).await;
    for run in [&resident, &cold] {
        assert!(!run.cancel("closing time").await.unwrap());
        // A second request is no second cancel.
        drop(run.cancel("closing time").await);
        let ended = run.result_within(PATIENCE).await;
        assert!(
            matches!(&ended, Err(ClientError::Cancelled(why)) if why == "closing time"),
            "{ended:?}"
        );
        let names: Vec<&str> = world
            .history(run.run_id())
            .await
            .iter()
            .map(Event::name)
            .collect();
        let order = [
            "cancel_requested",
            "dropped",
            "activity_scheduled",
            "activity_completed",
            "cancelled",
        ];
        let found: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| order.contains(name))
            .collect();
        let first: Vec<&str> = order.to_vec();
        assert!(
            found.starts_with(&first[..2]) && found.ends_with(&first[2..]),
            "{names:?}"
        );
    }
    assert_eq!(cleaned.get(), 2);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_right_after_the_start_always_ends_the_run() {
    let world = World::new().await;
    let worker = world.worker(registry![naps]).await;
    let client = world.client().await;
    let forever = u64::try_from(FOREVER.as_millis()).unwrap();
    let cancels = (0..50_u64).map(|n| {
        let client = client.clone();
        async move {
            let run = client.start(naps, forever).await.unwrap();
            tokio::time::sleep(Duration::from_micros(n * 100)).await;
            run.cancel("at once").await.unwrap();
            let ended = run.result_within(PATIENCE).await;
            assert!(
                matches!(ended, Err(ClientError::Cancelled(_))),
                "run {}: {ended:?}",
                run.run_id()
            );
        }
    });
    futures::future::join_all(cancels).await;
    world.finish([worker]).await;
}

// ---- activities ----------------------------------------------------------------------------------------------------

#[activity(
    queue = "slow",
    timeout = "100ms",
    retry(max_attempts = 3, initial = "1ms")
)]
async fn slow_until(ctx: ActivityContext, attempt: u32) -> Result<u32, ActivityError> {
    if ctx.attempt() < attempt {
        tokio::time::sleep(FOREVER).await;
    }
    Ok(ctx.attempt())
}

#[workflow(version = 1)]
async fn call_slow(ctx: &WorkflowContext, attempt: u32) -> Result<u32, WorkflowError> {
    Ok(ctx.activity(slow_until, attempt).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_takes_too_long_is_given_up_and_tried_again() {
    let world = World::new().await;
    let worker = world.worker(registry![call_slow, slow_until]).await;
    let client = world.client().await;
    let second = client.start(call_slow, 2).await.unwrap();
    assert_eq!(second.result_within(PATIENCE).await.unwrap(), 2);
    let never = client.start(call_slow, u32::MAX).await.unwrap();
    let failure = failure(never.result_within(PATIENCE).await);
    assert_eq!(failure.kind(), kind::TIMED_OUT, "{failure}");
    assert!(
        failure
            .message()
            .contains("attempt 3 of `slow_until` took longer than 100ms"),
        "{failure}"
    );
    world.finish([worker]).await;
}

#[derive(Debug, Serialize, Deserialize)]
enum PayError {
    Declined { code: u32 },
    Unreachable,
}

impl std::fmt::Display for PayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the payment failed: {self:?}")
    }
}

impl DomainError for PayError {
    fn retryable(&self) -> bool {
        matches!(self, Self::Unreachable)
    }
}

/// Nobody is reached at first, and then the card is declined, or what is given is paid.
#[activity(queue = "payments", retry(max_attempts = 5, initial = "1ms"))]
async fn pay(ctx: ActivityContext, cents: u32) -> Result<u32, PayError> {
    ctx.state::<Counter>().up();
    match (ctx.attempt(), cents) {
        (1, _) => Err(PayError::Unreachable),
        (_, 0) => Err(PayError::Declined { code: 51 }),
        (_, cents) => Ok(cents),
    }
}

#[workflow(version = 1)]
async fn check_out(ctx: &WorkflowContext, cents: u32) -> Result<Result<u32, u32>, WorkflowError> {
    match ctx.activity(pay, cents).await {
        Ok(paid) => Ok(Ok(paid)),
        Err(Failed::Domain(PayError::Declined { code })) => Ok(Err(code)),
        Err(other) => Err(other.into()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typed_error_reaches_the_workflow_and_says_whether_it_is_tried_again() {
    let world = World::new().await;
    let paid = Counter::default();
    let worker = world
        .worker(registry![check_out, pay].state(paid.clone()))
        .await;
    let client = world.client().await;
    let run = client.start(check_out, 0).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), Err(51));
    assert_eq!(paid.get(), 2, "unreachable is tried again, declined is not");
    let run = client.start(check_out, 7).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), Ok(7));
    assert_eq!(paid.get(), 4);
    world.finish([worker]).await;
}

#[activity(queue = "once", retry(max_attempts = 5, initial = "1ms"))]
async fn do_once(ctx: ActivityContext, fails: bool) -> Result<u32, ActivityError> {
    let count = ctx.state::<Counter>().up();
    if fails {
        return Err(ActivityError::permanent(
            "Refused",
            "no other attempt can help",
        ));
    }
    Ok(count)
}

#[workflow(version = 1)]
async fn keyed(ctx: &WorkflowContext, (key, fails): (String, bool)) -> Result<u32, WorkflowError> {
    Ok(ctx.activity(do_once, fails).idempotency_key(key).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_result_under_an_idempotency_key_answers_every_later_call() {
    let world = World::new().await;
    let done = Counter::default();
    let worker = world
        .worker(registry![keyed, do_once].state(done.clone()))
        .await;
    let client = world.client().await;
    let call = async |key: &str, fails: bool| {
        let run = client.start(keyed, (key.to_owned(), fails)).await.unwrap();
        run.result_within(PATIENCE).await
    };
    // A failure is no result, so it guards nothing; and what can't be mended is not tried again.
    assert_eq!(failure(call("order-1", true).await).kind(), "Refused");
    assert_eq!(done.get(), 1);
    assert_eq!(call("order-1", false).await.unwrap(), 2);
    assert_eq!(call("order-1", false).await.unwrap(), 2);
    assert_eq!(call("order-1", true).await.unwrap(), 2);
    assert_eq!(done.get(), 2);
    assert_eq!(call("order-2", false).await.unwrap(), 3);
    world.finish([worker]).await;
}

// ---- servers that are away -----------------------------------------------------------------------------------------

#[activity(queue = "work", retry(unlimited, initial = "10ms", max = "100ms"))]
async fn work(_ctx: ActivityContext, number: u64) -> Result<u64, ActivityError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(number)
}

/// A little of everything, for about a second.
#[workflow(version = 1)]
async fn busy(ctx: &WorkflowContext, rounds: u64) -> Result<u64, WorkflowError> {
    let mut sum = 0;
    for round in 0..rounds {
        sum += ctx.activity(work, round).await?;
        let one: u64 = ctx.step("count", || async { Ok(1) }).await?;
        ctx.sleep(Duration::from_millis(20)).await?;
        sum += one;
    }
    Ok(sum)
}

async fn private_postgres() -> PrivatePostgres {
    let options = PostgresOptions {
        fsync: false,
        ..PostgresOptions::default()
    };
    PrivatePostgres::start(options).await.unwrap()
}

async fn private_nats() -> PrivateNats {
    PrivateNats::start(NatsOptions::default()).await.unwrap()
}

async fn until_status(worker: &Worker, state: WorkerState, words: &str) {
    let mut status = worker.status();
    let says = |s: &continuum_worker::WorkerStatus| {
        s.state == state && s.reasons.iter().any(|r| r.contains(words))
    };
    let reached = tokio::time::timeout(PATIENCE, status.wait_for(says)).await;
    reached
        .unwrap_or_else(|_| panic!("in vain: {state}, {words}: {:?}", worker.status().borrow()))
        .unwrap();
}

/// A link of its own that is up.
async fn linked(nats: &PrivateNats) -> Bus {
    let bus = Bus::connect(BusConfig::new([nats.url()])).await.unwrap();
    let up = bus
        .status()
        .wait_for(BusStatus::is_connected)
        .await
        .map(|_| ());
    up.unwrap();
    bus
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_before_postgres_becomes_ready_by_itself() {
    let (mut postgres, nats) = tokio::join!(private_postgres(), private_nats());
    let world = World::at(&postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    world.database.close().await;
    postgres.stop().await;

    let world = World::at(&postgres.url(), nats.url()).in_schema(world.database.schema());
    let worker = Worker::start(registry![healthy], world.worker_config())
        .await
        .unwrap();
    until_status(&worker, WorkerState::Starting, "no session").await;
    let client = worker.client();
    let start = tokio::spawn(client.start(healthy, 1).key("patient").into_future());
    postgres.restart().await.unwrap();
    until_ready(&worker).await;
    let run = start.await.unwrap().unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 2);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_nats_works_by_polling_and_hears_again_when_nats_comes() {
    let mut nats = private_nats().await;
    let servers = continuum_tests::servers().await;
    let world = World::at(&servers.postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    nats.stop().await;

    let worker = Worker::start(registry![healthy, parks, busy, work], world.worker_config())
        .await
        .unwrap();
    until_status(&worker, WorkerState::Degraded, "work goes on by polling").await;
    let client = worker.client();
    still_works(&client).await;
    let parked = client.start(parks, 1).await.unwrap();
    let working = client.start(busy, 2).await.unwrap();
    assert_eq!(working.result_within(PATIENCE).await.unwrap(), 3);

    nats.restart().await.unwrap();
    until_ready(&worker).await;
    let bus = linked(&nats).await;
    let signals = bus.signals(
        &Subjects::new(&world.instance),
        &BusConfig::new([""; 0]).signals,
    );
    let go = Name::new("go").unwrap();
    // A worker that is ready has made the stream.
    let json = continuum_bus::ContentType::Json;
    let stored = signals.publish(parked.run_id(), &go, "41".into(), &json, Some("once"));
    stored.await.unwrap();
    assert_eq!(parked.result_within(PATIENCE).await.unwrap(), 42);
    bus.close().await;
    world.finish([worker]).await;
}

/// Somebody has made a stream of the worker's name for subjects of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_the_signal_stream_works_and_says_that_it_misses_it() {
    let world = World::new().await;
    let nats = async_nats::connect(world.nats_url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(nats);
    let name = Subjects::new(&world.instance).signal_stream();
    let foreign = async_nats::jetstream::stream::Config {
        name: name.clone(),
        subjects: vec![format!("foreign.{}.>", world.instance)],
        ..Default::default()
    };
    jetstream.create_stream(foreign).await.unwrap();
    let worker = Worker::start(registry![healthy], world.worker_config())
        .await
        .unwrap();
    until_status(&worker, WorkerState::Degraded, "the signal stream").await;
    still_works(&world.client().await).await;
    jetstream.delete_stream(&name).await.unwrap();
    until_ready(&worker).await;
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_under_way_when_postgres_restarts_complete() {
    let (mut postgres, nats) = tokio::join!(private_postgres(), private_nats());
    let world = World::at(&postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    let workers = [
        world.worker(registry![busy, work]).await,
        world.worker(registry![busy, work]).await,
    ];
    let client = world.client().await;
    let starts = (0..40).map(|n| client.start(busy, 8).key(format!("run-{n}")).into_future());
    let runs = futures::future::join_all(starts).await;
    let runs: Vec<_> = runs.into_iter().map(Result::unwrap).collect();
    for run in &runs {
        world.until_event(run.run_id(), "activity_completed").await;
    }
    for crash in [false, true] {
        if crash {
            postgres.kill().await;
        }
        postgres.restart().await.unwrap();
        // The worker has noticed and found its way back before the next blow falls.
        let late = client
            .start(busy, 1)
            .key(format!("late-{crash}"))
            .await
            .unwrap();
        assert_eq!(late.result_within(PATIENCE).await.unwrap(), 1);
    }
    for run in &runs {
        assert_eq!(
            run.result_within(PATIENCE).await.unwrap(),
            (0..8).sum::<u64>() + 8
        );
    }
    // The connection of the test itself was cut as well.
    until("the test's own connection", || async {
        world.database.ping().await.ok()
    })
    .await;
    world.finish(workers).await;
}

/// Longer than the session, than a call waits for a connection, and than any statement may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outlives_a_postgres_that_is_away_for_longer_than_any_of_its_bounds() {
    let (mut postgres, nats) = tokio::join!(private_postgres(), private_nats());
    let world = World::at(&postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    let mut config = world.worker_config();
    config.database.statement_timeout = Duration::from_secs(1);
    config.database.acquire_timeout = Duration::from_secs(1);
    let worker = world.worker_with(registry![busy, work], config).await;
    let client = world.client().await;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(client.start(busy, 8).await.unwrap());
    }
    world
        .until_event(runs[0].run_id(), "activity_completed")
        .await;
    postgres.stop().await;
    until_status(&worker, WorkerState::Starting, "no session in Postgres").await;
    let gone = Instant::now();
    until("every bound has passed several times", async || {
        (gone.elapsed() > Duration::from_secs(10)).then_some(())
    })
    .await;
    assert_eq!(worker.residents(), 0, "nothing is held without a session");
    postgres.restart().await.unwrap();
    let back = Instant::now();
    until_ready(&worker).await;
    assert!(
        back.elapsed() < Duration::from_secs(10),
        "{:?}",
        back.elapsed()
    );
    for run in runs {
        assert_eq!(
            run.result_within(PATIENCE).await.unwrap(),
            (0..8).sum::<u64>() + 8
        );
    }
    until("the test's own connection", async || {
        world.database.ping().await.ok()
    })
    .await;
    world.finish([worker]).await;
}

/// Every loop at ten times its speed, on eight workers, while runs are cancelled and sessions are closed under them.
#[tokio::test(flavor = "multi_thread")]
async fn eight_workers_whose_loops_all_run_at_ten_times_their_speed_meet_no_deadlock() {
    const RUNS: u64 = 240;
    let (postgres, nats) = tokio::join!(private_postgres(), private_nats());
    let world = World::at(&postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    let mut config = WorkerConfig {
        poll_interval: Duration::from_millis(20),
        beat_interval: Duration::from_millis(100),
        catch_up_interval: Duration::from_millis(50),
        reconcile_interval: Duration::from_millis(20),
        resident_interval: Duration::from_millis(50),
        idle_max: Duration::from_millis(1),
        ..world.worker_config()
    };
    config.database.connections = 3;
    let mut workers = Vec::new();
    for _ in 0..8 {
        workers.push(
            world
                .worker_with(registry![busy, work], config.clone())
                .await,
        );
    }
    let client = world.client().await;
    let starts = (0..RUNS).map(|_| client.start(busy, 6).into_future());
    let runs: Vec<_> = futures::future::join_all(starts).await;
    let runs: Vec<_> = runs.into_iter().map(Result::unwrap).collect();
    world
        .until_event(runs[0].run_id(), "activity_completed")
        .await;
    let cancels = runs.iter().step_by(3).map(|run| run.cancel("the test"));
    for cancelled in futures::future::join_all(cancels).await {
        assert!(
            matches!(cancelled, Ok(_) | Err(ClientError::Ended(_))),
            "{cancelled:?}"
        );
    }
    for worker in workers.iter().take(3) {
        let session = worker.status().borrow().session.unwrap();
        session::close(&world.database, session, None, "the test")
            .await
            .unwrap();
    }
    for run in &runs {
        match run.result_within(PATIENCE).await {
            Ok(sum) => assert_eq!(sum, (0..6).sum::<u64>() + 6),
            Err(ClientError::Cancelled(reason)) => assert_eq!(reason, "the test"),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(world.deadlocks().await, 0);
    world.finish(workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_subscribed_again_after_nats_restarts() {
    let mut nats = private_nats().await;
    let servers = continuum_tests::servers().await;
    let world = World::at(&servers.postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    let worker = world.worker(registry![healthy, parks]).await;
    let session = worker.status().borrow().session.unwrap();
    for crash in [false, true] {
        if crash {
            nats.kill().await;
        } else {
            nats.stop().await;
        }
        until_status(&worker, WorkerState::Degraded, "work goes on by polling").await;
        nats.restart().await.unwrap();
        until_ready(&worker).await;
        let bus = linked(&nats).await;
        let ping = Subjects::new(&world.instance).ping(session);
        until("the worker answers a ping", || async {
            bus.request(&ping, bytes::Bytes::new(), Duration::from_secs(1))
                .await
                .ok()
        })
        .await;
        bus.close().await;
    }
    assert_eq!(
        worker.status().borrow().session,
        Some(session),
        "NATS has no say in who owns what"
    );

    // A wake for a resident run arrives: nothing else would bring it within the patience of the test.
    let bus = linked(&nats).await;
    let client = Client::connect(
        &world.instance,
        world.database_config(),
        BusSource::Shared(bus),
        Limits::default(),
    );
    let client = client.await.unwrap();
    let run = client.start(parks, 1).await.unwrap();
    world.until_event(run.run_id(), "step_completed").await;
    run.signal("go", &1).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 2);
    world.finish([worker]).await;
}

/// What an activity gave is in the journal once, also when its worker and the run's are different ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_from_another_worker_is_taken_once() {
    let world = World::new().await;
    let flows = world.worker(registry![busy]).await;
    let hands = world.worker(registry![work]).await;
    let client = world.client().await;
    let runs =
        futures::future::join_all((0..10).map(|_| client.start(busy, 3).into_future())).await;
    for run in runs.into_iter().map(Result::unwrap) {
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), 6);
        let results = world.history(run.run_id()).await;
        let results = results.iter().filter(|event| {
            matches!(
                event,
                Event::ActivityCompleted {
                    outcome: Outcome::Ok(_),
                    attempt: 1,
                    ..
                }
            )
        });
        assert_eq!(results.count(), 3);
    }
    world.finish([flows, hands]).await;
}

// ---- ends of runs that can't go on ---------------------------------------------------------------------------------

#[workflow(version = 1)]
async fn breaks_down(ctx: &WorkflowContext, _: ()) -> Result<(), WorkflowError> {
    ctx.step("sound", || async { Ok(()) }).await?;
    ctx.signal::<u64>("go").await?;
    panic!("it breaks down here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_blocked_behind_its_history_can_be_cancelled() {
    let world = World::new().await;
    let worker = world.worker(registry![breaks_down]).await;
    let client = world.client().await;
    let run = client.start(breaks_down, ()).await.unwrap();
    run.signal("go", &1_u64).await.unwrap();
    world.until_blocked(run.run_id(), "panicked").await;
    run.cancel("it can't be mended").await.unwrap();
    let ended = run.result_within(PATIENCE).await.unwrap_err();
    assert!(
        matches!(&ended, ClientError::Cancelled(why) if why == "it can't be mended"),
        "{ended}"
    );
    world.finish([worker]).await;
}

/// Three workers die while they hold the only run, of [`parks`].
async fn quarantine_parks(world: &World) {
    let pin = ClaimKey::pinned("parks", <parks as continuum_worker::Workflow>::HASH);
    let keys = [("parks".to_owned(), pin.clone()), (pin.clone(), pin)]
        .map(|(key, pin)| ClaimKey { key, pin });
    for death in 1..=3 {
        let session = session::open(
            &world.database,
            &NewSession {
                worker: format!("dies-{death}"),
                build: "test".into(),
                queues: Vec::new(),
                claim_keys: Vec::new(),
            },
        )
        .await
        .unwrap();
        assert_eq!(
            lease::claim(&world.database, session, &keys, 10, 0)
                .await
                .unwrap()
                .len(),
            1
        );
        assert!(
            session::close(&world.database, session, None, "died")
                .await
                .unwrap()
        );
        assert_eq!(lease::sweep(&world.database, 10, 3).await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_owners_die_again_and_again_is_quarantined_and_can_be_cancelled() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(parks, 1).await.unwrap();
    quarantine_parks(&world).await;
    world.until_blocked(run.run_id(), "quarantined").await;
    let worker = world.worker(registry![parks]).await;
    run.cancel("it kills its workers").await.unwrap();
    let ended = run.result_within(PATIENCE).await.unwrap_err();
    assert!(matches!(ended, ClientError::Cancelled(_)), "{ended}");
    assert_eq!(
        world.history(run.run_id()).await.len(),
        1,
        "it was never loaded"
    );
    world.finish([worker]).await;
}

/// Where the test and the code of [`breaks_down_at_the_gate`] wait for each other.
static GATE: std::sync::LazyLock<std::sync::Barrier> =
    std::sync::LazyLock::new(|| std::sync::Barrier::new(2));

#[workflow(version = 1)]
async fn breaks_down_at_the_gate(ctx: &WorkflowContext, _: ()) -> Result<(), WorkflowError> {
    ctx.step("sound", || async { Ok(()) }).await?;
    ctx.signal::<u64>("go").await?;
    GATE.wait();
    GATE.wait();
    panic!("it breaks down here");
}

/// The next retry is ten minutes away, so only the request itself can end the run in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancel_that_comes_while_a_run_breaks_down_is_seen_at_once() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(breaks_down_at_the_gate, ()).await.unwrap();
    world.often_parked(run.run_id()).await;
    let worker = world.worker(registry![breaks_down_at_the_gate]).await;
    run.signal("go", &1_u64).await.unwrap();
    let pass_the_gate = || tokio::task::spawn_blocking(|| GATE.wait());
    pass_the_gate().await.unwrap();
    assert!(!run.cancel("it is too late").await.unwrap());
    pass_the_gate().await.unwrap();
    let ended = run.result_within(PATIENCE).await.unwrap_err();
    assert!(matches!(ended, ClientError::Cancelled(_)), "{ended}");
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantined_run_whose_last_event_is_refused_stays_so_and_is_tried_again_later() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(parks, 1).await.unwrap();
    let first = world.worker_with(registry![parks], forgetful(&world)).await;
    world.until_state(run.run_id(), RunState::Waiting).await;
    first.stop().await;
    run.signal("other", &0_u64).await.unwrap();
    quarantine_parks(&world).await;
    let before = world.history(run.run_id()).await;

    let cancelled = Event::Cancelled {
        reason: String::new(),
        unread: Vec::new(),
    };
    world.refuse_events(cancelled.kind()).await;
    let second = world.worker(registry![parks, healthy]).await;
    run.cancel("it kills its workers").await.unwrap();
    until("the refusal is told", || async {
        let (reason, detail) = run.get().await.unwrap().blocked?;
        let message = detail["message"].as_str()?;
        (reason == "quarantined" && message.contains("check constraint")).then_some(())
    })
    .await;
    assert_eq!(world.history(run.run_id()).await, before);
    still_works(&client).await;

    world.take_events_again().await;
    let ended = run.result_within(PATIENCE).await.unwrap_err();
    assert!(matches!(ended, ClientError::Cancelled(_)), "{ended}");
    world.finish([first, second]).await;
}
