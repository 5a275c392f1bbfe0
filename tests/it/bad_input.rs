//! What is refused, where, and in which words; and what is stored as it is although it looks odd.

use std::collections::HashSet;

use continuum_bus::{Bus, BusConfig, ContentType, Subjects};
use continuum_schema::mailbox;
use continuum_schema::run::{Filter, RunState};
use continuum_schema::{DatabaseConfig, Name, Payload};
use continuum_tests::{PATIENCE, World, until};
use continuum_worker::error::kind;
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, Client, ClientError, Limits, Worker, WorkerConfig};

/// No run has this id.
const NOBODY: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

/// Small, so that what is too large is quickly made.
const LIMITS: Limits = Limits {
    payload_bytes_max: 4 << 10,
    turn_bytes_max: 16 << 10,
};

/// More than a payload may have.
const TOO_LARGE: usize = LIMITS.payload_bytes_max + 1;

#[workflow(version = 1)]
async fn echo(_ctx: &WorkflowContext, text: String) -> Result<String, WorkflowError> {
    Ok(text)
}

/// One signal of this name is given back.
#[workflow(version = 1)]
async fn echo_signal(ctx: &WorkflowContext, _input: ()) -> Result<String, WorkflowError> {
    Ok(ctx.signal::<String>("text").await?)
}

#[workflow(version = 1)]
async fn fail_with(_ctx: &WorkflowContext, text: String) -> Result<(), WorkflowError> {
    Err(WorkflowError::new("Odd", text.clone()).with_details(&text))
}

async fn small_client(world: &World) -> Client {
    Client::connect(
        &world.instance,
        world.database_config(),
        world.bus(),
        LIMITS,
    )
    .await
    .unwrap()
}

async fn small_worker(world: &World, registry: Registry) -> Worker {
    let config = WorkerConfig {
        limits: LIMITS,
        ..world.worker_config()
    };
    world.worker_with(registry, config).await
}

/// The words of a refusal.
fn refusal<T>(result: Result<T, ClientError>) -> String {
    match result {
        Err(ClientError::Invalid(words)) => words,
        Err(other) => panic!("refused in another way: {other:?}"),
        Ok(_) => panic!("not refused"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_run_is_a_typed_not_found_for_every_verb() {
    let world = World::new().await;
    let client = world.client().await;
    let not_found =
        |error: ClientError| matches!(error, ClientError::NotFound(id) if id == NOBODY.to_string());
    assert!(not_found(client.get(NOBODY).await.unwrap_err()));
    assert!(not_found(
        client.signal(NOBODY, "word", &1).await.unwrap_err()
    ));
    assert!(not_found(client.cancel(NOBODY, "why").await.unwrap_err()));
    assert!(not_found(
        client.wait(NOBODY, Some(PATIENCE)).await.unwrap_err()
    ));
    assert_eq!(client.find("default", "no-such-key").await.unwrap(), None);
    // Nobody can be told of it, and that is no error.
    client.notify(NOBODY).await;

    let pool = world.foreign_pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let signal = client
        .signal(NOBODY, "word", &1)
        .within(&mut transaction)
        .await;
    assert!(not_found(signal.unwrap_err()));
    transaction.rollback().await.unwrap();
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_with_one_key_make_one_run_and_another_input_is_a_conflict() {
    let world = World::new().await;
    let worker = world.worker(registry![echo, fail_with]).await;
    let clients = [world.client().await, world.client().await];
    let starts = (0..50).map(|n| clients[n % 2].start(echo, "same".to_owned()).key("order-1"));
    let started = futures::future::join_all(starts.map(IntoFuture::into_future)).await;
    let ids: HashSet<Uuid> = started
        .into_iter()
        .map(|run| run.unwrap().run_id())
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let run_id = *ids.iter().next().unwrap();

    let conflicts = |error: ClientError| match error {
        ClientError::Conflict { key, run_id: named } => key == "order-1" && named == run_id,
        _ => false,
    };
    let other_input = clients[0]
        .start(echo, "other".to_owned())
        .key("order-1")
        .await;
    assert!(conflicts(other_input.err().unwrap()));
    let other_workflow = clients[0]
        .start(fail_with, "same".to_owned())
        .key("order-1")
        .await;
    assert!(conflicts(other_workflow.err().unwrap()));

    assert_eq!(
        clients[0]
            .wait(run_id, Some(PATIENCE))
            .await
            .unwrap()
            .decode::<String>()
            .unwrap(),
        "same"
    );
    // The key outlives the run.
    let again = clients[1]
        .start(echo, "same".to_owned())
        .key("order-1")
        .await
        .unwrap();
    assert_eq!(again.run_id(), run_id);
    assert_eq!(world.runs().await, 1);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_compared_byte_by_byte() {
    let world = World::new().await;
    let client = world.client().await;
    let keys = [
        "Order-1", "order-1", "ORDER-1", "order-1 ", // case and space
        "\u{e9}", "e\u{301}", // composed and decomposed
        "a_b", "a%b", "axb", "\u{ffff}", "🦀", "'; --", "\\", "\n",
    ];
    let mut ids = HashSet::new();
    for key in keys {
        let run = client.start(echo, "x".to_owned()).key(key).await.unwrap();
        assert!(ids.insert(run.run_id()), "{key:?} is another key's run");
        assert_eq!(
            client.find("default", key).await.unwrap(),
            Some(run.run_id()),
            "{key:?}"
        );
        assert_eq!(
            client.get(run.run_id()).await.unwrap().key.as_deref(),
            Some(key)
        );
    }
    // A key belongs to its namespace.
    let elsewhere = client
        .start(echo, "y".to_owned())
        .key("order-1")
        .namespace("other")
        .await
        .unwrap();
    assert!(ids.insert(elsewhere.run_id()));
    for run_id in ids {
        assert!(client.cancel(run_id, "not needed").await.unwrap());
    }
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused_at_the_edge_and_nothing_is_stored() {
    let world = World::new().await;
    let client = small_client(&world).await;
    let large = "x".repeat(TOO_LARGE);
    let too_large = |error: ClientError, wanted: &str| match error {
        ClientError::TooLarge { what, bytes, max } => {
            assert_eq!((what, max), (wanted, LIMITS.payload_bytes_max));
            assert!(bytes > max);
        }
        other => panic!("{other:?}"),
    };
    too_large(
        client.start(echo, large.clone()).await.err().unwrap(),
        "input",
    );
    assert_eq!(world.runs().await, 0);

    let run = client.start(echo_signal, ()).await.unwrap();
    too_large(run.signal("text", &large).await.unwrap_err(), "signal");
    too_large(run.cancel(&large).await.unwrap_err(), "reason");
    assert_eq!(run.get().await.unwrap().mail, 0);

    let pool = world.foreign_pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let start = client
        .start(echo, large.clone())
        .within(&mut transaction)
        .await;
    too_large(start.err().unwrap(), "input");
    let signal = run.signal("text", &large).within(&mut transaction).await;
    too_large(signal.unwrap_err(), "signal");
    transaction.commit().await.unwrap();

    let worker = small_worker(&world, registry![echo, echo_signal]).await;
    run.signal("text", &"fits".to_owned()).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "fits");
    world.finish([worker]).await;
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Large {
    StepResult,
    StepError,
    ActivityInput,
    ActivityResult,
    ActivityError,
    Result,
    Error,
}

#[activity(queue = "large", retry(max_attempts = 1))]
async fn measure(_ctx: ActivityContext, text: String) -> Result<usize, ActivityError> {
    Ok(text.len())
}

#[activity(queue = "large", retry(max_attempts = 5))]
async fn inflate(
    _ctx: ActivityContext,
    (as_error, bytes): (bool, usize),
) -> Result<String, ActivityError> {
    let text = "x".repeat(bytes);
    if as_error {
        return Err(ActivityError::permanent("Inflated", text));
    }
    Ok(text)
}

/// Makes one value of `bytes` bytes.
#[workflow(version = 1)]
async fn grow(
    ctx: &WorkflowContext,
    (what, bytes): (Large, usize),
) -> Result<String, WorkflowError> {
    match what {
        Large::StepResult => {
            let _: String = ctx
                .step("grow", move || async move { Ok("x".repeat(bytes)) })
                .await?;
        }
        Large::StepError => {
            let _: () = ctx
                .step("grow", move || async move {
                    Err(ActivityError::permanent("Grown", "x".repeat(bytes)))
                })
                .await?;
        }
        Large::ActivityInput => {
            ctx.activity(measure, "x".repeat(bytes)).await?;
        }
        Large::ActivityResult => {
            ctx.activity(inflate, (false, bytes)).await?;
        }
        Large::ActivityError => {
            ctx.activity(inflate, (true, bytes)).await?;
        }
        Large::Result => return Ok("x".repeat(bytes)),
        Large::Error => return Err(WorkflowError::new("Grown", "x".repeat(bytes))),
    }
    Ok("none".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_makes_something_too_large_ends_and_says_what_it_was() {
    let world = World::new().await;
    let worker = small_worker(&world, registry![grow, measure, inflate]).await;
    let client = world.client().await;
    // A single value may not exceed the limit of a payload; an error's text not that of a turn.
    let cases = [
        (Large::StepResult, TOO_LARGE, "step `grow`"),
        (Large::StepError, LIMITS.turn_bytes_max, "one turn"),
        (Large::ActivityInput, TOO_LARGE, "activity `measure`"),
        (Large::ActivityResult, TOO_LARGE, "activity `inflate`"),
        (Large::ActivityError, LIMITS.turn_bytes_max, "one turn"),
        (Large::Result, TOO_LARGE, "the workflow's result"),
        (Large::Error, LIMITS.turn_bytes_max, "one turn"),
    ];
    for (what, bytes, words) in cases {
        let run = client.start(grow, (what, bytes)).await.unwrap();
        let ended = run.result_within(PATIENCE).await;
        let Err(ClientError::Failed(failure)) = ended else {
            panic!("{words}: {ended:?}")
        };
        assert_eq!(failure.kind(), kind::OVERSIZE, "{words}: {failure}");
        assert!(failure.message().contains(words), "{words}: {failure}");
    }
    // One byte less of the text, and everything passes.
    let run = client
        .start(grow, (Large::StepResult, LIMITS.payload_bytes_max - 16))
        .await
        .unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "none");
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_keys_ids_and_reasons_are_refused_by_their_rule() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(echo_signal, ()).await.unwrap();
    let unit = Payload::unit;

    for (name, rule) in [
        ("", "is empty"),
        ("a.b", "allowed are A-Z a-z 0-9 _ -"),
        ("a b", "allowed are"),
        ("a\0b", "allowed are"),
        ("naïve", "allowed are"),
        ("a>", "allowed are"),
        (&*"x".repeat(129), "the limit is 128"),
    ] {
        let words = refusal(client.start_named(name, unit()).await);
        assert!(
            words.contains("workflow name") && words.contains(rule),
            "{name:?}: {words}"
        );
        let words = refusal(client.start_named("echo", unit()).namespace(name).await);
        assert!(
            words.contains("namespace") && words.contains(rule),
            "{name:?}: {words}"
        );
        let words = refusal(client.signal_named(run.run_id(), name, unit()).await);
        assert!(
            words.contains("signal name") && words.contains(rule),
            "{name:?}: {words}"
        );
    }
    for (text, rule) in [
        ("", "is empty"),
        ("a\0b", "NUL"),
        (&*"x".repeat(513), "the limit is 512"),
    ] {
        let words = refusal(client.start(echo, "x".to_owned()).key(text).await);
        assert!(
            words.contains("key") && words.contains(rule),
            "{text:?}: {words}"
        );
        let words = refusal(run.signal("text", &1).delivery_id(text).await);
        assert!(
            words.contains("delivery id") && words.contains(rule),
            "{text:?}: {words}"
        );
    }
    assert!(refusal(run.cancel("a\0b").await).contains("NUL"));
    assert!(
        refusal(
            client
                .start(echo, "x".to_owned())
                .trace_context("a\0b")
                .await
        )
        .contains("NUL")
    );
    // What can't be a key names no run.
    assert!(refusal(client.find("default", "a\0b").await).contains("NUL"));

    // Payloads of a format that no build wrote.
    let strange = |bytes: &[u8]| Payload::from_bytes(bytes.to_vec());
    assert!(refusal(client.start_named("echo", strange(&[])).await).contains("empty"));
    assert!(
        refusal(client.start_named("echo", strange(&[9, 1])).await).contains("unknown format 9")
    );
    assert!(
        refusal(
            client
                .signal_named(run.run_id(), "text", strange(&[7]))
                .await
        )
        .contains("unknown format 7")
    );
    // Broken UTF-8 and half a document are not JSON.
    assert!(Payload::from_json(b"\"\xff\"").is_err());
    assert!(Payload::from_json(b"{\"a\":").is_err());

    assert_eq!(world.runs().await, 1);
    assert_eq!(run.get().await.unwrap().mail, 0);
    assert!(run.cancel("the end").await.unwrap());
    world.finish([]).await;
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum BadName {
    Signal,
    Step,
    Queue,
    Key,
}

#[workflow(version = 1)]
async fn misname(ctx: &WorkflowContext, what: BadName) -> Result<(), WorkflowError> {
    match what {
        BadName::Signal => ctx.signal::<()>("a.b").await?,
        BadName::Step => ctx.step("a\0b", || async { Ok(()) }).await?,
        BadName::Queue => drop(ctx.activity(measure, String::new()).queue("a>").await?),
        BadName::Key => drop(
            ctx.activity(measure, String::new())
                .idempotency_key("a\0b")
                .await?,
        ),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_code_may_not_use_is_an_error_in_that_code() {
    let world = World::new().await;
    let worker = world.worker(registry![misname, measure]).await;
    let client = worker.client();
    for (what, words) in [
        (BadName::Signal, "signal name"),
        (BadName::Step, "step name"),
        (BadName::Queue, "queue"),
        (BadName::Key, "key"),
    ] {
        let run = client.start(misname, what).await.unwrap();
        let ended = run.result_within(PATIENCE).await;
        let Err(ClientError::Failed(failure)) = ended else {
            panic!("{words}: {ended:?}")
        };
        assert_eq!(failure.kind(), "Invalid", "{failure}");
        assert!(failure.message().contains(words), "{failure}");
    }
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_text_is_stored_without_loss() {
    let world = World::new().await;
    let worker = world.worker(registry![echo, echo_signal, fail_with]).await;
    let client = world.client().await;
    let texts = [
        "a\0b",
        "\u{ffff}\u{fffe}",
        "🦀👩‍👩‍👧",
        "\u{301}e",
        "",
        "\u{202e}'\"\\\r\n\t\u{7f}",
    ];
    for text in texts.map(str::to_owned) {
        let echoed = client.start(echo, text.clone()).await.unwrap();
        assert_eq!(echoed.result_within(PATIENCE).await.unwrap(), text);

        let signalled = client.start(echo_signal, ()).await.unwrap();
        signalled.signal("text", &text).await.unwrap();
        assert_eq!(signalled.result_within(PATIENCE).await.unwrap(), text);

        let json = Payload::from_json(serde_json::to_string(&text).unwrap().as_bytes()).unwrap();
        let by_json = client.start_named("echo", json).await.unwrap();
        assert_eq!(
            by_json
                .result_within(PATIENCE)
                .await
                .unwrap()
                .decode::<String>()
                .unwrap(),
            text
        );

        let failed = client.start(fail_with, text.clone()).await.unwrap();
        let ended = failed.result_within(PATIENCE).await;
        let Err(ClientError::Failed(failure)) = ended else {
            panic!("{text:?}: {ended:?}")
        };
        assert_eq!((failure.kind(), failure.message()), ("Odd", &*text));
        assert_eq!(failure.details::<String>().unwrap(), Some(text));
    }
    world.finish([worker]).await;
}

type Numbers = (u64, i64, i64, u64, f64);

#[activity(queue = "numbers", retry(max_attempts = 1))]
async fn same_numbers(_ctx: ActivityContext, numbers: Numbers) -> Result<Numbers, ActivityError> {
    Ok(numbers)
}

/// The numbers travel through everything that stores them.
#[workflow(version = 1)]
async fn carry_numbers(
    ctx: &WorkflowContext,
    numbers: Numbers,
) -> Result<Vec<Numbers>, WorkflowError> {
    let stepped: Numbers = ctx.step("same", move || async move { Ok(numbers) }).await?;
    let called = ctx.activity(same_numbers, stepped).await?;
    let signalled: Numbers = ctx.signal::<Numbers>("numbers").await?;
    Ok(vec![numbers, stepped, called, signalled])
}

#[tokio::test(flavor = "multi_thread")]
async fn integers_of_64_bits_are_exact_everywhere() {
    let world = World::new().await;
    let worker = world.worker(registry![carry_numbers, same_numbers]).await;
    let client = world.client().await;
    let numbers: Numbers = (
        u64::MAX,
        i64::MIN,
        i64::MAX,
        (1 << 53) + 1,
        0.234_567_890_123_456_8,
    );

    let run = client.start(carry_numbers, numbers).await.unwrap();
    run.signal("numbers", &numbers).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), vec![numbers; 4]);

    // As JSON, from a program that knows no types of ours.
    let json = Payload::from_json(serde_json::to_string(&numbers).unwrap().as_bytes()).unwrap();
    let run = client
        .start_named("carry_numbers", json.clone())
        .await
        .unwrap();
    client
        .signal_named(run.run_id(), "numbers", json.clone())
        .await
        .unwrap();
    let result = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(result.decode::<Vec<Numbers>>().unwrap(), vec![numbers; 4]);
    assert_eq!(
        client.get(run.run_id()).await.unwrap().input,
        json,
        "what came as JSON is kept as it came"
    );
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_or_a_signal_of_another_type_fails_clearly() {
    let world = World::new().await;
    let worker = world.worker(registry![echo, echo_signal]).await;
    let client = world.client().await;
    let number = Payload::encode(&1).unwrap();
    let run = client.start_named("echo", number.clone()).await.unwrap();
    let ended = run.result_within(PATIENCE).await;
    let Err(ClientError::Failed(failure)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(failure.kind(), kind::DECODE);

    let run = client.start(echo_signal, ()).await.unwrap();
    client
        .signal_named(run.run_id(), "text", number)
        .await
        .unwrap();
    let ended = run.result_within(PATIENCE).await;
    let Err(ClientError::Failed(failure)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(failure.kind(), kind::DECODE);
    assert!(failure.message().contains("signal `text`"), "{failure}");
    world.finish([worker]).await;
}

fn nested(levels: usize) -> serde_json::Value {
    (0..levels).fold(serde_json::json!("core"), |inner, _| {
        serde_json::json!([inner])
    })
}

#[workflow(version = 1)]
async fn take_anything(
    ctx: &WorkflowContext,
    input: serde_json::Value,
) -> Result<serde_json::Value, WorkflowError> {
    let more: serde_json::Value = ctx.signal::<serde_json::Value>("more").await?;
    Ok(serde_json::json!(input == more))
}

/// What nobody could decode is refused where it comes in: by the client, over NATS, and on the signal stream.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_nested_too_deep_is_refused_at_the_edge_and_nothing_is_stored() {
    let world = World::new().await;
    let worker = world.worker(registry![take_anything]).await;
    let client = world.client().await;
    let (deepest, too_deep) = (nested(127), nested(128));
    let words = "nested more than 127 levels deep";
    let started = client.start(take_anything, too_deep.clone()).await;
    assert!(refusal(started).contains(words));
    assert!(Payload::from_json(too_deep.to_string().as_bytes()).is_err());

    let bus = Bus::connect(BusConfig::new([world.nats_url()]))
        .await
        .unwrap();
    let ask = async |verb: &str, body: serde_json::Value| {
        let subject = format!("continuum.{}.api.{verb}", world.instance);
        let body = bytes::Bytes::from(body.to_string());
        let reply = until("the API answers", || async {
            bus.request(&subject, body.clone(), PATIENCE).await.ok()
        })
        .await;
        serde_json::from_slice::<serde_json::Value>(&reply.payload).unwrap()
    };
    let start = serde_json::json!({ "workflow": "take_anything", "input": too_deep });
    let refused = ask("start", start).await;
    assert_eq!(refused["error"]["code"], "invalid", "{refused}");
    assert!(refused.to_string().contains(words), "{refused}");
    assert_eq!(world.runs().await, 0);

    let run = client.start(take_anything, deepest.clone()).await.unwrap();
    assert!(refusal(run.signal("more", &too_deep).await).contains(words));
    let signal = serde_json::json!({ "run_id": run.run_id(), "name": "more", "payload": too_deep });
    assert_eq!(ask("signal", signal).await["error"]["code"], "invalid");
    let stream = bus.signals(
        &Subjects::new(&world.instance),
        &BusConfig::new([""; 0]).signals,
    );
    let more = Name::new("more").unwrap();
    let text = bytes::Bytes::from(too_deep.to_string());
    stream
        .publish(run.run_id(), &more, text, &ContentType::Json, Some("deep"))
        .await
        .unwrap();
    let reason = until("the signal is rejected", || async {
        let rows = mailbox::rejected(&world.database, 10).await.unwrap();
        rows.first().map(|row| row.reason.clone())
    })
    .await;
    assert!(reason.contains(words), "{reason}");
    assert_eq!(run.get().await.unwrap().mail, 0);

    run.signal("more", &deepest).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), true);
    bus.close().await;
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_paged_without_gaps() {
    let world = World::new().await;
    let client = world.client().await;
    let started =
        futures::future::join_all((0..20).map(|n| client.start(echo, n.to_string()).into_future()))
            .await;
    let started: HashSet<Uuid> = started
        .into_iter()
        .map(|run| run.unwrap().run_id())
        .collect();
    let mut filter = Filter::default();
    let mut seen = Vec::new();
    loop {
        let page = client.list(&filter, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.before = Some(last.run_id);
        // Newer runs may come at any time; they are not on later pages.
        client.start(echo, "newer".to_owned()).await.unwrap();
        seen.extend(page.into_iter().map(|run| run.run_id));
    }
    assert_eq!(seen.len(), 20);
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), started);
    let none = Filter {
        workflow: Some("ech%".to_owned()),
        ..Filter::default()
    };
    assert!(client.list(&none, 10).await.unwrap().is_empty());
    let run = client.get(*started.iter().next().unwrap()).await.unwrap();
    assert_eq!(run.state, RunState::Unserved);
    world.finish([]).await;
}

#[tokio::test]
async fn a_setting_that_cannot_work_is_refused_with_its_rule() {
    let instance = Name::new("settings").unwrap();
    let config = || {
        let database = DatabaseConfig::new("postgres:///none", &instance);
        WorkerConfig::new(instance.clone(), database, BusSource::Shared(Bus::memory()))
    };
    type Change = fn(&mut WorkerConfig);
    let cases: [(&str, &str, Change); 9] = [
        ("activities_max", "at least 1", |c| c.activities_max = 0),
        ("residents_max", "at least 1", |c| c.residents_max = 0),
        ("shards", "at least 1", |c| c.shards = 0),
        ("payload_bytes_max", "at least 1", |c| {
            c.limits.payload_bytes_max = 0
        }),
        ("turn_bytes_max", "twice payload_bytes_max", |c| {
            c.limits.turn_bytes_max = c.limits.payload_bytes_max
        }),
        ("session_ttl", "four times the beat interval", |c| {
            c.session_ttl = c.beat_interval * 3
        }),
        ("poll_interval", "10 ms", |c| {
            c.poll_interval = Duration::ZERO
        }),
        ("database", "URL", |c| {
            c.database.url = "not a url".to_owned()
        }),
        ("bus", "not an address", |c| {
            c.bus = BusSource::Nats(Box::new(BusConfig::new(["not an address"])))
        }),
    ];
    for (setting, rule, change) in cases {
        let mut config = config();
        change(&mut config);
        let Err(error) = Worker::start(registry![echo], config).await else {
            panic!("{setting}: accepted")
        };
        assert_eq!(error.setting, setting);
        assert!(error.to_string().contains(rule), "{error}");
    }
    let client = Client::connect(
        &instance,
        DatabaseConfig::new("not a url", &instance),
        BusSource::Shared(Bus::memory()),
        Limits::default(),
    );
    let Err(error) = client.await else {
        panic!("accepted")
    };
    assert!(error.to_string().contains("URL"), "{error}");
}
