//! `health`: ask a worker's HTTP port how it is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::error::{CliError, Code};
use super::settings::Span;
use super::{Context, examples};

const EXAMPLES: &str = "\
continuum health --http 127.0.0.1:8080
continuum health --probe live --timeout 1s       for a container's health check, with CONTINUUM_HTTP set";

/// An answer that is longer does not come from a worker.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Ask a worker's HTTP port how it is; exit with 0 if it is well, else with 5
///
/// For the health checks of containers and service managers: it needs no Postgres, no NATS and no other program.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct HealthArgs {
    /// The address of the worker's HTTP port; one that means every interface is asked through the loopback
    #[arg(long, env = "CONTINUUM_HTTP", value_name = "ADDRESS")]
    http: String,

    /// What to ask for
    #[arg(long, value_enum, value_name = "PROBE", default_value_t = Probe::Ready)]
    probe: Probe,

    /// The longest wait for the answer
    #[arg(long, value_name = "TIME", default_value = "2s")]
    timeout: Span,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Probe {
    /// Whether it takes up work
    Ready,
    /// Whether its process answers; true also while it waits for Postgres or drains
    Live,
}

impl Probe {
    fn path(self) -> &'static str {
        match self {
            Self::Ready => "/readyz",
            Self::Live => "/livez",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Live => "live",
        }
    }
}

pub(super) async fn run(args: HealthArgs, context: Context<'_>) -> Result<(), CliError> {
    let address = reachable(&args.http);
    let asked = tokio::time::timeout(args.timeout.0, ask(&address, args.probe.path())).await;
    let answer = asked
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|error| no_answer(&address, &error))?;
    if !answer.is_well {
        return Err(CliError::new(
            Code::Unavailable,
            format!(
                "the worker at {address} is not {}: {}",
                args.probe.word(),
                answer.worker.summary()
            ),
        ));
    }
    context
        .output
        .answer(|| &answer.worker, || answer.worker.summary())
}

/// An address to listen on means every interface with its zeros; one of them is asked.
fn reachable(address: &str) -> String {
    let Ok(mut socket) = address.parse::<SocketAddr>() else {
        return address.to_owned();
    };
    match socket.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => socket.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => socket.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    socket.to_string()
}

fn no_answer(address: &str, error: &io::Error) -> CliError {
    CliError::new(
        Code::Unavailable,
        format!("no worker answers at {address}: {error}"),
    )
}

/// What the port says.
#[derive(Debug)]
struct Answer {
    is_well: bool,
    worker: WorkerHealth,
}

/// The worker's document. What this build does not know of it goes through to programs as it is.
#[derive(Debug, Deserialize, Serialize)]
struct WorkerHealth {
    state: String,
    reasons: Vec<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl WorkerHealth {
    fn summary(&self) -> String {
        match self.reasons.as_slice() {
            [] => self.state.clone(),
            reasons => format!("{} ({})", self.state, reasons.join("; ")),
        }
    }
}

/// One request of HTTP/1.0, after whose answer the server closes the connection. That is all of HTTP that is needed.
async fn ask(address: &str, path: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut bytes)
        .await?;
    let foreign = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "what answers there is not the HTTP port of a worker",
        )
    };
    parse(&bytes).ok_or_else(foreign)
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    Some(Answer {
        is_well: status == "200",
        worker: serde_json::from_str(body).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::Registry;
    use crate::cli::output::{Output, OutputFormat};

    const READY: &str = "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n\
        {\"state\":\"degraded\",\"reasons\":[\"NATS is away\"],\"worker\":\"a-1\"}\n";
    const DRAINING: &str =
        "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"state\":\"draining\",\"reasons\":[]}\n";

    /// Asks a port that gives `answer`, or nothing at all until the time is over.
    async fn health_of(answer: Option<&'static str>) -> Result<(), CliError> {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap();
        let serving = async {
            let (mut stream, _) = port.accept().await.unwrap();
            match answer {
                Some(answer) => {
                    let mut request = [0; 64];
                    let length = stream.read(&mut request).await.unwrap();
                    assert_eq!(&request[..length], b"GET /readyz HTTP/1.0\r\n\r\n");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
                None => std::future::pending().await,
            }
            drop(stream);
            std::future::pending::<()>().await;
        };
        let args = HealthArgs {
            http: address.to_string(),
            probe: Probe::Ready,
            timeout: Span(std::time::Duration::from_millis(200)),
        };
        let context = Context {
            program: "continuum",
            registry: Registry::new(),
            output: &Output::new(OutputFormat::Text),
        };
        tokio::select! {
            done = run(args, context) => done,
            () = serving => unreachable!("it serves for ever"),
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_well_is_a_success() {
        health_of(Some(READY)).await.unwrap();
    }

    #[tokio::test]
    async fn a_worker_that_is_not_ready_says_what_it_does_instead() {
        let error = health_of(Some(DRAINING)).await.unwrap_err();
        assert!(
            error.message().ends_with("is not ready: draining"),
            "{}",
            error.message()
        );
    }

    #[tokio::test]
    async fn silence_and_strangers_are_no_health() {
        let silent = health_of(None).await.unwrap_err();
        assert!(
            silent.message().contains("no worker answers"),
            "{}",
            silent.message()
        );
        let stranger = health_of(Some("SSH-2.0-x\r\n\r\n")).await.unwrap_err();
        assert!(
            stranger.message().contains("not the HTTP port"),
            "{}",
            stranger.message()
        );
    }

    #[test]
    fn the_reasons_follow_the_state_and_programs_get_the_whole_document() {
        let answer = parse(READY.as_bytes()).unwrap();
        assert_eq!(answer.worker.summary(), "degraded (NATS is away)");
        let document = serde_json::to_value(&answer.worker).unwrap();
        assert_eq!(document["worker"], "a-1");
    }

    #[test]
    fn every_interface_is_asked_through_the_loopback() {
        for (listened_on, asked) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("10.0.0.7:8080", "10.0.0.7:8080"),
            ("worker-3:8080", "worker-3:8080"),
        ] {
            assert_eq!(reachable(listened_on), asked);
        }
    }
}
