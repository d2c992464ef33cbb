//! What other gateways' settings become, and that nothing is lost without a word.

use sha2::{Digest as _, Sha256};

use super::*;
use crate::cli::{Cli, Command, printed};
use crate::config::check::check_str;
use crate::config::{Config, Connector, PolicyName};

fn import(args: &[&str]) -> (u8, String, String) {
    let Command::Import(args) = Cli::read(["tokenway", "import"].iter().chain(args)).unwrap().command else {
        panic!("not import")
    };
    printed(|outputs| run(&args, outputs))
}

/// After `--`, as they stand on a router's command line.
fn import_flags(kind: &str, flags: &str) -> (u8, String, String) {
    import(&[kind, "--"].into_iter().chain(flags.split_whitespace()).collect::<Vec<_>>())
}

fn import_file(kind: &str, text: &str) -> (u8, String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    import(&[kind, file.path().to_str().unwrap()])
}

/// An entry of LiteLLM's `model_list`, with more parameters behind its URL.
fn entry(name: &str, model: &str, url: &str, more: &str) -> String {
    let params = format!("model: \"{model}\", api_base: \"http://{url}\"{more}");
    format!("  - model_name: \"{name}\"\n    litellm_params: {{ {params} }}\n")
}

fn import_models(entries: &[String]) -> (u8, String, String) {
    import_file("litellm", &format!("model_list:\n{}", entries.concat()))
}

fn checked(text: &str) -> Config {
    check_str("gateway.toml", text, &|_| Some("secret".to_owned()))
        .unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

#[test]
fn flags_of_routers_become_a_pool_and_a_route() {
    let flags = "--worker-urls http://a:8000 http://b:8000/v1 --policy=cache_aware --host 127.0.0.1 --port 30000 \
                 --request-timeout-secs 600 --api-key sk-1 --retry-max-retries 3 --max-payload-size 1048576 \
                 --intra-node-data-parallel-size 2 --shutdown-grace-period-secs 45";
    for kind in ["vllm-router", "smg", "sglang-router"] {
        let (code, text, said) = import_flags(kind, &format!("launch {flags}"));
        let config = checked(&text);
        assert_eq!((code, config.pools[0].replicas.len(), config.retry.attempts), (0, 2, 3), "{said}");
        assert_eq!((config.routes[0].policy, config.server.listen.port()), (PolicyName::Latency, 30000));
        assert_eq!((config.routes[0].timeouts.total.as_secs(), config.server.body_limit), (600, 1 << 20));
        assert_eq!(config.server.drain_timeout.as_secs(), 45);
        assert!(text.contains("data_parallel = 2"));
        assert!(said.contains("cache_aware: latency here") && !text.contains("sk-1"), "{said}");
        let key: [u8; 32] = Sha256::digest("sk-1").into();
        let keys: Vec<_> = config.tenants.iter().flat_map(|tenant| &tenant.key_digests).collect();
        assert_eq!(keys, [&key], "clients need the key that they needed before");
        assert!(config.pools[0].engine_api_key.is_some() && said.contains("clients have to send it"));
    }
}

#[test]
fn what_flags_write_passes_check_or_is_a_line() {
    let url = "--worker-urls http://a:8000";
    for (flags, left) in [
        ("--api-key", "--api-key: "),
        ("--health-check-interval-secs 0", "--health-check-interval-secs 0: "),
        ("--health-check-timeout-secs 0", "--health-check-timeout-secs 0: "),
        ("--request-timeout-secs 0", "--request-timeout-secs 0: "),
        ("--request-timeout-secs 4294967295", "is longer than ten years"),
        ("--api-key a --api-key b", "--api-key: the last of several counts"),
        ("--health-check-interval-secs 1 --health-check-interval-secs 2", "the last of several counts"),
        ("--worker-url http://a:8000/v1", "replica http://a:8000: listed twice"),
        ("--max-payload-size 0", "--max-payload-size 0: "),
        ("--max-payload-size 2147483648", "server.body_memory"),
        ("--service-discovery", "see pool.kubernetes"),
    ] {
        let (code, text, shown) = import_flags("smg", &format!("{url} {flags}"));
        assert_eq!((code, checked(&text).pools[0].replicas.len()), (1, 1), "{flags}: {shown}");
        assert!(shown.contains(left), "{flags}: {shown}");
    }
    let (code, text, shown) = import_flags("smg", "--worker-urls http://a:1 --port 9090");
    assert!(code == 1 && text.contains("9090") && shown.contains("is taken by another port"), "{shown}");
    for (bytes, written) in [("1000000", "1000000B"), ("1048576", "1MiB"), ("1025024", "1001KiB")] {
        let (code, text, _) = import_flags("smg", &format!("{url} --max-payload-size {bytes}"));
        assert!(code == 0 && text.contains(&format!("body_limit = \"{written}\"")), "{text}");
        assert_eq!(checked(&text).server.body_limit.to_string(), bytes);
    }
}

#[test]
fn metrics_are_where_they_were() {
    let import = |flags: &str| import_flags("vllm-router", &format!("--worker-urls http://a:1 {flags}"));
    for (flags, address) in [
        ("--prometheus-port 29000", "0.0.0.0:29000"),
        ("--prometheus-port 29000 --prometheus-host 127.0.0.1", "127.0.0.1:29000"),
        ("--prometheus-host ::1", "[::1]:29000"),
    ] {
        let (code, text, shown) = import(flags);
        let listen = checked(&text).admin.metrics_listen.map(|address| address.to_string());
        assert_eq!((code, listen.as_deref()), (0, Some(address)), "{flags}: {shown}");
    }
    let (code, _, shown) = import("--prometheus-host gpu-host");
    assert!(code == 1 && shown.contains("not an IP address with a port"), "{shown}");
}

#[test]
fn flags_of_production_stack_s_router_are_read() {
    let flags =
        "--service-discovery static --static-backends http://a:1,http://b:1 --routing-logic prefixaware";
    let (code, text, shown) = import_flags("vllm-router", flags);
    let config = checked(&text);
    assert_eq!((code, config.pools[0].replicas.len()), (0, 2), "{shown}");
    assert_eq!(config.routes[0].policy, PolicyName::Prefix);
    let (code, _, shown) =
        import_flags("vllm-router", &format!("{flags} --static-models m,m --session-key x-user-id"));
    assert!(
        code == 1 && shown.contains("engines list their models") && shown.contains("x-session-id"),
        "{shown}"
    );
}

#[test]
fn tls_to_the_workers_and_their_health_go_along() {
    let flags = "--worker-urls https://a:1 --ca-cert-path ca.pem --client-cert-path c.pem --client-key-path c.key \
                 --health-check-endpoint /ping";
    let (code, text, shown) = import_flags("smg", flags);
    assert_eq!(code, 0, "{shown}");
    assert!(text.contains("tls = { ca = \"ca.pem\", cert = \"c.pem\", key = \"c.key\" }"), "{text}");
    assert!(text.contains("engine_profile.health_path = \"/ping\""), "{text}");
    let (_, _, shown) = import_flags("smg", "--worker-urls http://a:1 --jwt-issuer https://idp");
    assert!(shown.contains("see [auth.jwt]"), "{shown}");
}

#[test]
fn what_only_a_running_gateway_knows_is_named() {
    let models = entry("m", "hosted_vllm/m", "a:1", "").replace("http://a:1", "os.environ/BASE");
    let (_, _, shown) = import_models(&[models]);
    assert!(shown.contains("api_base os.environ/BASE: no variable is read here"), "{shown}");
    let guard = "http { server { location / { if ($http_authorization != \"Bearer k\") { return 401; } \
                 proxy_pass http://a:1; } } }";
    let (code, text, shown) = import_file("nginx", guard);
    assert_eq!((code, checked(&text).pools[0].replicas.len()), (1, 1), "{shown}");
    assert!(shown.contains("everybody is let in") && !shown.contains("Bearer"), "{shown}");
}

#[test]
fn prefill_and_decode_workers_become_two_pools() {
    let flags = "--prefill http://p1:30001 9001 --prefill http://p2:30002 9001 --decode http://d1:30003 --decode http://d2:30004";
    for (kind, mode, connector) in [
        ("sglang-router", "--pd-disaggregation", Connector::Sglang),
        ("vllm-router", "--vllm-pd-disaggregation", Connector::Nixl),
    ] {
        let (code, text, shown) = import_flags(kind, &format!("{mode} {flags}"));
        let config = checked(&text);
        let replicas: Vec<_> = config.pools.iter().map(|pool| (&*pool.name, pool.replicas.len())).collect();
        assert_eq!((code, replicas), (0, vec![("prefill", 2), ("main", 2)]), "{shown}");
        let prefill = config.routes[0].prefill.as_ref().unwrap();
        assert_eq!((prefill.connector, prefill.bootstrap_port), (connector, 9001));
    }
    let flags = "--pd-disaggregation --prefill http://p:1 1 --prefill http://q:1 2 --decode http://d:1";
    let (code, text, shown) = import_flags("smg", flags);
    assert!(code == 1 && shown.contains("a route has one bootstrap_port"), "{shown}");
    assert_eq!(checked(&text).pools[0].replicas.len(), 2);
}

#[test]
fn values_of_flags_are_neither_lost_nor_shown_where_they_are_secret() {
    let flags = "--worker-urls http://a:1 --disable-retries --retry-max-retries 5 --control-plane-api-keys k1:s3cret \
                 --api-key k1 k2s3cret --request-timeout-secs 1800 extra";
    let (code, text, shown) = import_flags("smg", flags);
    assert_eq!((code, checked(&text).retry.attempts), (1, 0), "{shown}");
    for line in [
        "--control-plane-api-keys ***: no counterpart",
        "not mapped: extra: --request-timeout-secs takes one value",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_policy_that_keeps_clients_goes_by_another_header() {
    let (code, text, shown) = import_flags("smg", "--worker-urls http://a:1 --policy consistent_hashing");
    assert_eq!((code, checked(&text).routes[0].policy), (1, PolicyName::Session), "{shown}");
    assert!(shown.contains("x-session-id"), "{shown}");
}

#[test]
fn a_flag_without_a_counterpart_is_a_line_and_the_exit_code() {
    let (code, text, said) = import_flags("smg", "--worker-urls http://a:1 grpc://b:2 --tokenizer-path x");
    assert_eq!((code, checked(&text).pools[0].replicas.len()), (1, 1));
    assert!(
        said.contains("not mapped: replica grpc://b:2: ")
            && said.contains("not mapped: --tokenizer-path x: "),
        "{said}"
    );
    let (code, text, said) = import(&["vllm-router", "--policy", "random"]);
    assert!(code == 1 && text.is_empty() && said.contains("error: no replica"), "{said}");
}

#[test]
fn a_model_list_becomes_pools_and_routes() {
    let (code, text, said) = import_file(
        "litellm",
        "model_list:\n  - model_name: llama\n    litellm_params: { model: hosted_vllm/meta/llama-8b, api_base: http://a:8000/v1, api_key: os.environ/KEY }\n  \
         - model_name: llama\n    litellm_params: { model: hosted_vllm/meta/llama-8b, api_base: \"http://b:8000\", api_key: os.environ/KEY, rpm: 5 }\n  \
         - model_name: gpt-4o\n    litellm_params: { model: openai/gpt-4o }\n\
         router_settings: { routing_strategy: least-busy, num_retries: 1, redis_host: r }\ngeneral_settings: { master_key: sk-9 }\n\
         litellm_settings: { callbacks: [prometheus] }\n",
    );
    let config = checked(&text);
    assert_eq!((code, config.pools.len(), config.pools[0].replicas.len()), (1, 1, 2), "{said}");
    let route = &config.routes[0];
    assert_eq!((route.model.as_str(), route.upstream_model.as_deref()), ("llama", Some("meta/llama-8b")));
    assert_eq!((route.policy, config.retry.attempts), (PolicyName::LeastLoaded, 1));
    for line in [
        "(hosted_vllm/meta/llama-8b): rpm: ",
        "model gpt-4o (openai/gpt-4o): no api_base",
        "general_settings.master_key: ",
        "router_settings.redis_host: what gateways have in common: see [cluster]",
        "litellm_settings.callbacks: not needed for metrics",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let (code, text, said) = import_file("litellm", "model_list: [\n");
    assert!(code == 1 && text.is_empty() && said.contains("line"), "{said}");
}

#[test]
fn weights_of_deployments_are_those_of_their_pools() {
    let entry = |url: &str, more: &str| entry("m", "openai/m", url, &format!(", {more}"));
    let weights = |entries: &[String]| {
        let (code, text, shown) = import_models(entries);
        let route = &checked(&text).routes[0];
        (code, route.pools.iter().map(|pool| pool.weight).collect::<Vec<_>>(), shown)
    };
    let (a, b) =
        ("api_key: os.environ/A, weight: 3".to_owned(), "api_key: os.environ/B, weight: 1".to_owned());
    let (code, found, shown) = weights(&[entry("a:1", &a), entry("b:1", &b)]);
    assert_eq!((code, found), (0, vec![3, 1]), "{shown}");
    let (code, found, shown) = weights(&[entry("a:1", &a), entry("a:2", &a), entry("b:1", &b)]);
    assert_eq!((code, found), (0, vec![6, 1]), "{shown}");
    let (code, _, shown) = weights(&[entry("a:1", "weight: 3"), entry("a:2", "weight: 1")]);
    assert!(code == 1 && shown.contains("weight 1: replicas of a pool"), "{shown}");
    let (code, found, shown) = weights(&[entry("a:1", &a), entry("b:1", "weight: 0")]);
    assert!(code == 1 && found.len() == 1 && shown.contains("weight 0: it gets no requests"), "{shown}");
}

#[test]
fn what_is_no_openai_api_or_no_timeout_is_a_line() {
    let models = ["azure/dep", "ollama/llama3", "openai/m"].map(|model| entry(model, model, "a:1", ""));
    let models = models.concat();
    let (code, text, shown) = import_file(
        "litellm",
        &format!(
            "model_list:\n{models}litellm_settings: {{ request_timeout: 60 }}\nrouter_settings: {{ timeout: 0 }}\n"
        ),
    );
    let config = checked(&text);
    assert_eq!((code, config.pools.len(), config.routes.len()), (1, 1, 1), "{shown}");
    for line in [
        "model azure/dep (azure/dep): azure has an API of its own",
        "model ollama/llama3 (ollama/llama3): ollama has",
        "router_settings.timeout 0: ",
        "litellm_settings.request_timeout: router_settings.timeout goes before it",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
}

#[test]
fn wildcards_are_lines_and_every_name_is_a_route() {
    let entry = |(name, model)| entry(name, model, "a:1", "");
    let models = [("gpt*", "openai/*"), ("openai/*", "openai/*"), ("m", "openai/*"), ("*", "openai/meta/*")];
    let all = [models.map(entry).concat(), entry(("*", "openai/*"))];
    let (code, text, shown) = import_models(&all);
    let config = checked(&text);
    let routes: Vec<_> =
        config.routes.iter().map(|route| (route.model.as_str(), route.upstream_model.as_deref())).collect();
    assert_eq!((code, routes), (1, vec![("*", None)]), "{shown}");
    for (name, model) in models {
        let line = format!("not mapped: model {name} ({model}): a route's model is one name or \"*\"");
        assert!(shown.contains(&line), "{line}\n{shown}");
    }
}

#[test]
fn the_engine_is_asked_for_the_model_without_its_provider() {
    for (model, rest, upstream, line) in [
        ("lm_studio/qwen", "", "qwen", ""),
        ("nvidia_nim/meta/llama3", "", "meta/llama3", ""),
        ("meta-llama/Llama-3", ", custom_llm_provider: openai", "meta-llama/Llama-3", ""),
        ("openai/gpt-oss", ", custom_llm_provider: openai", "gpt-oss", ""),
        ("meta-llama/Llama-3", "", "meta-llama/Llama-3", "would take its first word for a provider"),
    ] {
        let (code, text, shown) = import_models(&[entry("m", model, "a:1", rest)]);
        let route = &checked(&text).routes[0];
        assert_eq!((code, route.upstream_model.as_deref()), (0, Some(upstream)), "{shown}");
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn deployments_share_a_pool_only_where_they_are_one_engine() {
    let entry = |name, model, url, key: &str| entry(name, model, url, &format!(", api_key: {key}"));
    let pools = |text: &str| {
        let of = |pool: &crate::config::Pool| (pool.name.to_string(), pool.replicas.len());
        checked(text).pools.iter().map(of).collect::<Vec<_>>()
    };
    // Names that look alike are two models.
    let (code, text, shown) = import_models(&[
        entry("Qwen/Qwen3-8B", "vllm/Qwen/Qwen3-8B", "a:1", "x/y"),
        entry("Qwen", "vllm/Qwen3-8B", "b:1", "x/y"),
    ]);
    let names = pools(&text);
    assert!(
        code == 0 && names.len() == 2 && names.iter().all(|(_, replicas)| *replicas == 1),
        "{names:?} {shown}"
    );
    // Two keys are two secrets.
    let (code, text, shown) =
        import_models(&[entry("m", "openai/m", "a:1", "sk-a"), entry("m", "openai/m", "b:1", "sk-b")]);
    assert_eq!((code, pools(&text).len()), (0, 2), "{shown}");
    assert!(
        shown.contains("variable ENGINE_API_KEY,") && shown.contains("variable ENGINE_API_KEY_2,"),
        "{shown}"
    );
    // Two names of one engine are one pool, whose load is counted once.
    let (code, text, shown) =
        import_models(&[entry("m", "openai/m", "a:1", "none"), entry("alias", "openai/m", "a:1", "none")]);
    assert_eq!((code, pools(&text)), (0, vec![("m".to_owned(), 1)]), "{shown}");
    assert_eq!(checked(&text).routes.len(), 2);
    let (code, _, shown) = import_models(&[
        entry("m", "openai/m", "a:1", "none"),
        entry("m", "openai/m", "b:1", "none"),
        entry("alias", "openai/m", "a:1", "none"),
    ]);
    assert!(code == 1 && shown.contains("replica http://a:1 is in the pools m and alias-m"), "{shown}");
}

#[test]
fn aliases_and_merged_tables_of_litellm_are_followed() {
    let (code, text, shown) = import_file(
        "litellm",
        "model_list:\n  - model_name: m\n    litellm_params: &all { model: openai/m, api_base: \"http://a:1\" }\n  \
         - model_name: m\n    litellm_params: { <<: *all, api_base: \"http://b:1\" }\n\
         router_settings: { model_group_alias: { gpt-4: m, gone: other } }\n",
    );
    let config = checked(&text);
    assert_eq!((code, config.pools[0].replicas.len()), (1, 2), "{shown}");
    let routes: Vec<_> =
        config.routes.iter().map(|route| (route.model.as_str(), route.upstream_model.as_deref())).collect();
    assert_eq!(routes, [("m", None), ("gpt-4", Some("m"))]);
    assert!(shown.contains("model_group_alias.gone: no model \"other\""), "{shown}");
}

#[test]
fn nginx_asks_over_tls_where_its_locations_do() {
    let (code, text, shown) = import_file(
        "nginx",
        "stream { upstream pg { server db:5432; } server { listen 5432; proxy_pass pg; } }\n\
         upstream a { ip_hash; server a:8443; } upstream b { random two least_conn; server b:1; }\n\
         server { location / { proxy_pass https://a/v1; } }",
    );
    let config = checked(&text);
    let urls: Vec<_> = config.pools.iter().map(|pool| pool.replicas[0].endpoint.to_string()).collect();
    assert_eq!((code, urls), (1, vec!["https://a:8443".to_owned(), "http://b:1".to_owned()]), "{shown}");
    assert_eq!(
        config.routes.iter().map(|route| route.policy).collect::<Vec<_>>(),
        [PolicyName::Session, PolicyName::LeastLoaded]
    );
    for line in ["upstream pg: of TCP streams", "ip_hash: session here: by the header x-session-id"] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
}

#[test]
fn nginx_replaces_the_prefix_of_a_path() {
    let passed = |locations: &str| {
        let text = format!("upstream vllm {{ server a:1; }} server {{ {locations} }}");
        let (code, text, shown) = import_file("nginx", &text);
        let config = checked(&text);
        let urls = config.pools.iter().map(|pool| pool.replicas[0].endpoint.to_string());
        (code, config.server.root_path.to_string(), urls.collect::<Vec<_>>().join(" "), shown)
    };
    for (locations, root, urls) in [
        ("location / { proxy_pass http://vllm/; }", "", "http://a:1"),
        (
            "location /v1/ { proxy_pass http://vllm/v1/; } location = /health { proxy_pass http://vllm; }",
            "",
            "http://a:1",
        ),
        ("location ~ ^/v1/(chat|completions) { proxy_pass http://vllm; }", "", "http://a:1"),
        ("location /llm/ { proxy_pass http://vllm/; }", "/llm", "http://a:1"),
        ("location /llm/v1 { if ($a) { proxy_pass http://vllm/v1; } }", "/llm", "http://a:1"),
        ("location /llm/ { proxy_pass http://vllm; }", "/llm", "http://a:1/llm"),
        ("location / { proxy_pass http://vllm/custom/; }", "", "http://a:1/custom"),
        ("location /v1/ { proxy_pass http://b:2/custom/v1/; }", "", "http://a:1 http://b:2/custom"),
    ] {
        let (code, found_root, found, shown) = passed(locations);
        assert_eq!((code, found_root.as_str(), found.as_str()), (0, root, urls), "{locations}: {shown}");
    }
    for (locations, why) in [
        ("location / { proxy_pass http://vllm/custom/path; }", "what it makes of a path"),
        ("location /llm { proxy_pass http://vllm/; }", "what it makes of a path"),
        ("location /metrics { proxy_pass http://vllm; }", "what it makes of a path"),
        (
            "location /llm/ { rewrite ^/llm/(.*) /$1 break; proxy_pass http://vllm; }",
            "rewrite: what it makes of a path",
        ),
        ("location /metrics { proxy_pass http://a:1/metrics; }", "its host is a replica of pool vllm"),
        ("location ~ /v1 { proxy_pass http://vllm/$1; }", "what it makes of a path"),
        (
            "location /a/ { proxy_pass http://vllm/; } location /b/ { proxy_pass http://vllm/; }",
            "another location has its prefix",
        ),
        (
            "location / { proxy_pass http://vllm/; } location /v1/ { proxy_pass http://vllm/x/v1/; }",
            "proxy_pass to vllm/x: another one is taken",
        ),
    ] {
        let (code, _, urls, shown) = passed(locations);
        assert!(code == 1 && shown.contains(why), "{locations}: {shown}");
        assert!(!urls.contains(['l', ' ']), "{locations}: {urls}");
    }
}

#[test]
fn upstream_blocks_become_pools() {
    let (code, text, said) = import_file(
        "nginx",
        "http { # all\n upstream vllm {\n least_conn;\n server 10.0.0.1:8000 weight=5;\n server 10.0.0.2:8000 backup;\n keepalive 32; }\n \
         server { listen 80; location / { proxy_pass http://vllm; } } }\n",
    );
    let config = checked(&text);
    assert_eq!(
        (code, config.pools[0].replicas.len(), config.routes[0].policy),
        (1, 1, PolicyName::LeastLoaded)
    );
    for line in [
        "server 10.0.0.1:8000 weight=5: ",
        "a pool of its own with standby = true",
        "line 7: listen: see server.listen",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let (code, text, shown) = import_file(
        "nginx",
        "upstream a { server unix:/a; } upstream b { server b:1; server b:1; } upstream c { server c:1; }",
    );
    assert_eq!((code, checked(&text).routes.len()), (1, 2), "{shown}");
    for line in ["upstream a: none of its servers", "replica http://b:1: listed twice"] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let (code, text, shown) = import_file(
        "nginx",
        "log_format json escape=json '{ \"at\": \"$time_iso8601\"; # no comment\n \"of\": \"it\\'s\" }';\n\
         map $http_a $b { \"~^x{2};\" ${c}d; }\nupstream a { # }\n server \"b:1\"; }\n",
    );
    assert_eq!((code, checked(&text).pools[0].replicas.len()), (1, 1), "{shown}");
    for line in ["line 2: log_format: ", "line 3: map: "] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let (code, _, said) = import_file("nginx", "upstream a { server b:1;");
    assert!(code == 1 && said.contains("the file is cut"), "{said}");
}

#[test]
fn what_yaml_writes_in_another_way_is_not_lost() {
    let (code, text, shown) = import_file(
        "litellm",
        "model_list:\n\
         - model_name: a\n  litellm_params: &p {model: hosted_vllm/sim, base_url: http://a:1/v1, api_key: os.environ/KEY}\n\
         - model_name: 405\n  litellm_params:\n    <<: [*p, {api_base: http://other:1, timeout: 3}]\n    base_url: http://b:1\n\
         - model_name: x\n  litellm_params: {model: hosted_vllm/sim, api_base: \"http://me:s3cret@c:1\"}\n\
         - litellm_params: {model: hosted_vllm/sim, api_base: http://d:1}\n\
         router_settings:\n  model_group_alias: {4: a, h: {model: a, hidden: true}}\n\
         ---\nmodel_list: []\n",
    );
    let config = checked(&text);
    let routes: Vec<_> = config.routes.iter().map(|route| &*route.name).collect();
    assert_eq!((code, routes), (1, vec!["a", "405", "4", "h"]), "{shown}");
    assert!(config.pools.iter().all(|pool| pool.engine_api_key.is_some()), "{text}");
    for line in [
        "model 405 (hosted_vllm/sim): timeout: see route.timeouts",
        "replica http://c:1: a URL must not carry",
        "no model_name",
        "model_group_alias.h: hidden: ",
        "every document after the first",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn names_of_pools_are_made_to_fit_and_differ() {
    let long = "n".repeat(200);
    let (code, text, shown) = import_file(
        "nginx",
        &format!(
            "upstream a~b {{ server a:1; }} upstream a-b {{ server b:1; }} upstream {long} {{ server c:1; }}"
        ),
    );
    let config = checked(&text);
    assert_eq!(code, 0, "{shown}");
    assert_eq!(config.pools.iter().map(|pool| pool.name.len()).collect::<Vec<_>>(), [3, 5, 120]);
    assert_eq!(config.routes.iter().map(|route| route.pools[0].pool).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn nginx_without_an_upstream_block_is_imported_and_what_it_protected_is_named() {
    let (code, text, shown) = import_file(
        "nginx",
        "http {\n types { text/html html; }\n server {\n  auth_basic \"staff\";\n  client_max_body_size 8m;\n\
         location /v1/ { proxy_pass http://127.0.0.1:22001; proxy_read_timeout 600s; }\n\
         location /b { proxy_pass http://$arg_host; }\n  location /c { proxy_pass http://127.0.0.1:22001/v2; }\n } }\n",
    );
    let config = checked(&text);
    let urls: Vec<_> = config.pools.iter().map(|pool| pool.replicas[0].endpoint.to_string()).collect();
    assert_eq!((code, urls), (1, vec!["http://127.0.0.1:22001".to_owned()]), "{shown}");
    for line in [
        "line 2: types: ",
        "line 4: auth_basic: without a [[tenant]] with keys",
        "line 5: client_max_body_size: see server.body_limit",
        "line 6: proxy_read_timeout: see [timeouts]",
        "proxy_pass http://$arg_host: ",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(!shown.contains("staff") && !shown.contains("text/html"), "{shown}");
}

#[test]
fn sections_without_a_counterpart_are_lines_even_as_lists() {
    let (code, _, shown) = import_file(
        "litellm",
        "include: [more.yaml]\nguardrails: [{ guardrail_name: pii }]\nrouter_settings: { model_group_alias: [x] }\n\
         model_list:\n- { model_name: m, litellm_params: { model: openai/m, api_base: \"http://a:1\" } }\n",
    );
    let lines = ["include: the models of the files", "guardrails: ", "model_group_alias: not a table"];
    for line in lines {
        assert!(code == 1 && shown.contains(line), "{line}\n{shown}");
    }
}

#[test]
fn no_value_of_a_flag_is_lost() {
    for (flags, left) in [
        (
            "--prefill http://p1:8000 8998 http://p2:8000 --decode http://d:1",
            "http://p2:8000: --prefill takes a URL and",
        ),
        ("--worker-urls http://a:1 --dp-aware http://b:1", "http://b:1: --dp-aware takes no value"),
        (
            "--worker-urls http://a:1 --pd-disaggregation http://b:1",
            "http://b:1: --pd-disaggregation takes no value",
        ),
        (
            "--worker-urls http://a:1 --disable-retries http://b:1",
            "http://b:1: --disable-retries takes no value",
        ),
        ("--prefill http://p1:1 9000 --prefill http://p2:1 --decode http://d:1", "[\"9000\", \"none\"]"),
        (
            "--worker-urls http://a:1 --redis-url redis://u:s3cret@h/0",
            "--redis-url redis://h/0: no counterpart",
        ),
    ] {
        let (code, _, shown) = import_flags("smg", flags);
        assert!(code == 1 && shown.contains(left) && !shown.contains("s3cret"), "{left}\n{shown}");
    }
    let (code, _, shown) = import_flags("smg", "--worker-urls http://a:1 --port 30000");
    assert!(code == 0 && shown.contains("no --host: this machine alone"), "{shown}");
}
