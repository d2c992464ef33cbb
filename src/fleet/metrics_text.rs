//! Reads the figures that routing needs from an engine's metrics page (Prometheus text format).
//!
//! Which names they have is data ([`EngineProfile`]). The page is some 50 kB, so it is scanned line by line for those names
//! without building the rest. One URL may be several engines (data parallelism: label `engine` or `dp_rank`): counts of its
//! series are summed, shares and sizes averaged ([`Figure::is_mean`]), and what stands in labels as well: every rank of vLLM tells
//! the blocks of all. A value that is negative, infinite or no number is no figure, and a figure that is missing stays
//! absent: it is never read as zero.

use std::collections::HashMap;
use std::sync::Arc;

use super::identity::Rank;
use super::status::KvCounters;
use crate::config::{EngineProfile, Figure, FigureSource};
use crate::routing::CacheFigures;

/// Figures of one page.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFigures([Option<f64>; Figure::ALL.len()]);

/// What one source has found so far.
struct Found<'p> {
    source: &'p FigureSource,
    sum: f64,
    series: f64,
}

/// Parses a page: the figures of one of its engines, or of all.
pub fn parse(page: &str, profile: &EngineProfile, rank: Option<Rank>) -> EngineFigures {
    let mut found: Vec<Found<'_>> = Vec::new();
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    for source in profile.sources.iter().flat_map(|(_, sources)| sources) {
        match source {
            FigureSource::Value { name, .. } | FigureSource::Label { name, .. } => {
                by_name.entry(name).or_default().push(found.len());
                found.push(Found { source, sum: 0.0, series: 0.0 });
            }
            FigureSource::Constant(number) => found.push(Found { source, sum: *number, series: 1.0 }),
        }
    }
    for line in page.lines() {
        let name = line.split(['{', ' ', '\t']).next().unwrap_or_default();
        let Some(wanted) = by_name.get(name) else { continue };
        let Some((labels, value)) = series(&line[name.len()..]) else { continue };
        if is_copy(labels, profile) || !is_of(labels, rank) {
            continue;
        }
        for at in wanted {
            if let Some(found) = found.get_mut(*at) {
                found.take(labels, value);
            }
        }
    }
    let mut figures = EngineFigures::chosen(profile, &found);
    if let Some(rank) = rank {
        let blocks = &mut figures.0[Figure::KvBlocks as usize];
        // Every rank of vLLM tells the blocks of all.
        *blocks = blocks.map(|blocks| (blocks / f64::from(rank.of)).floor());
    }
    figures
}

/// How many engines of vLLM a page shows; `None` where it shows none, and where their labels are not 0, 1, …: what is no index cannot
/// be asked for.
pub fn ranks(page: &str) -> Option<u32> {
    let of_series = |line: &str| engine(series(line.strip_prefix(RUNNING)?)?.0);
    let mut found: Vec<u32> = page.lines().filter_map(of_series).collect();
    found.sort_unstable();
    found.dedup();
    let is_counted = found.iter().zip(0..).all(|(rank, index)| *rank == index);
    let count = u32::try_from(found.len()).ok().filter(|count| is_counted && *count > 0)?;
    Some(count.min(MAX_RANKS))
}

/// What a page of vLLM says about LoRA adapters.
#[derive(Clone, Copy, Debug)]
pub struct LoraRequests<'p> {
    running: &'p str,
    waiting: &'p str,
    /// Adapters that it keeps at a time.
    pub max: usize,
}

impl<'p> LoraRequests<'p> {
    /// Those of running requests, then those of waiting ones.
    pub fn adapters(&self) -> impl Iterator<Item = &'p str> {
        let names = self.running.split(',').chain(self.waiting.split(','));
        names.map(str::trim).filter(|name| !name.is_empty())
    }
}

/// The adapters of one engine of a page, or of its only one; `None` where it tells nothing of adapters. Old label sets stay on
/// the page, so that the newest counts: the value is a time.
pub fn lora_requests(page: &str, rank: Option<Rank>) -> Option<LoraRequests<'_>> {
    let mut newest: Option<(f64, LoraRequests<'_>)> = None;
    for line in page.lines() {
        let Some((labels, at)) = line.strip_prefix(LORA).and_then(series) else { continue };
        let max = label(labels, "max_lora").and_then(|max| max.parse().ok());
        let Some(max) = max.filter(|_| is_of(labels, rank)) else { continue };
        if newest.as_ref().is_none_or(|(before, _)| at >= *before) {
            let names = |name| label(labels, name).unwrap_or_default();
            let (running, waiting) = (names("running_lora_adapters"), names("waiting_lora_adapters"));
            newest = Some((at, LoraRequests { running, waiting, max }));
        }
    }
    newest.map(|(_, told)| told)
}

/// Whether a series is of this engine; what has no such label is of the process as a whole.
fn is_of(labels: &str, rank: Option<Rank>) -> bool {
    rank.is_none_or(|rank| engine(labels).is_none_or(|engine| engine == rank.index))
}

fn engine(labels: &str) -> Option<u32> {
    label(labels, "engine")?.parse().ok()
}

impl EngineFigures {
    /// Of each figure the first of its sources that was found.
    fn chosen(profile: &EngineProfile, found: &[Found<'_>]) -> Self {
        let mut figures = Self([None; Figure::ALL.len()]);
        let mut rest = found;
        for (figure, sources) in &profile.sources {
            let (own, others) = rest.split_at(sources.len().min(rest.len()));
            rest = others;
            let first = own.iter().find(|found| found.series > 0.0);
            let value = first.map(|found| {
                let is_mean = figure.is_mean() || matches!(found.source, FigureSource::Label { .. });
                if is_mean { found.sum / found.series } else { found.sum }
            });
            if let Some(cell) = figures.0.get_mut(*figure as usize) {
                *cell = value.filter(|value| value.is_finite());
            }
        }
        figures
    }

    /// A figure; finite, zero or more.
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.0.get(figure as usize).copied().flatten()
    }

    /// A whole number above zero.
    pub(super) fn count(&self, figure: Figure) -> Option<u64> {
        // A cast saturates.
        self.get(figure).map(|value| value as u64).filter(|count| *count > 0)
    }

    /// Share of the KV cache in use, by itself or by blocks.
    pub fn kv_cache_usage(&self) -> Option<f64> {
        let by_blocks = || {
            let (used, all) = (self.get(Figure::KvBlocksUsed)?, self.get(Figure::KvBlocks)?);
            (all > 0.0).then(|| used / all)
        };
        self.get(Figure::KvCacheUsage).or_else(by_blocks).filter(|usage| *usage <= 1.0)
    }

    /// What the prefix cache found: by its totals, or else by the share that the engine tells.
    pub fn cache(&self) -> Option<CacheFigures> {
        let totals = self.get(Figure::CacheQueries).zip(self.get(Figure::CacheHits));
        let by_totals = totals.map(|(queries, hits)| CacheFigures::Totals { queries, hits });
        by_totals.or_else(|| self.get(Figure::CacheHitRatio).map(CacheFigures::Share))
    }

    /// What it counts of KV from other engines; `None` where it moves none.
    pub fn kv(&self) -> Option<KvCounters> {
        let transfers = self.get(Figure::KvTransfers)?;
        let or_none = |figure| self.get(figure).unwrap_or_default();
        Some(KvCounters {
            transfers,
            seconds: or_none(Figure::KvTransferSeconds),
            bytes: or_none(Figure::KvTransferBytes),
            failed: or_none(Figure::KvTransferFailures),
            expired: or_none(Figure::KvExpired),
        })
    }

    /// What the profile expects and the page does not have.
    pub fn absent(&self, profile: &EngineProfile) -> Vec<&'static str> {
        let is_absent = |figure: Figure| match figure {
            figure if figure.is_optional() => false,
            Figure::KvCacheUsage | Figure::KvBlocksUsed => self.kv_cache_usage().is_none(),
            // One tells what the two others do.
            Figure::CacheHitRatio => self.get(figure).is_none() && self.get(Figure::CacheHits).is_none(),
            Figure::CacheHits | Figure::CacheQueries => {
                self.get(figure).is_none() && self.get(Figure::CacheHitRatio).is_none()
            }
            _ => self.get(figure).is_none(),
        };
        let expected = profile.sources.iter().map(|(figure, _)| *figure);
        expected.filter(|figure| is_absent(*figure)).map(Figure::as_str).collect()
    }
}

impl Found<'_> {
    fn take(&mut self, labels: &str, value: f64) {
        let value = match self.source {
            FigureSource::Value { labels: wanted, .. } => {
                let has = |(name, text): &(Arc<str>, Arc<str>)| label(labels, name) == Some(&**text);
                wanted.iter().all(has).then_some(value)
            }
            FigureSource::Label { label: name, .. } => label(labels, name).and_then(number),
            FigureSource::Constant(_) => None,
        };
        if let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) {
            self.sum += value;
            self.series += 1.0;
        }
    }
}

/// Whether a series repeats what another rank tells.
fn is_copy(labels: &str, profile: &EngineProfile) -> bool {
    profile.only.iter().any(|(name, kept)| label(labels, name).is_some_and(|value| value != &**kept))
}

/// Splits `{labels} value timestamp` into labels and value; `None` for what is malformed.
pub(super) fn series(rest: &str) -> Option<(&str, f64)> {
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => inner.split_at(closing(inner)?),
        None => ("", rest),
    };
    let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?;
    Some((labels, value.parse().ok()?))
}

/// Where the brace that ends a label set stands: not within quotes.
fn closing(labels: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    labels.bytes().position(|byte| {
        let ends = byte == b'}' && !is_quoted;
        is_quoted ^= byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

/// The value of a label, escapes as they stand.
pub(super) fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    let mut rest = labels;
    loop {
        let (key, after) = rest.split_once("=\"")?;
        let mut is_escaped = false;
        let end = after.bytes().position(|byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        })?;
        if key.trim_start_matches([',', ' ']) == name {
            return after.get(..end);
        }
        rest = after.get(end + 1..)?;
    }
}

/// A number in a label, or a switch.
fn number(text: &str) -> Option<f64> {
    if text.eq_ignore_ascii_case("true") {
        Some(1.0)
    } else if text.eq_ignore_ascii_case("false") {
        Some(0.0)
    } else {
        text.parse().ok()
    }
}

const RUNNING: &str = "vllm:num_requests_running";
const LORA: &str = "vllm:lora_requests_info";
const MAX_RANKS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineKind;

    fn read(kind: EngineKind, page: &str) -> (EngineFigures, EngineProfile) {
        let profile = kind.profile();
        (parse(page, &profile, None), profile)
    }

    fn assert_figures(kind: EngineKind, page: &str, expected: &[(Figure, f64)], absent: &[&str]) {
        let (figures, profile) = read(kind, page);
        for (figure, value) in expected {
            let found = figures.get(*figure);
            assert!(found.is_some_and(|found| (found - value).abs() < 1e-9), "{figure:?}: {found:?}");
        }
        assert_eq!(figures.absent(&profile), absent);
    }

    #[test]
    fn vllm_s_page_has_every_figure_and_ranks_of_one_url_are_put_together() {
        use Figure as F;
        let idle = include_str!("../../tests/fixtures/vllm/metrics_under_load.txt");
        let one = [(F::Running, 4.0), (F::Waiting, 8.0), (F::BlockTokens, 128.0), (F::PrefixCaching, 1.0)];
        assert_figures(EngineKind::Vllm, idle, &one, &[]);
        let two = include_str!("../../tests/fixtures/vllm/metrics_dp2.txt");
        assert_figures(EngineKind::Vllm, two, &[(F::KvBlocks, 16_384.0), (F::BlockTokens, 128.0)], &[]);
        let page = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 2\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n";
        let (figures, _) = read(EngineKind::Vllm, page);
        assert_eq!((figures.get(F::Running), figures.kv_cache_usage()), (Some(5.0), Some(0.5)));
    }

    #[test]
    fn each_engine_of_a_page_has_its_own_figures() {
        use Figure as F;
        let two = include_str!("../../tests/fixtures/vllm/metrics_dp2.txt");
        let one = include_str!("../../tests/fixtures/vllm/metrics_under_load.txt");
        assert_eq!((ranks(two), ranks(one), ranks("")), (Some(2), Some(1), None));
        let hybrid = "vllm:num_requests_running{engine=\"4\"} 0\nvllm:num_requests_running{engine=\"5\"} 0\n";
        assert_eq!(ranks(hybrid), None);
        let profile = EngineKind::Vllm.profile();
        let page = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 2\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
            process_start_time_seconds 17\n";
        for (index, running, usage) in [(0, 3.0, 0.25), (1, 2.0, 0.75)] {
            let figures = parse(page, &profile, Some(Rank { index, of: 2 }));
            assert_eq!((figures.get(F::Running), figures.kv_cache_usage()), (Some(running), Some(usage)));
            assert_eq!(figures.get(F::ProcessStart), Some(17.0));
            let figures = parse(two, &profile, Some(Rank { index, of: 2 }));
            assert_eq!(figures.get(F::KvBlocks), Some(8_192.0));
            assert!(figures.absent(&profile).is_empty());
        }
    }

    #[test]
    fn engines_that_move_kv_count_it_and_others_lack_nothing() {
        let profile = EngineKind::Vllm.profile();
        let one = parse(include_str!("../../tests/fixtures/vllm/metrics_under_load.txt"), &profile, None);
        assert_eq!((one.kv(), one.absent(&profile).len()), (None, 0));
        let page = include_str!("../../tests/fixtures/vllm/pd/metrics-decode.txt");
        let kv = parse(page, &profile, None).kv().unwrap();
        assert_eq!((kv.transfers, kv.bytes, kv.failed, kv.expired), (8.0, 9_043_968.0, 4.0, 0.0));
        assert!((kv.mean_seconds().unwrap() - 0.1736).abs() < 1e-4);
    }

    #[test]
    fn the_other_engines_pages_are_read_as_their_documentation_shows_them() {
        use Figure as F;
        let page = include_str!("../../tests/fixtures/engines/sglang.txt");
        let told = [
            (F::Running, 162.0),
            (F::Waiting, 2826.0),
            (F::KvCacheUsage, 0.28),
            (F::CacheHitRatio, 0.007_507_552_643_049_313),
            (F::TtftCount, 11_008.0),
        ];
        assert_figures(EngineKind::Sglang, page, &told, &["kv_blocks", "process_start"]);
        let page = include_str!("../../tests/fixtures/engines/sglang_ranks.txt");
        let told = [(F::Running, 8.0), (F::Waiting, 3.0), (F::KvCacheUsage, 0.035), (F::KvBlocks, 120_000.0)];
        assert_figures(EngineKind::Sglang, page, &told, &["ttft_sum", "ttft_count", "process_start"]);
        let page = include_str!("../../tests/fixtures/engines/ray_serve.txt");
        let told = [(F::Running, 3.0), (F::Waiting, 1.0), (F::CacheHits, 512.0), (F::CacheQueries, 1024.0)];
        let absent = ["kv_blocks", "block_tokens", "prefix_caching", "preemptions", "generated_tokens"];
        assert_figures(EngineKind::RayServe, page, &told, &absent);
        let page = include_str!("../../tests/fixtures/engines/triton.txt");
        let told = [(F::Running, 1.0), (F::Waiting, 1.0), (F::BatchLimit, 512.0), (F::BlockTokens, 64.0)];
        assert_figures(EngineKind::Triton, page, &told, &[]);
        let (figures, _) = read(EngineKind::Triton, page);
        assert!((figures.kv_cache_usage().unwrap() - 1.0 / 6239.0).abs() < 1e-9);
        let page = include_str!("../../tests/fixtures/engines/torchserve.txt");
        assert_figures(EngineKind::Torchserve, page, &[], &[]);
    }

    #[test]
    fn labels_may_hold_anything_and_a_timestamp_is_no_value() {
        let mut profile = EngineKind::Generic.profile();
        let source = FigureSource::parse("queue{kind=\"a\"}").unwrap();
        profile.sources = vec![(Figure::Waiting, vec![source])];
        let waiting = |page: &str| parse(page, &profile, None).get(Figure::Waiting);
        for (page, expected) in [
            ("queue{kind=\"a\"} 3 1700000000000", Some(3.0)),
            ("queue{x=\"} 9 {\",kind=\"a\",} 4", Some(4.0)),
            ("queue{x=\"\\\"kind=\\\"b\", kind=\"a\"} 5 # {trace=\"1\"} 7", Some(5.0)),
            ("queue{kind=\"b\"} 6", None),
            ("queue{otherkind=\"a\"} 6", None),
            ("queue 6", None),
            ("queue{kind=\"a\"} NaN", None),
            ("queue{kind=\"a\"} -1", None),
            ("queue{kind=\"a\"} +Inf", None),
            ("queue{kind=\"a\"", None),
            ("queue{kind=\"a\"}", None),
            ("queue{kind=\"a} 3", None),
            ("<html>", None),
            ("", None),
        ] {
            assert_eq!(waiting(page), expected, "{page}");
        }
    }

    #[test]
    fn what_is_missing_is_said_and_is_not_zero() {
        let (figures, profile) = read(EngineKind::Vllm, "vllm:num_requests_running 1\n");
        assert_eq!((figures.get(Figure::Waiting), figures.kv_cache_usage()), (None, None));
        assert_eq!(
            figures.absent(&profile).len(),
            profile.sources.iter().filter(|(figure, _)| !figure.is_optional()).count() - 1
        );
    }
}
