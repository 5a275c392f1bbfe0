//! Gathering what waits, so that many share one round trip and one commit.

use tokio::sync::mpsc;

/// Waits for the first item, then takes what is there already, `max` in all. A lone item waits for nobody; while the
/// caller is busy with one batch, the next gathers. `None` when every sender is gone.
pub(crate) async fn next<T>(queue: &mut mpsc::UnboundedReceiver<T>, max: usize) -> Option<Vec<T>> {
    let mut batch = Vec::new();
    (queue.recv_many(&mut batch, max).await > 0).then_some(batch)
}
