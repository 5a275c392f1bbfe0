//! The shape of every background service: a loop that goes on until the worker stops, and that is started again when
//! it panics, so that no loop ends in silence while the process lives.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::retry::Backoff;

/// The longest pause before a service that panicked is started again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Runs `service` until `stop`; a panic is logged and the service is started again after a pause.
pub(crate) fn spawn<S, F>(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    name: &'static str,
    service: S,
) where
    S: Fn() -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let stop = stop.clone();
    tasks.spawn(async move {
        let mut backoff = Backoff::new(PAUSE_MAX);
        loop {
            let run = AssertUnwindSafe(service()).catch_unwind();
            let Some(ended) = stop.run_until_cancelled(run).await else {
                return;
            };
            match ended {
                Ok(()) => return,
                Err(panic) => {
                    let wait = backoff.next();
                    tracing::error!(
                        service = name,
                        panic = panic_text(&*panic),
                        ?wait,
                        "a service panicked; it starts again"
                    );
                    if stop
                        .run_until_cancelled(tokio::time::sleep(wait))
                        .await
                        .is_none()
                    {
                        return;
                    }
                }
            }
        }
    });
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
