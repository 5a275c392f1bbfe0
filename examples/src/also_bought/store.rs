//! The source of truth: purchases in tables of the example's own, behind a fence.
//!
//! The fence is one row that holds the token of the resident that may write. A holder raises it before it loads; from
//! then on no earlier holder writes, so what it loads is all there is.

use std::str::FromStr as _;

use continuum_worker::schema::Name;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use super::{Edge, Purchase};

/// What became of a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is stored.
    New,
    /// It was stored before.
    Known,
    /// A later holder has raised the fence; nothing was stored.
    Refused,
}

/// The tables. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pool: PgPool,
    schema: Name,
}

impl Store {
    /// The tables in this schema; the first connection is made when it is needed.
    ///
    /// # Errors
    /// If the URL can't be read.
    pub fn new(url: &str, schema: Name) -> sqlx::Result<Self> {
        let path = format!("\"{schema}\"");
        let options = PgConnectOptions::from_str(url)?.options([("search_path", path)]);
        Ok(Self {
            pool: PgPoolOptions::new()
                .max_connections(8)
                .connect_lazy_with(options),
            schema,
        })
    }

    /// Makes the tables where they are missing.
    ///
    /// # Errors
    /// If Postgres is away or refuses.
    pub async fn create(&self) -> sqlx::Result<()> {
        // Two that create at once would collide in the catalogue; the lock ends with the transaction.
        let mut transaction = self.pool.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtext('also_bought'))")
            .execute(&mut *transaction)
            .await?;
        let statements = format!(
            "CREATE SCHEMA IF NOT EXISTS \"{}\";
             CREATE TABLE IF NOT EXISTS also_bought_fence (
                 only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
                 token    bigint NOT NULL
             );
             CREATE TABLE IF NOT EXISTS also_bought_purchases (
                 purchase text PRIMARY KEY,
                 customer text NOT NULL,
                 item     text NOT NULL,
                 quantity bigint NOT NULL CHECK (quantity > 0)
             )",
            self.schema
        );
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await
    }

    /// Keeps every holder with a lower token from writing; `false` if a later one has done that to this token. Waits for
    /// the writes that are under way.
    ///
    /// # Errors
    /// If Postgres is away.
    pub async fn raise_fence(&self, token: i64) -> sqlx::Result<bool> {
        let raised = sqlx::query(
            "INSERT INTO also_bought_fence AS fence (token) VALUES ($1)
             ON CONFLICT (only_row) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token",
        )
        .bind(token)
        .execute(&self.pool)
        .await?;
        Ok(raised.rows_affected() == 1)
    }

    /// Who bought how much of what.
    ///
    /// # Errors
    /// If Postgres is away.
    pub async fn load(&self) -> sqlx::Result<Vec<Edge>> {
        let rows = sqlx::query(
            "SELECT customer, item, sum(quantity)::bigint AS weight FROM also_bought_purchases
             GROUP BY customer, item ORDER BY customer, item",
        )
        .fetch_all(&self.pool)
        .await?;
        let edge = |row: &sqlx::postgres::PgRow| {
            Ok(Edge {
                customer: row.try_get("customer")?,
                item: row.try_get("item")?,
                weight: row.try_get::<i64, _>("weight")?.unsigned_abs(),
            })
        };
        rows.iter().map(edge).collect()
    }

    /// Stores a purchase, unless it is there already or the fence has been raised above `token`. The lock on the fence
    /// is shared, so writes don't wait for each other, and whoever raises it waits for all of them.
    ///
    /// # Errors
    /// If Postgres is away. Whether the purchase was stored is unknown then.
    pub async fn record(&self, token: i64, purchase: &Purchase) -> sqlx::Result<Recorded> {
        let row = sqlx::query(
            "WITH fence AS (
                 SELECT 1 FROM also_bought_fence WHERE token = $1 FOR SHARE
             ), stored AS (
                 INSERT INTO also_bought_purchases (purchase, customer, item, quantity)
                 SELECT $2, $3, $4, $5 FROM fence
                 ON CONFLICT (purchase) DO NOTHING
                 RETURNING 1
             )
             SELECT EXISTS (SELECT FROM fence) AS is_current, EXISTS (SELECT FROM stored) AS is_new",
        )
        .bind(token)
        .bind(&purchase.id)
        .bind(&purchase.customer)
        .bind(&purchase.item)
        .bind(i64::from(purchase.quantity))
        .fetch_one(&self.pool)
        .await?;
        Ok(match (row.try_get("is_current")?, row.try_get("is_new")?) {
            (false, _) => Recorded::Refused,
            (true, false) => Recorded::Known,
            (true, true) => Recorded::New,
        })
    }
}
