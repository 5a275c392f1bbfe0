use continuum_worker::prelude::*;

#[workflow(version = 1)]
async fn nested(ctx: &WorkflowContext, _input: u8) -> Result<(), WorkflowError> {
    ctx.step("nested", move || async move {
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(())
    })
    .await?;
    Ok(())
}

fn main() {}
