//! Why a run can't go on with the code that is loaded.

use std::fmt;

use continuum_schema::{EffectId, Seq};
use serde::{Deserialize, Serialize};

/// Why a turn came to nothing. The run's history is untouched, so a fixed build can go on from it; until then the run
/// is parked with this value on its row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", content = "detail", rename_all = "snake_case")]
pub enum Blocked {
    /// The code doesn't do what the history says it did.
    #[error("{0}")]
    Drift(Box<ReplayDrift>),
    /// The code panicked.
    #[error("the workflow panicked: {0}")]
    Panicked(String),
    /// The code waits for, or was woken by, something that the journal knows nothing of.
    #[error("{0}")]
    Foreign(String),
    /// The code kept waking itself without getting anywhere.
    #[error("the workflow woke itself {polls} times in one turn without waiting for anything")]
    Livelock {
        /// How often it was polled before it was given up on.
        polls: u32,
    },
    /// A value in the history no longer decodes as the type that the code asks for.
    #[error("{what} at {location} doesn't decode: {message}")]
    Undecodable {
        /// The effect whose value it is.
        what: String,
        /// What the decoder said.
        message: String,
        /// The author's line that asked for the effect.
        location: String,
    },
    /// The history itself has a gap or lacks its beginning.
    #[error("the history is damaged at seq {seq}: {message}")]
    Damaged {
        /// Where.
        seq: Seq,
        /// What is wrong there.
        message: String,
    },
}

/// The code doesn't do what the history says it did: the code was changed without a new version, or it isn't
/// deterministic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayDrift {
    /// The position in the history where the two part.
    pub seq: Seq,
    /// What the history holds there.
    pub expected: Side,
    /// What the code did.
    pub found: Side,
    /// The author's line that issued what was found, as `file:line:column`, where there is one.
    pub location: Option<String>,
}

/// One side of a [`ReplayDrift`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// What happened, as a phrase: `activity scheduled`, `timer fired`, `nothing more`, …
    pub what: String,
    /// The effect it is about.
    pub effect: Option<EffectId>,
    /// The name of the activity, step or signal.
    pub name: Option<String>,
    /// Whatever else tells the sides apart, such as an activity's input, cut to a line.
    pub detail: Option<String>,
}

impl Side {
    /// A side of which only the phrase is known.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            effect: None,
            name: None,
            detail: None,
        }
    }

    pub(crate) fn effect(mut self, effect: EffectId) -> Self {
        self.effect = Some(effect);
        self
    }

    pub(crate) fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        if let Some(effect) = self.effect {
            write!(f, " (effect {effect})")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ReplayDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replay drift at seq {}: the history has [{}], the code has [{}]",
            self.seq, self.expected, self.found
        )?;
        match &self.location {
            Some(location) => write!(f, " at {location}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ReplayDrift {}
