use continuum_worker::prelude::*;

#[activity(queu = "payments")]
async fn misspelt(_ctx: ActivityContext, _input: u8) -> Result<(), ActivityError> {
    Ok(())
}

#[activity(timeout = "soon", retry(max_attempts = 5))]
async fn undated(_ctx: ActivityContext, _input: u8) -> Result<(), ActivityError> {
    Ok(())
}

#[activity(queue = "a.b")]
async fn escaping(_ctx: ActivityContext, _input: u8) -> Result<(), ActivityError> {
    Ok(())
}

#[activity(retry(max_attempts = 0))]
async fn never(_ctx: ActivityContext, _input: u8) -> Result<(), ActivityError> {
    Ok(())
}

fn main() {}
