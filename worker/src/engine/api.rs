//! The API on NATS: start, signal, cancel, get and await by request and reply, for programs in any language. The workers
//! of an instance share the requests, and `nats service ls` shows them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_bus::{API_GROUP, Endpoint, Message, Service, ServiceInfo};
use continuum_schema::clock::from_micros;
use continuum_schema::{Name, Payload};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::core::Core;
use crate::client::{Client, ClientError, DEFAULT_NAMESPACE, Signalled};
use crate::retry::Backoff;
use crate::view::{PayloadView, RunView};

/// The verbs, each on `continuum.<instance>.api.<verb>`.
const VERBS: [&str; 5] = ["start", "signal", "cancel", "get", "await"];

/// The most requests that one worker answers at once.
const REQUESTS_MAX: usize = 64;

/// The longest that `await` holds a request open; who wants to wait longer asks again.
const AWAIT_MAX: Duration = Duration::from_secs(30);

/// The largest reply; what is larger is fetched over Postgres or the command line.
const REPLY_BYTES_MAX: usize = 512 << 10;

/// Serves the API until the worker stops.
pub(crate) async fn serve(core: Arc<Core>, client: Client) {
    let slots = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut backoff = Backoff::new(Duration::from_secs(5));
    loop {
        match announce(&core).await {
            Ok(service) => {
                let service = Arc::new(service);
                let verbs = VERBS.map(|verb| serve_verb(&core, &client, &service, &slots, verb));
                futures::future::join_all(verbs).await;
            }
            Err(error) => tracing::debug!(%error, "the API is not announced yet"),
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn announce(core: &Core) -> Result<Service, anyhow::Error> {
    let mut sessions = core.session.subscribe();
    let id = match *sessions.wait_for(Option::is_some).await? {
        Some(session) => session.to_string(),
        None => return Err(anyhow::anyhow!("no session")),
    };
    let endpoints = VERBS
        .iter()
        .map(|verb| {
            let name = Name::new(*verb)?;
            let subject = core.subjects.api(&name);
            let group = API_GROUP.to_owned();
            Ok(Endpoint {
                name,
                subject,
                group,
            })
        })
        .collect::<Result<_, anyhow::Error>>()?;
    let info = ServiceInfo {
        name: Name::new(format!("continuum-{}", core.config.instance))?,
        id: Name::new(id)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        description: format!("Continuum worker {}", core.config.name),
        started: from_micros(core.clock.now()),
        endpoints,
    };
    Ok(Service::announce(&core.bus, info).await?)
}

async fn serve_verb(
    core: &Arc<Core>,
    client: &Client,
    service: &Arc<Service>,
    slots: &Arc<Semaphore>,
    verb: &'static str,
) {
    let Ok(name) = Name::new(verb) else { return };
    let subject = core.subjects.api(&name);
    let Ok(mut requests) = core.bus.subscribe(&subject, Some(API_GROUP)).await else {
        return;
    };
    while let Some(request) = requests.next().await {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else {
            return;
        };
        let (core, client, service, name) = (
            Arc::clone(core),
            client.clone(),
            Arc::clone(service),
            name.clone(),
        );
        tokio::spawn(async move {
            let began = Instant::now();
            let answer = answer(&client, verb, &request).await;
            service.record(
                &name,
                began.elapsed(),
                answer.as_ref().err().map(|e| e.message.as_str()),
            );
            reply(&core, &request, answer).await;
            drop(slot);
        });
    }
}

async fn reply(core: &Core, request: &Message, answer: Result<Vec<u8>, Fault>) {
    let body = match answer {
        Ok(body) if body.len() <= REPLY_BYTES_MAX => body,
        Ok(body) => encode(&Fault::new(
            "too_large",
            format!(
                "the reply has {} bytes; over {REPLY_BYTES_MAX} it does not travel on NATS: use the command line or the client",
                body.len()
            ),
        )),
        Err(fault) => encode(&fault),
    };
    if let Err(error) = core.bus.respond(request, Bytes::from(body)).await {
        tracing::debug!(%error, subject = request.subject, "a request was not answered");
    }
}

/// Why a request failed: `{"error": {"code": …, "message": …}}`.
#[derive(Debug)]
struct Fault {
    code: &'static str,
    message: String,
}

impl Fault {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl Serialize for Fault {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::json!({ "error": { "code": self.code, "message": self.message } })
            .serialize(serializer)
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

fn encode(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_else(|e| {
        format!(
            "{{\"error\":{{\"code\":\"internal\",\"message\":{:?}}}}}",
            e.to_string()
        )
        .into_bytes()
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartBody {
    workflow: String,
    #[serde(default)]
    input: Option<Box<RawValue>>,
    key: Option<String>,
    namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalBody {
    run_id: Uuid,
    name: String,
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    delivery_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelBody {
    run_id: Uuid,
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetBody {
    run_id: Uuid,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AwaitBody {
    run_id: Uuid,
    timeout_ms: Option<u64>,
}

fn read<'a, T: Deserialize<'a>>(request: &'a Message) -> Result<T, Fault> {
    serde_json::from_slice(&request.payload)
        .map_err(|e| Fault::new("invalid", format!("the request is not understood: {e}")))
}

/// JSON stays the text that it is.
fn payload(raw: Option<Box<RawValue>>) -> Result<Payload, Fault> {
    let text = raw.as_deref().map_or("null", RawValue::get);
    Payload::from_json(text.as_bytes()).map_err(|e| Fault::new("invalid", e.to_string()))
}

async fn answer(client: &Client, verb: &str, request: &Message) -> Result<Vec<u8>, Fault> {
    match verb {
        "start" => start(client, read(request)?).await,
        "signal" => signal(client, read(request)?).await,
        "cancel" => cancel(client, read(request)?).await,
        "get" => get(client, read(request)?).await,
        _ => wait(client, read(request)?).await,
    }
}

async fn start(client: &Client, body: StartBody) -> Result<Vec<u8>, Fault> {
    let mut start = client
        .start_named(&body.workflow, payload(body.input)?)
        .namespace(
            body.namespace
                .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        );
    if let Some(key) = body.key {
        start = start.key(key);
    }
    let run = start.await?;
    Ok(encode(&serde_json::json!({ "run_id": run.run_id() })))
}

async fn signal(client: &Client, body: SignalBody) -> Result<Vec<u8>, Fault> {
    let mut signal = client.signal_named(body.run_id, &body.name, payload(body.payload)?);
    if let Some(id) = body.delivery_id {
        signal = signal.delivery_id(id);
    }
    let outcome = match signal.await? {
        Signalled::Accepted => "accepted",
        Signalled::Duplicate => "duplicate",
    };
    Ok(encode(&serde_json::json!({ "signal": outcome })))
}

async fn cancel(client: &Client, body: CancelBody) -> Result<Vec<u8>, Fault> {
    let reason = body.reason.as_deref().unwrap_or("cancelled over the API");
    let ended = client.cancel(body.run_id, reason).await?;
    Ok(encode(
        &serde_json::json!({ "cancel": if ended { "ended" } else { "requested" } }),
    ))
}

async fn get(client: &Client, body: GetBody) -> Result<Vec<u8>, Fault> {
    Ok(encode(&RunView::new(&client.get(body.run_id).await?)))
}

async fn wait(client: &Client, body: AwaitBody) -> Result<Vec<u8>, Fault> {
    let timeout = body
        .timeout_ms
        .map_or(AWAIT_MAX, Duration::from_millis)
        .min(AWAIT_MAX);
    let result = client.wait(body.run_id, Some(timeout)).await?;
    Ok(encode(
        &serde_json::json!({ "result": PayloadView::new(&result) }),
    ))
}
