//! Partition care: sees to it that the months ahead have a partition. Any worker may do it at any time; a role without
//! the right to create tables leaves it to `continuum migrate`.

use std::sync::Arc;
use std::time::Duration;

use continuum_schema::{Error, partition};

use super::core::Core;
use crate::retry::jittered;

/// How often a worker looks.
const INTERVAL: Duration = Duration::from_secs(3_600);

/// Looks until the worker stops.
pub(crate) async fn keep(core: Arc<Core>) {
    loop {
        tokio::time::sleep(jittered(INTERVAL)).await;
        match partition::ensure(&core.control, partition::MONTHS_AHEAD).await {
            Ok(0) => {}
            Ok(made) => tracing::info!(made, "partition.maintained"),
            Err(error @ Error::Refused(_)) => {
                tracing::warn!(%error, "partition.maintenance_failed: run `continuum migrate` as the schema's owner");
            }
            Err(error) => {
                tracing::debug!(%error, "partitions could not be looked after; the next look may")
            }
        }
        match partition::has_overflow(&core.control).await {
            Ok(true) => {
                tracing::warn!("events fell into the default partition; run `continuum migrate`")
            }
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "the default partition could not be looked at"),
        }
    }
}
