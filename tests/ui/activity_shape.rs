use continuum_worker::prelude::*;

#[activity]
fn not_async(_ctx: ActivityContext, _input: u8) -> Result<(), ActivityError> {
    Ok(())
}

#[activity]
async fn two_inputs(_ctx: ActivityContext, _a: u8, _b: u8) -> Result<(), ActivityError> {
    Ok(())
}

#[activity]
async fn generic<T>(_ctx: ActivityContext, _input: T) -> Result<(), ActivityError> {
    Ok(())
}

#[activity]
async fn borrowed(_ctx: ActivityContext, _input: &str) -> Result<(), ActivityError> {
    Ok(())
}

fn main() {}
