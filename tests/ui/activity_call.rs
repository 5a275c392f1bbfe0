use continuum_worker::prelude::*;

#[activity]
async fn ship(_ctx: ActivityContext, input: u8) -> Result<u8, ActivityError> {
    Ok(input)
}

async fn plain(_ctx: ActivityContext, input: u8) -> Result<u8, ActivityError> {
    Ok(input)
}

#[workflow(version = 1)]
async fn wrong_input(ctx: &WorkflowContext, _input: u8) -> Result<u8, WorkflowError> {
    Ok(ctx.activity(ship, "text").await?)
}

#[workflow(version = 1)]
async fn wrong_output(ctx: &WorkflowContext, input: u8) -> Result<String, WorkflowError> {
    let text: String = ctx.activity(ship, input).await?;
    Ok(text)
}

#[workflow(version = 1)]
async fn unmarked(ctx: &WorkflowContext, input: u8) -> Result<u8, WorkflowError> {
    Ok(ctx.activity(plain, input).await?)
}

fn main() {}
