//! One contract for every bus; and a whole worker that needs no server but Postgres.

use std::sync::Arc;

use continuum_bus::contract::{self, Factory};
use continuum_bus::{Bus, BusConfig, MemoryBus};
use continuum_tests::{PATIENCE, World, servers};
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, Client, Limits, WorkerConfig};

#[tokio::test(flavor = "multi_thread")]
async fn nats_keeps_the_contract() {
    let url = servers().await.nats.url().to_owned();
    let make: Factory = Arc::new(move || {
        let config = BusConfig::new([url.clone()]);
        Box::pin(async { Bus::connect(config).await.unwrap() })
    });
    contract::run_all(make, "contract").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_bus_keeps_the_contract() {
    let hub = MemoryBus::new();
    let make: Factory = Arc::new(move || {
        let client = Bus::Memory(hub.join());
        Box::pin(async { client })
    });
    contract::run_all(make, "contract").await;
}

#[activity(queue = "greetings")]
async fn greet(_ctx: ActivityContext, name: String) -> Result<String, ActivityError> {
    Ok(format!("hello {name}"))
}

#[workflow(version = 1)]
async fn welcome(ctx: &WorkflowContext, _input: ()) -> Result<String, WorkflowError> {
    let name: String = ctx.signal::<String>("name").await?;
    ctx.sleep(Duration::from_millis(10)).await?;
    Ok(ctx.activity(greet, name).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_work_together_over_the_memory_bus() {
    let world = World::new().await;
    let hub = MemoryBus::new();
    // Only hints can be this fast: nobody looks by himself within the patience of the test.
    let config = || WorkerConfig {
        bus: BusSource::Shared(Bus::Memory(hub.join())),
        poll_interval: PATIENCE * 4,
        catch_up_interval: PATIENCE * 4,
        ..world.worker_config()
    };
    let flows = world.worker_with(registry![welcome], config()).await;
    let activities = world.worker_with(registry![greet], config()).await;
    let bus = BusSource::Shared(Bus::Memory(hub.join()));
    let client = Client::connect(
        &world.instance,
        world.database_config(),
        bus,
        Limits::default(),
    );
    let client = client.await.unwrap();
    let run = client.start(welcome, ()).await.unwrap();
    run.signal("name", &"Ada".to_owned()).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "hello Ada");
    world.finish([flows, activities]).await;
}
