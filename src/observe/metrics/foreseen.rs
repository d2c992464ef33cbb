//! Label values that follow from the configuration: their series start at zero.

use crate::observe::slo::Missed;
use crate::record::{Outcome, SloBounds};
use crate::stage::Stage;

/// Values of the labels behind a key, one entry a series.
pub(super) type Tails = Vec<Vec<&'static str>>;

/// What is known of a key before its first request.
#[derive(Default)]
pub(super) struct Foreseen {
    /// Whether a replica serves it: its revision is one of a pool.
    pub(super) is_served: bool,
    pub(super) slo: SloBounds,
}

/// Whether a request met its SLO is only counted where a replica served it.
pub(super) fn served(foreseen: &Foreseen) -> Tails {
    if foreseen.is_served { vec![Vec::new()] } else { Vec::new() }
}

/// `outcome` and `code` of requests that a replica answered or failed to, and of those that reached none.
pub(super) fn outcomes(foreseen: &Foreseen) -> Tails {
    let others = if foreseen.is_served {
        [(Outcome::Ok, "200"), (Outcome::Failed, "200")]
    } else {
        [(Outcome::Refused, "429"), (Outcome::Refused, "503")]
    };
    // An engine's own 500 passes unchanged, as do its 503 and 504 when no attempt is left.
    let failed = ["500", "502", "503", "504"].map(|code| (Outcome::Failed, code));
    others.into_iter().chain(failed).map(|(outcome, code)| vec![outcome.as_str(), code]).collect()
}

/// `reason` of misses: the bounds that there are, where they can be missed.
pub(super) fn reasons(foreseen: &Foreseen) -> Tails {
    let Foreseen { is_served, slo } = foreseen;
    let reasons = [
        (Missed::Error, true),
        (Missed::Refused, !is_served),
        (Missed::Ttft, *is_served && slo.ttft.is_some()),
        (Missed::Itl, *is_served && !slo.itl.is_empty()),
        (Missed::Tpot, *is_served && slo.tpot.is_some()),
        (Missed::E2e, *is_served && slo.e2e.is_some()),
        (Missed::Empty, *is_served),
    ];
    reasons.into_iter().filter(|(_, can_be)| *can_be).map(|(missed, _)| vec![missed.as_str()]).collect()
}

/// `reason` and `stage` of what the gateway refuses: rules count them by route.
pub(super) fn refusals(foreseen: &Foreseen) -> Tails {
    if foreseen.is_served {
        return Vec::new();
    }
    [Stage::Admit, Stage::Route].map(|stage| vec![Missed::Refused.as_str(), stage.as_str()]).to_vec()
}
