use continuum_worker::prelude::*;

#[activity]
async fn ship(_ctx: ActivityContext, input: u8) -> Result<u8, ActivityError> {
    Ok(input)
}

#[workflow(version = 1)]
async fn called(ctx: &WorkflowContext, input: u8) -> Result<u8, WorkflowError> {
    Ok(ctx.activity(ship(ActivityContext::for_test(), input), input).await?)
}

fn main() {}
