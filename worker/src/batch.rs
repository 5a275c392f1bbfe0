//! Gathering what waits, so that many share one round trip and one commit.

use std::sync::Arc;

use continuum_schema::Error;
use tokio::sync::{mpsc, oneshot};

/// Waits for the first item, then takes what is there already, `max` in all. A lone item waits for nobody; while the
/// caller is busy with one batch, the next gathers. `None` when every sender is gone.
pub(crate) async fn next<T>(queue: &mut mpsc::UnboundedReceiver<T>, max: usize) -> Option<Vec<T>> {
    let mut batch = Vec::new();
    (queue.recv_many(&mut batch, max).await > 0).then_some(batch)
}

/// Requests of many callers that are served together, one batch after the other, for as long as somebody can ask.
pub(crate) struct Batcher<Q, A> {
    queue: mpsc::UnboundedSender<Waiting<Q, A>>,
}

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

struct Waiting<Q, A> {
    request: Q,
    answer: oneshot::Sender<Result<A, Error>>,
}

impl<Q, A> Batcher<Q, A>
where
    Q: Clone + Send + Sync + 'static,
    A: Send + 'static,
{
    /// Serves up to `max` requests at a time with `serve`, which gives an answer a request, in their order. Must be
    /// called within a tokio runtime.
    pub(crate) fn new<F>(
        max: usize,
        serve: impl Fn(Arc<Vec<Q>>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Vec<A>, Error>> + Send,
    {
        #[expect(
            clippy::disallowed_methods,
            reason = "each request has a caller that waits for it"
        )]
        let (queue, mut waiting) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(batch) = next(&mut waiting, max).await {
                serve_batch(&serve, batch).await;
            }
        });
        Self { queue }
    }

    /// Waits for the answer to one request.
    pub(crate) async fn ask(&self, request: Q) -> Result<A, Error> {
        let (answer, answered) = oneshot::channel();
        let gone = || Error::Config("the client's runtime has stopped".into());
        self.queue
            .send(Waiting { request, answer })
            .map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// One request of a batch may be refused: the others must not suffer for it. While Postgres is away all fail alike.
async fn serve_batch<Q: Clone, A, F>(serve: &impl Fn(Arc<Vec<Q>>) -> F, batch: Vec<Waiting<Q, A>>)
where
    F: Future<Output = Result<Vec<A>, Error>>,
{
    let (requests, callers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|w| (w.request, w.answer)).unzip();
    let requests = Arc::new(requests);
    match serve(Arc::clone(&requests)).await {
        Ok(answers) => {
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that stopped waiting has no use for the answer.
                drop(caller.send(Ok(answer)));
            }
        }
        Err(error) if callers.len() == 1 || error.is_transient() => {
            for caller in callers {
                drop(caller.send(Err(error.duplicate())));
            }
        }
        Err(_) => {
            for (caller, request) in callers.into_iter().zip(requests.iter()) {
                let answer = serve(Arc::new(vec![request.clone()])).await;
                drop(caller.send(answer.and_then(only)));
            }
        }
    }
}

fn only<A>(answers: Vec<A>) -> Result<A, Error> {
    let none = || Error::Damaged("a request has no answer".into());
    answers.into_iter().next().ok_or_else(none)
}
