//! The workflows that are measured. Each does as little as its shape allows, so that what is measured is the engine.

use std::time::Duration;

use continuum_schema::Seq;
use continuum_schema::clock::{self, Micros};
use continuum_worker::prelude::*;
use continuum_worker::registry;

/// Steps or activities of one run of W1 and W1a.
pub(crate) const SEQUENCE: u64 = 10;

/// Activities that the run of W4 joins.
pub(crate) const JOINED: u64 = 1_000;

/// The position in the journal at which runs of W3 and sleepers wait: behind their start, and a step or the timer.
pub(crate) const WAITING_AT: Seq = 2;

/// How long a step of W6 takes.
pub(crate) const SLOW_STEP: Duration = Duration::from_millis(200);

/// The least that an activity can do.
#[activity(queue = "bench")]
async fn increment(_ctx: ActivityContext, n: u64) -> Result<u64, ActivityError> {
    Ok(n + 1)
}

/// W1: steps one after another.
#[workflow(version = 1)]
pub(crate) async fn sequential_steps(
    ctx: &WorkflowContext,
    count: u64,
) -> Result<u64, WorkflowError> {
    let mut n = 0_u64;
    for _ in 0..count {
        n = ctx
            .step("increment", move || async move { Ok(n + 1) })
            .await?;
    }
    Ok(n)
}

/// W1a: activities one after another.
#[workflow(version = 1)]
pub(crate) async fn sequential_activities(
    ctx: &WorkflowContext,
    count: u64,
) -> Result<u64, WorkflowError> {
    let mut n = 0_u64;
    for _ in 0..count {
        n = ctx.activity(increment, n).await?;
    }
    Ok(n)
}

/// W2: one step.
#[workflow(version = 1)]
pub(crate) async fn one_step(ctx: &WorkflowContext, n: u64) -> Result<u64, WorkflowError> {
    Ok(ctx
        .step("increment", move || async move { Ok(n + 1) })
        .await?)
}

/// W3: waits for a signal. The step before the wait leaves an event, which shows from outside that the run waits.
#[workflow(version = 1, signals(go: u64))]
pub(crate) async fn one_signal(ctx: &WorkflowContext, n: u64) -> Result<u64, WorkflowError> {
    let n: u64 = ctx
        .step("increment", move || async move { Ok(n + 1) })
        .await?;
    Ok(n + ctx.signal(one_signal::go).await?)
}

/// W4: many activities at once, and all of their results.
#[workflow(version = 1)]
pub(crate) async fn joined_activities(
    ctx: &WorkflowContext,
    count: u64,
) -> Result<u64, WorkflowError> {
    let results = ctx
        .join_all((0..count).map(|n| ctx.activity(increment, n)))
        .await;
    let mut sum = 0_u64;
    for result in results {
        sum += result?;
    }
    Ok(sum)
}

/// A run with a long history, which waits for a signal when it has made it.
#[workflow(version = 1, signals(go: u64))]
pub(crate) async fn long_history(ctx: &WorkflowContext, steps: u64) -> Result<u64, WorkflowError> {
    let mut n = 0_u64;
    for _ in 0..steps {
        n = ctx
            .step("increment", move || async move { Ok(n + 1) })
            .await?;
    }
    Ok(n + ctx.signal(long_history::go).await?)
}

/// W5: sleeps until a moment of the database's clock, in microseconds.
#[workflow(version = 1)]
pub(crate) async fn sleep_until(ctx: &WorkflowContext, due: Micros) -> Result<(), WorkflowError> {
    let wait = due.saturating_sub(clock::to_micros(ctx.now()));
    ctx.sleep(Duration::from_micros(u64::try_from(wait).unwrap_or(0)))
        .await?;
    Ok(())
}

/// W6: steps that take a while, one after another.
#[workflow(version = 1)]
pub(crate) async fn slow_steps(ctx: &WorkflowContext, count: u64) -> Result<u64, WorkflowError> {
    let mut n = 0_u64;
    for _ in 0..count {
        n = ctx.step("linger", move || linger(n)).await?;
    }
    Ok(n)
}

async fn linger(n: u64) -> Result<u64, ActivityError> {
    tokio::time::sleep(SLOW_STEP).await;
    Ok(n + 1)
}

/// What a worker of the benchmarks has loaded.
pub(crate) fn registry() -> Registry {
    registry![
        sequential_steps,
        sequential_activities,
        one_step,
        one_signal,
        joined_activities,
        long_history,
        sleep_until,
        slow_steps,
        increment
    ]
}
