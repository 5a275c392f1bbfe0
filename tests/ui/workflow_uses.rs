use continuum_worker::prelude::*;

fn unmarked() -> u8 {
    1
}

#[workflow(version = 1, uses(unmarked))]
async fn plain(_ctx: &WorkflowContext, _input: u8) -> Result<u8, WorkflowError> {
    Ok(unmarked())
}

fn main() {}
