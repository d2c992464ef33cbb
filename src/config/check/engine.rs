//! `pool.engine` and `[pool.engine_profile]`: where an engine's figures come from.

use std::sync::Arc;

use toml::de::DeValue;

use crate::config::{EngineKind, EngineProfile, Figure, FigureSource};

use super::section::{Item, Section};
use super::shape::Kind;
use super::values::Form;

/// The profile of a pool's engine, with what its configuration says otherwise.
pub(super) fn profile(pool: &Section<'_>, kind: EngineKind) -> EngineProfile {
    let mut profile = kind.profile();
    let section = pool.section("engine_profile", "[pool.engine_profile]");
    if let Some(item) = section.get("metrics_path") {
        let is_off = item.is_written("");
        profile.metrics_path = if is_off { None } else { item.parse(&PATH).or(profile.metrics_path) };
    }
    profile.metrics_port = section.value("metrics_port", &(1..=65_535)).or(profile.metrics_port);
    profile.health_path = section.parse("health_path", &PATH).unwrap_or(profile.health_path);
    profile.models_path = section.parse("models_path", &PATH).unwrap_or(profile.models_path);
    if let Some(item) = section.get("only") {
        let labels = item.entries("a table", "write labels and the value to keep: { tp_rank = \"0\" }");
        profile.only = labels.filter_map(|e| Some((e.key.into(), e.text()?.into()))).collect();
    }
    for figure in Figure::ALL {
        if let Some(item) = section.get(figure.as_str()) {
            profile.sources.retain(|(known, _)| *known != figure);
            profile.sources.push((figure, sources(&item)));
        }
    }
    profile.sources.retain(|(_, sources)| !sources.is_empty());
    profile
}

/// One source, several, or none.
fn sources(item: &Item<'_>) -> Vec<FigureSource> {
    item.accepts([Kind::Text { hint: SOURCE.hint }, Kind::Number, Kind::List]);
    match item.value {
        DeValue::Array(_) => item.list().iter().filter_map(source).collect(),
        _ => source(item).into_iter().collect(),
    }
}

fn source(item: &Item<'_>) -> Option<FigureSource> {
    item.accepts([Kind::Text { hint: SOURCE.hint }, Kind::Number]);
    match item.value {
        DeValue::Integer(_) | DeValue::Float(_) => {
            let number = item.number("a number", SOURCE.hint)?;
            let is_figure = number.is_finite() && number >= 0.0;
            if !is_figure {
                item.fault(format!("{} must be zero or more", item.key), SOURCE.hint);
            }
            is_figure.then_some(FigureSource::Constant(number))
        }
        _ => item.parse(&SOURCE),
    }
}

const SOURCE: Form<FigureSource> = Form {
    noun: "a metric",
    hint: "write \"name\", \"name{label=\\\"value\\\"}\", or \"name{label}\" for a number in a label; a list tries one after the other, [] is none",
    parse: FigureSource::parse,
};

const PATH: Form<Arc<str>> = Form {
    noun: "a path",
    hint: "write a path below the replica's URL, such as \"/metrics\"",
    parse: |text| {
        let is_path =
            text.starts_with('/') && text.len() <= 512 && text.bytes().all(|b| b.is_ascii_graphic());
        if is_path && !text.contains('#') { Ok(text.into()) } else { Err(format!("{text:?} is not a path")) }
    },
};
