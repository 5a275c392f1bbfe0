use continuum_worker::prelude::*;

#[workflow(version = 1, signals(fraud_review: bool))]
async fn misspelt(ctx: &WorkflowContext, _input: u8) -> Result<bool, WorkflowError> {
    Ok(ctx.signal(misspelt::fraud_reveiw).await?)
}

fn main() {}
