//! The fleet as an operator sees it from the command line.

use continuum_tests::{World, until};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cli::{dev_in, end_of, json_in, program_in, run, run_at, run_in};
use crate::drain::Served;

/// The worker of this name in the list, open or not.
async fn listed(world: &World, name: &str, more: &[&str]) -> Option<Value> {
    let list = json_in(world, &[&["workers", "list"], more].concat()).await;
    let workers = list["workers"].as_array().unwrap().clone();
    workers.into_iter().find(|worker| worker["worker"] == name)
}

async fn until_listed(world: &World, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let look = async || {
        listed(world, name, &[])
            .await
            .filter(|worker| holds(worker))
    };
    until(&format!("{name} is listed as wanted"), look).await
}

#[tokio::test]
async fn the_fleet_is_listed_with_what_each_worker_does() {
    let world = World::new().await;
    let none = run_in(&world, &["workers", "list"]).await;
    assert_eq!(none.assert_code(0).stdout, "");
    assert!(
        none.stderr.contains("no worker has an open session"),
        "{none:?}"
    );

    let busy = Served::start(&world, "busy", &[("CONTINUUM_BUILD", "v7")]).await;
    busy.until_ready().await;
    run_in(&world, &["start", "work"]).await.assert_code(0);
    let worker = until_listed(&world, "busy", |worker| {
        worker["resident_runs"] == 1 && worker["running_activities"] == 1
    })
    .await;
    let idle = Served::start(&world, "idle", &[("CONTINUUM_QUEUES", "a,b")]).await;
    idle.until_ready().await;
    assert_eq!(worker["state"], "ready");
    assert_eq!(worker["build"], "v7");
    assert_eq!(worker["queues"], serde_json::json!(["default"]));
    assert!(
        worker["heartbeat_age_seconds"].as_f64().unwrap() < 6.0,
        "{worker}"
    );

    let text = run_in(&world, &["workers", "list"]).await;
    let lines: Vec<Vec<&str>> = text
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..3], ["WORKER", "STATE", "BUILD"], "{text:?}");
    assert_eq!(lines[1][..5], ["busy", "ready", "v7", "1", "1"], "{text:?}");
    assert_eq!(lines[2][6..], ["a,", "b"], "{text:?}");
    assert_eq!(lines.len(), 3, "{text:?}");

    let shown = json_in(&world, &["workers", "show", "busy"]).await;
    assert_eq!(
        (&shown["leases"], &shown["attempts"]),
        (&1.into(), &1.into())
    );
    let loaded = shown["workflows"].as_array().unwrap();
    assert!(
        loaded
            .iter()
            .any(|version| version["workflow"] == "work" && version["version"].is_string()),
        "{shown}"
    );
    let session = shown["session"].as_str().unwrap();
    let text = run_in(&world, &["workers", "show", session]).await;
    for line in [
        "worker     busy",
        "state      ready",
        "leases     1",
        "due        0 runs",
    ] {
        assert!(text.stdout.contains(line), "{line}: {text:?}");
    }
    assert!(text.stdout.contains("WORKFLOW"), "{text:?}");

    for worker in [busy, idle] {
        worker.signal(Signal::SIGINT);
        worker.signal(Signal::SIGTERM);
        worker.end().await;
    }
    world.finish([]).await;
}

#[tokio::test]
async fn a_worker_drains_from_the_command_line_and_may_be_asked_again() {
    let world = World::new().await;
    let worker = Served::start(&world, "leaving", &[]).await;
    worker.until_ready().await;
    let session = listed(&world, "leaving", &[]).await.unwrap()["session"].clone();
    let session = session.as_str().unwrap();

    let asked = json_in(&world, &["workers", "drain", session]).await;
    assert_eq!(asked["worker"], "leaving");
    let drained = run_in(&world, &["workers", "drain", "leaving", "--wait"]).await;
    let told = "worker leaving has drained; nothing is left behind\n";
    assert_eq!(drained.assert_code(0).stdout, told);
    let (code, log) = worker.end().await;
    assert_eq!(code, Some(0), "{log}");
    let again = json_in(&world, &["workers", "drain", session]).await;
    assert_eq!(again["outcome"], "drained");

    assert_eq!(listed(&world, "leaving", &[]).await, None);
    let over = listed(&world, "leaving", &["--all"]).await.unwrap();
    assert_eq!(
        (&over["state"], &over["close_reason"]),
        (&"drained".into(), &"drained".into())
    );
    let all = run_in(&world, &["workers", "list", "--all"]).await;
    assert!(all.stdout.contains("Z: drained"), "{all:?}");
    world.finish([]).await;
}

#[tokio::test]
async fn a_dead_worker_is_silent_and_asking_it_says_what_helps() {
    let world = World::new().await;
    let worker = Served::start(&world, "dead", &[]).await;
    worker.until_ready().await;
    worker.signal(Signal::SIGKILL);
    worker.end().await;
    let look = async || {
        let worker = listed(&world, "dead", &["--silent-after", "1s"]).await?;
        (worker["state"] == "silent").then_some(())
    };
    until("it is silent", look).await;
    for more in [&[][..], &["--wait"]] {
        let arguments = [&["workers", "drain", "dead"], more].concat();
        let asked = run_in(&world, &arguments).await;
        let hint = "its process is gone or has lost its link";
        assert!(asked.assert_code(5).stderr.contains(hint), "{asked:?}");
        assert!(
            asked.stderr.contains("SIGTERM") && asked.stderr.contains("POST /drain"),
            "{asked:?}"
        );
    }
    let mut command = program_in(&world, &["workers", "drain", "dead", "--format", "json"]);
    command.env("CONTINUUM_NATS_URL", "nats://127.0.0.1:1");
    let without = run(command).await;
    let error = without.assert_code(5).error();
    assert_eq!(error["code"], "unavailable");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("can't be asked") && !message.contains("polling"),
        "{message}"
    );
    world.finish([]).await;
}

#[tokio::test]
async fn a_halted_worker_gives_no_answer_and_is_waited_for_no_longer_than_told() {
    let world = World::new().await;
    let worker = Served::start(&world, "halted", &[]).await;
    worker.until_ready().await;
    run_in(&world, &["start", "work"]).await.assert_code(0);
    until_listed(&world, "halted", |worker| worker["running_activities"] == 1).await;
    // Its activity goes on for longer than that.
    let arguments = ["workers", "drain", "halted", "--wait", "--timeout", "500ms"];
    let waited = run_in(&world, &arguments).await;
    let told = "worker halted has not drained within 500ms";
    assert!(waited.assert_code(6).stderr.contains(told), "{waited:?}");
    let draining = until_listed(&world, "halted", |worker| worker["state"] == "draining").await;
    assert_eq!(draining["running_activities"], 1);

    worker.signal(Signal::SIGSTOP);
    let asked = run_in(&world, &["workers", "drain", "halted"]).await;
    let told = "worker halted gave no answer within 5s";
    assert!(asked.assert_code(5).stderr.contains(told), "{asked:?}");
    worker.signal(Signal::SIGKILL);
    worker.end().await;
    world.finish([]).await;
}

#[tokio::test]
async fn a_worker_that_is_unknown_or_not_the_only_one_of_its_name_is_refused() {
    let world = World::new().await;
    for command in ["show", "drain"] {
        let unknown = run_in(&world, &["workers", command, "nobody"]).await;
        let hint = "`shop workers list --all`";
        assert!(unknown.assert_code(3).stderr.contains(hint), "{unknown:?}");
    }
    let one = Served::start(&world, "twin", &[]).await;
    let other = Served::start(&world, "twin", &[]).await;
    one.until_ready().await;
    other.until_ready().await;
    let twins = run_in(&world, &["workers", "drain", "twin"]).await;
    assert!(
        twins
            .assert_code(2)
            .stderr
            .contains("2 workers have the name"),
        "{twins:?}"
    );
    for worker in [one, other] {
        worker.signal(Signal::SIGTERM);
        assert_eq!(worker.end().await.0, Some(0));
    }
    world.finish([]).await;
}

#[tokio::test]
async fn a_wait_ends_in_time_also_when_postgres_went_away_with_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let dev = dev_in(folder.path()).await;
    let worker = until("the worker has a session", async || {
        let list = run_at(folder.path(), &["workers", "list", "--format", "json"]).await;
        let name = &list.stdout_json()["workers"][0]["worker"];
        name.as_str().map(str::to_owned)
    })
    .await;
    // A `dev` takes its servers along.
    let drain = ["workers", "drain", &worker];
    let arguments = [&drain[..], &["--wait", "--timeout", "2s"]].concat();
    let waited = run_at(folder.path(), &arguments).await;
    let seen = waited.code == Some(0) && waited.stdout.contains("has drained");
    let told = waited.code == Some(6) && waited.stderr.contains("can't be seen to have drained");
    assert!(seen || told, "{waited:?}");
    let (code, log) = end_of(dev).await;
    assert_eq!(code, Some(0), "{log}");
}
