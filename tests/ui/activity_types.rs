use continuum_worker::prelude::*;

struct Raw;

#[activity]
async fn fails_raw(_ctx: ActivityContext, _input: u8) -> Result<u8, Raw> {
    Ok(1)
}

#[activity]
async fn wrong_body(_ctx: ActivityContext, _input: u8) -> Result<u8, ActivityError> {
    Ok("text")
}

fn main() {}
