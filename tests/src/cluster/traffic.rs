//! Traffic: runs that are started, signalled and cancelled while the cluster suffers, and what must have become of each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use continuum_bus::{Bus, BusConfig, ContentType, SignalStream, Subjects};
use continuum_schema::{Event, Name, Payload, mailbox, run};
use continuum_worker::{Client, ClientError, Payloadable};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Cluster;
use crate::{Seen, carried_out, compare};

/// Runs at a time.
const IN_FLIGHT: usize = 48;

/// Signals that a tally receives, and a sleeper does not read.
const ITEMS: u64 = 6;

/// The pause after a call that failed because a server was away.
const PAUSE: Duration = Duration::from_millis(50);

/// What the traffic came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Runs that returned a value.
    pub completed: u64,
    /// Runs that were cancelled, and cleaned up.
    pub cancelled: u64,
    /// Signals that runs received.
    pub consumed: u64,
    /// Signals that runs ended without reading, as they say.
    pub unread: u64,
    /// Effects that were carried out.
    pub carried_out: u64,
    /// Of these, whose result is in no journal: their worker was lost before the commit.
    pub repeated: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.cancelled += other.cancelled;
        self.consumed += other.consumed;
        self.unread += other.unread;
        self.carried_out += other.carried_out;
        self.repeated += other.repeated;
    }
}

/// A run that has ended as it should, and what is still to be compared with its journal.
enum Ended {
    Tangled(Uuid, Seen),
    Tallied(Uuid, Vec<String>),
    Slept(Uuid),
}

/// The traffic of one cluster. It reaches both servers past all proxies.
pub struct Traffic {
    client: Client,
    bus: Bus,
    stream: SignalStream,
    tasks: JoinSet<Ended>,
    places: Arc<Semaphore>,
    started: u64,
}

impl Traffic {
    /// No traffic yet.
    ///
    /// # Panics
    /// If the settings can't be used.
    pub async fn new(cluster: &Cluster) -> Self {
        let config = BusConfig::new([cluster.world.nats_url().to_owned()]);
        let settings = config.signals.clone();
        let bus = Bus::connect(config).await.expect("usable settings");
        let subjects = Subjects::new(&cluster.world.instance);
        Self {
            client: cluster.client.clone(),
            stream: bus.signals(&subjects, &settings),
            bus,
            tasks: JoinSet::new(),
            places: Arc::new(Semaphore::new(IN_FLIGHT)),
            started: 0,
        }
    }

    /// Keeps runs in flight until it is told to stop.
    ///
    /// # Panics
    /// If a run does not end as it should.
    pub async fn flow(&mut self, stop: CancellationToken) {
        loop {
            let place = Arc::clone(&self.places).acquire_owned();
            let Some(place) = stop.run_until_cancelled(place).await else {
                return;
            };
            let place = place.expect("nobody closes it");
            let number = self.started;
            self.started += 1;
            let (client, stream) = (self.client.clone(), self.stream.clone());
            self.tasks.spawn(async move {
                let ended = match number % 4 {
                    0 => tally_one(&client, &stream, number).await,
                    1 => sleep_one(&client, number).await,
                    _ => tangle_one(&client, &stream, number).await,
                };
                drop(place);
                ended
            });
        }
    }

    /// Waits until every run has ended, and compares each with its journal and with what was carried out.
    ///
    /// # Panics
    /// If one does not end within `patience`, or anything does not fit.
    pub async fn settle(mut self, cluster: &Cluster, patience: Duration) -> Tally {
        let mut ended = Vec::new();
        let all = async {
            while let Some(one) = self.tasks.join_next().await {
                match one {
                    Ok(one) => ended.push(one),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            panic!(
                "{} runs have not ended {patience:?} after the last fault: {:#?}",
                self.started - ended.len() as u64,
                still_open(cluster).await
            );
        }
        self.bus.close().await;
        cluster.renew_connections().await;
        audit(cluster, &ended).await
    }
}

async fn still_open(cluster: &Cluster) -> Vec<String> {
    let runs = run::list(&cluster.world.database, &run::Filter::default(), 1000).await;
    let runs = runs.expect("Postgres answers");
    let open = runs.iter().filter(|run| !run.state.is_terminal());
    let mut lines = Vec::new();
    for run in open {
        let history = cluster.world.history(run.run_id).await;
        let last = history.last().map(Event::name);
        lines.push(format!(
            "{} {} {:?}, owner {:?}, mail {}, blocked {:?}, {} events, the last {last:?}",
            run.workflow,
            run.run_id,
            run.state,
            run.worker,
            run.mail,
            run.blocked,
            history.len(),
        ));
    }
    lines
}

/// Calls until a server answers. Each call here may be repeated: it has a key or a delivery id.
async fn insist<T, F>(mut call: impl FnMut() -> F) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    loop {
        match call().await {
            Err(ClientError::Unavailable(_)) => tokio::time::sleep(PAUSE).await,
            other => return other,
        }
    }
}

async fn start(client: &Client, workflow: &str, input: &impl Serialize, number: u64) -> Uuid {
    let input = Payload::encode(input).expect("plain data");
    let start = || {
        let request = client.start_named(workflow, input.clone());
        request.key(format!("run {number}")).into_future()
    };
    insist(start).await.expect("it starts").run_id()
}

async fn result<T: Payloadable>(client: &Client, run_id: Uuid) -> Result<T, ClientError> {
    insist(|| {
        let run = client.run::<T>(run_id);
        async move { run.result().await }
    })
    .await
}

async fn post(client: &Client, run_id: Uuid, name: &str, item: &str) {
    let payload = Payload::encode(&item).expect("plain data");
    let signal = || {
        let signal = client.signal_named(run_id, name, payload.clone());
        signal.delivery_id(item).into_future()
    };
    insist(signal).await.expect("the run is there to read it");
}

/// By turns through Postgres, and through the stream as any program sends it.
async fn send(
    client: &Client,
    stream: &SignalStream,
    run_id: Uuid,
    name: &str,
    item: &str,
    by_stream: bool,
) {
    if !by_stream {
        return post(client, run_id, name, item).await;
    }
    publish(stream, run_id, name, item).await;
}

/// Publishes a signal until the stream says that it has it. Its text is its delivery id too.
///
/// # Panics
/// If it can't be a signal.
pub async fn publish(stream: &SignalStream, run_id: Uuid, name: &str, item: &str) {
    let name = Name::new(name).expect("a name");
    let body = Bytes::from(serde_json::Value::from(item).to_string());
    // Without an acknowledgement nothing is promised.
    while stream
        .publish(run_id, &name, body.clone(), &ContentType::Json, Some(item))
        .await
        .is_err()
    {
        tokio::time::sleep(PAUSE).await;
    }
}

async fn tangle_one(client: &Client, stream: &SignalStream, number: u64) -> Ended {
    let run_id = start(client, "tangle", &number, number).await;
    send(
        client,
        stream,
        run_id,
        "go",
        &run_id.to_string(),
        number.is_multiple_of(3),
    )
    .await;
    let seen = result::<Seen>(client, run_id).await;
    Ended::Tangled(run_id, seen.unwrap_or_else(|e| panic!("run {run_id}: {e}")))
}

fn item(run_id: Uuid, number: u64) -> String {
    format!("{run_id}/{number}")
}

async fn tally_one(client: &Client, stream: &SignalStream, number: u64) -> Ended {
    let run_id = start(client, "tally", &ITEMS, number).await;
    for number in 0..ITEMS {
        send(
            client,
            stream,
            run_id,
            "item",
            &item(run_id, number),
            number.is_multiple_of(2),
        )
        .await;
    }
    let items = result::<Vec<String>>(client, run_id).await;
    Ended::Tallied(
        run_id,
        items.unwrap_or_else(|e| panic!("run {run_id}: {e}")),
    )
}

async fn sleep_one(client: &Client, number: u64) -> Ended {
    let run_id = start(client, "sleeper", &(), number).await;
    for number in 0..ITEMS {
        post(client, run_id, "item", &item(run_id, number)).await;
    }
    insist(|| {
        let run = client.run::<()>(run_id);
        async move { run.cancel("enough").await }
    })
    .await
    .expect("it can be cancelled");
    let ended = result::<()>(client, run_id).await;
    match ended {
        Err(ClientError::Cancelled(_)) => Ended::Slept(run_id),
        other => panic!("run {run_id} was cancelled: {other:?}"),
    }
}

type Notes = HashSet<(String, u32, String)>;

async fn audit(cluster: &Cluster, ended: &[Ended]) -> Tally {
    let mut notes: HashMap<Uuid, Notes> = HashMap::new();
    let mut tally = Tally::default();
    for (run_id, effect, attempt, value) in carried_out(cluster.ledger.path()) {
        tally.carried_out += 1;
        let new = notes
            .entry(run_id)
            .or_default()
            .insert((effect, attempt, value));
        assert!(new, "run {run_id}: a value came twice");
    }
    let mut journaled = 0;
    for one in ended {
        let (Ended::Tangled(run_id, _) | Ended::Tallied(run_id, _) | Ended::Slept(run_id)) = *one;
        let history = cluster.world.history(run_id).await;
        let notes = notes.remove(&run_id).unwrap_or_default();
        journaled += history.iter().filter(|event| is_result(event)).count() as u64;
        let received = received(&history);
        tally.consumed += received.len() as u64;
        match one {
            Ended::Tangled(_, seen) => {
                compare(run_id, seen, &history, &notes);
                assert_eq!(received, [run_id.to_string()], "run {run_id}");
                tally.completed += 1;
            }
            Ended::Tallied(_, items) => {
                compare(run_id, &[], &history, &notes);
                let sent: HashSet<String> = (0..ITEMS).map(|n| item(run_id, n)).collect();
                let taken: HashSet<String> = received.iter().cloned().collect();
                assert_eq!(taken, sent, "run {run_id}");
                assert_eq!(
                    &received, items,
                    "run {run_id}: the code saw what the journal has not"
                );
                tally.completed += 1;
            }
            Ended::Slept(_) => {
                compare(run_id, &[], &history, &notes);
                // One that nobody had begun is cancelled without a worker, and has nothing to clean up.
                let was_begun = history.len() > 1;
                assert_eq!(
                    notes.iter().any(|(effect, _, _)| effect == "clean"),
                    was_begun,
                    "run {run_id} was cancelled: {history:#?}"
                );
                let run = run::get(&cluster.world.database, run_id).await;
                let unread = run.expect("it exists").unread;
                assert_eq!(
                    unread, ITEMS as i32,
                    "run {run_id}: signals that it did not read"
                );
                tally.unread += ITEMS;
                tally.cancelled += 1;
            }
        }
    }
    let rejected = mailbox::rejected(&cluster.world.database, 10).await;
    let rejected = rejected.expect("Postgres answers");
    assert!(rejected.is_empty(), "signals were rejected: {rejected:#?}");
    tally.repeated = tally.carried_out.saturating_sub(journaled);
    tally
}

fn is_result(event: &Event) -> bool {
    use continuum_schema::event::Outcome;
    matches!(
        event,
        Event::ActivityCompleted {
            outcome: Outcome::Ok(_),
            ..
        } | Event::StepCompleted {
            outcome: Outcome::Ok(_),
            ..
        }
    )
}

/// The delivery ids of what a run received, in its order.
fn received(history: &[Event]) -> Vec<String> {
    let ids = history.iter().filter_map(|event| match event {
        Event::SignalReceived { delivery_id, .. } => delivery_id.clone(),
        _ => None,
    });
    ids.collect()
}
