//! The page in OpenMetrics text, which alone can carry exemplars.
//!
//! Prometheus asks for it by itself. Differs from the older format in what names a counter (its family, without `_total`),
//! how bucket edges are written (`1.0`), and in its last line. Pure: families in, text out.

use std::fmt::Write as _;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{Exemplar, Exemplars};
use crate::clock::since_epoch;

/// Text format of a page of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus text 0.0.4.
    Plain,
    /// OpenMetrics 1.0.0; the only one with exemplars.
    OpenMetrics,
}

impl Exposition {
    /// Negotiates by an `accept` header; [`Self::Plain`] without one.
    pub fn wanted(accept: Option<&str>) -> Self {
        let best = |wants: fn(&str) -> bool| {
            let items = accept.unwrap_or_default().split(',').filter_map(quality);
            items.filter(|(media, _)| wants(media)).map(|(_, q)| q).fold(0.0, f64::max)
        };
        let open = best(|media| media == "application/openmetrics-text");
        let plain = best(|media| matches!(media, "text/plain" | "text/*" | "*/*"));
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Plain }
    }

    /// Value of the `content-type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A media range and its quality.
fn quality(item: &str) -> Option<(&str, f64)> {
    let mut parts = item.split(';').map(str::trim);
    let media = parts.next()?;
    let q = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok())?;
    Some((media, q))
}

/// The page, up to and with `# EOF`.
pub(super) fn encode(families: &[MetricFamily], exemplars: &Exemplars) -> String {
    let mut page = String::with_capacity(64 * 1024);
    for family in families {
        // Writing to a string cannot fail.
        let _ = write_family(&mut page, family, exemplars);
    }
    page.push_str("# EOF\n");
    page
}

fn write_family(page: &mut String, family: &MetricFamily, exemplars: &Exemplars) -> std::fmt::Result {
    let full = family.name();
    let (name, kind) = match family.get_field_type() {
        MetricType::COUNTER => match full.strip_suffix("_total") {
            Some(name) => (name, "counter"),
            None => (full, "unknown"),
        },
        MetricType::HISTOGRAM => (full, "histogram"),
        MetricType::GAUGE => (full, "gauge"),
        MetricType::SUMMARY | MetricType::UNTYPED => (full, "unknown"),
    };
    writeln!(page, "# HELP {name} {}", escaped(family.help()))?;
    writeln!(page, "# TYPE {name} {kind}")?;
    for metric in family.get_metric() {
        let labels = metric.get_label();
        match family.get_field_type() {
            MetricType::COUNTER => sample(page, full, labels, metric.get_counter().get_value())?,
            MetricType::GAUGE => sample(page, full, labels, metric.get_gauge().get_value())?,
            MetricType::HISTOGRAM => histogram(page, full, metric, exemplars)?,
            MetricType::SUMMARY | MetricType::UNTYPED => {}
        }
    }
    Ok(())
}

fn histogram(page: &mut String, name: &str, metric: &Metric, exemplars: &Exemplars) -> std::fmt::Result {
    let (labels, histogram) = (metric.get_label(), metric.get_histogram());
    let exemplars = exemplars.of(name, labels.iter().map(LabelPair::value));
    let buckets = histogram.get_bucket();
    // The last one is implied by the count.
    let edges = buckets.iter().map(|b| (b.upper_bound(), b.cumulative_count()));
    let edges = edges.chain([(f64::INFINITY, histogram.get_sample_count())]);
    for (place, (edge, count)) in edges.enumerate() {
        write!(page, "{name}_bucket{{")?;
        write_labels(page, labels)?;
        let comma = if labels.is_empty() { "" } else { "," };
        write!(page, "{comma}le=\"{}\"}} {count}", Canonical(edge))?;
        if let Some(Some(Exemplar { trace_id, value, at })) = exemplars.get(place) {
            let at = since_epoch(*at).as_secs_f64();
            write!(page, " # {{trace_id=\"{trace_id:032x}\"}} {value} {at:.3}")?;
        }
        page.push('\n');
    }
    sample(page, &format!("{name}_sum"), labels, histogram.get_sample_sum())?;
    sample(page, &format!("{name}_count"), labels, histogram.get_sample_count() as f64)
}

fn sample(page: &mut String, name: &str, labels: &[LabelPair], value: f64) -> std::fmt::Result {
    page.push_str(name);
    if !labels.is_empty() {
        page.push('{');
        write_labels(page, labels)?;
        page.push('}');
    }
    writeln!(page, " {}", Canonical(value))
}

fn write_labels(page: &mut String, labels: &[LabelPair]) -> std::fmt::Result {
    for (at, label) in labels.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(page, "{comma}{}=\"{}\"", label.name(), escaped(label.value()))?;
    }
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A number as OpenMetrics wants bucket edges: with a point, infinity by name.
struct Canonical(f64);

impl std::fmt::Display for Canonical {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            value if value.is_infinite() => f.write_str(if value > 0.0 { "+Inf" } else { "-Inf" }),
            value if value.is_nan() => f.write_str("NaN"),
            value if value.fract() == 0.0 => write!(f, "{value:.1}"),
            value => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

    use super::super::exemplars::TTFT;
    use super::*;

    #[test]
    fn who_asks_for_what() {
        const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        use Exposition::{OpenMetrics, Plain};
        let cases = [
            (None, Plain),
            (Some("*/*"), Plain),
            (Some(PROMETHEUS), OpenMetrics),
            (Some("application/openmetrics-text"), OpenMetrics),
            (Some("text/plain, application/openmetrics-text;q=0.5"), Plain),
            (Some("application/openmetrics-text;q=0"), Plain),
            (Some("application/openmetrics-text;q=much"), Plain),
        ];
        for (accept, expected) in cases {
            assert_eq!(Exposition::wanted(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn a_page_with_an_exemplar() {
        let registry = Registry::new();
        let requests = IntCounterVec::new(Opts::new("a_total", "All \"of\" them."), &["route"]).unwrap();
        requests.with_label_values(&["x\"\\\ny"]).inc();
        let opts = HistogramOpts::new(TTFT, "Wait.").buckets(vec![0.5, 1.0]);
        let ttft = HistogramVec::new(opts, &["route", "class"]).unwrap();
        ttft.with_label_values(&["r", "short"]).observe(0.75);
        registry.register(Box::new(requests)).unwrap();
        registry.register(Box::new(ttft)).unwrap();
        let exemplars = Exemplars::default();
        let at = std::time::UNIX_EPOCH + Duration::from_millis(1_500);
        let exemplar = Exemplar { trace_id: 0xabc, value: 0.75, at };
        exemplars.note(TTFT, &mut [("route", "r"), ("class", "short")], &[0.5, 1.0], exemplar);
        assert_eq!(
            encode(&registry.gather(), &exemplars),
            "# HELP a All \\\"of\\\" them.\n\
             # TYPE a counter\n\
             a_total{route=\"x\\\"\\\\\\ny\"} 1.0\n\
             # HELP tokenway_time_to_first_token_seconds Wait.\n\
             # TYPE tokenway_time_to_first_token_seconds histogram\n\
             tokenway_time_to_first_token_seconds_bucket{class=\"short\",route=\"r\",le=\"0.5\"} 0\n\
             tokenway_time_to_first_token_seconds_bucket{class=\"short\",route=\"r\",le=\"1.0\"} 1 \
             # {trace_id=\"00000000000000000000000000000abc\"} 0.75 1.500\n\
             tokenway_time_to_first_token_seconds_bucket{class=\"short\",route=\"r\",le=\"+Inf\"} 1\n\
             tokenway_time_to_first_token_seconds_sum{class=\"short\",route=\"r\"} 0.75\n\
             tokenway_time_to_first_token_seconds_count{class=\"short\",route=\"r\"} 1.0\n\
             # EOF\n"
        );
    }
}
