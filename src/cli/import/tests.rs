//! What other gateways' settings become, and that nothing is lost without a word.

use super::*;
use crate::cli::{Cli, Command};
use crate::config::check::check_str;
use crate::config::{Config, PolicyName};

fn import(args: &[&str]) -> (u8, String, String) {
    let Command::Import(args) = Cli::read(["tokenway", "import"].iter().chain(args)).unwrap().command else {
        panic!("not import")
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&args, (&mut out, &mut err)).unwrap();
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn import_file(kind: &str, text: &str) -> (u8, String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    import(&[kind, file.path().to_str().unwrap()])
}

fn checked(text: &str) -> Config {
    check_str("gateway.toml", text, &|_| Some("secret".to_owned()))
        .unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

#[test]
fn flags_of_routers_become_a_pool_and_a_route() {
    let flags = "--worker-urls http://a:8000 http://b:8000/v1 --policy=cache_aware --host 127.0.0.1 --port 30000 \
                 --request-timeout-secs 600 --api-key sk-1 --retry-max-retries 3 --max-payload-size 1048576";
    for kind in ["vllm-router", "smg", "sglang-router"] {
        let args: Vec<_> = [kind, "--"].into_iter().chain(flags.split_whitespace()).collect();
        let (code, text, said) = import(&args);
        let config = checked(&text);
        assert_eq!((code, config.pools[0].replicas.len(), config.retry.attempts), (0, 2, 3), "{said}");
        assert_eq!((config.routes[0].policy, config.server.listen.port()), (PolicyName::Latency, 30000));
        assert_eq!((config.routes[0].timeouts.total.as_secs(), config.server.body_limit), (600, 1 << 20));
        assert!(said.contains("cache_aware: latency here") && !text.contains("sk-1"), "{said}");
    }
}

#[test]
fn a_flag_without_a_counterpart_is_a_line_and_the_exit_code() {
    let (code, text, said) =
        import(&["smg", "--", "--worker-urls", "http://a:1", "grpc://b:2", "--tokenizer-path", "x"]);
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
         router_settings: { routing_strategy: least-busy, num_retries: 1 }\ngeneral_settings: { master_key: sk-9 }\n",
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
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let (code, text, said) = import_file("litellm", "model_list: [\n");
    assert!(code == 1 && text.is_empty() && said.contains("line"), "{said}");
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
    for line in
        ["server 10.0.0.1:8000 weight=5: ", "server 10.0.0.2:8000: it is a backup", "2 directives outside"]
    {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let (code, _, said) = import_file("nginx", "upstream a { server b:1;");
    assert!(code == 1 && said.contains("the file is cut"), "{said}");
}
