//! Migrations: proven on empty and on used databases, by many at once, under odd names and small rights; and what a
//! worker says of a database that it can't use.

use std::collections::HashSet;
use std::path::Path;

use continuum_schema::migration::{self, MIGRATIONS, wanted};
use continuum_schema::{Database, DatabaseConfig, Error, VersionError, session};
use continuum_tests::{PATIENCE, World, servers};
use continuum_worker::prelude::*;
use continuum_worker::{
    Client, ClientError, Limits, Worker, WorkerConfig, WorkerError, WorkerState,
};

#[activity(queue = "migrated")]
async fn double(_ctx: ActivityContext, number: u64) -> Result<u64, ActivityError> {
    Ok(number * 2)
}

/// Writes to every table that a run can write to.
#[workflow(version = 1)]
async fn visit(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    let doubled = ctx.activity(double, number).idempotency_key(number).await?;
    ctx.sleep(Duration::from_millis(5)).await?;
    let more: u64 = ctx.signal::<u64>("more").await?;
    Ok(doubled + more)
}

async fn visit_once(client: &Client) {
    let run = client.start(visit, 20).await.unwrap();
    run.signal("more", &2).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 42);
}

#[test]
fn the_list_of_migrations_is_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let mut files: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    let listed: Vec<(String, String)> = MIGRATIONS
        .iter()
        .map(|(version, name, sql)| (format!("{version:04}_{name}.sql"), (*sql).to_owned()))
        .collect();
    assert_eq!(listed, files);
    let versions: Vec<i64> = MIGRATIONS.iter().map(|(version, _, _)| *version).collect();
    assert_eq!(
        versions,
        (1..=wanted()).collect::<Vec<_>>(),
        "no number is left out or used twice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_migration_changes_nothing() {
    let world = World::unmigrated().await;
    let first = migration::migrate(&world.database).await.unwrap();
    assert_eq!((first.from, first.to), (0, wanted()));
    let worker = world.worker(registry![visit, double]).await;
    let client = world.client().await;
    let waiting = client.start(visit, 1).await.unwrap();
    world
        .until_event(waiting.run_id(), "activity_completed")
        .await;
    let second = migration::migrate(&world.database).await.unwrap();
    assert_eq!(
        (second.from, second.to, second.partitions),
        (wanted(), wanted(), 0)
    );
    waiting.signal("more", &1).await.unwrap();
    assert_eq!(waiting.result_within(PATIENCE).await.unwrap(), 3);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_that_migrate_an_empty_database_at_once_all_succeed() {
    let world = World::unmigrated().await;
    let databases: Vec<Database> = (0..10)
        .map(|_| Database::new(world.database_config()).unwrap())
        .collect();
    let migrated = futures::future::join_all(databases.iter().map(migration::migrate)).await;
    let from: Vec<i64> = migrated.into_iter().map(|m| m.unwrap().from).collect();
    assert_eq!(
        from.iter().filter(|from| **from == 0).count(),
        1,
        "one did the work: {from:?}"
    );
    assert_eq!(
        from.iter().filter(|from| **from == wanted()).count(),
        9,
        "the others found it done: {from:?}"
    );
    let worker = world.worker(registry![visit, double]).await;
    visit_once(&worker.client()).await;
    world.finish([worker]).await;
}

/// A worker on this world's database, of which a `check` of the client must say the same.
async fn fatal(world: &World, words: &[&str]) {
    let worker = Worker::start(registry![visit, double], world.worker_config())
        .await
        .unwrap();
    let error = tokio::time::timeout(PATIENCE, worker.fatal())
        .await
        .expect("it says so in time");
    let WorkerError::Database(Error::Version(version)) = &*error else {
        panic!("{error}")
    };
    let checked = world.client().await.check().await;
    let Err(ClientError::Database(Error::Version(same))) = checked else {
        panic!("{checked:?}")
    };
    assert_eq!(*version, same);
    for word in words {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_ne!(worker.status().borrow().state, WorkerState::Ready);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_a_database_of_another_version_says_which_command_to_run() {
    let missing = World::unmigrated().await;
    fatal(
        &missing,
        &[
            "no Continuum tables",
            "continuum migrate",
            missing.instance.as_str(),
        ],
    )
    .await;

    let older = World::new().await;
    older.make_older().await;
    let version = format!("at version {}", wanted() - 1);
    fatal(
        &older,
        &[
            "continuum migrate",
            &version,
            &format!("needs {}", wanted()),
        ],
    )
    .await;

    let newer = World::new().await;
    newer.make_newer().await;
    fatal(
        &newer,
        &["at version 9999", "start a build of that version or later"],
    )
    .await;
    let refused = migration::migrate(&newer.database).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Version(VersionError::Newer { found: 9999, .. })
        ),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn any_schema_name_that_postgres_can_hold_will_do() {
    let world = World::unmigrated().await;
    let world = world.in_schema(&format!("Dur \"x\" %s {}; --'", std::process::id()));
    migration::migrate(&world.database).await.unwrap();
    migration::check(&world.database).await.unwrap();
    let worker = world.worker(registry![visit, double]).await;
    let client = world.client().await;
    visit_once(&client).await;
    // The caller's own connection has another search path.
    let pool = world.foreign_pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let run = client
        .start(visit, 4)
        .within(&mut transaction)
        .await
        .unwrap();
    run.signal("more", &1)
        .within(&mut transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    client.notify(run.run_id()).await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 9);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_the_right_to_change_the_schema_can_run_workers_and_clients() {
    let world = World::new().await;
    let role = format!("Run \"time\" {}", world.instance);
    let quoted = role.replace('"', "\"\"");
    world
        .create_role(&quoted, &migration::grants(world.database.schema(), &role))
        .await;
    let login = role.replace(' ', "%20").replace('"', "%22");
    let url = servers()
        .await
        .postgres
        .url()
        .replace("user=postgres", &format!("user={login}"));
    let database = DatabaseConfig {
        url,
        ..world.database_config()
    };
    let config = WorkerConfig {
        database: database.clone(),
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![visit, double], config).await;
    let client = Client::connect(
        &world.instance,
        database.clone(),
        world.bus(),
        Limits::default(),
    );
    let client = client.await.unwrap();
    client.check().await.unwrap();
    visit_once(&client).await;
    let cancelled = client.start(visit, 3).await.unwrap();
    cancelled.cancel("enough").await.unwrap();
    assert!(matches!(
        cancelled.result_within(PATIENCE).await,
        Err(ClientError::Cancelled(_))
    ));

    // Migrating is the owner's; that nothing is left to do, anybody may find out.
    let migrated = migration::migrate(&Database::new(database).unwrap())
        .await
        .unwrap();
    let wanted = migration::wanted();
    assert_eq!((migrated.from, migrated.to), (wanted, wanted));

    worker.stop().await;
    world.drop_role(&quoted).await;
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_leaves_no_open_session() {
    let world = World::new().await;
    let workers = [
        world.worker(registry![visit]).await,
        world.worker(registry![double]).await,
    ];
    let open = session::watch(&world.database).await.unwrap();
    let open: HashSet<Uuid> = open.into_iter().map(|(session, _)| session).collect();
    let claimed: HashSet<Uuid> = workers
        .iter()
        .filter_map(|w| w.status().borrow().session)
        .collect();
    assert_eq!(open, claimed);
    for worker in &workers {
        worker.stop().await;
    }
    assert!(session::watch(&world.database).await.unwrap().is_empty());
    world.finish(workers).await;
}
