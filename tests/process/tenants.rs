//! What tenants of one gateway see of each other, and how much each may use.

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::serve_support::client::{connect, exchange, request};
use crate::serve_support::{Fleet, Gateway, post_chat, replace};

/// A section of a tenant whose key is its name.
fn tenant(name: &str, more: &str) -> String {
    let digest: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[tenant]]\nname = \"{name}\"\nkey_sha256 = [\"{digest}\"]\n{more}\n")
}

/// In front of one replica, so that a prompt comes back to where it was.
fn gateway(fleet: &Fleet, folder: &TempDir, rest: &str) -> Gateway {
    let file = folder.path().join("gateway.toml");
    replace(&file, &format!("[[pool]]\nname = \"main\"\nreplicas = [{:?}]\n{rest}", fleet.urls[0]));
    Gateway::ready_with(&file)
}

/// Tokens of the prompt that the engine had in its cache.
fn cached(gateway: &Gateway, tenant: &str, prompt: &str, more: &serde_json::Value) -> u64 {
    let mut body = serde_json::json!({
        "model": "sim", "max_tokens": 1, "messages": [{ "role": "user", "content": prompt }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = post_chat(&gateway.data, &body.to_string(), tenant);
    assert_eq!(answer.status, 200, "{answer:?}");
    let (_, rest) = answer.body.split_once("\"cached_tokens\":").unwrap_or_else(|| panic!("{answer:?}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[test]
fn isolated_tenants_find_nothing_of_each_other_in_the_engines_caches() {
    let (fleet, folder) = (Fleet::start(&[]), TempDir::new().unwrap());
    let tenants = [
        tenant("a", ""),
        tenant("b", ""),
        tenant("c", "cache_group = \"house\""),
        tenant("d", "cache_group = \"house\""),
        tenant("e", "cache_isolation = false"),
        tenant("f", "cache_isolation = false"),
    ];
    let gateway =
        gateway(&fleet, &folder, &format!("[routing]\ncache_isolation = true\n{}", tenants.concat()));
    let (none, salt) = (serde_json::json!({}), serde_json::json!({ "cache_salt": "s" }));
    let prompt = "what the board decided about the merger last night ".repeat(60);
    for (who, more, is_found) in [
        ("a", &none, false),
        ("a", &none, true),
        ("b", &none, false),
        ("b", &none, true),
        ("e", &none, false),
        ("f", &none, true),
        ("c", &none, false),
        ("d", &none, true),
        // A client's own salt divides what is its tenant's, and leads nowhere else.
        ("a", &salt, false),
        ("a", &salt, true),
        ("b", &salt, false),
        ("f", &salt, false),
        ("e", &salt, true),
    ] {
        let found = cached(&gateway, who, &prompt, more);
        assert_eq!(found > 0, is_found, "{who} {more}: {found}");
    }
    let answer = exchange(
        connect(&gateway.data).unwrap(),
        &request(
            "POST",
            "/v2/embed",
            "authorization: Bearer a\r\n",
            r#"{"model":"sim","texts":["x"],"input_type":"query"}"#,
        ),
    );
    assert!(answer.status == 400 && answer.body.contains("use /v1/embeddings"), "{answer:?}");
}
