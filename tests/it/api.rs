//! The API on NATS, as a program in any language would use it.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use continuum_tests::{PATIENCE, World};
use continuum_worker::prelude::*;
use continuum_worker::registry;
use serde_json::{Value, json};

#[workflow(version = 1)]
async fn echo_signal(ctx: &WorkflowContext, greeting: String) -> Result<String, WorkflowError> {
    let name: String = ctx.signal::<String>("name").await?;
    Ok(format!("{greeting}, {name}!"))
}

#[workflow(version = 1)]
async fn large(_ctx: &WorkflowContext, bytes: usize) -> Result<String, WorkflowError> {
    Ok("x".repeat(bytes))
}

/// Asks until somebody serves: a worker that is ready to work may still be announcing its API.
async fn request(nats: &async_nats::Client, subject: String, body: String) -> Value {
    let asked = async {
        loop {
            match nats.request(subject.clone(), body.clone().into()).await {
                Ok(reply) => return reply,
                Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{subject}: {error}"),
            }
        }
    };
    let reply = tokio::time::timeout(PATIENCE, asked)
        .await
        .expect("an answer in time");
    serde_json::from_slice(&reply.payload).expect("JSON")
}

async fn ask(nats: &async_nats::Client, world: &World, verb: &str, body: &Value) -> Value {
    let subject = format!("continuum.{}.api.{verb}", world.instance);
    request(nats, subject, body.to_string()).await
}

fn code(reply: &Value) -> &str {
    reply["error"]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("{reply} is no error"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_program_starts_signals_awaits_and_cancels_over_nats() {
    let world = World::new().await;
    let worker = world.worker(registry![echo_signal, large]).await;
    let nats = async_nats::connect(world.nats_url()).await.unwrap();

    let start = json!({ "workflow": "echo_signal", "input": "Hello", "key": "api-1" });
    let run_id = ask(&nats, &world, "start", &start).await["run_id"].clone();
    assert_eq!(
        ask(&nats, &world, "start", &start).await["run_id"],
        run_id,
        "the key names one run"
    );
    let conflict = ask(
        &nats,
        &world,
        "start",
        &json!({ "workflow": "echo_signal", "input": "Bye", "key": "api-1" }),
    )
    .await;
    assert_eq!(code(&conflict), "key_conflict");

    let waiting = ask(
        &nats,
        &world,
        "await",
        &json!({ "run_id": run_id, "timeout_ms": 10 }),
    )
    .await;
    assert_eq!(code(&waiting), "timed_out");
    let signal = json!({ "run_id": run_id, "name": "name", "payload": "Ada", "delivery_id": "d1" });
    assert_eq!(
        ask(&nats, &world, "signal", &signal).await["signal"],
        "accepted"
    );
    let result = ask(&nats, &world, "await", &json!({ "run_id": run_id })).await;
    assert_eq!(result["result"]["value"], "Hello, Ada!");
    assert_eq!(
        ask(&nats, &world, "get", &json!({ "run_id": run_id })).await["state"],
        "completed"
    );

    let run_id = ask(
        &nats,
        &world,
        "start",
        &json!({ "workflow": "echo_signal", "input": "x" }),
    )
    .await["run_id"]
        .clone();
    ask(
        &nats,
        &world,
        "cancel",
        &json!({ "run_id": run_id, "reason": "enough" }),
    )
    .await;
    let cancelled = ask(&nats, &world, "await", &json!({ "run_id": run_id })).await;
    assert_eq!(code(&cancelled), "run_cancelled");
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_told_their_rule_and_large_replies_stay_off_nats() {
    let world = World::new().await;
    let worker = world.worker(registry![echo_signal, large]).await;
    let nats = async_nats::connect(world.nats_url()).await.unwrap();
    for (verb, body, expected) in [
        ("start", json!({ "workflow": "a.b" }), "invalid"),
        ("start", json!({ "workflov": "x" }), "invalid"),
        ("get", json!({ "run_id": uuid::Uuid::nil() }), "not_found"),
        (
            "signal",
            json!({ "run_id": uuid::Uuid::nil(), "name": "x" }),
            "not_found",
        ),
        ("get", json!("no object"), "invalid"),
    ] {
        assert_eq!(
            code(&ask(&nats, &world, verb, &body).await),
            expected,
            "{verb} {body}"
        );
    }
    let run_id = ask(
        &nats,
        &world,
        "start",
        &json!({ "workflow": "large", "input": 700_000 }),
    )
    .await["run_id"]
        .clone();
    let reply = ask(&nats, &world, "await", &json!({ "run_id": run_id })).await;
    assert_eq!(code(&reply), "too_large");
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_shows_in_the_list_of_nats_services() {
    let world = World::new().await;
    let worker = world.worker(registry![large]).await;
    let nats = async_nats::connect(world.nats_url()).await.unwrap();
    let info = request(
        &nats,
        format!("$SRV.INFO.continuum-{}", world.instance),
        String::new(),
    )
    .await;
    let endpoints: Vec<&str> = info["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|e| e["name"].as_str())
        .collect();
    assert_eq!(endpoints, ["start", "signal", "cancel", "get", "await"]);
    world.finish([worker]).await;
}
