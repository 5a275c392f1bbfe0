use continuum_worker::prelude::*;

#[workflow]
async fn unversioned(_ctx: &WorkflowContext, _input: u8) -> Result<(), WorkflowError> {
    Ok(())
}

#[workflow(version = 1)]
async fn owned(_ctx: WorkflowContext, _input: u8) -> Result<(), WorkflowError> {
    Ok(())
}

#[workflow(version = 1, compatible = ["n1:old"])]
async fn compatible(_ctx: &WorkflowContext, _input: u8) -> Result<(), WorkflowError> {
    Ok(())
}

#[workflow(version = 1, signals(done: u8, done: u8))]
async fn twice(_ctx: &WorkflowContext, _input: u8) -> Result<(), WorkflowError> {
    Ok(())
}

#[workflow(version = 1)]
async fn no_result(_ctx: &WorkflowContext, _input: u8) -> u8 {
    1
}

fn main() {}
