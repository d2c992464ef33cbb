//! `tokenway explain URL ID`: where the time of one request went, and why it went to that replica.
//!
//! Reads `/api/v1/requests/{id}` of a running gateway; `text` makes it readable.

pub(crate) mod text;

use std::io;

use clap::Args;
use serde_json::Value;

use super::admin_client::{AdminClient, AdminToken, AskError, OWN, endpoint};
use super::style::Style;
use super::{Outputs, print};
use crate::config::{Endpoint, segment};

/// Arguments of `tokenway explain`.
#[derive(Args, Debug)]
#[command(allow_missing_positional = true)]
pub struct ExplainArgs {
    /// URL of the gateway's admin port
    #[arg(value_name = "URL", env = "TOKENWAY_ADMIN_URL", value_parser = endpoint, default_value = OWN)]
    url: Endpoint,
    /// The request: its x-request-id, trace id or span id, or a beginning that is no other's
    #[arg(value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    id: String,
    #[command(flatten)]
    token: AdminToken,
    /// Write what the gateway knows as JSON
    #[arg(long)]
    json: bool,
}

/// Asks the gateway and writes the explanation to `out`. The result is the exit code.
pub fn run(
    args: &ExplainArgs,
    env: &dyn Fn(&str) -> Option<String>,
    outputs: Outputs<'_>,
    style: Style,
) -> io::Result<u8> {
    let asked = async {
        let client = AdminClient::new(&args.url, &args.token, env)?;
        let path = format!("/api/v1/requests/{}", segment(&args.id));
        Ok(match args.json {
            // With what this version does not know.
            true => format!("{:#}\n", client.get::<Value>(&path).await?),
            false => text::explanation(&client.get(&path).await?, style),
        })
    };
    let asked = async {
        asked.await.map_err(|error: AskError| match error {
            AskError::NotFound(_) => {
                format!("no request \"{}\" is kept at {}\nhint: {KEPT}", args.id, args.url)
            }
            error => error.to_string(),
        })
    };
    print(asked, outputs)
}

const KEPT: &str = "a gateway keeps, in memory, the latest requests and, for an hour, the slowest and the failed of each route; \
    older ones are in the access log and, where it kept them, in traces. With several gateways, ask the one that answered";
