//! `tokenway cold-start URL`: what the first request after a scale to zero waits, beside what a warm one does.
//!
//! It measures what a client sees: a few requests to a warm pool, then none until no replica is ready, then one. Who takes the replicas away
//! and brings them back is an autoscaler, two commands, or, with `--sim`, the simulation.

mod ask;
mod measure;
mod report;
mod simulated;

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;

use self::measure::{Commands, MeasureError, Subject};
use self::report::Report;
use super::admin_client::{AdminClient, AskError};
use super::demo::duration;
use super::{EXIT_FAILED, EXIT_OK};
use crate::app::logging::LogFilter;
use crate::app::process::RunError;
use crate::config::Endpoint;

/// Arguments of `tokenway cold-start`.
#[derive(Args, Clone, Debug)]
pub struct ColdStartArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// The route whose pool scales to zero; not needed where only one route has such a pool
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
    /// The model to ask for, where the route has none of its own
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Command that stops the replicas, such as 'kubectl scale deploy/vllm --replicas=0'; without it an autoscaler is waited for
    #[arg(long, value_name = "COMMAND")]
    down: Option<String>,
    /// Command that starts them once the first request waits; without it an autoscaler is expected to
    #[arg(long, value_name = "COMMAND")]
    up: Option<String>,
    /// Limit for replicas to stop, and for the first answer
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    within: Duration,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Which gateway.
#[derive(Args, Clone, Debug)]
struct GatewayArgs {
    /// URL of the gateway's admin port
    #[arg(value_name = "URL", value_parser = super::admin_client::endpoint, required_unless_present = "sim")]
    url: Option<Endpoint>,
    /// Start a simulated replica and a gateway of its own and measure those
    #[arg(long, conflicts_with_all = ["url", "token", "data", "key", "route", "model", "down", "up"])]
    sim: bool,
    /// With --sim: how long the simulated replica loads
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, requires = "sim")]
    load: Duration,
    /// Its admin.token: env:NAME, file:PATH or the token itself
    #[arg(long, env = "TOKENWAY_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    /// URL of its data port; default: server.listen at the admin port's host
    #[arg(long, value_name = "URL", value_parser = super::admin_client::endpoint)]
    data: Option<Endpoint>,
    /// A tenant's key: env:NAME, file:PATH or the key itself
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// Measures, and writes the report to `out`. The result is the exit code.
///
/// # Errors
/// When `out` or `err` cannot be written, or, with `--sim`, nothing can be started.
pub fn run(
    args: &ColdStartArgs,
    log: LogFilter,
    env: &dyn Fn(&str) -> Option<String>,
    (out, err): (&mut dyn Write, &mut dyn Write),
) -> Result<u8, RunError> {
    // What is on the way is said where the result is not.
    let mut say = |line: &str| writeln!(err, "{line}");
    let measured = if args.gateway.sim {
        simulated::measure(args, log, &mut say)?
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(of_gateway(args, env, &mut say))
    };
    let code = match measured {
        Ok(report) if args.json => writeln!(out, "{:#}", report.to_json()).map(|()| EXIT_OK),
        Ok(report) => write!(out, "{}", report.to_text()).map(|()| EXIT_OK),
        Err(MeasureError::Io(error)) => Err(error),
        Err(error) => writeln!(err, "error: {error}").map(|()| EXIT_FAILED),
    };
    Ok(code?)
}

/// Says what happens.
type Say<'s> = &'s mut dyn FnMut(&str) -> io::Result<()>;

async fn of_gateway(
    args: &ColdStartArgs,
    env: &dyn Fn(&str) -> Option<String>,
    say: Say<'_>,
) -> Result<Report, MeasureError> {
    let gateway = &args.gateway;
    let Some(url) = &gateway.url else { return Err(MeasureError::NoGateway) };
    let client = AdminClient::at(url, gateway.token.as_deref(), env)?;
    let key = gateway.key.as_deref().map(|key| super::admin_client::read_token(key, env)).transpose()?;
    let subject = Subject::find(client, args, url, key).await?;
    let commands = Commands { down: args.down.clone(), up: args.up.clone() };
    subject.measure(&commands, say).await
}

impl From<AskError> for MeasureError {
    fn from(error: AskError) -> Self {
        Self::Admin(error)
    }
}
