//! The workflows that a cluster works on while it is mistreated. Each effect is noted in the [ledger](crate::carry_out).

use continuum_worker::prelude::*;
use continuum_worker::{Registry, registry};

use crate::{Seen, carry_out};

/// Takes so many milliseconds.
#[activity(queue = "crash", retry(unlimited, initial = "1ms"))]
pub async fn work(
    ctx: ActivityContext,
    (effect, millis): (String, u64),
) -> Result<String, ActivityError> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(carry_out(ctx.run_id(), &effect, ctx.attempt()))
}

/// Has one attempt.
#[activity(queue = "crash", retry(max_attempts = 1))]
pub async fn work_once(ctx: ActivityContext, effect: String) -> Result<String, ActivityError> {
    let value = carry_out(ctx.run_id(), &effect, ctx.attempt());
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(value)
}

/// Every kind of effect, one after another and side by side; the result tells all values that the code has seen.
#[workflow(version = 1)]
pub async fn tangle(ctx: &WorkflowContext, number: u64) -> Result<Seen, WorkflowError> {
    let run_id = ctx.info().run_id;
    let mut seen = Vec::new();
    let first: String = ctx
        .step(
            "first",
            move || async move { Ok(carry_out(run_id, "first", 1)) },
        )
        .await?;
    seen.push(("first".to_owned(), first));
    let charged = ctx
        .activity(work, ("charge".to_owned(), number % 7))
        .await?;
    seen.push(("charge".to_owned(), charged));
    ctx.sleep(Duration::from_millis(10 + number % 30)).await?;
    let names: Vec<String> = (0..3).map(|n| format!("ship{n}")).collect();
    let shipped = ctx
        .join_all(
            names
                .iter()
                .map(|name| ctx.activity(work, (name.clone(), 5))),
        )
        .await;
    for (name, value) in names.into_iter().zip(shipped) {
        seen.push((name, value?));
    }
    let word: String = ctx.signal::<String>("go").await?;
    seen.push(("go".to_owned(), word));
    let (left, right) = futures::join!(
        ctx.step("left", move || async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(carry_out(run_id, "left", 1))
        }),
        ctx.activity(work, ("right".to_owned(), 10)),
    );
    let left: String = left?;
    seen.extend([("left".to_owned(), left), ("right".to_owned(), right?)]);
    match ctx.activity(work_once, "once".to_owned()).await {
        Ok(value) => seen.push(("once".to_owned(), value)),
        Err(error) if error.kind() == "WorkerLost" => {}
        Err(error) => return Err(error.into()),
    }
    let late: Option<String> = ctx
        .signal::<String>("never")
        .timeout(Duration::from_millis(20))
        .await?;
    let last: String = ctx
        .step(
            "last",
            move || async move { Ok(carry_out(run_id, "last", 1)) },
        )
        .await?;
    seen.extend([
        ("never".to_owned(), format!("{late:?}")),
        ("last".to_owned(), last),
    ]);
    Ok(seen)
}

/// Receives `count` signals named `item`, and notes each in a step of its own.
#[workflow(version = 1)]
pub async fn tally(ctx: &WorkflowContext, count: u64) -> Result<Vec<String>, WorkflowError> {
    let run_id = ctx.info().run_id;
    let mut items = Vec::new();
    for _ in 0..count {
        let item = ctx.signal::<String>("item").await?;
        let _: String = ctx
            .step(
                "note",
                move || async move { Ok(carry_out(run_id, "note", 1)) },
            )
            .await?;
        items.push(item);
    }
    Ok(items)
}

/// Sleeps until it is cancelled, reads no signal, and cleans up before it ends.
#[workflow(version = 1)]
pub async fn sleeper(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    let Err(stopped) = ctx.sleep(Duration::from_secs(86_400)).await else {
        return Ok(());
    };
    ctx.shield(async { ctx.activity(work, ("clean".to_owned(), 1)).await })
        .await?;
    Err(stopped.into())
}

/// A slow step and a slow activity side by side, then a wait.
#[workflow(version = 1)]
pub async fn slow(ctx: &WorkflowContext, _input: ()) -> Result<(String, String), WorkflowError> {
    let run_id = ctx.info().run_id;
    let (step, activity) = futures::join!(
        ctx.step("slow", move || async move {
            carry_out(run_id, "slow", 0);
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(carry_out(run_id, "slow", 1))
        }),
        ctx.activity(work, ("work".to_owned(), 300)),
    );
    let step: String = step?;
    let _: String = ctx.signal::<String>("go").await?;
    Ok((step, activity?))
}

/// One activity that takes so many milliseconds.
#[workflow(version = 1)]
pub async fn long(ctx: &WorkflowContext, millis: u64) -> Result<String, WorkflowError> {
    Ok(ctx.activity(work, ("long".to_owned(), millis)).await?)
}

/// Sleeps so many milliseconds, so many times.
#[workflow(version = 1)]
pub async fn naps(ctx: &WorkflowContext, (times, millis): (u64, u64)) -> Result<(), WorkflowError> {
    for _ in 0..times {
        ctx.sleep(Duration::from_millis(millis)).await?;
    }
    Ok(())
}

/// Everything that a worker of a cluster can run.
#[must_use]
pub fn registry() -> Registry {
    registry![tangle, work, work_once, tally, sleeper, slow, long, naps]
}
