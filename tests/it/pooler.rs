//! PgBouncer in between: transaction mode works when it is announced, and whatever would mix up the statements of
//! different clients is refused before the first of them.

use std::time::Duration;

use continuum_schema::{Database, DatabaseConfig, Error, Name, Pooler, migration, run};
use continuum_tests::{Bouncer, World, port_of, postgres_on_a_port, servers, until_ready};
use continuum_worker::dev::PrivatePostgres;
use continuum_worker::prelude::*;
use continuum_worker::{Client, Limits, Worker, WorkerConfig, WorkerError, registry};
use futures::future::join_all;

#[activity(queue = "pooled")]
async fn double(_ctx: ActivityContext, number: u64) -> Result<u64, ActivityError> {
    Ok(number * 2)
}

#[workflow(version = 1)]
async fn pooled(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    let stepped: u64 = ctx
        .step("one_more", move || async move { Ok(number + 1) })
        .await?;
    let doubled = ctx.activity(double, stepped).await?;
    ctx.sleep(Duration::from_millis(10)).await?;
    Ok(doubled + ctx.signal::<u64>("rest").await?)
}

/// A Postgres, and an instance on it that is looked at without a pooler.
struct Stage {
    postgres: PrivatePostgres,
    world: World,
}

impl Stage {
    async fn new() -> Self {
        let postgres = PrivatePostgres::start(postgres_on_a_port())
            .await
            .expect("a private Postgres starts");
        let world = World::at(&postgres.url(), servers().await.nats.url());
        Self { postgres, world }
    }

    async fn bouncer(&self, settings: &[&str]) -> Bouncer {
        Bouncer::start(port_of(&self.postgres), settings).await
    }

    fn config(&self, bouncer: &Bouncer, pooler: Pooler) -> DatabaseConfig {
        DatabaseConfig {
            url: bouncer.url(),
            pooler,
            ..self.world.database_config()
        }
    }

    fn worker_config(&self, bouncer: &Bouncer, pooler: Pooler) -> WorkerConfig {
        WorkerConfig {
            database: self.config(bouncer, pooler),
            ..self.world.worker_config()
        }
    }

    async fn client(&self, bouncer: &Bouncer, pooler: Pooler) -> Client {
        let config = self.config(bouncer, pooler);
        let limits = Limits::default();
        Client::connect(&self.world.instance, config, self.world.bus(), limits)
            .await
            .unwrap()
    }

    /// Workers and a client do their work through the bouncer.
    async fn complete_runs(self, bouncer: &Bouncer, pooler: Pooler) {
        let mut workers = Vec::new();
        for _ in 0..2 {
            let config = self.worker_config(bouncer, pooler);
            let worker = Worker::start(registry![pooled, double], config)
                .await
                .unwrap();
            until_ready(&worker).await;
            workers.push(worker);
        }
        let client = self.client(bouncer, pooler).await;
        let runs = join_all((0..30).map(async |number| {
            let run = client.start(pooled, number).await.unwrap();
            run.signal("rest", &number).await.unwrap();
            run.result_within(Duration::from_secs(20)).await.unwrap()
        }))
        .await;
        let expected: Vec<u64> = (0..30).map(|number| (number + 1) * 2 + number).collect();
        assert_eq!(runs, expected);
        self.world.finish(workers).await;
    }
}

fn database(config: DatabaseConfig) -> Database {
    Database::new(config).unwrap()
}

/// The reason why a database is refused.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::Config(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_through_a_pooler_in_transaction_mode() {
    let stage = Stage::new().await;
    let bouncer = stage
        .bouncer(&["pool_mode = transaction", "default_pool_size = 4"])
        .await;
    let migrators = (0..10).map(|_| database(stage.config(&bouncer, Pooler::Transaction)));
    let migrated = join_all(migrators.map(async |one| migration::migrate(&one).await.unwrap()));
    let firsts = migrated.await.iter().filter(|m| m.from == 0).count();
    assert_eq!(firsts, 1, "one does the work, the others find it done");
    stage.complete_runs(&bouncer, Pooler::Transaction).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_clients_than_servers_get_the_answers_to_their_own_questions() {
    const RUNS: usize = 8;
    let stage = Stage::new().await;
    let bouncer = stage
        .bouncer(&["pool_mode = transaction", "default_pool_size = 2"])
        .await;
    migration::migrate(&stage.world.database).await.unwrap();
    let client = stage.client(&bouncer, Pooler::Transaction).await;
    let ids = join_all((0..RUNS).map(async |number| {
        let key = format!("run {number}");
        let run = client.start(pooled, number as u64).key(key).await;
        run.unwrap().run_id()
    }))
    .await;

    // Each asks two questions in turn, and no two ask the same at the same time.
    let asking = ids.iter().enumerate().map(async |(number, id)| {
        let mine = database(stage.config(&bouncer, Pooler::Transaction));
        let key = format!("run {number}");
        for _ in 0..150 {
            let found = run::find(&mine, "default", &key).await.unwrap();
            assert_eq!(found, Some(*id));
            let count = run::count(&mine, None).await.unwrap();
            assert_eq!(count.iter().map(|(_, n)| n).sum::<i64>(), RUNS as i64);
        }
    });
    join_all(asking).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_session_mode_needs_no_setting() {
    let stage = Stage::new().await;
    let bouncer = stage
        .bouncer(&["pool_mode = session", "default_pool_size = 60"])
        .await;
    migration::migrate(&stage.world.database).await.unwrap();
    // Servers that were used and given back are handed out again, to one client at a time.
    for _ in 0..20 {
        let config = stage.config(&bouncer, Pooler::None);
        let (one, other) = (database(config.clone()), database(config));
        let (first, second) = tokio::join!(migration::check(&one), migration::check(&other));
        assert_eq!((first.unwrap(), second.unwrap()), (5, 5));
        tokio::join!(one.close(), other.close());
    }
    stage.complete_runs(&bouncer, Pooler::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_that_was_not_announced_is_refused_at_boot() {
    let stage = Stage::new().await;
    migration::migrate(&stage.world.database).await.unwrap();
    for settings in [
        // One server only; several, the one last used first; several in turn; one more client than servers.
        &["default_pool_size = 1"][..],
        &["default_pool_size = 6", "min_pool_size = 6"],
        &[
            "default_pool_size = 6",
            "min_pool_size = 6",
            "server_round_robin = 1",
        ],
        &[
            "default_pool_size = 2",
            "min_pool_size = 2",
            "server_round_robin = 1",
        ],
    ] {
        let settings = [settings, &["pool_mode = transaction"]].concat();
        let bouncer = stage.bouncer(&settings).await;
        let unannounced = stage.config(&bouncer, Pooler::None);
        for _ in 0..5 {
            let reason = refusal(migration::check(&database(unannounced.clone())).await);
            assert!(reason.contains("set `pooler` to `transaction`"), "{reason}");
        }
        refuse_beside_others(&stage, &bouncer).await;
    }
    let bouncer = stage.bouncer(&["pool_mode = transaction"]).await;
    let reason = refusal(migration::migrate(&database(stage.config(&bouncer, Pooler::None))).await);
    assert!(reason.contains("transaction mode"), "{reason}");
    fatal(
        &stage,
        &bouncer,
        Pooler::None,
        "set `pooler` to `transaction`",
    )
    .await;
}

/// While other clients keep the bouncer busy, so that servers come and go.
async fn refuse_beside_others(stage: &Stage, bouncer: &Bouncer) {
    let others = join_all((0..6).map(async |_| {
        let other = database(stage.config(bouncer, Pooler::Transaction));
        loop {
            other.now().await.unwrap();
        }
    }));
    let refused = async {
        for _ in 0..10 {
            let unannounced = database(stage.config(bouncer, Pooler::None));
            refusal(migration::check(&unannounced).await);
        }
    };
    tokio::select! {
        _ = others => unreachable!("they never end"),
        () = refused => {}
    }
}

/// A worker says at once that it can never work.
async fn fatal(stage: &Stage, bouncer: &Bouncer, pooler: Pooler, why: &str) {
    let config = stage.worker_config(bouncer, pooler);
    let worker = Worker::start(registry![pooled, double], config)
        .await
        .unwrap();
    let fatal = tokio::time::timeout(Duration::from_secs(10), worker.fatal())
        .await
        .unwrap();
    let WorkerError::Database(error) = &*fatal;
    assert!(error.to_string().contains(why), "{error}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_pooler_setting_can_cure_is_refused_at_boot() {
    let stage = Stage::new().await;
    migration::migrate(&stage.world.database).await.unwrap();
    let statements = stage.bouncer(&["pool_mode = statement"]).await;
    for pooler in [Pooler::None, Pooler::Transaction] {
        let config = stage.config(&statements, pooler);
        refusal(migration::check(&database(config)).await);
    }
    fatal(&stage, &statements, Pooler::Transaction, "statement mode").await;

    let bouncer = stage.bouncer(&["pool_mode = transaction"]).await;
    let mut config = stage.config(&bouncer, Pooler::Transaction);
    config.url += "&options=-c%20geqo%3Doff";
    let reason = refusal(migration::check(&database(config)).await);
    assert!(reason.contains("options"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_one_connection_is_enough() {
    let stage = Stage::new().await;
    let bouncer = stage.bouncer(&["pool_mode = transaction"]).await;
    for (url, pooler) in [
        (stage.postgres.url(), Pooler::None),
        (bouncer.url(), Pooler::Transaction),
    ] {
        let instance = Name::new(format!("one_{pooler:?}").to_lowercase()).unwrap();
        let one = database(DatabaseConfig {
            connections: 1,
            pooler,
            ..DatabaseConfig::new(url, &instance)
        });
        migration::migrate(&one).await.unwrap();
        migration::check(&one).await.unwrap();
    }
}
