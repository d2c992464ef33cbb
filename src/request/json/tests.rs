use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

fn check(text: &str) -> Result<Raw<'_>, JsonError> {
    let mut cursor = Cursor::new(text);
    let value = cursor.value()?;
    cursor.end()?;
    Ok(value)
}

#[test]
fn accepts_and_rejects_as_the_grammar_says() {
    for text in [
        "{}", "[]", " [ 1 , -0.5e+10 ] ", r#"{"a":{"b":[null,true,false]}}"#, r#""\u00e9\n\"""#, "0", "-0",
        "[0,10, 200 ,3]", r#"[1,2,"x",3,-4,5.5,6]"#, r#"{"a":1,"a":2}"#, r#""\ud800""#, "1e999",
        "\"\u{7f}é\"",
    ] {
        assert!(check(text).is_ok(), "{text}");
        assert!(serde_json::from_str::<&RawValue>(text).is_ok(), "{text}");
    }
    for text in [
        "", " ", "{", "[", "[1,]", "[1,2,,3]", "[1,01]", "[1,2,", "[1,2, ]", "{,}", r#"{"a"}"#, r#"{"a":}"#,
        r#"{"a":1,}"#, "01", "-", "1.", "1e", ".5", "+1", "NaN", "nul", "truely", "\"\n\"", r#""\x""#,
        r#""\u12g4""#, r#"""#, "{} {}", "[1}", "{a:1}", "'a'", "\u{feff}{}",
    ] {
        assert!(check(text).is_err(), "{text}");
        assert!(serde_json::from_str::<&RawValue>(text).is_err(), "{text}");
    }
}

#[test]
fn a_depth_bomb_is_an_error() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(check(&nested(128)).is_ok());
    assert_eq!(check(&nested(129)).map_err(|f| f.problem), Err(TOO_DEEP));
    assert_eq!(check(&"[".repeat(1_000_000)).map_err(|f| f.problem), Err(TOO_DEEP));
    assert_eq!(check(&"{\"a\":".repeat(1_000_000)).map_err(|f| f.problem), Err(TOO_DEEP));
}

#[test]
fn faults_name_their_place() {
    for (text, at) in [("{\"a\" 1}", 5), ("[1 2]", 3), ("[\"a\n\"]", 3), ("[tru]", 1), ("[1", 2)] {
        assert_eq!(check(text).map_err(|f| f.at), Err(at), "{text}");
    }
}

#[test]
fn string_stops_are_found_at_every_offset() {
    for stop in ['"', '\\', '\n', '\0'] {
        for offset in 0..100 {
            let text =
                format!("{}{stop}{}", "é~".repeat(offset).get(..offset / 3 * 3).unwrap(), "x\"".repeat(40));
            assert_eq!(plain_len(text.as_bytes()), offset / 3 * 3, "{stop:?} at {offset}");
        }
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,50}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::hash_map(".{0,8}", inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn what_was_validated_reads_the_same_the_second_time() {
    for text in
        [r#""""#, r#""\\""#, r#""\"""#, r#""\\\"x""#, r#"{"a\\":["\\\\",{"\"":"\\\""},"\n"],"b":"c"}"#]
    {
        let value = check(text).unwrap();
        let mut again = value.cursor();
        assert_eq!((again.value(), again.end()), (Ok(value), Ok(())), "{text}");
    }
}

proptest! {
    #[test]
    fn agrees_with_serde_on_damaged_json(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&value).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let theirs = serde_json::from_str::<&RawValue>(text).map(RawValue::get);
            match (check(text), theirs) {
                (Ok(ours), Ok(theirs)) => {
                    prop_assert_eq!(ours.text(), theirs);
                    prop_assert_eq!(ours.cursor().value(), Ok(ours));
                }
                (Err(_), Err(_)) => {}
                (ours, theirs) => prop_assert!(false, "{text}: {ours:?} {theirs:?}"),
            }
        }
    }

    #[test]
    fn strings_come_back_as_they_were(text in ".{0,80}") {
        let quoted = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(check(&quoted).unwrap().string().unwrap(), text);
    }
}
