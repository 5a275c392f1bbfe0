//! `also-bought`: a worker that stands ready to hold the graph, with every command of Continuum; `also-bought bought …`
//! and `also-bought ask …` ask whoever holds it. `CONTINUUM_DATABASE_URL` says where Postgres is, `CONTINUUM_NATS_URL`
//! where NATS.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use continuum_examples::also_bought::{self, Purchase, Store};
use continuum_worker::bus::BusConfig;
use continuum_worker::schema::{DatabaseConfig, Name};
use continuum_worker::{BusSource, Client, Limits};

/// Where the example keeps its purchases.
const SCHEMA: &str = "shop";

/// What is asked of the resident.
#[derive(Parser)]
#[command(name = "also-bought")]
struct Question {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Report a purchase; a repetition with the same id counts once
    Bought {
        /// By which a repetition is known
        id: String,
        /// Who bought
        customer: String,
        /// What
        item: String,
        /// How much of it
        #[arg(default_value_t = 1)]
        quantity: u32,
    },
    /// Show what the buyers of an item also bought
    Ask {
        /// The item
        item: String,
    },
}

fn main() -> ExitCode {
    let first = std::env::args().nth(1).unwrap_or_default();
    let done = match first.as_str() {
        "bought" | "ask" => put(Question::parse().verb).map(|()| ExitCode::SUCCESS),
        _ => store().map(|store| continuum_worker::main(also_bought::registry(store))),
    };
    done.unwrap_or_else(|error| {
        eprintln!("also-bought: {error:#}");
        ExitCode::FAILURE
    })
}

fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| format!("set {name}"))
}

fn store() -> anyhow::Result<Store> {
    let url = variable("CONTINUUM_DATABASE_URL")?;
    Ok(Store::new(&url, Name::new(SCHEMA)?)?)
}

#[tokio::main]
async fn put(verb: Verb) -> anyhow::Result<()> {
    let instance = Name::new(std::env::var("CONTINUUM_INSTANCE").unwrap_or("default".into()))?;
    let database = DatabaseConfig::new(variable("CONTINUUM_DATABASE_URL")?, &instance);
    let bus = BusConfig::new([variable("CONTINUUM_NATS_URL")?]);
    let bus = BusSource::Nats(Box::new(bus));
    let client = Client::connect(&instance, database, bus, Limits::default()).await?;
    match verb {
        Verb::Bought {
            id,
            customer,
            item,
            quantity,
        } => {
            let purchase = Purchase {
                id,
                customer,
                item,
                quantity,
            };
            let said = format!("{} bought {}", purchase.customer, purchase.item);
            let weight = also_bought::bought(&client, purchase).await?;
            println!("{said}: {weight} in all");
        }
        Verb::Ask { item } => {
            for (item, weight) in also_bought::also_bought(&client, &item).await? {
                println!("{weight:>6}  {item}");
            }
        }
    }
    client.close().await;
    Ok(())
}
