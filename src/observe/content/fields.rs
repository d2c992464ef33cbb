//! What readers of content learn of a request beside its texts: the one list of these names.

use serde_json::{Map, Value as Json, json};

use crate::record::Record;

/// Fields of an object.
pub type Fields = Map<String, Json>;

/// Of a request that has been asked.
pub fn asked(record: &Record) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in [
        ("request_id", json!(&*record.request_id)),
        ("tenant", json!(&*record.tenant)),
        ("key", json!(&*record.key)),
        ("route", json!(&*record.route)),
        ("model", json!(record.requested_model)),
        ("path", json!(&*record.path)),
    ] {
        fields.insert(name.to_owned(), value);
    }
    fields
}

/// Of one that has ended.
pub fn ended(record: &Record) -> Fields {
    let mut fields = asked(record);
    fields.insert("status".to_owned(), json!(record.status));
    fields.insert("outcome".to_owned(), json!(record.outcome.as_str()));
    fields.insert("error".to_owned(), json!(record.error));
    fields
}
