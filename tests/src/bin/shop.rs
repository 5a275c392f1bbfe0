//! A program as users write it, for the tests of the command line: a few workflows, and `main`.

use std::process::ExitCode;
use std::time::Duration;

use continuum_worker::prelude::*;

#[workflow(version = 1)]
async fn add(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    Ok(ctx.activity(increment, number).await?)
}

#[activity]
async fn increment(_ctx: ActivityContext, number: u64) -> Result<u64, ActivityError> {
    Ok(number + 1)
}

#[workflow(version = 1)]
async fn approval(ctx: &WorkflowContext, _input: ()) -> Result<String, WorkflowError> {
    Ok(ctx.signal::<String>("approved").await?)
}

#[workflow(version = 1)]
async fn pay(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    Ok(ctx.activity(decline, ()).await?)
}

#[activity]
async fn decline(_ctx: ActivityContext, _input: ()) -> Result<(), ActivityError> {
    let limit = std::io::Error::other("the limit is reached");
    let error = anyhow::Error::new(limit).context("the card was declined");
    Err(ActivityError::from(error).retryable(false))
}

/// Goes on for longer than any test.
#[workflow(version = 1)]
async fn work(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    Ok(ctx.activity(toil, ()).await?)
}

#[activity]
async fn toil(_ctx: ActivityContext, _input: ()) -> Result<(), ActivityError> {
    tokio::time::sleep(Duration::from_secs(600)).await;
    Ok(())
}

/// Many short effects of every kind.
#[workflow(version = 1)]
async fn errands(ctx: &WorkflowContext, count: u64) -> Result<u64, WorkflowError> {
    let mut done = 0;
    for _ in 0..count {
        done += ctx.activity(errand, ()).await?;
        let stepped: u64 = ctx.step("stop-over", || async { Ok(1) }).await?;
        done += stepped;
        ctx.sleep(Duration::from_millis(3)).await?;
    }
    Ok(done)
}

/// Its one attempt is lost with its worker, unless that ends it or hands it back.
#[activity(retry(max_attempts = 1))]
async fn errand(_ctx: ActivityContext, _input: ()) -> Result<u64, ActivityError> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(1)
}

fn main() -> ExitCode {
    continuum_worker::main(continuum_worker::registry![
        add, increment, approval, pay, decline, work, toil, errands, errand
    ])
}
