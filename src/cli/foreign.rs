//! What other routers call it: an unknown flag or policy of theirs is answered with ours.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::import;
use crate::config::PolicyName;

/// Adds what takes the place of another router's flag or policy here.
pub(super) fn with_tip(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let arg = text(ContextKind::InvalidArg);
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => arg.strip_prefix("--").and_then(of_flag),
        ErrorKind::InvalidValue if arg.starts_with("--policy") => {
            let name = text(ContextKind::InvalidValue);
            let ours = PolicyName::from_elsewhere(name);
            ours.map(|policy| format!("{name} is called {} here", policy.as_str()))
        }
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn of_flag(name: &str) -> Option<String> {
    let ours = match name.replace('_', "-").as_str() {
        "host" | "port" => "the address is --listen ADDRESS:PORT",
        "prometheus-port" => "/metrics is on the admin port: --admin-listen ADDRESS:PORT",
        "api-key" => "clients' keys are in [[tenant]], the engines' in pool.engine_api_key",
        "model" => "clients ask for it by --served-model-name",
        name => import::counterpart(name)?,
    };
    Some(format!("{ours}; `tokenway import vllm-router -- FLAGS` makes a file of another router's flags"))
}
