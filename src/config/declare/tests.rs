//! A key that is declared in one place is found in every other.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::config::Secret;
use crate::config::check::codec::{SECRET, TEXT};
use crate::config::check::shape::Shapes;
use crate::config::check::values::POSITIVE_DURATION;
use crate::config::diagnostics::in_order;
use crate::config::reference::tests::section_text;
use crate::config::schema::section_schema;

section! {
    /// of these tests
    #[derive(Clone, Debug, PartialEq)]
    struct Sample for "[sample]" {
        /// how long
        patience: Duration as POSITIVE_DURATION, default "10s", restart;
        /// who asks
        token: Option<Secret> as SECRET, example "env:SAMPLE_TOKEN";
        /// what nobody else needs to see
        prompt: String as TEXT, default "ping", hidden;
    }
}

/// The section of a file, what is wrong with it, and what its keys are read as.
fn read(text: &str) -> (Sample, Vec<String>, Shapes) {
    let tree = DeTable::parse(text).unwrap();
    let overrides = Overrides::default();
    let checking = Checking::new(Path::new(""), &|_| Some("hunter2".to_owned()), &overrides);
    let sample = Sample::of(&Section::open(&checking, "a file", 0..0, Some(tree.get_ref())));
    let faults = in_order("f.toml", text, checking.faults.take());
    (sample, faults.iter().map(ToString::to_string).collect(), checking.shapes.take())
}

#[test]
fn its_type_has_the_default() {
    let (sample, faults, _) = read("");
    assert_eq!((&sample, faults), (&Sample::default(), vec![]));
    assert_eq!((sample.patience, sample.token), (Duration::from_secs(10), None));
}

#[test]
fn the_checker_reads_it_and_says_where_it_is_wrong() {
    let (sample, faults, _) = read("[sample]\npatience = \"3s\"\ntoken = \"env:A\"\n");
    assert_eq!(
        (sample.patience, sample.token, faults),
        (Duration::from_secs(3), Some(Secret::new("hunter2")), vec![])
    );
    let (_, faults, _) = read("[sample]\npatience = \"0s\"\ntokne = 1\n");
    assert_eq!(
        faults,
        [
            "f.toml:2:12: \"0s\" must be above zero\n 2 | patience = \"0s\"\n   |            ^^^^\n\
             hint: write a number above zero with its unit (us, ms, s, m, h, d): \"250ms\"",
            "f.toml:3:1: unknown key \"tokne\" in [sample]; did you mean \"token\"?\n 3 | tokne = 1\n   | ^^^^^\n\
             hint: [sample] knows: patience, token, prompt",
        ]
    );
}

#[test]
fn the_api_shows_it_unless_it_is_secret_or_hidden() {
    let (sample, _, _) = read("[sample]\ntoken = \"env:A\"\n");
    assert_eq!(sample.view(), json!({ "patience": 10.0, "token": "***" }));
    assert_eq!(Sample::default().view(), json!({ "patience": 10.0, "token": null }));
}

#[test]
fn the_schema_has_its_form_default_and_note() {
    let (_, _, shapes) = read("[sample]\npatience = \"1s\"\ntoken = \"env:A\"\nprompt = \"p\"\n");
    let schema = section_schema(&Sample::DECLARATION, &shapes);
    let patience = format!("how long; restart\n{}", POSITIVE_DURATION.hint);
    assert_eq!(
        schema["properties"],
        json!({
            "patience": { "type": "string", "default": "10s", "description": patience },
            "token": { "type": "string", "description": "who asks" },
            "prompt": { "type": "string", "default": "ping", "description": "what nobody else needs to see" },
        })
    );
}

#[test]
fn the_reference_has_its_line() {
    assert_eq!(
        section_text(&Sample::DECLARATION),
        "[sample]                           # of these tests\n\
         patience = \"10s\"                   # how long; restart\n\
         # token = \"env:SAMPLE_TOKEN\"       # who asks\n\
         prompt = \"ping\"                    # what nobody else needs to see\n"
    );
}

#[test]
fn a_reload_keeps_what_needs_a_restart() {
    let (mut new, _, _) = read("[sample]\npatience = \"3s\"\nprompt = \"pong\"\n");
    let mut fixed = Fixed::default();
    new.keep_fixed(&Sample::default(), &mut fixed);
    assert_eq!((new.patience, &*new.prompt), (Duration::from_secs(10), "pong"));
    assert_eq!(fixed.warnings, ["sample.patience changed and needs a restart: the old value stays"]);
}
