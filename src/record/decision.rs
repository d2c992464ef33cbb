//! Why a request went where it did: what each replica would have cost, as a sum that can be checked.

use std::sync::Arc;
use std::time::Duration;

use crate::digits;
use crate::units::Tokens;

/// A routing decision, for headers, logs and calibration.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Default))]
pub struct DecisionSummary {
    /// Label `policy`.
    pub policy: &'static str,
    /// Label `reason`: what made the chosen replica win.
    pub reason: &'static str,
    /// From the arrival of the request to the decision.
    pub waited: Duration,
    /// Predicted TTFT at the chosen replica, `waited` included; `None` where the policy does not predict.
    pub predicted_ttft: Option<Duration>,
    /// How slow the chosen replica is in that prediction: 1 is the pool's speed.
    pub pace: f64,
    /// Prompt tokens expected in the chosen replica's cache.
    pub predicted_hit: Tokens,
    /// Number of replicas compared.
    pub candidates: u16,
    /// The chosen replica had become warm a short while ago: its TTFT says little about its revision.
    pub is_cold: bool,
    /// The chosen replica computes prompts that another pool of the route has cached, this one or one before it: what that takes is no
    /// property of its revision.
    pub is_filling: bool,
    /// A wait for a first token that is longer is not for that; see [`super::Record::is_filling`].
    pub longest_fill: Duration,
    /// The same while its stream was decoded: what stalls it is none either.
    pub is_filling_beside: bool,
    /// Nothing else was in flight at the chosen replica until its stream ended: how many share its steps is no cause of their pace.
    pub is_alone: bool,
    /// The best candidates and the chosen one, cheapest first; empty where the policy does not predict, and for most requests
    /// under high load.
    pub weighed: Box<[Weighed]>,
}

/// A candidate of a decision with the terms of its cost.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(Default))]
pub struct Weighed {
    /// Label `replica`.
    pub replica: Arc<str>,
    /// Whether the request went there.
    pub is_chosen: bool,
    /// Predicted TTFT from the arrival of the request.
    pub predicted_ttft: Duration,
    /// Prompt tokens expected in its cache.
    pub predicted_hit: Tokens,
    /// They are counted by the engine's KV events; otherwise estimated by what was sent there.
    pub is_counted: bool,
    /// Expected number of streams pushed over their bound on time per token, the request's own included.
    pub harm: f64,
    /// Probability, 0 to 1, that the first token is later than its bound.
    pub late: f64,
    /// What the choice costs.
    pub cost: Addends,
}

/// The cost of a choice in its parts, all in seconds: the least sum wins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Addends {
    /// Until the engine starts on the prompt.
    pub wait: f64,
    /// To compute the prompt.
    pub prefill: f64,
    /// The step that it is computed in, and the round trip.
    pub base: f64,
    /// To load the LoRA adapter that it names, where the engine does not hold it.
    pub adapter: f64,
    /// To move its KV there, where another replica computes the prompt.
    pub transfer: f64,
    /// Delay of the requests that come next, less what they will reuse.
    pub others: f64,
    /// Price of slower decoding than at the best replica.
    pub decoding: f64,
    /// Price of the streams pushed over their bound on time per token.
    pub harm: f64,
    /// Price of the chance that the first token is late, and of by how much.
    pub late: f64,
    /// Price of the chance that there is no answer.
    pub failure: f64,
}

impl Addends {
    /// Each with its name in JSON, logs and headers.
    pub fn named(&self) -> [(&'static str, f64); 10] {
        self.described().map(|(name, _, seconds)| (name, seconds))
    }

    /// Each with its name, and what a sentence calls it.
    fn described(&self) -> [(&'static str, &'static str, f64); 10] {
        let Self { wait, prefill, base, adapter, transfer, others, decoding, harm, late, failure } = *self;
        [
            ("wait", "waiting", wait),
            ("prefill", "prefill", prefill),
            ("base", "step and round trip", base),
            ("adapter", "loading its adapter", adapter),
            ("transfer", "moving its KV", transfer),
            ("others", "delay of those who come next", others),
            ("decoding", "decoding", decoding),
            ("harm", "harm to streams", harm),
            ("late", "risk of a late first token", late),
            ("failure", "risk of no answer", failure),
        ]
    }

    /// The cost.
    #[inline]
    pub fn total(&self) -> f64 {
        let Self { wait, prefill, base, adapter, transfer, others, decoding, harm, late, failure } = *self;
        wait + prefill + base + adapter + transfer + others + decoding + harm + late + failure
    }
}

impl DecisionSummary {
    /// The candidate that was chosen; `None` where the candidates were not kept.
    pub fn chosen(&self) -> Option<&Weighed> {
        self.weighed.iter().find(|one| one.is_chosen)
    }

    /// One sentence on why the chosen replica won over the next best; `None` where the candidates were not kept, or there is one.
    pub fn why(&self) -> Option<String> {
        let chosen = self.chosen()?;
        let other = self.weighed.iter().find(|one| !one.is_chosen)?;
        let (here, there) = (&*chosen.replica, &*other.replica);
        let less = other.cost.total() - chosen.cost.total();
        // Where the one with more of the prompt is not the cheapest, it won a tie.
        let is_near = less < 0.0 && -less <= NEAR.0.max(NEAR.1 * chosen.predicted_ttft.as_secs_f64());
        if self.reason == "tie" || self.reason == "prefix" && is_near || less.abs() < SHOWN {
            let less = in_time(less.abs());
            return Some([here, " over ", there, ": a tie, their costs differ by ", &less].concat());
        }
        if less < 0.0 {
            let less = in_time(-less);
            let takes_part = " takes part of its traffic only";
            return Some([here, ", though ", there, " costs ", &less, " less: ", there, takes_part].concat());
        }
        let differences = other.cost.described().into_iter().zip(chosen.cost.named());
        let largest = differences
            .map(|((_, words, there), (_, here))| (words, there - here))
            .max_by(|(_, one), (_, another)| one.total_cmp(another));
        let (words, less) = largest?;
        Some([here, " over ", there, ": ", &in_time(less), " less ", words].concat())
    }
}

/// Seconds as a sentence has them: `2.1 s`, `35 ms`.
fn in_time(seconds: f64) -> String {
    let mut text = Vec::with_capacity(16);
    let unit: &[u8] = if seconds >= 1.0 {
        digits::decimal::<1>(&mut text, seconds);
        b" s"
    } else if seconds >= 0.01 {
        digits::int(&mut text, (seconds * 1e3).round_ties_even() as u64);
        b" ms"
    } else {
        digits::decimal::<1>(&mut text, seconds * 1e3);
        b" ms"
    };
    text.extend_from_slice(unit);
    String::from_utf8(text).unwrap_or_default()
}

/// The least number of seconds that a sentence does not show as zero.
const SHOWN: f64 = 0.000_05;
/// Seconds, and part of a TTFT, by which equal costs may differ: the tolerance of routing.
const NEAR: (f64, f64) = (0.005, 0.1);

#[cfg(test)]
mod tests {
    use super::*;

    fn weighed(replica: &str, is_chosen: bool, cost: Addends) -> Weighed {
        Weighed {
            replica: replica.into(),
            is_chosen,
            predicted_ttft: Duration::from_millis(300),
            cost,
            ..Weighed::default()
        }
    }

    fn why(reason: &'static str, weighed: Vec<Weighed>) -> Option<String> {
        let decision = DecisionSummary {
            policy: "latency",
            reason,
            predicted_ttft: Some(Duration::from_millis(300)),
            pace: 1.0,
            candidates: 2,
            weighed: weighed.into(),
            ..DecisionSummary::default()
        };
        decision.why()
    }

    #[test]
    fn a_sentence_names_the_largest_difference_to_the_runner_up() {
        let near = Addends { wait: 0.1, prefill: 0.5, late: 0.02, ..Addends::default() };
        let far = Addends { wait: 2.2, prefill: 0.2, late: 0.03, ..Addends::default() };
        assert!((far.total() - 2.43).abs() < 1e-9);
        assert_eq!(far.named().iter().map(|(_, seconds)| seconds).sum::<f64>(), far.total());
        let (r1, r2) = (weighed("r1", true, near), weighed("r2", false, far));
        assert_eq!(why("load", vec![r1.clone(), r2.clone()]).unwrap(), "r1 over r2: 2.1 s less waiting");
        assert_eq!(
            why("load", vec![weighed("r2", false, near), weighed("r1", true, far)]).unwrap(),
            "r1, though r2 costs 1.8 s less: r2 takes part of its traffic only"
        );
        let tied = vec![weighed("r2", false, near), weighed("r1", true, near)];
        for reason in ["tie", "load"] {
            let sentence = why(reason, tied.clone()).unwrap();
            assert_eq!(sentence, "r1 over r2: a tie, their costs differ by 0.0 ms");
        }
        let nearly = Addends { wait: 0.12, ..near };
        let held = vec![weighed("r2", false, near), weighed("r1", true, nearly)];
        assert_eq!(why("prefix", held).unwrap(), "r1 over r2: a tie, their costs differ by 20 ms");
        assert_eq!(why("only", vec![r1]), None, "nobody to compare with");
    }
}
