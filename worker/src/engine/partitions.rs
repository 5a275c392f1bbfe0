//! Partition care: sees to it that the months ahead have a partition. A duty of the fleet that one worker does, as a
//! singleton of the engine's own; a role without the right to create tables leaves it to `continuum migrate`.

use std::sync::Arc;
use std::time::Duration;

use continuum_schema::{Error, Name, partition};

use super::core::Core;
use crate::retry::jittered;
use crate::singleton::{BoxError, Resident, ResidentContext, ResidentDefinition};

/// The duty's name among the singletons.
const NAME: &str = "continuum-partitions";

/// How often its holder looks; first when it takes the duty.
const INTERVAL: Duration = Duration::from_secs(3_600);

/// The duty, for the workers to take.
pub(crate) fn care(core: &Arc<Core>) -> ResidentDefinition {
    let name = Name::new(NAME).expect("it keeps to the alphabet of names");
    let core = Arc::clone(core);
    ResidentDefinition::new(name, move |_: ResidentContext| {
        let core = Arc::clone(&core);
        async move { Ok::<_, BoxError>(PartitionCare(core)) }
    })
}

struct PartitionCare(Arc<Core>);

impl Resident for PartitionCare {
    type Request = ();
    type Response = ();

    async fn work(&self) -> Result<(), BoxError> {
        loop {
            look(&self.0).await;
            tokio::time::sleep(jittered(INTERVAL)).await;
        }
    }

    /// There is nothing to ask; who does learns that the duty is being done.
    async fn handle(&self, (): ()) -> Result<(), BoxError> {
        Ok(())
    }
}

async fn look(core: &Core) {
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
