use continuum_worker::prelude::*;

#[activity]
async fn ship(_ctx: ActivityContext, input: u8) -> Result<u8, ActivityError> {
    Ok(input)
}

fn plain() {}

fn main() {
    let _ = registry![ship, plain];
}
