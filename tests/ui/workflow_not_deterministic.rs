use std::time::SystemTime;

use continuum_worker::prelude::*;

#[pure]
fn pick() -> u8 {
    rand::random()
}

#[workflow(version = 1, uses(pick))]
async fn careless(ctx: &WorkflowContext, _input: u8) -> Result<(), WorkflowError> {
    let _now = SystemTime::now();
    let ids = vec![Uuid::new_v4()];
    println!("{ids:?}");
    tokio::time::sleep(Duration::from_secs(u64::from(pick()))).await;
    tokio::select! {
        _ = ctx.sleep(Duration::from_secs(1)) => {}
        _ = ctx.sleep(Duration::from_secs(2)) => {}
    }
    Ok(())
}

fn main() {}
