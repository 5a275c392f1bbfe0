//! A worker dies at each commit point, or loses the answer of one, and another finishes what it began.
//!
//! The points are not listed by hand: a debug build can note every statement that it calls, and a trial run finds them.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;
use continuum_bus::{Bus, BusConfig, ContentType, Subjects};
use continuum_schema::run::{self, RunState};
use continuum_schema::{Name, activity};
use continuum_tests::{
    ProcessSettings, Seen, WorkerProcess, World, carried_out, check, compare, until,
};
use continuum_worker::Client;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use uuid::Uuid;

use crate::crash::PROCESS;

/// Cases at a time.
const AT_ONCE: usize = 6;

/// What must be among the points that the trial run finds; fewer would mean that the test has lost its way.
const EXPECTED: [&str; 8] = [
    "run/start",
    "lease/claim",
    "journal/append",
    "lease/release",
    "mailbox/post",
    "mailbox/ingest",
    "activity/retry",
    "activity/complete",
];

/// A debug build's points: `<statement>:<when>:<call>`.
fn points(statements: &BTreeSet<String>) -> Vec<String> {
    let mut points = Vec::new();
    for statement in statements {
        for when in ["before", "after", "lost"] {
            // The first append begins a run, a later one is in the midst of it.
            let calls: &[u32] = if statement == "journal/append" {
                &[1, 3, 6]
            } else {
                &[1]
            };
            points.extend(
                calls
                    .iter()
                    .map(|call| format!("{statement}:{when}:{call}")),
            );
        }
    }
    points
}

struct Case {
    world: World,
    client: Client,
    nats: async_nats::Client,
    log: NamedTempFile,
    point: Option<String>,
}

impl Case {
    async fn new(point: Option<String>) -> Self {
        let world = World::new().await;
        Self {
            client: world.client().await,
            nats: async_nats::connect(world.nats_url())
                .await
                .expect("NATS answers"),
            world,
            log: NamedTempFile::new().expect("a temporary file"),
            point,
        }
    }

    fn settings(&self, name: &str) -> ProcessSettings {
        ProcessSettings {
            idle_max: Duration::from_millis(1),
            ..ProcessSettings::new(&self.world, name, self.log.path())
        }
    }

    /// Starts a run and signals it twice, everything through a worker that strikes its point on the way; a second worker
    /// joins when the first is gone. Returns the run and its result.
    async fn drive(&self, variable: (&str, &str)) -> (Uuid, Seen) {
        let mut first = WorkerProcess::start_with(PROCESS, &self.settings("first"), Some(variable));
        let mut second = None;
        let start = json!({ "workflow": "roundabout", "input": null, "key": "one" });
        let run_id = loop {
            self.replace(&mut first, &mut second);
            if let Some(reply) = self.ask("start", &start).await {
                break serde_json::from_value(reply["run_id"].clone()).expect("an id");
            }
        };
        // The signal comes when the run is cold, so that it is released and claimed again on the way.
        until(
            "the run waits for its signal, or its worker is gone",
            async || {
                self.replace(&mut first, &mut second);
                let run = run::get(&self.world.database, run_id)
                    .await
                    .expect("it exists");
                let open = activity::open(&self.world.database, run_id)
                    .await
                    .expect("Postgres answers");
                let waits =
                    run.state == RunState::Waiting && open.is_empty() && run.version_hash.is_some();
                (waits || second.is_some()).then_some(())
            },
        )
        .await;
        self.publish(run_id).await;
        let signal = json!({ "run_id": run_id, "name": "go", "payload": run_id.to_string(), "delivery_id": "go" });
        while self.ask("signal", &signal).await.is_none() {
            self.replace(&mut first, &mut second);
            // The run may have ended by the signal that came over the stream.
            if run::get(&self.world.database, run_id)
                .await
                .expect("it exists")
                .state
                .is_terminal()
            {
                break;
            }
        }
        let result = until("the run has ended", async || {
            self.replace(&mut first, &mut second);
            self.client
                .wait(run_id, Some(Duration::from_millis(200)))
                .await
                .ok()
        })
        .await;
        let dies = self
            .point
            .as_ref()
            .is_some_and(|point| !point.contains(":lost:"));
        assert_eq!(
            first.is_gone(),
            dies,
            "{:?}: the worker did not strike its point",
            self.point
        );
        (run_id, result.decode().expect("what a roundabout gives"))
    }

    fn replace(&self, first: &mut WorkerProcess, second: &mut Option<WorkerProcess>) {
        if first.is_gone() && second.is_none() {
            *second = Some(WorkerProcess::start(PROCESS, &self.settings("second")));
        }
    }

    /// One request; `None` if nobody answered, or the answer is an error that passes.
    async fn ask(&self, verb: &str, body: &Value) -> Option<Value> {
        let subject = format!("continuum.{}.api.{verb}", self.world.instance);
        let asked = self.nats.request(subject, body.to_string().into());
        let Ok(Ok(reply)) = tokio::time::timeout(Duration::from_secs(1), asked).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return None;
        };
        let reply: Value = serde_json::from_slice(&reply.payload).expect("JSON");
        match reply["error"]["code"].as_str() {
            None => Some(reply),
            Some("unavailable" | "run_ended") => None,
            Some(_) => panic!("{verb}: {reply}"),
        }
    }

    /// The signal as any program sends it, over the stream.
    async fn publish(&self, run_id: Uuid) {
        let config = BusConfig::new([self.world.nats_url().to_owned()]);
        let settings = config.signals.clone();
        let bus = Bus::connect(config).await.expect("usable settings");
        let stream = bus.signals(&Subjects::new(&self.world.instance), &settings);
        let name = Name::new("go").expect("a name");
        let body = Bytes::from(json!(run_id.to_string()).to_string());
        until("the signal is in the stream", async || {
            stream
                .publish(run_id, &name, body.clone(), &ContentType::Json, Some("go"))
                .await
                .ok()
        })
        .await;
        bus.close().await;
    }

    async fn finish(self, run_id: Uuid, seen: &Seen) {
        let mut notes = HashSet::new();
        for (run, effect, attempt, value) in carried_out(self.log.path()) {
            assert_eq!(run, run_id, "one run was started");
            assert!(notes.insert((effect, attempt, value)), "a value came twice");
        }
        compare(run_id, seen, &self.world.history(run_id).await, &notes);
        assert_eq!(
            self.world.runs().await,
            1,
            "{:?}: the key names one run",
            self.point
        );
        check(&self.world.database).await;
    }
}

/// Every statement that a worker calls on the way of one run from its start to its end.
async fn statements() -> BTreeSet<String> {
    let case = Case::new(None).await;
    let noted = NamedTempFile::new().expect("a temporary file");
    let path = noted.path().to_str().expect("a plain path");
    let (run_id, seen) = case.drive(("CONTINUUM_FAULT_LOG", path)).await;
    case.finish(run_id, &seen).await;
    let text = std::fs::read_to_string(noted.path()).expect("the log exists");
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_commit_point_a_worker_dies_at_another_finishes_what_it_began() {
    let found = statements().await;
    println!("statements on the way of a run: {found:?}");
    let missing: Vec<&str> = EXPECTED
        .into_iter()
        .filter(|name| !found.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "the trial run did not come by {missing:?}"
    );
    let writes: BTreeSet<String> = found
        .into_iter()
        .filter(|name| EXPECTED.contains(&name.as_str()))
        .collect();
    let cases = points(&writes);
    println!("{} points", cases.len());
    stream::iter(cases)
        .for_each_concurrent(AT_ONCE, |point| async move {
            let case = Case::new(Some(point.clone())).await;
            let (run_id, seen) = case.drive(("CONTINUUM_FAULT", &point)).await;
            case.finish(run_id, &seen).await;
        })
        .await;
}
