//! Makes a process show up in `nats service ls`, `info` and `stats`.
//!
//! The NATS client has a service framework too; it answers to whatever reply subject it is given, so anybody could
//! make a worker publish to `$JS.API.…`. This one answers through [`Bus::respond`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use continuum_schema::Name;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bus::Bus;
use crate::consumer::Subscription;
use crate::envelope::Message;
use crate::error::{RespondError, SubscribeError};

/// The queue group in which the workers of an instance serve its API.
pub const API_GROUP: &str = "api";

/// What a process says of itself.
#[derive(Clone, Debug)]
pub struct ServiceInfo {
    /// The service's name, shared by the fleet.
    pub name: Name,
    /// This process, for example its session.
    pub id: Name,
    /// A semantic version such as `0.1.0`.
    pub version: String,
    /// What it does, in a sentence.
    pub description: String,
    /// When the process began to serve.
    pub started: OffsetDateTime,
    /// What it serves.
    pub endpoints: Vec<Endpoint>,
}

/// One thing that a service serves.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its name.
    pub name: Name,
    /// Where requests arrive.
    pub subject: String,
    /// The queue group that shares them.
    pub group: String,
}

/// The announcement. Dropping it ends it.
pub struct Service {
    counts: Arc<Counts>,
    _stop: DropGuard,
}

struct Counts {
    info: ServiceInfo,
    stats: Mutex<Vec<EndpointStats>>,
}

#[derive(Clone, Default)]
struct EndpointStats {
    requests: u64,
    errors: u64,
    last_error: String,
    busy: Duration,
}

impl Service {
    /// Announces `info` until the service is dropped or the bus is closed.
    ///
    /// # Errors
    /// [`SubscribeError`] if the bus does not take the subscriptions.
    pub async fn announce(bus: &Bus, info: ServiceInfo) -> Result<Self, SubscribeError> {
        let (name, id) = (&info.name, &info.id);
        let mut questions = [
            bus.subscribe("$SRV.*", None).await?,
            bus.subscribe(&format!("$SRV.*.{name}"), None).await?,
            bus.subscribe(&format!("$SRV.*.{name}.{id}"), None).await?,
        ];
        let counts = Arc::new(Counts {
            stats: Mutex::new(vec![EndpointStats::default(); info.endpoints.len()]),
            info,
        });
        let stop = CancellationToken::new();
        let (bus, stopped, answers) = (bus.clone(), stop.clone(), counts.clone());
        tokio::spawn(async move {
            loop {
                let question = tokio::select! {
                    () = stopped.cancelled() => return,
                    question = any_of(&mut questions) => question,
                };
                match question {
                    Some(question) => answers.answer(&bus, &question).await,
                    None => return,
                }
            }
        });
        Ok(Self {
            counts,
            _stop: stop.drop_guard(),
        })
    }

    /// Counts a request that `endpoint` served; `error` if it failed.
    pub fn record(&self, endpoint: &Name, took: Duration, error: Option<&str>) {
        let endpoints = &self.counts.info.endpoints;
        let Some(at) = endpoints.iter().position(|known| known.name == *endpoint) else {
            return;
        };
        let mut stats = self.counts.lock();
        stats[at].requests += 1;
        stats[at].busy += took;
        if let Some(error) = error {
            stats[at].errors += 1;
            error.clone_into(&mut stats[at].last_error);
        }
    }
}

async fn any_of([all, named, this]: &mut [Subscription; 3]) -> Option<Message> {
    tokio::select! {
        question = all.next() => question,
        question = named.next() => question,
        question = this.next() => question,
    }
}

impl Counts {
    async fn answer(&self, bus: &Bus, question: &Message) {
        let verb = question.subject.split('.').nth(1).unwrap_or_default();
        let Some(answer) = self.answer_to(verb) else {
            return;
        };
        let payload = Bytes::from(answer.to_string());
        if let Err(error @ RespondError::NotAnInbox(_)) = bus.respond(question, payload).await {
            tracing::warn!(%error, subject = %question.subject, "refused to answer");
        }
    }

    fn answer_to(&self, verb: &str) -> Option<Value> {
        let info = &self.info;
        let (kind, more) = match verb {
            "PING" => ("ping", Vec::new()),
            "INFO" => (
                "info",
                vec![
                    ("description", json!(info.description)),
                    ("endpoints", self.endpoints()),
                ],
            ),
            "STATS" => (
                "stats",
                vec![
                    ("started", json!(info.started.format(&Rfc3339).ok()?)),
                    ("endpoints", self.stats()),
                ],
            ),
            _ => return None,
        };
        let mut answer = json!({
            "type": format!("io.nats.micro.v1.{kind}_response"),
            "name": info.name,
            "id": info.id,
            "version": info.version,
            "metadata": {},
        });
        for (key, value) in more {
            answer[key] = value;
        }
        Some(answer)
    }

    fn endpoints(&self) -> Value {
        let endpoints = self.info.endpoints.iter();
        endpoints.map(Endpoint::describe).collect()
    }

    fn stats(&self) -> Value {
        let stats = self.lock();
        let endpoints = self.info.endpoints.iter().zip(stats.iter());
        endpoints
            .map(|(endpoint, stats)| {
                let mut entry = endpoint.describe();
                let busy = u64::try_from(stats.busy.as_nanos()).unwrap_or(u64::MAX);
                entry["num_requests"] = json!(stats.requests);
                entry["num_errors"] = json!(stats.errors);
                entry["last_error"] = json!(stats.last_error);
                entry["processing_time"] = json!(busy);
                entry["average_processing_time"] =
                    json!(busy.checked_div(stats.requests).unwrap_or(0));
                entry
            })
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<EndpointStats>> {
        // Counters are whole after each step, so a panic elsewhere leaves nothing half done.
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint {
    fn describe(&self) -> Value {
        json!({ "name": self.name, "subject": self.subject, "queue_group": self.group, "metadata": {} })
    }
}
