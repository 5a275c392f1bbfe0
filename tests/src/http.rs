//! A client for the HTTP port of workers, as small as their own.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// What a port answered.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as a document.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a metric, its labels included in the name.
    ///
    /// # Panics
    /// If there is no such metric.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let line = self
            .body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("there is no {name}: {}", self.body));
        value.parse().expect("a number")
    }
}

/// One request, for example `GET /readyz`.
///
/// # Errors
/// If nobody listens there, or who does ends in the middle.
///
/// # Panics
/// If there is no answer within the patience of a test.
pub async fn ask(address: SocketAddr, request: &str) -> io::Result<Answer> {
    let answer = tokio::time::timeout(PATIENCE, exchange(address, request)).await;
    let text = answer.unwrap_or_else(|_| panic!("{request} gave no answer in time"))?;
    parse(&text).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

async fn exchange(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{request} HTTP/1.0\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        body: body.to_owned(),
    })
}
