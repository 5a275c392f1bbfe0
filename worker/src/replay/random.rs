//! Random numbers that are the same in every replay of a run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The random streams of one run, seeded by its id. Their values are part of what a replay must reproduce, so neither
/// the seed nor the generator may ever change.
#[derive(Default)]
pub(crate) struct Streams {
    numbers: Option<Box<ChaCha8Rng>>,
    ids: Option<Box<ChaCha8Rng>>,
}

impl Streams {
    /// The next number.
    pub(crate) fn number(&mut self, run_id: Uuid) -> u64 {
        self.numbers
            .get_or_insert_with(|| seeded(run_id, "random"))
            .next_u64()
    }

    /// The next id, a UUID of version 4.
    pub(crate) fn id(&mut self, run_id: Uuid) -> Uuid {
        let mut bytes = [0; 16];
        self.ids
            .get_or_insert_with(|| seeded(run_id, "uuid"))
            .fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }
}

/// One stream a purpose: asking for an id doesn't shift the numbers.
fn seeded(run_id: Uuid, purpose: &str) -> Box<ChaCha8Rng> {
    let seed = Sha256::new()
        .chain_update(run_id.as_bytes())
        .chain_update(purpose)
        .finalize();
    Box::new(ChaCha8Rng::from_seed(seed.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values: a change here means that every run which ever drew a number drifts.
    #[test]
    fn the_values_never_change() {
        let run_id = Uuid::from_u128(7);
        let mut streams = Streams::default();
        let numbers = [streams.number(run_id), streams.number(run_id)];
        let id = streams.id(run_id);
        assert_eq!(
            numbers,
            [2_956_161_632_203_557_728, 18_223_216_629_707_818_593]
        );
        assert_eq!(id.to_string(), "29f93392-9701-4c17-a806-42198408e327");
        assert_eq!(id.get_version_num(), 4);
    }

    #[test]
    fn ids_and_numbers_are_separate_streams() {
        let run_id = Uuid::from_u128(7);
        let (mut plain, mut mixed) = (Streams::default(), Streams::default());
        let first = mixed.id(run_id);
        assert_ne!(first, mixed.id(run_id));
        assert_eq!(plain.number(run_id), mixed.number(run_id));
        assert_ne!(plain.number(run_id), plain.number(Uuid::from_u128(8)));
    }
}
