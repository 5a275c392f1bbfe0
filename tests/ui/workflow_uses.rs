use continuum_worker::prelude::*;

fn unmarked() -> u8 {
    1
}

struct Type;

#[workflow(version = 1, uses(unmarked))]
async fn plain(_ctx: &WorkflowContext, _input: u8) -> Result<u8, WorkflowError> {
    Ok(unmarked())
}

#[workflow(version = 1, uses(Type))]
async fn wrong(_ctx: &WorkflowContext, _input: u8) -> Result<u8, WorkflowError> {
    Ok(1)
}

fn main() {}
