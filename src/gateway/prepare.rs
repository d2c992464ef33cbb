//! Read, identify, classify, admit: from a parsed head to a request that can be routed.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Buf as _;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Version};
use hyper::body::Body as _;

use super::apart;
use super::body_work::BodyWork;
use super::carrier::Carrier;
use super::classify::{Client, classify};
use super::models::{self, unescaped};
use super::prepared::Prepared;
use super::table::{RouteState, RoutingTable, shortened};
use super::{
    Gateway, IncomingRequest, cors, given_request_id, hook, is_harmless_id, objectives, preflights, stored,
};
use crate::admission::{DegradeRule, Demand};
use crate::config::{Degrade, MAX_PRIORITY, ModelMatch};
use crate::error::{Failure, Timer};
use crate::listener::ContinueSignal;
use crate::observe::record_guard::RecordGuard;
use crate::record::{MAX_MODEL_NAME, Record, cut};
use crate::request::body::{self, HeldBody};
use crate::request::cache_salt::Isolation;
use crate::request::dialect::{BodyForm, Computes, Dialect};
use crate::request::fields::{self, FieldError, Fields};
use crate::request::multipart;
use crate::request::rare::Rare;
use crate::request::tenant::{AuthError, TenantRef};
use crate::upstream::headers::{is_looping, is_websocket};

/// Reads the body, then identifies, classifies and admits the request.
///
/// # Errors
/// Every refusal that needs no replica, as a [`Failure`].
pub async fn prepare(
    incoming: &mut IncomingRequest,
    table: Arc<RoutingTable>,
    guard: &mut RecordGuard,
) -> Result<Box<Prepared>, Failure> {
    let IncomingRequest { gateway, parts, rare, body, connection, carrier, .. } = incoming;
    let rare = *rare;
    let is_preflight = cors::is_preflight(parts);
    guard.hides_replicas(table.tenants.ask_for_keys());
    check(gateway, parts, rare, carrier.is_some(), guard.record())?;
    let tenant =
        if is_preflight { TenantRef::anonymous() } else { identify(gateway, &table, guard, parts).await? };
    let limits = table.body_limits;
    let payer = table.tenants.ask_for_keys().then(|| tenant.name());
    let charge = gateway.memory.open(Some(&connection.bodies), payer);
    if let Some(signal) = parts.extensions.get::<ContinueSignal>()
        && body.as_ref().is_some_and(|body| body.size_hint().lower() <= limits.size as u64)
    {
        signal.send();
    }
    let held = match body.as_mut() {
        // What asks whether a request may be sent carries none of it, and no key.
        Some(body) if !is_preflight => {
            body::read(body, charge, limits, gateway.clock, guard.record().at.head).await?
        }
        _ => HeldBody::empty(),
    };
    // Drops hyper's body handle; the bytes are in `held`.
    *body = None;
    let (record, read) = (guard.record(), gateway.clock.now());
    record.at.read = Some(read);
    record.bytes_in = held.bytes.len() as u64;
    let dialect = record.dialect;
    let is_json = dialect.body_form() == BodyForm::Json;
    let boundary = if is_json { None } else { multipart::boundary(&parts.headers) };
    let slo_class = if rare.has(Rare::SLO_CLASS) { text(&parts.headers, &X_SLO_CLASS) } else { None };
    let request = ReadRequest {
        gateway: Arc::clone(gateway),
        table,
        tenant: tenant.clone(),
        dialect,
        uri: parts.uri.clone(),
        slo_class: slo_class.map(|class| class.into()),
        has_priority: rare.has(Rare::VLLM_PRIORITY),
        boundary: boundary.map(str::to_owned),
        is_preflight,
        carrier: carrier.clone(),
        held,
    };
    if dialect == Dialect::StoredResponse {
        // Seldom: boxed, so that other requests are no larger for it.
        Box::pin(stored::fetch(gateway, &tenant, stored::id_of(parts.uri.path()))).await?;
    }
    let bytes = request.held.bytes.len();
    let work = move || {
        let mut seen = Understood::default();
        let result = request.understand(&mut seen);
        (seen, result)
    };
    let (seen, result) = match BodyWork::is_at_once(bytes) {
        true => work(),
        // Boxed: few bodies are so large, and every request would have room for the work.
        false => Box::pin(gateway.body_work.run(tenant.name(), bytes, work)).await?,
    };
    let record = guard.record();
    record.requested_model = seen.requested_model;
    // A body's own id stands where no header overrides it, as in vLLM.
    if let Some(id) = seen.request_id.filter(|_| given_request_id(&parts.headers).is_none()) {
        record.request_id = id;
    }
    result?;
    record.degraded_from = seen.degraded_from;
    let mut prepared = seen.prepared.ok_or(Failure::Internal)?;
    prepared.note(record);
    if let Some(id) = seen.previous {
        Box::pin(stored::fetch(gateway, &tenant, &id)).await?;
        prepared.pinned = Some(stored::previous(gateway, &tenant, &prepared.route, &id)?);
    }
    prepared.read = read;
    if is_preflight {
        prepared.timeouts.total = prepared.timeouts.total.min(preflights::MAX_TIME);
        return admit(gateway, prepared, guard, &tenant, &parts.headers, rare).await;
    }
    prepared.is_sent_once |= dialect == Dialect::Extra && !parts.method.is_safe();
    hook::capture(gateway, &prepared, guard);
    let prepared = admit(gateway, prepared, guard, &tenant, &parts.headers, rare).await?;
    hook::ask(gateway, &prepared, guard, parts).await?;
    Ok(prepared)
}

/// A request whose body was read, on its way to what reads and hashes it.
struct ReadRequest {
    gateway: Arc<Gateway>,
    table: Arc<RoutingTable>,
    tenant: TenantRef,
    dialect: Dialect,
    uri: http::Uri,
    slo_class: Option<Box<str>>,
    has_priority: bool,
    /// Of a form.
    boundary: Option<String>,
    is_preflight: bool,
    carrier: Option<Arc<dyn Carrier>>,
    held: HeldBody,
}

/// What a body says.
#[derive(Default)]
struct Understood {
    requested_model: Option<Box<str>>,
    /// The body's own `request_id`.
    request_id: Option<Arc<str>>,
    prepared: Option<Box<Prepared>>,
    /// The route that was asked, where another one answers because it made what is continued.
    degraded_from: Option<Arc<str>>,
    /// `previous_response_id` that this gateway does not know.
    previous: Option<Box<str>>,
}

impl ReadRequest {
    /// Parses the body, finds its route and makes what is sent upstream. `seen` gets what is known, also of a failure.
    fn understand(mut self, seen: &mut Understood) -> Result<(), Failure> {
        let (gateway, table, tenant, dialect) = (&self.gateway, &self.table, &self.tenant, self.dialect);
        // RFC 8259, section 8.1: a parser may ignore it, and engines do.
        if dialect.body_form() == BodyForm::Json && self.held.bytes.starts_with(BYTE_ORDER_MARK) {
            self.held.bytes.advance(BYTE_ORDER_MARK.len());
        }
        let mut fields = match read_fields(dialect, self.boundary.as_deref(), &self.held.bytes) {
            // Where there is one model, the engine may find in a body what it can.
            Err(error)
                if dialect.body_form() != BodyForm::Json
                    && !matches!(error, FieldError::Duplicate { .. })
                    && !table.has_several_models() =>
            {
                Fields::default()
            }
            read => read.map_err(bad_field)?,
        };
        if dialect == Dialect::Realtime {
            // It has no body: what follows the handshake is between client and engine.
            fields.model = query_model(&self.uri)?.map(Cow::Owned);
        }
        seen.requested_model = fields.model.as_deref().map(|name| cut(name, MAX_MODEL_NAME).into());
        seen.request_id = fields
            .request_id
            .and_then(|raw| raw.string())
            .filter(|id| is_harmless_id(id))
            .map(|id| (&*id).into());
        let (route, stored) = match dialect {
            _ if self.is_preflight => (table.some_route().ok_or(Failure::Internal)?, None),
            Dialect::Extra if models::is_path(self.uri.path()) => {
                (table.some_route().ok_or(Failure::Internal)?, None)
            }
            Dialect::StoredResponse => {
                let (route, replica) = stored::of_path(gateway, tenant, table, self.uri.path())?;
                (route, Some(replica))
            }
            _ => (find_route(table, tenant, dialect, &fields)?, None),
        };
        if dialect == Dialect::Embeddings
            && self.uri.path().ends_with(COHERE_EMBED)
            && tenant.isolation().is_some()
            && route.takes_cache_salt()
        {
            return Err(Failure::bad_request(NO_SALT, None));
        }
        if fields.names_kv && tenant.isolation().is_some() {
            return Err(Failure::bad_request(NO_OWN_KV, Some("kv_transfer_params")));
        }
        if fields.is_ambiguous && tenant.isolation().is_some() {
            return Err(Failure::bad_request(NO_TWO_NAMES, None));
        }
        let stood_in = fields
            .previous_response_id
            .as_deref()
            .and_then(|id| stored::stood_in(gateway, tenant, table, route, id));
        seen.degraded_from = stood_in.map(|_| Arc::clone(&route.config.name));
        let model = stood_in.map_or_else(|| route.engine_model(), |to| to.model_in_place());
        let route = stood_in.unwrap_or(route);
        let client = Client {
            tenant,
            slo_class: self.slo_class.as_deref(),
            has_priority: self.has_priority,
            gets_answer_here: self.carrier.as_ref().is_none_or(|carrier| carrier.returns_answer()),
        };
        let mut prepared = classify(table, route, dialect, &fields, model, &self.held.bytes, client);
        if prepared.prompt.names_media && tenant.isolation().is_some() {
            return Err(Failure::bad_request(NO_OWN_MEDIA, Some("uuid")));
        }
        prepared.pinned = match fields.previous_response_id.as_deref() {
            Some(id) => stored::previous(gateway, tenant, route, id)
                .inspect_err(|_| seen.previous = Some(id.into()))
                .ok(),
            None => stored,
        };
        drop(fields);
        // A stored response exists on its own replica only.
        let may_move =
            prepared.pinned.is_none() && seen.previous.is_none() && dialect.body_form() == BodyForm::Json;
        prepared.rules.degrade = degrade_rule(route, table, tenant).filter(|_| may_move);
        (prepared.carrier, prepared.held) = (self.carrier, self.held);
        seen.prepared = Some(prepared);
        Ok(())
    }
}

/// `[route.degrade]`, where the tenant may use the other route.
fn degrade_rule(route: &RouteState, table: &RoutingTable, tenant: &TenantRef) -> Option<DegradeRule> {
    let Degrade { to, over, .. } = *route.config.degrade.as_ref()?;
    let other = table.routes.get(to)?;
    other.is_visible_to(tenant).then_some(DegradeRule { to, over })
}

fn check(
    gateway: &Gateway,
    parts: &Parts,
    rare: Rare,
    is_carried: bool,
    record: &Record,
) -> Result<(), Failure> {
    let allow = record.dialect.allowed(&record.path);
    let mut allowed = allow.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    if !allowed.any(|method| method == parts.method.as_str().as_bytes()) {
        return Err(Failure::MethodNotAllowed { allow });
    }
    body::check_host(parts.version, &parts.uri, &parts.headers)?;
    if rare.has(Rare::CODINGS) {
        body::check_codings(parts.version, &parts.headers)?;
    }
    // HTTP/1.0 has no upgrades (RFC 9110 §7.8).
    let upgrades =
        rare.has(Rare::CONNECTION) && parts.version >= Version::HTTP_11 && is_websocket(&parts.headers);
    match (record.dialect, upgrades) {
        (Dialect::Realtime, _) if is_carried && !cors::is_preflight(parts) => {
            return Err(Failure::UpgradeNotCarried);
        }
        (Dialect::Realtime, false) if !cors::is_preflight(parts) => return Err(Failure::UpgradeRequired),
        (Dialect::Realtime, _) | (_, false) => {}
        (_, true) => return Err(Failure::UpgradeNotSupported),
    }
    if rare.has(Rare::VIA) && is_looping(&parts.headers, &gateway.via) {
        return Err(Failure::Loop);
    }
    if gateway.drain.refuses() { Err(Failure::Draining) } else { Ok(()) }
}

async fn identify(
    gateway: &Gateway,
    table: &RoutingTable,
    guard: &mut RecordGuard,
    parts: &Parts,
) -> Result<TenantRef, Failure> {
    let head = gateway.clock.wall(guard.record().at.head);
    let mut tenant = tenant_of(table, parts, head);
    if renew_keys(table, &tenant).await {
        tenant = tenant_of(table, parts, gateway.wall_now());
    }
    let tenant = tenant.map_err(|fault| fault.failure())?;
    let record = guard.record();
    record.tenant = Arc::clone(tenant.name());
    if let Some(key) = tenant.key_name() {
        record.key = key;
    }
    Ok(tenant)
}

/// Asks the issuer for its keys where a token names one that is not known: it may have rotated them. Returns whether it was asked.
pub(super) async fn renew_keys(table: &RoutingTable, tenant: &Result<TenantRef, AuthError>) -> bool {
    let is_unknown = tenant.as_ref().is_err_and(AuthError::wants_keys);
    if is_unknown {
        Box::pin(table.tenants.tokens().refreshed()).await;
    }
    is_unknown
}

/// Who asks: by a trusted header, else by certificate, key or token.
pub(super) fn tenant_of(
    table: &RoutingTable,
    parts: &Parts,
    now: SystemTime,
) -> Result<TenantRef, AuthError> {
    let names = &table.config.server.trust_headers;
    let mut trusted = names.iter().flat_map(|name| parts.headers.get_all(name));
    match (trusted.next(), trusted.next()) {
        (Some(_), Some(_)) if table.tenants.ask_for_keys() => Err(AuthError::SeveralNames),
        (Some(name), None) if table.tenants.ask_for_keys() => {
            table.tenants.named(name.as_bytes()).ok_or(AuthError::UntrustedName)
        }
        _ => table.tenants.identify(parts, now),
    }
}

/// The fields of a body of any form. What follows its content type on an opaque path is known to the engine alone: JSON may stand
/// where the type says form.
pub(super) fn read_fields<'b>(
    dialect: Dialect,
    boundary: Option<&str>,
    body: &'b [u8],
) -> Result<Fields<'b>, FieldError> {
    let mut fields = match (dialect.body_form(), boundary) {
        _ if body.is_empty() => Fields::default(),
        (BodyForm::Json, _) | (BodyForm::Opaque, None) => fields::parse(dialect, body)?,
        (BodyForm::Multipart, boundary) => multipart::parse(boundary.unwrap_or_default(), body)?,
        (BodyForm::Opaque, Some(boundary)) => multipart::parse(boundary, body).or_else(|error| {
            if body.trim_ascii_start().starts_with(b"{") { fields::parse(dialect, body) } else { Err(error) }
        })?,
    };
    if !dialect.is_stateful() {
        // SDKs send `store` with chats, too: elsewhere engines keep nothing.
        (fields.previous_response_id, fields.is_stored) = (None, false);
    }
    Ok(fields)
}

/// `model` of a query.
fn query_model(uri: &http::Uri) -> Result<Option<String>, Failure> {
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    // As the engine decodes a query: `+` is a space, in names as in values.
    let decoded = |text: &str| unescaped(&text.replace('+', " "));
    let mut models = pairs.filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name) == "model").then_some(value)
    });
    match (models.next(), models.next()) {
        (_, Some(_)) => Err(bad_field(FieldError::Duplicate { field: "model" })),
        (model, None) => Ok(model.map(decoded)),
    }
}

fn bad_field(error: FieldError) -> Failure {
    Failure::bad_request(error.to_string(), error.param())
}

fn find_route<'t>(
    table: &'t RoutingTable,
    tenant: &TenantRef,
    dialect: Dialect,
    fields: &Fields<'_>,
) -> Result<&'t Arc<RouteState>, Failure> {
    let Some(model) = fields.named_model() else {
        let route = table.unnamed_route(tenant)?;
        return match route.model_to_name().filter(|_| cannot_be_given_a_model(dialect, fields)) {
            Some(model) => Err(Failure::MissingModel { routes: shortened(&model) }),
            None => Ok(route),
        };
    };
    table.route_for(tenant, model).ok_or_else(|| Failure::ModelNotFound { model: shortened(model) })
}

/// Whether a request names no model and has no place where one can be written.
fn cannot_be_given_a_model(dialect: Dialect, fields: &Fields<'_>) -> bool {
    let has_no_place = match dialect.body_form() {
        BodyForm::Json => false,
        BodyForm::Multipart => fields.model_at.is_none(),
        BodyForm::Opaque => dialect == Dialect::Realtime,
    };
    fields.named_model().is_none() && has_no_place
}

/// Applies the client's permitted headers and its SLO class; refuses a suspected poison, and what its tenant has no
/// allowance for.
async fn admit(
    gateway: &Gateway,
    mut prepared: Box<Prepared>,
    guard: &mut RecordGuard,
    tenant: &TenantRef,
    headers: &HeaderMap,
    rare: Rare,
) -> Result<Box<Prepared>, Failure> {
    let route = Arc::clone(&prepared.route);
    if route.config.client_may.timeout
        && let Some(requested) = seconds(headers, &X_REQUEST_TIMEOUT)?
    {
        prepared.end_within(requested, Timer::Asked);
    }
    let table = &prepared.table;
    let requested = route.config.client_may.slo_class.then(|| text(headers, &X_SLO_CLASS)).flatten();
    let class = match requested {
        Some(name) => table
            .config
            .slo
            .get_key_value(&*name)
            .map(|(known, _)| Arc::clone(known))
            .ok_or_else(|| Failure::bad_request("x-slo-class names no SLO class of this gateway", None))?,
        None => Arc::clone(&route.config.slo),
    };
    // The bounds are those of answers.
    if !guard.record().dialect.is_tunnel() {
        prepared.apply_slo(&class);
    }
    // Whoever may not choose a number may not choose a name for one.
    let may_choose = route.config.client_may.priority || !prepared.table.tenants.ask_for_keys();
    if may_choose && let Some(priority) = objectives::priority(gateway, &route, headers) {
        prepared.share.priority = priority;
    }
    if route.config.client_may.priority
        && let Some(requested) = text(headers, &X_PRIORITY)
    {
        prepared.share.priority = priority(&requested)?;
    }
    let record = guard.record();
    record.slo = prepared.slo;
    record.slo_class = class;
    record.stage_budget.clone_from(&route.config.stage_budget);
    guard.watch_bounds();
    let scope = tenant.isolation().map_or(0, Isolation::scope);
    let session = if rare.has(Rare::SESSION_ID) { headers.get(X_SESSION_ID) } else { None };
    prepared.session = session.map(|id| prepared.table.seed.hash(id.as_bytes()) ^ scope);
    guard.record().conversation = prepared.conversation();
    let mut now = gateway.clock.now();
    let here = route.pools.iter().find_map(|pool| pool.poison.refused_for(prepared.identity, now));
    if let Some(left) = here.or_else(|| apart::refused_for(&mut prepared, now)) {
        return Err(Failure::SuspectedPoison { retry_after: left });
    }
    let is_counted = prepared.prompt.size.exact_tokens.is_some();
    let model = model_name(&prepared);
    let demand = Demand {
        tokens: prepared.tokens,
        is_counted,
        output: prepared.output,
        is_output_bounded: prepared.is_output_bounded,
        is_free: prepared.computes == Computes::Nothing,
        model: &model,
        key: tenant.key(),
        wall: gateway.clock.wall(now),
    };
    let mut admission = gateway.tenants.admit(tenant.config(), &demand, now);
    if admission.permit.is_err() && Box::pin(gateway.tenants.looked(tenant.config(), &demand)).await {
        now = gateway.clock.now();
        admission = gateway.tenants.admit(tenant.config(), &demand, now);
    }
    guard.record().rate_limits = admission.limits;
    guard.permit(admission.permit?);
    guard.record().at.admitted = Some(now);
    Ok(prepared)
}

/// What the client asks for, as budgets name it; a label would be `other` where no engine lists it. A request without a model asks for
/// the one that an engine takes then.
fn model_name(prepared: &Prepared) -> Arc<str> {
    match &prepared.route.config.model {
        ModelMatch::Named(model) => Arc::clone(model),
        ModelMatch::Any => {
            let asked = prepared.model.clone();
            asked.or_else(|| prepared.route.first_listed()).unwrap_or_else(|| NO_MODEL.into())
        }
    }
}

fn priority(requested: &str) -> Result<i32, Failure> {
    let known = requested.trim().parse().ok().filter(|n| (-MAX_PRIORITY..=MAX_PRIORITY).contains(n));
    known.ok_or_else(|| {
        let message = format!(
            "x-priority must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}; higher ones go first"
        );
        Failure::bad_request(message, None)
    })
}

fn seconds(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Duration>, Failure> {
    let Some(value) = text(headers, name) else { return Ok(None) };
    match value.parse::<f64>() {
        // More than a duration holds is longer than anything else.
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => {
            Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
        }
        _ => Err(Failure::bad_request(format!("{name} must be a positive number of seconds"), None)),
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<Cow<'h, str>> {
    headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()))
}

/// Of a request without one.
const NO_MODEL: &str = "none";
/// Of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Its body has no `cache_salt`, and engines that are asked by it share what they cached.
const COHERE_EMBED: &str = "/v2/embed";
/// Blocks of an engine are named by number, which no salt guards.
const NO_OWN_KV: &str = "cache_isolation: this tenant's requests may not name KV of other engines (kv_transfer_params, ec_transfer_params, bootstrap_host, bootstrap_port, bootstrap_room); leave it out";
const NO_OWN_MEDIA: &str = "cache_isolation: this tenant's requests may not name media by uuid, which all tenants share; leave it out";
const NO_TWO_NAMES: &str = "cache_isolation: this tenant's requests may give a query or documents by one name each; leave the others out";
const NO_SALT: &str = "cache_isolation: /v2/embed has no cache_salt that would keep this tenant's texts apart; use /v1/embeddings";
const X_PRIORITY: HeaderName = HeaderName::from_static("x-priority");
const X_REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");
const X_SLO_CLASS: HeaderName = HeaderName::from_static("x-slo-class");
const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
