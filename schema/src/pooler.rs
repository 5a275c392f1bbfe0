//! What stands between a program and Postgres, and the look at it before the first statement.
//!
//! A pooler in transaction mode gives each transaction to whatever server process is free. A program that takes such a
//! connection for its own loses its settings and, worse, its prepared statements: it then executes somebody else's, and
//! sees no error. So a pool looks once, before its first connection is used and before it has changed any setting of a
//! server that others share. Nothing in the protocol tells the mode of a pooler. What tells it is who answers: while a
//! connection is open, its server process is its own, unless something hands processes around.
//!
//! | `pooler` | stands in between | verdict |
//! | --- | --- | --- |
//! | `none` | nothing, or a pooler in session mode | works |
//! | `none` | a pooler in transaction or statement mode | refused |
//! | `transaction` | nothing, or a pooler in session or transaction mode | works |
//! | `transaction` | a pooler in statement mode | refused |
//! | either | a pooler that refuses a startup parameter of the URL | refused |

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, Row as _};

use crate::Error;
use crate::database::{BEGIN, COMMIT, Statement, statement};

const SERVER: Statement = statement!("instance/server");

/// How often both connections are asked. One round is enough for a pooler that serves nobody else; where others come
/// in between, a process may happen to return to the same connection for a while.
const ROUNDS: usize = 4;

/// What stands between a worker and Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or a pooler in session mode.
    #[default]
    None,
    /// A pooler in transaction mode. Prepared statements and session settings don't survive there, so each statement
    /// runs in an explicit transaction that sets what it needs, unprepared.
    Transaction,
}

/// Refuses what can't work. Changes nothing, on connections of its own that are closed afterwards.
///
/// # Errors
/// [`Error::Config`] says which setting to change.
pub(crate) async fn check(pooler: Pooler, options: &PgConnectOptions) -> Result<(), Error> {
    let found = match pooler {
        Pooler::None => shares_servers(options).await,
        Pooler::Transaction => allows_transactions(options).await.map(|()| false),
    };
    match found {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::Config(
            "the connection to Postgres leads through a pooler in transaction mode, although `pooler` is `none`: \
             prepared statements would be mixed up with those of other clients; set `pooler` to `transaction` \
             (`--pooler transaction`, CONTINUUM_POOLER=transaction), or use a pooler in session mode"
                .into(),
        )),
        Err(error) => Err(refusal(&error).map_or_else(|| error.into(), Error::Config)),
    }
}

/// Whether two connections that are open at the same time are served by one process, or one of them by several.
///
/// Each is asked twice in a row, which finds a pooler that takes turns; asking one and then the other finds a pooler that
/// prefers the process that was used last, or has but one. Asked in strict turns, two connections were seen to get one
/// of two processes each for as long as other clients kept the pooler busy.
async fn shares_servers(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut one = options.connect().await?;
    let mut other = options.connect().await?;
    let shared = share_servers(&mut one, &mut other).await?;
    one.close().await?;
    other.close().await?;
    Ok(shared)
}

async fn share_servers(
    one: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<bool, sqlx::Error> {
    let of_one = server(one).await?;
    let of_other = server(other).await?;
    if of_one == of_other {
        return Ok(true);
    }
    for _ in 0..ROUNDS {
        for _ in 0..2 {
            if server(one).await? != of_one {
                return Ok(true);
            }
        }
        for _ in 0..2 {
            if server(other).await? != of_other {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The identity of the process that answers. The process id alone may be the same on two servers.
async fn server(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    // The simple protocol is one message: in any pooling mode it reaches one process.
    let row = sqlx::raw_sql(SERVER.sql).fetch_one(connection).await?;
    row.try_get(0)
}

async fn allows_transactions(options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let mut connection = options.connect().await?;
    sqlx::raw_sql(BEGIN.sql).execute(&mut connection).await?;
    sqlx::raw_sql(COMMIT.sql).execute(&mut connection).await?;
    connection.close().await
}

/// What a pooler refuses for good. PgBouncer has one code for this and for what passes by itself, so its words decide.
fn refusal(error: &sqlx::Error) -> Option<String> {
    let message = error.as_database_error()?.message();
    if message.contains("statement pooling mode") {
        return Some(format!(
            "the pooler before Postgres is in statement mode, in which nothing of Continuum can work; use transaction \
             or session mode ({message})"
        ));
    }
    message.contains("unsupported startup parameter").then(|| {
        format!(
            "the pooler before Postgres refuses a setting of the Postgres URL; take it out, or let the pooler pass it \
             over ({message})"
        )
    })
}
