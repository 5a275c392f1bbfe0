//! Switches that make things go wrong: for one order through its field `faults`, for every order through the
//! environment of the worker.

use std::env::{self, VarError};
use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, anyhow};
use continuum_worker::prelude::*;

use crate::{Deed, Ledger};

/// What goes wrong in the activities of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// How long each attempt takes, in milliseconds: half of it before the deed, half of it until the answer.
    pub slow_ms: u64,
    /// How many attempts of each activity fail before one succeeds.
    pub flaky: u32,
    /// Where the worker's process crashes, the first time that it gets there.
    pub crash_at: Option<Point>,
}

/// A place in an activity, written like `after-charge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Point {
    /// On which side of the deed.
    pub when: When,
    /// Which deed.
    pub deed: Deed,
}

/// A side of a deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing is done yet.
    Before,
    /// It is done, and nobody knows.
    After,
}

impl Faults {
    /// Whether nothing goes wrong.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Reads `ORDERS_SLOW` (a duration such as `50ms`), `ORDERS_FLAKY` (a number of attempts) and `ORDERS_CRASH_AT` (a
    /// point such as `after-charge`). What is not set does not go wrong.
    ///
    /// # Errors
    /// Names the variable that can't be read.
    pub fn from_env() -> anyhow::Result<Self> {
        let slow = variable("ORDERS_SLOW", |text| Ok(humantime::parse_duration(text)?))?;
        Ok(Self {
            slow_ms: slow.map_or(Ok(0), |slow| slow.as_millis().try_into())?,
            flaky: variable("ORDERS_FLAKY", |text| Ok(text.parse()?))?.unwrap_or(0),
            crash_at: variable("ORDERS_CRASH_AT", Point::from_str)?,
        })
    }

    /// Dawdles on one side of the deed, unless nobody wants the result any more.
    pub(crate) async fn delay(&self, ctx: &ActivityContext) -> Result<(), Cancelled> {
        if self.slow_ms == 0 {
            return Ok(());
        }
        tokio::select! {
            () = ctx.cancelled() => Err(Cancelled),
            () = tokio::time::sleep(Duration::from_millis(self.slow_ms).div_f64(2.0)) => Ok(()),
        }
    }

    /// Fails the first attempts.
    pub(crate) fn fail(&self, attempt: u32) -> Result<(), ActivityError> {
        if attempt > self.flaky {
            return Ok(());
        }
        let message = format!("attempt {attempt} fails, as do the first {}", self.flaky);
        Err(ActivityError::new("Flaky", message))
    }

    /// Crashes the process if this is the place. The ledger remembers it for `scope`, so that the next process that
    /// gets here lives.
    pub(crate) fn crash(
        &self,
        when: When,
        deed: Deed,
        ledger: &Ledger,
        scope: &str,
    ) -> anyhow::Result<()> {
        let here = Point { when, deed };
        if self.crash_at == Some(here) && ledger.is_first(&format!("crash-{here}-{scope}"))? {
            std::process::abort();
        }
        Ok(())
    }
}

fn variable<T>(name: &str, parse: impl Fn(&str) -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match env::var(name) {
        Ok(text) => parse(&text)
            .map(Some)
            .with_context(|| format!("{name}={text}")),
        Err(VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).with_context(|| name.to_owned()),
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.when {
            When::Before => "before",
            When::After => "after",
        };
        write!(f, "{when}-{}", self.deed)
    }
}

impl FromStr for Point {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let points = [When::Before, When::After]
            .into_iter()
            .flat_map(|when| Deed::ALL.map(|deed| Self { when, deed }));
        let names: Vec<String> = points.clone().map(|point| point.to_string()).collect();
        let mut points = points;
        points
            .find(|point| point.to_string() == text)
            .ok_or_else(|| anyhow!("there is no point {text:?}; there are {}", names.join(", ")))
    }
}

impl TryFrom<String> for Point {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        text.parse()
    }
}

impl From<Point> for String {
    fn from(point: Point) -> Self {
        point.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_can_be_named() {
        for when in [When::Before, When::After] {
            for deed in Deed::ALL {
                let point = Point { when, deed };
                assert_eq!(point.to_string().parse::<Point>().unwrap(), point);
            }
        }
    }

    #[test]
    fn a_wrong_point_is_answered_with_the_right_ones() {
        let error = "during-charge".parse::<Point>().unwrap_err().to_string();
        assert!(error.contains("before-charge") && error.contains("after-refund"));
    }

    #[test]
    fn faults_are_written_as_in_the_documentation() {
        let json = r#"{"slow_ms": 50, "flaky": 2, "crash_at": "after-charge"}"#;
        let faults: Faults = serde_json::from_str(json).unwrap();
        assert_eq!(faults.flaky, 2);
        assert_eq!(
            faults.crash_at.map(|p| (p.when, p.deed)),
            Some((When::After, Deed::Charge))
        );
        assert!(serde_json::from_str::<Faults>(r#"{"flakey": 2}"#).is_err());
    }
}
