//! The small HTTP port of a worker: is it alive, is it ready, what has it counted, and let it drain.
//!
//! | route | answers |
//! | --- | --- |
//! | `GET /livez` | 200 while the event loops of the process answer, else 503 |
//! | `GET /readyz` | 200 while the worker takes up work (ready, degraded), else 503 |
//! | `GET /metrics` | the metrics as text |
//! | `POST /drain` | begins a drain; 202 at once, also where one is under way |
//!
//! All but the metrics answer with a JSON document of the worker's state and its reasons. Nothing here waits for
//! Postgres or NATS. Whoever can reach the port can drain the worker, so it belongs to a trusted network.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::config::ConfigError;
use crate::engine::{Core, WorkerState};
use crate::metrics;

/// How long an event loop may take to answer: less than the second that Kubernetes gives a probe by default.
const LIVE_MAX: Duration = Duration::from_millis(800);

/// A port that is listened on and not yet served.
pub(crate) struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Takes the port, so that one that is in use is known before anything else begins.
    pub(crate) async fn take(address: SocketAddr) -> Result<Self, ConfigError> {
        let refused = |error: io::Error| ConfigError {
            setting: "http",
            rule: format!(
                "{address} can't be listened on: {error}; set CONTINUUM_HTTP (--http) to an address that is free, or \
                 to none"
            ),
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address })
    }

    /// Where it listens; a port of 0 has become a real one.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the worker is dropped, through its drain and after it.
    pub(crate) async fn serve(self, core: Arc<Core>) {
        tracing::info!(address = %self.address, "http.listening");
        let closed = core.closed.clone();
        let app = router(core);
        let serving = axum::serve(self.listener, app).into_future();
        if let Some(Err(error)) = closed.run_until_cancelled(serving).await {
            tracing::error!(%error, address = %self.address, "the HTTP port is closed");
        }
    }
}

fn router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(text))
        .route("/drain", post(drain))
        .with_state(core)
}

/// What the routes say of the worker.
#[derive(Serialize)]
struct Document<'a> {
    state: &'static str,
    reasons: Vec<String>,
    worker: &'a str,
    session: Option<Uuid>,
    resident_runs: usize,
    running_activities: usize,
}

async fn livez(State(core): State<Arc<Core>>) -> Response {
    let silent = silent_loops(&core).await;
    match silent.is_empty() {
        true => answer(&core, StatusCode::OK, Vec::new()),
        false => answer(&core, StatusCode::SERVICE_UNAVAILABLE, silent),
    }
}

/// The event loops that don't answer. One that a workflow blocks answers nobody.
async fn silent_loops(core: &Core) -> Vec<String> {
    let asked = core.shards.ask();
    let answers = asked.into_iter().enumerate().map(async |(place, answer)| {
        let answered = tokio::time::timeout(LIVE_MAX, answer).await;
        // The loops of a worker that has drained are gone, as they should be.
        let is_silent = match answered {
            Ok(Ok(())) => false,
            Ok(Err(_)) => !core.stop.is_cancelled(),
            Err(_) => true,
        };
        is_silent.then(|| format!("event loop {place} did not answer within {LIVE_MAX:?}"))
    });
    let silent = futures::future::join_all(answers).await;
    silent.into_iter().flatten().collect()
}

async fn readyz(State(core): State<Arc<Core>>) -> Response {
    let state = core.status.borrow().state;
    match state.is_serving() {
        true => answer(&core, StatusCode::OK, Vec::new()),
        false => answer(&core, StatusCode::SERVICE_UNAVAILABLE, Vec::new()),
    }
}

async fn text(State(core): State<Arc<Core>>) -> Response {
    let headers = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    (headers, core.metrics_text()).into_response()
}

async fn drain(State(core): State<Arc<Core>>) -> Response {
    core.begin_drain("HTTP");
    answer(&core, StatusCode::ACCEPTED, Vec::new())
}

fn answer(core: &Core, status: StatusCode, mut reasons: Vec<String>) -> Response {
    let worker = core.status.borrow().clone();
    reasons.extend(worker.reasons);
    let document = Document {
        state: WorkerState::name(worker.state),
        reasons,
        worker: &core.config.name,
        session: worker.session,
        resident_runs: core.residents(),
        running_activities: core.activities.running(),
    };
    let body = serde_json::to_string(&document).expect("the document holds text and numbers only");
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, body + "\n").into_response()
}
