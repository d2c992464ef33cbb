//! `tokenway canary URL [ACTION]`: shows the canaries of a gateway, or acts on one, over its admin port.

use std::io;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use super::admin_client::{AdminArgs, AdminClient, AskError};
use super::{Outputs, print};
use crate::api::canaries::{Canaries, Canary, CanaryAnswer};
use crate::config::segment;

/// Arguments of `canary`.
#[derive(Args, Debug)]
pub struct CanaryArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Action on the canary; without it canaries are listed
    #[arg(value_name = "ACTION")]
    action: Option<CanaryAction>,
    /// The canary's route; not needed where only one route has one
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
}

/// What an operator may do.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CanaryAction {
    /// All traffic to the canary
    Promote,
    /// All traffic back
    Rollback,
    /// Stay at this step
    Pause,
    /// Continue at its step
    Resume,
}

/// Why nothing was shown or done.
#[derive(Debug, thiserror::Error)]
enum CanaryError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("this gateway has no canary")]
    NoCanary,
    #[error("several routes have a canary: name one with --route")]
    Several,
}

/// Asks the gateway and prints its canaries. The result is the exit code.
pub fn run(args: &CanaryArgs, env: &dyn Fn(&str) -> Option<String>, outputs: Outputs<'_>) -> io::Result<u8> {
    print(carry_out(args, env), outputs)
}

async fn carry_out(args: &CanaryArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<String, CanaryError> {
    let client = AdminClient::new(&args.admin.url, &args.admin.token, env)?;
    let Canaries { canaries } = client.get("/api/v1/canaries").await?;
    let Some(action) = args.action else { return Ok(table(&canaries)) };
    let route = match (&args.route, &canaries[..]) {
        (Some(route), _) => route,
        (None, [only]) => &only.route,
        (None, []) => return Err(CanaryError::NoCanary),
        (None, _) => return Err(CanaryError::Several),
    };
    let action = action.to_possible_value();
    let action = action.as_ref().map(PossibleValue::get_name).unwrap_or_default();
    let done: CanaryAnswer = client.post(&format!("/api/v1/canaries/{}/{action}", segment(route))).await?;
    Ok(table(done.canary.as_slice()))
}

fn table(canaries: &[Canary]) -> String {
    let line = |canary: &Canary| {
        let Canary { route, revision, state, step, steps, weight, shadow_weight, reason, .. } = canary;
        let shadow = match shadow_weight {
            weight if *weight > 0.0 => format!(" shadow={weight}%"),
            _ => String::new(),
        };
        format!(
            "{route} revision={revision} state={state} step={step}/{steps} weight={weight}%{shadow} {reason}\n"
        )
    };
    if canaries.is_empty() { "no canaries\n".to_owned() } else { canaries.iter().map(line).collect() }
}
