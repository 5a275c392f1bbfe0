//! How users name a run: by its id, or by its key.

use std::str::FromStr;

use clap::Args;
use continuum_schema::{Database, Key, run};
use uuid::Uuid;

use super::error::{CliError, Code};
use super::settings::NamespaceArgs;

const KEY_PREFIX: &str = "key:";

/// A run's name as written on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunRef {
    Id(Uuid),
    Key(String),
}

impl FromStr for RunRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(KEY_PREFIX) {
            Some(key) => Key::of("key", key)
                .map(|key| Self::Key(key.into()))
                .map_err(|e| e.to_string()),
            None => text.parse().map(Self::Id).map_err(|_| {
                "neither the id of a run (a UUID) nor `key:` and an idempotency key".to_owned()
            }),
        }
    }
}

/// Which run.
#[derive(Args, Debug)]
pub(super) struct RunArgs {
    /// The run: its id, or `key:KEY` for the run that was started with that key
    #[arg(value_name = "RUN")]
    run: RunRef,

    #[command(flatten)]
    namespace: NamespaceArgs,
}

impl RunArgs {
    /// The run's id. Whether there is a run of this id is told by whatever is done with it.
    pub(super) async fn resolve(&self, database: &Database) -> Result<Uuid, CliError> {
        let key = match &self.run {
            RunRef::Id(run_id) => return Ok(*run_id),
            RunRef::Key(key) => key,
        };
        let namespace = self.namespace.namespace.as_str();
        run::find(database, namespace, key).await?.ok_or_else(|| {
            CliError::new(
                Code::NotFound,
                format!("there is no run with the key {key:?} in the namespace {namespace:?}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_id_or_key_and_nothing_else() {
        let id = "0190b3c2-0000-7000-8000-000000000000";
        assert_eq!(id.parse(), Ok(RunRef::Id(Uuid::from_str(id).unwrap())));
        assert_eq!("key:order:7".parse(), Ok(RunRef::Key("order:7".into())));
        assert!("key:".parse::<RunRef>().unwrap_err().contains("empty"));
        assert!("key:a\0b".parse::<RunRef>().unwrap_err().contains("NUL"));
        assert!("order-7".parse::<RunRef>().unwrap_err().contains("key:"));
    }
}
