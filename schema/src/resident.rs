//! Residents: pieces of in-memory state of which the whole fleet holds one each. Not to be confused with a resident
//! *run*, which is a run that some worker has in memory: that one is a [`lease`](crate::lease).

use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Statement, statement};
use crate::{Database, Error, Name};

const LOOK: Statement = statement!("resident/look");
const CLAIM: Statement = statement!("resident/claim");
const RELEASE: Statement = statement!("resident/release");

/// Who holds a resident, as Postgres knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The resident's name.
    pub name: Name,
    /// The session and the token of its holder, or of the last one: look at [`Seat::is_free`] too. `None` if nobody
    /// has taken it since its last release.
    pub holder: Option<(Uuid, i64)>,
    /// Since when it is as it is; `None` if nobody ever held it.
    pub since: Option<OffsetDateTime>,
    /// Whether it is to be had: nobody holds it, or a session that is not open any more.
    pub is_free: bool,
}

/// Looks at the seats of these residents, in the order of their names.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn look(database: &Database, names: &[Name]) -> Result<Vec<Seat>, Error> {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    let rows = database.all(database.query(LOOK).bind(names)).await?;
    rows.iter().map(seat).collect()
}

fn seat(row: &PgRow) -> Result<Seat, Error> {
    let name: String = row.try_get("name")?;
    let session: Option<Uuid> = row.try_get("session")?;
    let token: Option<i64> = row.try_get("token")?;
    Ok(Seat {
        name: Name::new(name).map_err(|e| Error::Damaged(e.to_string()))?,
        holder: session.zip(token),
        since: row.try_get("since")?,
        is_free: row.try_get("is_free")?,
    })
}

/// Takes a resident for a session if it is to be had; the token under which it is held from now on.
///
/// # Errors
/// [`Error::SessionClosed`] if the session is not open any more.
pub async fn claim(database: &Database, session: Uuid, name: &Name) -> Result<Option<i64>, Error> {
    let query = database
        .query(CLAIM)
        .bind(session)
        .bind(name.as_str().to_owned());
    Ok(database.one(query).await?.try_get(0)?)
}

/// Gives a resident back, if it is still held under this session and token; returns whether it was.
///
/// # Errors
/// [`Error::Unavailable`] while Postgres is away.
pub async fn release(
    database: &Database,
    session: Uuid,
    name: &Name,
    token: i64,
) -> Result<bool, Error> {
    let query = database
        .query(RELEASE)
        .bind(name.as_str().to_owned())
        .bind(session)
        .bind(token);
    Ok(database.execute(query).await? == 1)
}
