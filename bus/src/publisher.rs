//! Sending over a real server: hints, requests, answers. Everything here is bounded.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Request, RequestErrorKind};
use bytes::Bytes;
use futures::FutureExt as _;

use crate::config::BusConfig;
use crate::connection::NatsBus;
use crate::envelope::{Headers, Message};
use crate::error::{RequestError, RespondError};
use crate::subject;

/// Decides to which reply subjects this process answers.
///
/// A reply subject is the sender's free choice, and an answer travels with the rights of this process: with
/// `$JS.API.STREAM.PURGE.…` as reply subject an answer is a command to the server.
#[derive(Clone, Debug)]
pub(crate) struct ReplyGuard {
    /// Each ends in a dot.
    prefixes: Arc<[String]>,
}

impl ReplyGuard {
    pub(crate) fn new(config: &BusConfig) -> Self {
        let prefixes = std::iter::once(&config.inbox_prefix).chain(&config.more_reply_prefixes);
        Self {
            prefixes: prefixes.map(|prefix| format!("{prefix}.")).collect(),
        }
    }

    /// The guard of a bus with the default inbox prefix.
    pub(crate) fn standard() -> Self {
        Self {
            prefixes: ["_INBOX.".to_owned()].into(),
        }
    }

    pub(crate) fn check<'m>(&self, message: &'m Message) -> Result<&'m str, RespondError> {
        let reply = message.reply.as_deref().ok_or(RespondError::NoReply)?;
        let is_inbox = self
            .prefixes
            .iter()
            .any(|prefix| reply.starts_with(&**prefix));
        if is_inbox && subject::is_literal(reply) {
            Ok(reply)
        } else {
            Err(RespondError::NotAnInbox(reply.to_owned()))
        }
    }
}

impl NatsBus {
    pub(crate) fn hint(&self, subject: &str, payload: Bytes) {
        let sent = subject::is_literal(subject) && self.shared.is_up() && {
            let client = self.shared.client();
            let sending = client.publish(subject.to_owned(), payload);
            // One poll: either the client's queue has room now, or the hint is dropped. Tokio's budget must not
            // decide.
            tokio::task::unconstrained(sending)
                .now_or_never()
                .is_some_and(|sent| sent.is_ok())
        };
        if !sent {
            self.shared.link.hint_dropped();
        }
    }

    pub(crate) async fn request(
        &self,
        subject: &str,
        headers: &Headers,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        if self.shared.link.is_closed() {
            return Err(RequestError::Closed);
        }
        if !subject::is_literal(subject) {
            return Err(RequestError::InvalidSubject(subject.to_owned()));
        }
        self.check_size(headers, &payload)
            .map_err(|(bytes, limit)| RequestError::TooLarge { bytes, limit })?;
        if !self.shared.is_up() {
            return Err(RequestError::Disconnected);
        }
        let client = self.shared.client();
        let mut request = Request::new().payload(payload).timeout(Some(timeout));
        if !headers.is_empty() {
            request = request.headers(headers.to_nats());
        }
        let asked = tokio::time::timeout(timeout, client.send_request(subject.to_owned(), request));
        match self.shared.link.unless_lost(asked).await {
            Ok(Ok(Ok(answer))) => Ok(Message::from_nats(answer)),
            Ok(Ok(Err(error))) => Err(match error.kind() {
                RequestErrorKind::NoResponders => RequestError::NoResponders(subject.to_owned()),
                RequestErrorKind::TimedOut => RequestError::TimedOut(timeout),
                _ => RequestError::Disconnected,
            }),
            Ok(Err(_)) => Err(RequestError::TimedOut(timeout)),
            Err(_) => Err(RequestError::Disconnected),
        }
    }

    pub(crate) async fn respond(
        &self,
        message: &Message,
        headers: &Headers,
        payload: Bytes,
    ) -> Result<(), RespondError> {
        let reply = self.shared.replies.check(message)?;
        self.check_size(headers, &payload)
            .map_err(|(bytes, limit)| RespondError::TooLarge { bytes, limit })?;
        self.send(reply, headers, payload).await
    }

    /// Hands a message to a client that has a link, within the request timeout.
    pub(crate) async fn send(
        &self,
        subject: &str,
        headers: &Headers,
        payload: Bytes,
    ) -> Result<(), RespondError> {
        if !self.shared.is_up() {
            return Err(RespondError::Disconnected);
        }
        let client = self.shared.client();
        let sending = async {
            if headers.is_empty() {
                client.publish(subject.to_owned(), payload).await
            } else {
                client
                    .publish_with_headers(subject.to_owned(), headers.to_nats(), payload)
                    .await
            }
        };
        match tokio::time::timeout(self.shared.timeout, sending).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(RespondError::Disconnected),
        }
    }

    /// The size and the server's limit, if the first is over the second. The server would cut the link.
    fn check_size(&self, headers: &Headers, payload: &Bytes) -> Result<(), (usize, usize)> {
        let bytes = Message::wire_len(headers, payload);
        let limit = self.max_payload();
        if bytes > limit {
            Err((bytes, limit))
        } else {
            Ok(())
        }
    }

    /// What the server takes; its default before the first connection.
    pub(crate) fn max_payload(&self) -> usize {
        self.shared.client().max_payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inboxes_are_answered() {
        let mut config = BusConfig::new(["nats://one"]);
        config.inbox_prefix = "_INBOX_workers".into();
        config.more_reply_prefixes = vec!["_R_".into()];
        let guard = ReplyGuard::new(&config);
        let verdict = |reply: &str| {
            let message = Message {
                reply: Some(reply.into()),
                ..Message::default()
            };
            guard.check(&message).is_ok()
        };
        assert!(verdict("_INBOX_workers.abc") && verdict("_R_.x.y"));
        for bad in [
            "$JS.API.STREAM.PURGE.CONTINUUM_i_SIGNALS",
            "$SYS.REQ.SERVER.PING",
            "continuum.i.ready",
            "_INBOX.abc",
            "_INBOX_workers",
            "_INBOX_workers.",
            "_INBOX_workers.>",
            "_INBOX_workers.*",
            "_INBOX_workersx.a",
            "_INBOX_workers.a b",
        ] {
            assert!(!verdict(bad), "{bad}");
        }
        assert_eq!(guard.check(&Message::default()), Err(RespondError::NoReply));
    }
}
