use continuum_worker::prelude::*;

#[pure]
fn discount(cents: u64) -> u64 {
    cents / 10
}

#[workflow(version = 1, uses(discount))]
async fn quote(_ctx: &WorkflowContext, cents: u64) -> Result<u64, WorkflowError> {
    Ok(cents - discount(cents))
}
