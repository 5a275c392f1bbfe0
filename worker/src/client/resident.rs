//! Asking a resident: finding its holder, and asking that one and no other.
//!
//! A question to the resident's name brings the token of the one who holds it; the request goes to the subject of that
//! token, where only that holder listens. So "nobody there" and "not ready" say for certain that nothing was served, and
//! what is sent again is never served twice. The client remembers the highest token of each name, and whom it asked
//! last, so that a request is one round trip as long as the holder stays.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use continuum_bus::RequestError;
use continuum_schema::{Name, Payload, PayloadError, TextError};
use futures::future::BoxFuture;
use serde::Serialize;
use tokio::time::Instant;

use super::Client;
use crate::Payloadable;
use crate::retry::Backoff;
use crate::singleton::wire::{self, Answer, Outcome};

/// How long a request waits for its answer unless its sender says otherwise.
const WITHIN: Duration = Duration::from_secs(10);

/// How long the holder may take to say that it is there.
const FIND_MAX: Duration = Duration::from_secs(1);

/// How long one of several tries waits for its answer.
const TRY_MAX: Duration = Duration::from_secs(1);

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Why a resident did not answer, sorted by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResidentError {
    /// Nobody holds it: no worker that registered the name has run within the time given. Nothing was served.
    #[error("nobody held the resident `{name}` within {}", humantime::format_duration(*.after))]
    NotHeld {
        /// Which resident.
        name: String,
        /// The time that was given.
        after: Duration,
    },
    /// It was still being built when the time given had passed. Nothing was served.
    #[error("the resident `{name}` was not ready within {}", humantime::format_duration(*.after))]
    NotReady {
        /// Which resident.
        name: String,
        /// The time that was given.
        after: Duration,
    },
    /// No answer came. The request may have been served.
    #[error(
        "the resident `{name}` did not answer within {}; it may have served the request",
        humantime::format_duration(*.after)
    )]
    TimedOut {
        /// Which resident.
        name: String,
        /// The time that was given.
        after: Duration,
    },
    /// The answer came from a holder that has been replaced since. Whether what it did counts is not known.
    #[error("the resident `{name}` was answered by an earlier holder; the answer does not count")]
    Superseded {
        /// Which resident.
        name: String,
    },
    /// The resident's own code failed; these are its words.
    #[error("{0}")]
    Failed(String),
    /// The name can't be one, or a value does not encode or decode.
    #[error("{0}")]
    Invalid(String),
    /// The request or its answer is larger than what travels on NATS.
    #[error("{0}")]
    TooLarge(String),
    /// There is no link to NATS. Nothing was served.
    #[error("{0}")]
    Unavailable(String),
}

impl From<TextError> for ResidentError {
    fn from(error: TextError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<PayloadError> for ResidentError {
    fn from(error: PayloadError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// What a client knows of the holders, shared by its clones.
#[derive(Clone, Default)]
pub(super) struct Holders(Arc<Mutex<HashMap<Name, Known>>>);

#[derive(Clone, Copy)]
struct Known {
    /// The highest token that was seen.
    highest: i64,
    /// Whether its holder is the one to ask.
    is_there: bool,
}

impl Holders {
    /// Takes in a token that somebody answered with; whether it is none of an earlier holder.
    fn see(&self, name: &Name, token: i64) -> bool {
        let mut known = self.lock();
        let is_current = known.get(name).is_none_or(|known| token >= known.highest);
        if is_current {
            let seen = Known {
                highest: token,
                is_there: true,
            };
            known.insert(name.clone(), seen);
        }
        is_current
    }

    /// Whom to ask.
    fn holder(&self, name: &Name) -> Option<i64> {
        let known = self.lock();
        let known = known.get(name).filter(|known| known.is_there);
        known.map(|known| known.highest)
    }

    /// The holder with this token is not to be asked again before somebody says that it is there.
    fn forget(&self, name: &Name, token: i64) {
        if let Some(known) = self.lock().get_mut(name)
            && known.highest == token
        {
            known.is_there = false;
        }
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// The resident with this name, whichever worker holds it. See [`Resident`](crate::Resident).
    ///
    /// ```no_run
    /// # async fn example(client: continuum_worker::Client) -> Result<(), continuum_worker::ResidentError> {
    /// let sum: u64 = client.resident("counter").request(&5_u64).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn resident(&self, name: &str) -> ResidentHandle {
        ResidentHandle {
            client: self.clone(),
            name: name.to_owned(),
        }
    }
}

/// A resident as its callers see it. Cheap to clone.
#[derive(Clone)]
pub struct ResidentHandle {
    client: Client,
    name: String,
}

impl ResidentHandle {
    /// A request, which is sent when it is awaited. The types are those of the resident's
    /// [`Request`](crate::Resident::Request) and [`Response`](crate::Resident::Response).
    #[must_use = "nothing is sent until the request is awaited"]
    pub fn request<T: Payloadable>(&self, request: &impl Serialize) -> ResidentRequest<T> {
        ResidentRequest {
            client: self.client.clone(),
            name: self.name.clone(),
            body: Payload::encode(request),
            within: WITHIN,
            repeatable: false,
            answer: PhantomData,
        }
    }
}

/// A request to a resident that is being prepared; await it to send it.
#[must_use = "nothing is sent until the request is awaited"]
pub struct ResidentRequest<T> {
    client: Client,
    name: String,
    body: Result<Payload, PayloadError>,
    within: Duration,
    repeatable: bool,
    answer: PhantomData<fn() -> T>,
}

impl<T> ResidentRequest<T> {
    /// The longest that it waits, for a holder, for that to be ready, and for its answer; 10 s without.
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Says that it does no harm if it is served twice, for example because it only reads or carries an id by which a
    /// repetition is known. A request whose holder dies over it is then sent to the next one.
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }
}

impl<T: Payloadable> IntoFuture for ResidentRequest<T> {
    type Output = Result<T, ResidentError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let call = Call {
                name: Name::of("resident", self.name)?,
                body: Bytes::from(self.body?.into_bytes()),
                within: self.within,
                deadline: Instant::now() + self.within,
                repeatable: self.repeatable,
                client: self.client,
            };
            Ok(call.answer().await?.decode()?)
        })
    }
}

/// Why a try brought no answer.
#[derive(Clone, Copy, Debug)]
enum Miss {
    Nobody,
    NotReady,
    NoLink,
    /// The request may have been served.
    Lost,
    /// It was served by an earlier holder.
    Superseded,
}

/// A request on its way.
struct Call {
    client: Client,
    name: Name,
    body: Bytes,
    within: Duration,
    deadline: Instant,
    repeatable: bool,
}

impl Call {
    /// Tries until there is an answer, or no time, or no trying again.
    async fn answer(&self) -> Result<Payload, ResidentError> {
        let mut backoff = Backoff::new(PAUSE_MAX);
        loop {
            let miss = match self.attempt().await? {
                Ok(answer) => return Ok(answer),
                Err(miss) => miss,
            };
            let may_have_been_served = matches!(miss, Miss::Lost | Miss::Superseded);
            let pause = backoff.next();
            if pause >= self.left() || (may_have_been_served && !self.repeatable) {
                return Err(self.error(miss));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self) -> Result<Result<Payload, Miss>, ResidentError> {
        if !self.is_linked().await {
            return Ok(Err(Miss::NoLink));
        }
        let holders = &self.client.holders;
        let token = match holders.holder(&self.name) {
            Some(token) => token,
            None => match self.find().await? {
                Ok(token) => token,
                Err(miss) => return Ok(Err(miss)),
            },
        };
        let asked = self.ask(token).await?;
        if asked.is_err() {
            holders.forget(&self.name, token);
        }
        Ok(asked)
    }

    /// Asks who holds it.
    async fn find(&self) -> Result<Result<i64, Miss>, ResidentError> {
        let subject = self.client.subjects.resident(&self.name);
        let limit = self.left().min(FIND_MAX);
        let asked = self.client.bus.request(&subject, wire::who().into(), limit);
        let answer = match asked.await {
            Ok(message) => Answer::read(&message.payload)?,
            Err(error) => return miss(error, Miss::NotReady).map(Err),
        };
        // Who is not ready yet, or was replaced, is not to be asked.
        let is_here = answer.outcome == Outcome::Here;
        let found = is_here && self.client.holders.see(&self.name, answer.token);
        Ok(found.then_some(answer.token).ok_or(Miss::NotReady))
    }

    /// Asks the one holder with this token.
    async fn ask(&self, token: i64) -> Result<Result<Payload, Miss>, ResidentError> {
        let subject = self.client.subjects.resident_holder(&self.name, token);
        let limit = match self.repeatable {
            true => self.left().min(TRY_MAX),
            false => self.left(),
        };
        let asked = self.client.bus.request(&subject, self.body.clone(), limit);
        let answer = match asked.await {
            Ok(message) => Answer::read(&message.payload)?,
            Err(error) => return miss(error, Miss::Lost).map(Err),
        };
        match answer.outcome {
            Outcome::NotReady => Ok(Err(Miss::NotReady)),
            _ if !self.client.holders.see(&self.name, token) => Ok(Err(Miss::Superseded)),
            Outcome::Done(payload) => Ok(Ok(payload)),
            Outcome::Failed(text) => Err(ResidentError::Failed(text)),
            Outcome::TooLarge(text) => Err(ResidentError::TooLarge(text)),
            Outcome::Invalid(text) => Err(ResidentError::Invalid(text)),
            Outcome::Here => Err(ResidentError::Invalid(
                "the holder took the request for a question who it is".into(),
            )),
        }
    }

    /// Waits for a link to NATS.
    async fn is_linked(&self) -> bool {
        let mut status = self.client.bus.status();
        let linked = status.wait_for(continuum_bus::BusStatus::is_connected);
        matches!(tokio::time::timeout(self.left(), linked).await, Ok(Ok(_)))
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn error(&self, miss: Miss) -> ResidentError {
        let (name, after) = (self.name.to_string(), self.within);
        match miss {
            Miss::Nobody => ResidentError::NotHeld { name, after },
            Miss::NotReady => ResidentError::NotReady { name, after },
            Miss::NoLink => ResidentError::Unavailable(format!(
                "NATS is not connected, and the resident `{name}` is reached by it alone"
            )),
            Miss::Lost => ResidentError::TimedOut { name, after },
            Miss::Superseded => ResidentError::Superseded { name },
        }
    }
}

/// What a request that was not answered says; `silence` where somebody may be there.
fn miss(error: RequestError, silence: Miss) -> Result<Miss, ResidentError> {
    match error {
        RequestError::NoResponders(_) => Ok(Miss::Nobody),
        RequestError::TimedOut(_) | RequestError::Disconnected => Ok(silence),
        RequestError::TooLarge { .. } => Err(ResidentError::TooLarge(error.to_string())),
        RequestError::InvalidSubject(_) => Err(ResidentError::Invalid(error.to_string())),
        RequestError::Closed => Err(ResidentError::Unavailable(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_never_goes_back_to_an_earlier_holder() {
        let (holders, name) = (Holders::default(), Name::new("graph").unwrap());
        assert_eq!(holders.holder(&name), None);
        assert!(holders.see(&name, 5));
        assert!(holders.see(&name, 9));
        assert!(!holders.clone().see(&name, 5), "a zombie is not believed");
        assert_eq!(holders.holder(&name), Some(9));
    }

    #[test]
    fn a_holder_that_is_gone_is_asked_again_only_when_it_says_that_it_is_there() {
        let (holders, name) = (Holders::default(), Name::new("graph").unwrap());
        holders.see(&name, 5);
        holders.forget(&name, 4);
        assert_eq!(holders.holder(&name), Some(5), "that was another one");
        holders.forget(&name, 5);
        assert_eq!(holders.holder(&name), None);
        assert!(holders.see(&name, 5));
        assert_eq!(holders.holder(&name), Some(5));
    }
}
