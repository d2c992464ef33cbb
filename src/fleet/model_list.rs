//! The models that an engine lists, each object kept as its bytes.
//!
//! Clients get these objects from our `/v1/models` as the engine wrote them: what is in them beside the id (`root`,
//! `permission`, limits) is between client and engine.

use super::engine::EngineModel;
use crate::request::json::{Cursor, JsonError, JsonKind};
use crate::units::Tokens;

/// The models of a `/v1/models` page; none where it is no such page.
pub(crate) fn parse(page: &[u8]) -> Vec<EngineModel> {
    let mut models = Vec::new();
    let Ok(text) = std::str::from_utf8(page) else { return models };
    let [data] = Cursor::new(text).members(["data"]).unwrap_or([None]);
    let Some(data) = data.filter(|data| data.kind() == JsonKind::Array) else { return models };
    let read = data.cursor().array(|cursor| {
        let entry = cursor.value()?;
        let [id, parent, max_len] = entry.members(["id", "parent", "max_model_len"]);
        let named = id.and_then(|at| Some((at.string()?, at.span())));
        if let Some((id, at)) = named.filter(|_| models.len() < MAX_MODELS) {
            let start = entry.span().start;
            models.push(EngineModel {
                id: id.as_ref().into(),
                entry: entry.text().into(),
                id_at: at.start - start..at.end - start,
                is_base: parent.is_none(),
                max_len: max_len.and_then(|len| len.text().parse().ok()).map(Tokens),
            });
        }
        Ok::<_, JsonError>(())
    });
    if read.is_ok() { models } else { Vec::new() }
}

const MAX_MODELS: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_kept_byte_for_byte() {
        let base = r#"{"id":"t\u0069ny", "object":"model","root":"/m/tiny","parent":null,"max_model_len":512,"permission":[{"id":"p"}]}"#;
        let adapter = r#"{"parent":"tiny","id":"sql"}"#;
        let page = format!(r#"{{"object":"list","data":[ {base}, {adapter},7,{{"x":1}}]}}"#);
        let models = parse(page.as_bytes());
        let shown: Vec<_> =
            models.iter().map(|m| (&*m.id, &*m.entry, &m.entry[m.id_at.clone()], m.is_base)).collect();
        assert_eq!(shown, [("tiny", base, r#""t\u0069ny""#, true), ("sql", adapter, r#""sql""#, false)]);
        assert_eq!(models.iter().map(|m| m.max_len).collect::<Vec<_>>(), [Some(Tokens(512)), None]);
        for none in ["", "[]", "{}", r#"{"data":{}}"#, r#"{"data":[{"id":"a"}"#] {
            assert!(parse(none.as_bytes()).is_empty(), "{none}");
        }
    }
}
