//! Who bought this also bought that: a small graph of customers and items in the memory of one worker of the fleet.
//!
//! The truth is a table of purchases. The graph is built from it, and each purchase that is reported to the resident is
//! first stored, then added. The table refuses what an earlier holder still wants to write, so that a purchase counts
//! once, whatever becomes of the workers.

mod graph;
mod store;

use std::sync::{Mutex, MutexGuard, PoisonError};

use continuum_worker::prelude::*;
use continuum_worker::{Client, ResidentError};

pub use graph::{Edge, Graph};
pub use store::{Recorded, Store};

/// The resident's name.
pub const NAME: &str = "also_bought";

/// Something that a customer bought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purchase {
    /// By which a repeated report is known.
    pub id: String,
    /// Who bought.
    pub customer: String,
    /// What.
    pub item: String,
    /// How much of it.
    pub quantity: u32,
}

/// What the resident is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Somebody bought something.
    Bought(Purchase),
    /// What else do the buyers of this item buy?
    AlsoBought(String),
    /// The whole graph.
    Edges,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// How much of the item the customer bought in all.
    Weight(u64),
    /// Items, and how much of each was bought.
    Items(Vec<(String, u64)>),
    /// The whole graph.
    Edges(Vec<Edge>),
}

/// The graph, on the one worker that holds it.
pub struct AlsoBought {
    ctx: ResidentContext,
    store: Store,
    graph: Mutex<Graph>,
}

impl AlsoBought {
    /// Builds the graph from the table.
    ///
    /// # Errors
    /// If Postgres is away, or a later holder has built it already.
    pub async fn build(ctx: ResidentContext, store: Store) -> Result<Self, BoxError> {
        store.create().await?;
        // First the fence, then the load: what an earlier holder still wrote is in it, and it writes no more.
        if !store.raise_fence(ctx.token()).await? {
            return Err("a later holder has raised the fence".into());
        }
        let graph = Mutex::new(Graph::of(store.load().await?));
        Ok(Self { ctx, store, graph })
    }

    async fn bought(&self, purchase: Purchase) -> Result<u64, BoxError> {
        if purchase.quantity == 0 {
            return Err("a purchase of nothing".into());
        }
        let edge = purchase.edge();
        match self.store.record(self.ctx.token(), &purchase).await {
            Ok(Recorded::New) => Ok(self.graph().add(&edge)),
            Ok(Recorded::Known) => Ok(self.graph().weight(&edge.customer, &edge.item)),
            Ok(Recorded::Refused) => {
                self.ctx.resign("a later holder writes");
                Err("a later holder writes".into())
            }
            Err(error) => {
                // It may be stored and is not in the graph: only the table knows.
                self.ctx.resign("whether a purchase was stored is unknown");
                Err(error.into())
            }
        }
    }

    /// A thread that panicked left the graph whole: each addition is one step.
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resident for AlsoBought {
    type Request = Ask;
    type Response = Reply;

    async fn handle(&self, ask: Ask) -> Result<Reply, BoxError> {
        Ok(match ask {
            Ask::Bought(purchase) => Reply::Weight(self.bought(purchase).await?),
            Ask::AlsoBought(item) => Reply::Items(self.graph().also_bought(&item)),
            Ask::Edges => Reply::Edges(self.graph().edges()),
        })
    }
}

impl Purchase {
    fn edge(&self) -> Edge {
        Edge {
            customer: self.customer.clone(),
            item: self.item.clone(),
            weight: self.quantity.into(),
        }
    }
}

/// What a worker needs to hold the graph.
#[must_use]
pub fn registry(store: Store) -> Registry {
    Registry::new().resident(NAME, move |ctx| AlsoBought::build(ctx, store.clone()))
}

/// Reports a purchase, from anywhere in the fleet; how much of the item the customer bought in all. May be repeated.
///
/// # Errors
/// As [`ResidentError`] says.
pub async fn bought(client: &Client, purchase: Purchase) -> Result<u64, ResidentError> {
    match ask(client, Ask::Bought(purchase)).await? {
        Reply::Weight(weight) => Ok(weight),
        other => Err(unexpected(&other)),
    }
}

/// What else the buyers of an item buy, most first.
///
/// # Errors
/// As [`ResidentError`] says.
pub async fn also_bought(client: &Client, item: &str) -> Result<Vec<(String, u64)>, ResidentError> {
    match ask(client, Ask::AlsoBought(item.to_owned())).await? {
        Reply::Items(items) => Ok(items),
        other => Err(unexpected(&other)),
    }
}

/// The whole graph.
///
/// # Errors
/// As [`ResidentError`] says.
pub async fn edges(client: &Client) -> Result<Vec<Edge>, ResidentError> {
    match ask(client, Ask::Edges).await? {
        Reply::Edges(edges) => Ok(edges),
        other => Err(unexpected(&other)),
    }
}

/// A purchase carries its id, and the other requests only read: each may be served twice.
async fn ask(client: &Client, ask: Ask) -> Result<Reply, ResidentError> {
    client.resident(NAME).request(&ask).repeatable().await
}

fn unexpected(reply: &Reply) -> ResidentError {
    ResidentError::Invalid(format!("an answer to another question: {reply:?}"))
}
