//! `/keys`: lists, makes and revokes API keys at run time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use super::moment::Moment;
use super::query::{Admin, Answer, Asked, Sent};
use crate::api::keys::{Key, KeyMade, KeyOrder, Keys};
use crate::clock::{since_epoch, wall_second};
use crate::config::{Budget, Config, Declared as _, NO_LIMIT, Route, Tenant, budgets_of, parse_name};
use crate::identity::{KeyError, KeyStore};
use crate::observe::rfc3339;
use crate::request::api_keys::ApiKey;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    tenant: Option<String>,
}

pub(super) async fn list(State(admin): Admin, Asked(query): Asked<KeysQuery>) -> Answer<Keys> {
    let (config, now) = (admin.control.config(), admin.now());
    let is_asked = |key: &&Arc<ApiKey>| query.tenant.as_deref().is_none_or(|tenant| *key.tenant == *tenant);
    let keys = admin.keys.all();
    Ok(Json(Keys { keys: keys.iter().filter(is_asked).map(|key| shown(key, &config, now)).collect() }))
}

pub(super) async fn make(
    State(admin): Admin,
    Sent(body): Sent,
) -> Result<(StatusCode, Json<KeyMade>), AdminError> {
    let order: KeyOrder =
        serde_json::from_slice(&body).map_err(|error| AdminError::InvalidKey(error.to_string()))?;
    let (config, now) = (admin.control.config(), admin.now());
    let key = ordered(order, &config, now)?;
    let (secret, key) = change(&admin, move |keys| keys.make(key)).await?;
    let (key, kept) = (shown(&key, &config, now), admin.keys.is_kept());
    let expires = key.expires.as_deref().unwrap_or("never");
    tracing::info!(tenant = key.tenant, key = key.name, expires, "an API key was made");
    Ok((StatusCode::CREATED, Json(KeyMade { key, kept, secret: secret.reveal().to_owned() })))
}

pub(super) async fn revoke(State(admin): Admin, Path((tenant, name)): Path<(String, String)>) -> Answer<Key> {
    let now = since_epoch(admin.now()).as_secs();
    let key = change(&admin, move |keys| keys.revoke(&tenant, &name, now)).await?;
    tracing::info!(tenant = %key.tenant, key = %key.name, "an API key was revoked");
    let key = shown(&key, &admin.control.config(), admin.now());
    Ok(Json(Key { state: "revoked".to_owned(), ..key }))
}

/// It waits for the disk.
async fn change<T: Send + 'static>(
    admin: &AdminState,
    change: impl FnOnce(&KeyStore) -> Result<T, KeyError> + Send + 'static,
) -> Result<T, AdminError> {
    let keys = Arc::clone(&admin.keys);
    let done = tokio::task::spawn_blocking(move || change(&keys)).await.map_err(|_| AdminError::Panicked)?;
    done.map_err(|error| match error {
        KeyError::NameTaken { .. } => AdminError::NameTaken(error.to_string()),
        KeyError::Unknown { .. } => AdminError::UnknownKey(error.to_string()),
        KeyError::TooMany => AdminError::InvalidKey(error.to_string()),
        KeyError::NotKept { .. } | KeyError::Unread { .. } => AdminError::NotKept(error.to_string()),
    })
}

fn ordered(order: KeyOrder, config: &Config, now: SystemTime) -> Result<ApiKey, AdminError> {
    let invalid = AdminError::InvalidKey;
    let tenant = config.tenants.iter().find(|tenant| *tenant.name == *order.tenant).ok_or_else(|| {
        let known: Vec<_> = config.tenants.iter().map(|tenant| &*tenant.name).take(MAX_NAMED).collect();
        let known = if known.is_empty() { NO_TENANT.to_owned() } else { known.join(", ") };
        AdminError::UnknownTenant(order.tenant.clone(), known)
    })?;
    let name = order.name.as_deref().map(parse_name).transpose().map_err(invalid)?;
    if name.as_ref().is_some_and(|name| name.contains('/') || **name == *"none") {
        return Err(invalid("a key's name has no slash and is not \"none\"".to_owned()));
    }
    let routes =
        order.routes.map(|routes| routes.into_iter().map(|name| route(name, tenant, config)).collect());
    let routes: Option<Vec<Arc<str>>> = routes.transpose()?;
    let budgets = budgets_of(&order.budget).map_err(|error| invalid(format!("budget: {error}")))?;
    if !budgets.iter().all(Budget::has_limit) {
        return Err(invalid(format!("budget: {NO_LIMIT}")));
    }
    let is_usable = |route: &&Route| {
        [&tenant.routes, &routes].into_iter().flatten().all(|names| names.contains(&route.name))
    };
    let is_served = |model: &str| {
        let mut usable = config.routes.iter().filter(is_usable);
        usable.any(|route| route.model.named().is_none_or(|named| **named == *model))
    };
    if let Some(model) =
        budgets.iter().filter_map(|budget| budget.model.as_deref()).find(|model| !is_served(model))
    {
        return Err(invalid(format!("budget: no route that the key may use takes model {model}")));
    }
    let expires = order.expires.map(|text| expiry(&text, now)).transpose()?;
    Ok(ApiKey {
        tenant: Arc::clone(&tenant.name),
        name: name.unwrap_or_default(),
        routes,
        budgets,
        created: since_epoch(now).as_secs(),
        expires,
    })
}

/// The name of a route that its tenant may use, given by name, or by model where no route has that name.
fn route(name: String, tenant: &Tenant, config: &Config) -> Result<Arc<str>, AdminError> {
    let route = Route::position(&config.routes, &name).and_then(|at| config.routes.get(at));
    let route =
        route.ok_or_else(|| AdminError::InvalidKey(format!("no route has the name or model {name}")))?;
    if tenant.routes.as_ref().is_some_and(|own| !own.contains(&route.name)) {
        return Err(AdminError::InvalidKey(format!("tenant {} may not use route {name}", tenant.name)));
    }
    Ok(Arc::clone(&route.name))
}

fn expiry(text: &str, now: SystemTime) -> Result<u64, AdminError> {
    let at = match Moment::parse(text).map_err(|error| AdminError::InvalidKey(format!("expires: {error}")))? {
        Moment::Away(duration) => now + duration,
        Moment::At(at) => at,
    };
    if at <= now {
        return Err(AdminError::InvalidKey(format!("expires: {text} is over already")));
    }
    // A part of a second is rounded up: a second is one.
    Ok(since_epoch(at + Duration::from_nanos(999_999_999)).as_secs())
}

fn shown(key: &ApiKey, config: &Config, now: SystemTime) -> Key {
    let time = |seconds: u64| rfc3339::seconds(wall_second(seconds));
    let has_tenant = config.tenants.iter().any(|tenant| tenant.name == key.tenant);
    let state = match () {
        () if key.has_expired(now) => "expired",
        () if !has_tenant => "unknown_tenant",
        () => "valid",
    };
    Key {
        budget: key.budgets.iter().map(Budget::view).collect(),
        created: time(key.created),
        expires: key.expires.map(time),
        name: key.name.to_string(),
        routes: key.routes.as_ref().map(|routes| routes.iter().map(|route| route.to_string()).collect()),
        state: state.to_owned(),
        tenant: key.tenant.to_string(),
    }
}

const NO_TENANT: &str = "none; add [[tenant]] name = \"…\", key_sha256 = [] to the file";
/// Tenants in a message.
const MAX_NAMED: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_with_pool;

    #[test]
    fn a_word_is_the_route_of_that_name_before_it_is_a_model() {
        let text = "[[route]]\nname = \"chat\"\nmodel = \"big\"\n[[route]]\nname = \"big\"\nmodel = \"small\"\n\
                    [[tenant]]\nname = \"t\"\nkey_sha256 = []\nroutes = [\"big\"]\n[[tenant]]\nname = \"all\"\nkey_sha256 = []\n";
        let config = check_with_pool(text).unwrap();
        let [limited, all] = config.tenants.as_slice() else { panic!("two tenants") };
        assert!(limited.routes.as_ref().is_some_and(|routes| routes.iter().eq([&Arc::from("big")])));
        for (word, found) in [("big", "big"), ("small", "big"), ("chat", "chat")] {
            assert_eq!(&*route(word.to_owned(), all, &config).unwrap(), found, "{word}");
            assert_eq!(route(word.to_owned(), limited, &config).is_ok(), found == "big", "{word}");
        }
    }
}
