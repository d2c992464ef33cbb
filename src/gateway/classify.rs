//! Classifies a request that was read: prompt identity, size and class, and the body as sent upstream.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::apart;
use super::prepared::Prepared;
use super::table::{RouteState, RoutingTable};
use crate::admission::{Rules, Share};
use crate::clock::Stamp;
use crate::error::Timer;
use crate::record::SloBounds;
use crate::relay::stream_state::{Echo, MAX_CHOICES};
use crate::relay::watch::MayBeSilent;
use crate::request::body::{HeldBody, NO_BODY};
use crate::request::chain::ChainSeed;
use crate::request::class::class_of;
use crate::request::continuation::held_back;
use crate::request::dialect::{BodyForm, Computes, Dialect};
use crate::request::engine_priority::EnginePriority;
use crate::request::fields::Fields;
use crate::request::json::{JsonError, JsonKind, Raw};
use crate::request::prompt::RequestPrompt;
use crate::request::splice::{Edits, splice};
use crate::request::tenant::TenantRef;
use crate::routing::Sampling;
use crate::units::Tokens;

/// Who sends a request, and how soon it wants an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client<'a> {
    pub(super) tenant: &'a TenantRef,
    /// `x-slo-class`; it counts where a route lets it.
    pub(super) slo_class: Option<&'a str>,
    /// Whether it sends an `x-vllm-priority`.
    pub(super) has_priority: bool,
    /// Whether its answer passes through the gateway, which takes out what it asked for.
    pub(super) gets_answer_here: bool,
}

/// Prompt identity, size and class, and the body as sent upstream.
pub(super) fn classify(
    table: &Arc<RoutingTable>,
    route: &Arc<RouteState>,
    dialect: Dialect,
    fields: &Fields<'_>,
    upstream_model: Option<Arc<str>>,
    body: &Bytes,
    client: Client<'_>,
) -> Box<Prepared> {
    let Client { tenant, slo_class, has_priority, gets_answer_here } = client;
    let client_model = fields.named_model();
    let has_place = dialect.body_form() == BodyForm::Json || fields.model_at.is_some();
    let is_unnamed = client_model.is_none() && has_place;
    let to_name = if is_unnamed { route.model_to_name() } else { None };
    let upstream_model = to_name.as_deref().or(upstream_model.as_deref());
    let model = upstream_model.or(client_model);
    let salt = salt(route, dialect, fields, tenant);
    let (name, salted, turns) = (model.unwrap_or_default(), salt.as_deref(), table.follows_kv_events);
    let prompt = RequestPrompt::read(dialect, fields, name, salted, &table.seed, turns);
    let computes = dialect.computes();
    let sized_by = route.pools.first().filter(|_| computes != Computes::Nothing);
    let tokens = sized_by.map_or(Tokens(0), |pool| prompt.size.tokens(&pool.ratio));
    // How many tokens a broken stream had: several may come in one event. Looked at only where needed: a prompt may be long.
    let may_migrate = route.config.migrate && fields.is_stream() && fields.previous_response_id.is_none();
    let choices = choices(dialect, fields);
    let (output, is_output_bounded) = expected_output(route, dialect, fields.max_tokens, choices);
    // Reasoning is not continued, and a vLLM that parses it counts all of it again for every chunk with a count.
    let has_reasoning = || fields.hides_reasoning || route.pools.iter().any(|pool| pool.streams_reasoning());
    let ask_running =
        may_migrate && gets_answer_here && choices == 1 && !(dialect == Dialect::Chat && has_reasoning());
    // An engine says what is wrong with an id that is no string.
    let chosen_id = fields.request_id.and_then(|raw| raw.escaped());
    let own_id = chosen_id.and_then(|id| table.own_id(dialect, tenant.name(), id));
    let has_own = fields.priority.is_some_and(|raw| raw.kind() != JsonKind::Null);
    let class = slo_class.filter(|_| route.config.client_may.slo_class).unwrap_or(&route.config.slo);
    let engine_priority =
        EnginePriority::of(&table.config, &route.config, tenant.config(), class, has_own || has_priority);
    // A form has no such member: there the header alone has it.
    let takes_priority = has_own || dialect.takes_cache_salt();
    let edits = Edits {
        model: upstream_model.filter(|_| fields.model.is_some() || to_name.is_some()),
        request_id: own_id.as_deref(),
        cache_salt: salt.as_deref(),
        priority: engine_priority.in_body(has_own).filter(|_| takes_priority),
        ask_usage: route.config.ask_usage && gets_answer_here,
        ask_running,
        counts_only_beside_usage: route.counts_only_beside_usage(),
    };
    let spliced = splice(dialect, body, fields, edits);
    let is_stream = fields.is_stream() && dialect.has_known_stream();
    let label = label(route, model);
    Box::new(Prepared {
        table: Arc::clone(table),
        route: Arc::clone(route),
        tenant: tenant.clone(),
        engine_priority,
        body: spliced.body,
        held: HeldBody::empty(),
        identity: identity(&table.seed, tenant, &prompt, fields, body),
        prompt,
        tokens,
        output,
        is_output_bounded,
        is_stream,
        computes,
        shows_first_token: is_stream || computes == Computes::Prompt,
        asks_usage: spliced.asks_usage,
        asks_running: spliced.asks_running,
        owes_usage: spliced.owes_usage,
        held_back: held_back(fields.stop),
        choices,
        echo: echo(fields),
        model: model.map(|model| if *label == *model { Arc::clone(&label) } else { model.into() }),
        label,
        timeouts: route.config.timeouts,
        total_timer: Timer::Total,
        session: None,
        sampling: sampling(computes, fields),
        pinned: None,
        may_be_silent: may_be_silent(dialect, fields),
        is_sent_once: dialect.is_stateful() && fields.has_effects(),
        not_copied: why_not_copied(dialect, fields),
        stays: route.prefill.as_ref().and_then(|_| apart::obstacle(dialect, fields, choices > 1)),
        read: Stamp::default(),
        slo: SloBounds::default(),
        class: class_of(&table.config.classes, tokens),
        rules: Rules { queue: route.config.queue, ..Rules::default() },
        share: share_of(tenant),
        carrier: None,
    })
}

fn sampling(computes: Computes, fields: &Fields<'_>) -> Sampling {
    match computes {
        Computes::Prompt => Sampling::PROMPT,
        _ => Sampling { max_tokens: fields.max_tokens.map(Tokens), n: fields.choices() },
    }
}

/// What an engine is to compute, and for which tenant. Of a body without a prompt that we know all of it counts.
fn identity(
    seed: &ChainSeed,
    tenant: &TenantRef,
    prompt: &RequestPrompt,
    fields: &Fields<'_>,
    body: &[u8],
) -> u64 {
    let work = match prompt.chain.whole() {
        0 if body.is_empty() => return NO_BODY,
        0 => seed.hash(body),
        prompt => prompt ^ seed.hash(&fields.parameters.to_le_bytes()).rotate_left(2),
    };
    work ^ seed.hash(tenant.name().as_bytes()).rotate_left(1)
}

/// An engine's parser holds the text of tokens back where there are tools, or where the client wants no reasoning. vLLM answers
/// `response.in_progress` before it has queued the request, and nothing once it has begun on it.
fn may_be_silent(dialect: Dialect, fields: &Fields<'_>) -> MayBeSilent {
    match dialect {
        _ if !fields.hides_reasoning && fields.prompt.tools.is_none() => MayBeSilent::Never,
        Dialect::Responses => MayBeSilent::FromTheStart,
        _ => MayBeSilent::OnceBegun,
    }
}

/// Why no canary gets a copy: it would leave something behind, or fetch what is fetched, and freed there, once.
fn why_not_copied(dialect: Dialect, fields: &Fields<'_>) -> Option<&'static str> {
    let is_alone = fields.is_unstored && fields.previous_response_id.is_none() && !fields.has_effects();
    if dialect.is_stateful() && !is_alone { Some("stored") } else { fields.names_kv.then_some("own_params") }
}

fn share_of(tenant: &TenantRef) -> Share {
    let config = tenant.config();
    Share { tenant: Arc::clone(&config.name), weight: config.weight, priority: config.priority }
}

/// Predicted tokens of an answer with all its choices, and whether they are what the client's own bound allows.
fn expected_output(route: &RouteState, dialect: Dialect, most: Option<u64>, choices: u32) -> (Tokens, bool) {
    let Some(pool) = route.pools.first().filter(|_| dialect.writes()) else {
        return (Tokens(0), false);
    };
    let usual = pool.dispatcher.expected_output().0;
    let each = most.map_or(usual, |most| usual.min(most));
    (Tokens(each.saturating_mul(choices.into())), most == Some(each))
}

/// The `cache_salt` of an isolated tenant, the client's own folded in.
fn salt(route: &RouteState, dialect: Dialect, fields: &Fields<'_>, tenant: &TenantRef) -> Option<Box<str>> {
    let isolation = tenant.isolation().filter(|_| dialect.takes_cache_salt() && route.takes_cache_salt())?;
    let own = fields.cache_salt.and_then(|raw| raw.string());
    Some(isolation.salt(own.as_deref()))
}

/// Where the prompt is repeated in the output (`echo` of completions). Of a chat it is the last message, where that is the assistant's.
fn echo(fields: &Fields<'_>) -> Echo {
    let is_asked = |messages: Raw<'_>| {
        let mut last = None;
        each_item(messages, |message| last = Some(message));
        last.and_then(|last| last.members(["role"])[0]).is_some_and(|role| role.text() == "\"assistant\"")
    };
    if !fields.echo || !fields.prompt.messages.is_none_or(is_asked) {
        return Echo::Off;
    }
    let length = |raw: Raw<'_>| raw.string().map(|text| text.len());
    let mut prompts: SmallVec<[Option<usize>; 1]> = SmallVec::new();
    match prompt_list(fields) {
        // Choices beyond these are not distinguished.
        Some(list) => each_item(list, |prompt| {
            if prompts.len() < MAX_CHOICES {
                prompts.push(length(prompt));
            }
        }),
        None => prompts.push(fields.prompt.prompt.and_then(length)),
    }
    Echo::On { prompts: prompts.as_slice().into(), choices_per_prompt: fields.choices() }
}

/// `n` of each prompt.
fn choices(dialect: Dialect, fields: &Fields<'_>) -> u32 {
    let chats = fields.prompt.messages.filter(|_| dialect == Dialect::ChatBatch);
    let mut prompts = 0u32;
    if let Some(list) = chats.or_else(|| prompt_list(fields)) {
        each_item(list, |_| prompts = prompts.saturating_add(1));
    }
    fields.choices().max(1).saturating_mul(prompts.max(1))
}

/// The list of prompts of completions.
fn prompt_list<'a>(fields: &Fields<'a>) -> Option<Raw<'a>> {
    fields.prompt.prompt.filter(|raw| raw.kind() == JsonKind::Array)
}

/// Visits those of a list of texts, objects or lists; a list of token ids is one prompt, of which this is the first. They are not
/// collected: a body may have ten millions of them.
fn each_item<'a>(list: Raw<'a>, mut visit: impl FnMut(Raw<'a>)) {
    let mut is_first = true;
    // A body that was read is whole JSON; what is no list has no items.
    let _ = list.cursor().array(|items| {
        let item = items.value()?;
        if std::mem::take(&mut is_first) || item.kind() != JsonKind::Number {
            visit(item);
        }
        Ok::<_, JsonError>(())
    });
}

/// The model name as a bounded label: listed by a pool or configured, else `other`.
fn label(route: &RouteState, model: Option<&str>) -> Arc<str> {
    let Some(model) = model else { return "none".into() };
    for pool in &route.pools {
        for replica in pool.replicas().iter() {
            if let Some(known) = replica.engine.models.load().iter().find(|m| &*m.id == model) {
                return Arc::clone(&known.id);
            }
        }
    }
    let asked = route.config.asked_model().filter(|name| ***name == *model);
    asked.cloned().unwrap_or_else(|| "other".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::fields::parse;

    #[test]
    fn a_chat_repeats_the_assistants_last_message_and_no_one_elses() {
        let is_on = |roles: &[&str]| {
            let messages: Vec<_> =
                roles.iter().map(|role| serde_json::json!({"role":role,"content":"x"})).collect();
            let body = serde_json::json!({"echo":true,"messages":messages}).to_string();
            echo(&parse(Dialect::Chat, body.as_bytes()).unwrap()) != Echo::Off
        };
        assert!(is_on(&["user", "assistant"]));
        assert!(!is_on(&["user", "assistant", "user"]) && !is_on(&[]));
    }

    #[test]
    fn a_list_of_many_prompts_is_counted_and_kept_as_far_as_its_choices_are_distinguished() {
        let many = format!(r#"{{"echo":true,"n":2,"prompt":[{}]}}"#, vec![r#""ab""#; 5000].join(","));
        let fields = parse(Dialect::Completions, many.as_bytes()).unwrap();
        assert_eq!(choices(Dialect::Completions, &fields), 10_000);
        let kept = vec![Some(2); MAX_CHOICES].into();
        assert_eq!(echo(&fields), Echo::On { prompts: kept, choices_per_prompt: 2 });
        for (prompt, count, lengths) in [
            (r#"["a","",[1,2]]"#, 3, vec![Some(1), Some(0), None]),
            ("[1,2,3]", 1, vec![None]),
            ("[[1],[2]]", 2, vec![None, None]),
            ("[]", 1, vec![]),
            (r#""abc""#, 1, vec![Some(3)]),
            ("null", 1, vec![None]),
        ] {
            let body = format!(r#"{{"echo":true,"prompt":{prompt}}}"#);
            let fields = parse(Dialect::Completions, body.as_bytes()).unwrap();
            assert_eq!(choices(Dialect::Completions, &fields), count, "{prompt}");
            let expected = Echo::On { prompts: lengths.into(), choices_per_prompt: 1 };
            assert_eq!(echo(&fields), expected, "{prompt}");
        }
    }

    #[test]
    fn what_leaves_something_behind_or_fetches_kv_is_not_copied() {
        for (dialect, body, reason) in [
            (Dialect::Responses, r#"{"input":"x","store":false}"#, None),
            (
                Dialect::Responses,
                r#"{"store":false,"previous_response_id":null,"tools":[{"type":"function"}]}"#,
                None,
            ),
            (Dialect::Responses, r#"{"input":"x"}"#, Some("stored")),
            (Dialect::Responses, r#"{"store":true}"#, Some("stored")),
            (Dialect::Responses, r#"{"store":false,"background":true}"#, Some("stored")),
            (Dialect::Responses, r#"{"store":false,"previous_response_id":"resp_1"}"#, Some("stored")),
            (Dialect::Responses, r#"{"store":false,"tools":[{"type":"mcp"}]}"#, Some("stored")),
            (Dialect::Chat, r#"{"messages":[],"store":true}"#, None),
            (Dialect::Chat, r#"{"kv_transfer\u005fparams":{"a":1}}"#, Some("own_params")),
            (Dialect::Chat, r#"{"kv_transfer_params":null}"#, None),
        ] {
            assert_eq!(why_not_copied(dialect, &parse(dialect, body.as_bytes()).unwrap()), reason, "{body}");
        }
    }
}
