//! `config/reference.toml` and the declarations: what a declared section's lines are.
//!
//! Prose between sections, and sections that are not declared, are written by hand.

use super::declare::{Declaration, Declared};
use super::{
    Admin, Baseline, Budget, Canary, CanaryShadow, Classes, Cluster, ColdWait, Content, Drift, Ejection,
    EngineSpansConfig, Hedge, Hook, Jwt, KvEvents, OtlpKeys, Outside, Prefill, Probe, QueueLimits, Retry,
    Routing, Sampling, Scale, Server, Slo, Telemetry, Tenant, TenantLimits, Timeouts, WarmUp,
};

/// Every declared section; those without brackets are written in one line of the section above.
pub(super) const DECLARED: &[Declaration] = &[
    Server::DECLARATION,
    Admin::DECLARATION,
    Timeouts::DECLARATION,
    Retry::DECLARATION,
    Slo::DECLARATION,
    Routing::DECLARATION,
    Classes::DECLARATION,
    KvEvents::DECLARATION,
    Outside::DECLARATION,
    Probe::DECLARATION,
    WarmUp::DECLARATION,
    Ejection::DECLARATION,
    Scale::DECLARATION,
    ColdWait::DECLARATION,
    Declaration {
        header: "[route.timeouts]",
        doc: &["default: those of `[timeouts]`"],
        ..Timeouts::DECLARATION
    },
    Hedge::DECLARATION,
    Prefill::DECLARATION,
    QueueLimits::DECLARATION,
    Canary::DECLARATION,
    CanaryShadow::DECLARATION,
    Tenant::DECLARATION,
    TenantLimits::DECLARATION,
    Budget::DECLARATION,
    Jwt::DECLARATION,
    Telemetry::DECLARATION,
    OtlpKeys::DECLARATION,
    EngineSpansConfig::DECLARATION,
    Sampling::DECLARATION,
    Content::DECLARATION,
    Hook::DECLARATION,
    Drift::DECLARATION,
    Baseline::DECLARATION,
    Cluster::DECLARATION,
];

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::declare::State;
    use crate::config::schema::optional_key;

    /// A line of the reference, with its comment behind it.
    fn line(code: &str, note: &str) -> String {
        match note {
            "" => format!("{code}\n"),
            _ if code.len() < COLUMN => format!("{code:COLUMN$}# {note}\n"),
            _ => format!("{code}   # {note}\n"),
        }
    }

    fn header(declaration: &Declaration) -> String {
        let mark = if declaration.is_optional { "# " } else { "" };
        format!("{mark}{}", declaration.header)
    }

    /// The lines of a section.
    pub(in crate::config) fn section_text(declaration: &Declaration) -> String {
        let mut text = line(&header(declaration), &declaration.note());
        for key in declaration.keys.iter().filter(|key| key.state != State::Section) {
            let is_off = declaration.is_optional || key.state == State::Example;
            let mark = if is_off { "# " } else { "" };
            text.push_str(&line(&format!("{mark}{} = {}", key.name, key.value()), &key.note()));
        }
        text
    }

    /// The reference with the lines of a section in place of those that it has.
    fn with(reference: &str, declaration: &Declaration) -> String {
        let header = header(declaration);
        let is_header = |line: &str| {
            line.strip_prefix(&header).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let (mut text, mut lines) = (String::new(), reference.split_inclusive('\n'));
        text.extend(lines.by_ref().take_while(|line| !is_header(line.trim_end())));
        text.push_str(&section_text(declaration));
        let is_key =
            |line: &&str| optional_key(line).unwrap_or(line).starts_with(|c: char| c.is_ascii_lowercase());
        text.extend(lines.skip_while(is_key));
        text
    }

    /// `TOKENWAY_UPDATE_DOCS=1` writes the lines instead.
    #[test]
    fn the_reference_has_the_lines_of_every_declared_section() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/reference.toml");
        let reference = std::fs::read_to_string(path).unwrap();
        let expected = DECLARED
            .iter()
            // A class of `[slo.*]` has a name, and bounds, of its own.
            .filter(|declared| declared.header.starts_with('[') && !declared.header.contains('*'))
            .fold(reference.clone(), |text, declared| with(&text, declared));
        if std::env::var_os("TOKENWAY_UPDATE_DOCS").is_some() {
            std::fs::write(path, &expected).unwrap();
            return;
        }
        let differs = reference.lines().zip(expected.lines()).find(|(line, expected)| line != expected);
        assert_eq!(
            differs.or((reference != expected).then_some(("", "more or fewer lines"))),
            None,
            "config/reference.toml is not what is declared: \
             TOKENWAY_UPDATE_DOCS=1 cargo test --lib the_reference_has"
        );
    }

    /// Column of comments.
    const COLUMN: usize = 35;
}
