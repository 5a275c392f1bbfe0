//! The straight road: every kind of effect, live and on another worker.

use std::time::Duration;

use continuum_tests::World;
use continuum_worker::prelude::*;
use continuum_worker::registry;

#[activity(queue = "sums", retry(max_attempts = 3, initial = "10ms"))]
async fn add(_ctx: ActivityContext, (a, b): (u64, u64)) -> Result<u64, ActivityError> {
    Ok(a + b)
}

#[activity(queue = "sums", retry(max_attempts = 3, initial = "10ms"))]
async fn flaky(ctx: ActivityContext, failures: u32) -> Result<u32, ActivityError> {
    if ctx.attempt() <= failures {
        return Err(ActivityError::new(
            "Flaky",
            format!("attempt {} fails", ctx.attempt()),
        ));
    }
    Ok(ctx.attempt())
}

#[workflow(version = 1)]
async fn everything(
    ctx: &WorkflowContext,
    start: u64,
) -> Result<(u64, u32, String, bool), WorkflowError> {
    let stepped: u64 = ctx
        .step("double", move || async move { Ok(start * 2) })
        .await?;
    let added = ctx.activity(add, (stepped, 1)).await?;
    let attempts = ctx.activity(flaky, 2).await?;
    ctx.sleep(Duration::from_millis(20)).await?;
    let word: String = ctx.signal::<String>("word").await?;
    let late: Option<String> = ctx
        .signal::<String>("never")
        .timeout(Duration::from_millis(20))
        .await?;
    let all = ctx
        .join_all((0..10).map(|n| ctx.activity(add, (n, n))))
        .await;
    let sum: u64 = all
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .sum();
    Ok((added + sum, attempts, word, late.is_none()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_every_effect_completes() {
    let world = World::new().await;
    let worker = world.worker(registry![everything, add, flaky]).await;
    let client = world.client().await;
    let run = client.start(everything, 20).key("one").await.unwrap();
    run.signal("word", &"hello".to_owned()).await.unwrap();
    let result = run.result_within(Duration::from_secs(20)).await.unwrap();
    assert_eq!(result, (131, 3, "hello".to_owned(), true));
    world.finish([worker]).await;
}
