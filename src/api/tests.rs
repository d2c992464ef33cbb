//! The wire form of each answer, held against answers of a running gateway: a field that is renamed, moved, lost, or left out
//! instead of `null` fails here.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn is_unchanged<T: Serialize + DeserializeOwned>(names: &[&str]) {
    let answers: Value = serde_json::from_str(include_str!("../../tests/fixtures/admin-api.json")).unwrap();
    for name in names {
        let answer: T = serde_json::from_value(answers[name].clone()).unwrap();
        assert_eq!(serde_json::to_value(&answer).unwrap(), answers[name], "{name}");
    }
}

#[test]
fn an_answer_that_is_read_is_written_as_it_was() {
    is_unchanged::<super::fleet::Fleet>(&["fleet"]);
    is_unchanged::<super::decisions::Decisions>(&["decisions"]);
    is_unchanged::<super::requests::Requests>(&["requests"]);
    is_unchanged::<super::requests::RequestDetail>(&["request", "request_refused"]);
    is_unchanged::<super::slo::Slo>(&["slo"]);
    is_unchanged::<super::drift::Drift>(&["drift"]);
    is_unchanged::<super::canaries::Canaries>(&["canaries"]);
    is_unchanged::<super::scale::PoolScale>(&["scale", "scale_unmeasured"]);
}
