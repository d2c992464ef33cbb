//! The schema held against the checker: both take the same keys and the same types.

use std::collections::BTreeSet;

use super::*;
use crate::config::check::check_str;

/// What is wrong with `value`; `is_strict` also counts words, bounds and missing keys.
fn faults(schema: &Value, value: &Value, is_strict: bool, at: &str, found: &mut Vec<String>) {
    if let Some(forms) = schema["anyOf"].as_array() {
        let fits = |form| {
            let mut found = Vec::new();
            faults(form, value, is_strict, at, &mut found);
            found.is_empty()
        };
        if !forms.iter().any(fits) {
            found.push(format!("{at}: no form fits"));
        }
        return;
    }
    let is_type = match schema["type"].as_str() {
        None => true,
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other}"),
    };
    if !is_type {
        found.push(format!("{at}: not of type {}", schema["type"]));
        return;
    }
    if is_strict {
        let number = value.as_f64();
        let words = schema["enum"].as_array();
        let is_out = words.is_some_and(|words| !words.contains(value))
            || schema["minimum"].as_f64().zip(number).is_some_and(|(least, n)| n < least)
            || schema["maximum"].as_f64().zip(number).is_some_and(|(most, n)| n > most);
        if is_out {
            found.push(format!("{at}: out of bounds"));
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.get(key).is_none() {
                found.push(format!("{at}: no {key}"));
            }
        }
    }
    for entry in value.as_array().into_iter().flatten() {
        faults(&schema["items"], entry, is_strict, &format!("{at}[]"), found);
    }
    for (key, entry) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(schema), _) => faults(schema, entry, is_strict, &at, found),
            (None, Value::Bool(false)) => found.push(format!("{at}: unknown key")),
            (None, schema) => faults(schema, entry, is_strict, &at, found),
        }
    }
}

fn all_faults(schema: &Value, text: &str, is_strict: bool) -> Vec<String> {
    let value: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut found = Vec::new();
    faults(schema, &serde_json::to_value(value).unwrap(), is_strict, "", &mut found);
    found
}

/// Of all places where a value stands: the way there.
fn places(value: &Value, way: &[String], found: &mut Vec<Vec<String>>) {
    if !way.is_empty() {
        found.push(way.to_vec());
    }
    let below: Vec<(String, &Value)> = match value {
        Value::Object(table) => table.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (key, value) in below {
        places(value, &[way, &[key]].concat(), found);
    }
}

fn pointer(way: &[String]) -> String {
    way.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1"))).collect()
}

fn as_toml(value: &Value) -> String {
    toml::to_string(value).unwrap()
}

/// Messages of the checker that begin so.
fn said(text: &str, is_meant: impl Fn(&str) -> bool) -> bool {
    match check_str("f.toml", text, &|_| Some("secret".to_owned())) {
        Ok(_) => false,
        Err(faults) => faults.iter().any(|fault| is_meant(&fault.message)),
    }
}

fn specimens() -> Vec<Value> {
    let texts = [every_key(), OTHER_FORMS.to_owned()];
    let value = |text: &String| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    texts.iter().map(value).collect()
}

#[test]
fn every_file_that_is_shipped_fits() {
    let schema = json_schema();
    for text in [
        &unpacked(REFERENCE),
        OTHER_FORMS,
        &every_key(),
        include_str!("../../../config/minimal.toml"),
        include_str!("../../../config/two-pools.toml"),
        include_str!("../../../config/tls.toml"),
    ] {
        assert_eq!(all_faults(&schema, text, true), Vec::<String>::new(), "{text}");
    }
}

/// For every value of the reference and every type: the schema and the checker say the same.
#[test]
fn the_schema_takes_the_types_that_the_checker_takes() {
    let schema = json_schema();
    let others =
        [json!("x"), json!(1), json!(0.5), json!(true), json!([]), json!(["x"]), json!([1]), json!({})];
    let mut differ = BTreeSet::new();
    for specimen in specimens() {
        let mut all = Vec::new();
        places(&specimen, &[], &mut all);
        for way in all {
            for other in &others {
                let mut changed = specimen.clone();
                *changed.pointer_mut(&pointer(&way)).unwrap() = other.clone();
                let Ok(text) = toml::to_string(&changed) else { continue };
                let refused = said(&text, |message| message.contains(": expected "));
                let by_schema = all_faults(&schema, &text, false);
                if refused == by_schema.is_empty() {
                    differ.insert(format!(
                        "{} = {other}: checker refuses {refused}: {by_schema:?}",
                        pointer(&way)
                    ));
                }
            }
        }
    }
    assert!(
        differ.is_empty(),
        "schema and checker differ; where a key has several forms, say so with `Item::accepts`, or show them in \
         OTHER_FORMS:\n{}",
        Vec::from_iter(differ).join("\n")
    );
}

#[test]
fn an_unknown_key_fits_nowhere_that_the_checker_refuses_it() {
    let schema = json_schema();
    for specimen in specimens() {
        let mut all = vec![Vec::new()];
        places(&specimen, &[], &mut all);
        for way in all {
            let mut changed = specimen.clone();
            let Some(Value::Object(table)) = changed.pointer_mut(&pointer(&way)) else { continue };
            table.insert("zzz".to_owned(), json!("10ms"));
            let text = as_toml(&changed);
            let is_meant =
                |message: &str| message.contains("unknown key \"zzz\"") || message.contains("zzz: expected ");
            let refused = said(&text, is_meant);
            let by_schema = !all_faults(&schema, &text, false).is_empty();
            assert_eq!(refused, by_schema, "{way:?}");
        }
    }
}

#[test]
fn a_required_key_that_is_missing_is_a_fault() {
    for declaration in DECLARED {
        for key in declaration.keys.iter().filter(|key| key.state == State::Required) {
            let mut specimen = specimens().remove(0);
            let mut section = &mut specimen;
            for name in declaration.path().split('.') {
                section = &mut section[name];
                if section.is_array() {
                    section = &mut section[0];
                }
            }
            section.as_object_mut().unwrap().remove(key.name).unwrap();
            let is_meant = |message: &str| message.contains("has no ") && message.contains(key.name);
            assert!(said(&as_toml(&specimen), is_meant), "{}.{}", declaration.path(), key.name);
        }
    }
}

/// A key without a type is one that the reference does not show, or that the checker does not read.
#[test]
fn every_key_has_a_type_and_most_a_description() {
    let (mut untyped, mut described, mut all) = (Vec::new(), 0, 0);
    let mut sections = vec![json_schema()];
    while let Some(schema) = sections.pop() {
        for (key, value) in schema["properties"].as_object().into_iter().flatten() {
            all += 1;
            described += usize::from(value.get("description").is_some());
            if value.get("type").is_none() && value.get("anyOf").is_none() {
                untyped.push(key.clone());
            }
            sections.push(value.clone());
        }
        let below = [&schema["items"], &schema["additionalProperties"]];
        sections.extend(below.into_iter().filter(|below| below.is_object()).cloned());
        sections.extend(schema["anyOf"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(untyped, Vec::<String>::new(), "show these keys in config/reference.toml");
    assert!(all > 150 && described * 10 > all * 6, "{described} of {all}");
}

#[test]
fn descriptions_and_defaults_are_those_of_the_reference() {
    let schema = json_schema();
    let server = &schema["properties"]["server"]["properties"];
    assert_eq!(server["listen"]["default"], "127.0.0.1:8080");
    let text = server["body_limit"]["description"].as_str().unwrap();
    assert!(text.starts_with("largest request body\nwrite a number with its unit"), "{text}");
    let pool = &schema["properties"]["pool"]["items"];
    assert_eq!(pool["required"], json!(["name"]));
    assert_eq!(pool["properties"]["name"].get("default"), None);
    let policy = &schema["properties"]["route"]["items"]["properties"]["policy"];
    assert!(policy["enum"].as_array().unwrap().contains(&json!("prefix")), "{policy}");
}
