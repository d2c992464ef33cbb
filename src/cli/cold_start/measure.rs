//! The measurement: warm requests, no replica, the first request, warm requests again.

use std::io;
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;
use tokio_util::task::TaskTracker;

use super::ask::{AskFailure, Asker};
use super::report::Report;
use super::{ColdStartArgs, Say};
use crate::api::fleet::{Fleet, Replica};
use crate::cli::admin_client::{AdminClient, AskError, endpoint};
use crate::clock::Clock;
use crate::config::{Endpoint, Secret};
use crate::upstream::connect::Connector;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeasureError {
    #[error(transparent)]
    Admin(AskError),
    #[error("give the URL of a gateway's admin port, or --sim")]
    NoGateway,
    #[error(
        "no route has a pool that scales to zero: [pool.scale] min_replicas = 0 lets the first request wait"
    )]
    NothingScalesToZero,
    #[error("several routes have a pool that scales to zero: name one with --route ({0})")]
    Several(String),
    #[error("route {0} is not known, or another pool of it never scales to zero")]
    UnknownRoute(String),
    #[error("route {0} takes every model: name one with --model")]
    NoModel(String),
    #[error("where the data port is cannot be read from the gateway: {0}; give it with --data")]
    NoData(String),
    #[error("no replica of {0} is ready before the measurement: there is nothing to scale down")]
    NothingThere(String),
    #[error("{what} is still so after {within:?}: {now}")]
    Late { what: &'static str, within: Duration, now: String },
    #[error("`{0}` failed: {1}")]
    Command(String, String),
    #[error("{0}")]
    Ask(#[from] AskFailure),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Takes replicas away, and brings them back.
pub(super) trait Scaling {
    /// Takes them away; at least begins to.
    async fn down(&self) -> Result<(), MeasureError>;
    /// Brings them back.
    async fn up(&self) -> Result<(), MeasureError>;
    /// Who does it, for people.
    fn who(&self) -> String;
}

/// Commands of the operator; without one an autoscaler does it.
pub(super) struct Commands {
    pub(super) down: Option<String>,
    pub(super) up: Option<String>,
}

impl Scaling for Commands {
    async fn down(&self) -> Result<(), MeasureError> {
        shell(self.down.as_deref()).await
    }

    async fn up(&self) -> Result<(), MeasureError> {
        shell(self.up.as_deref()).await
    }

    fn who(&self) -> String {
        self.down.as_ref().map_or_else(|| "the autoscaler".to_owned(), |command| format!("`{command}`"))
    }
}

async fn shell(command: Option<&str>) -> Result<(), MeasureError> {
    let Some(command) = command else { return Ok(()) };
    let command = command.to_owned();
    let failed = |command: &str, why: String| MeasureError::Command(command.to_owned(), why);
    let line = command.clone();
    let run = move || Command::new("sh").arg("-c").arg(line).output();
    match tokio::task::spawn_blocking(run).await {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let shown = String::from_utf8_lossy(&output.stderr);
            Err(failed(&command, format!("{}: {}", output.status, shown.trim())))
        }
        Ok(Err(error)) => Err(failed(&command, error.to_string())),
        Err(error) => Err(failed(&command, error.to_string())),
    }
}

/// What is measured.
pub(super) struct Subject {
    client: AdminClient,
    asker: Asker,
    route: String,
    pools: Vec<String>,
    within: Duration,
}

impl Subject {
    /// The route that scales to zero, and how to ask it.
    pub(super) async fn find(
        client: AdminClient,
        args: &ColdStartArgs,
        admin: &Endpoint,
        key: Option<Secret>,
    ) -> Result<Self, MeasureError> {
        let config = client.get("/api/v1/config").await?;
        let scaling = scaling_routes(&config);
        let (route, model) = match (&args.route, &scaling[..]) {
            (Some(name), all) => all
                .iter()
                .find(|(route, _)| route == name)
                .ok_or_else(|| MeasureError::UnknownRoute(name.clone()))?,
            (None, [only]) => only,
            (None, []) => return Err(MeasureError::NothingScalesToZero),
            (None, all) => {
                let names: Vec<_> = all.iter().map(|(route, _)| route.as_str()).collect();
                return Err(MeasureError::Several(names.join(", ")));
            }
        };
        let given = args.model.clone().or_else(|| (model != "*").then(|| model.clone()));
        let model = given.ok_or_else(|| MeasureError::NoModel(route.clone()))?;
        let data = match &args.gateway.data {
            Some(data) => data.clone(),
            None => data_port(&config, admin)?,
        };
        let connector = Connector::new(TaskTracker::new())?;
        let asker = Asker { data, key, model, connector, clock: Clock::start() };
        let pools = pools_of(&config, route);
        Ok(Self { client, asker, route: route.clone(), pools, within: args.within })
    }

    /// Measures; `say` gets what happens.
    pub(super) async fn measure(&self, scaling: &impl Scaling, say: Say<'_>) -> Result<Report, MeasureError> {
        let ready = self.ready().await?;
        if ready == 0 {
            return Err(MeasureError::NothingThere(self.route.clone()));
        }
        say(&format!("route {}, model {}: {ready} ready", self.route, self.asker.model))?;
        let warm_before = self.warm().await?;
        say(&format!("{} is to take them away", scaling.who()))?;
        let clock = self.asker.clock;
        let from = clock.now();
        scaling.down().await?;
        self.gone().await?;
        let gone_after = clock.now().since(from);
        say(&format!("none is ready after {:.1} s: sending the first request", gone_after.as_secs_f64()))?;
        let asking = self.asker.ask(self.within);
        tokio::pin!(asking);
        // Sent first, because an autoscaler may act by it; both arms are cancel-safe, and what is left is polled on.
        let early = tokio::select! {
            biased;
            first = &mut asking => Some(first),
            () = tokio::time::sleep(SENT_AFTER) => None,
        };
        let first = match early {
            Some(first) => first?,
            None => {
                let (up, first) = tokio::join!(scaling.up(), asking);
                up?;
                first?
            }
        };
        let measured = self.cold_start().await?;
        let warm_after = self.warm().await?;
        Ok(Report {
            route: self.route.clone(),
            model: self.asker.model.clone(),
            warm_before,
            gone_after,
            head: first.head,
            first_token: first.first_token,
            measured,
            warm_after,
        })
    }

    /// Median TTFT of a few requests.
    async fn warm(&self) -> Result<Duration, MeasureError> {
        let mut all = Vec::new();
        for _ in 0..WARM_REQUESTS {
            all.push(self.asker.ask(self.within).await?.first_token);
        }
        all.sort_unstable();
        Ok(all.get(all.len() / 2).copied().unwrap_or_default())
    }

    /// Waits until no replica is ready.
    async fn gone(&self) -> Result<(), MeasureError> {
        let clock = self.asker.clock;
        let from = clock.now();
        loop {
            let ready = self.ready().await?;
            if ready == 0 {
                return Ok(());
            }
            if clock.now().since(from) > self.within {
                let now = format!("{ready} of route {} are ready", self.route);
                return Err(MeasureError::Late { what: "a ready replica", within: self.within, now });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The ready replicas of the route.
    async fn replicas(&self) -> Result<Vec<Replica>, MeasureError> {
        let mut fleet: Fleet = self.client.get("/api/v1/fleet").await?;
        fleet.replicas.retain(|replica| replica.state == "ready" && self.pools.contains(&replica.pool));
        Ok(fleet.replicas)
    }

    async fn ready(&self) -> Result<usize, MeasureError> {
        Ok(self.replicas().await?.len())
    }

    /// The shortest cold start that replicas which are ready now had last: that of the one that answered first.
    async fn cold_start(&self) -> Result<Option<Duration>, MeasureError> {
        let replicas = self.replicas().await?;
        let cold = replicas.iter().filter_map(|replica| replica.life.last_cold_start);
        Ok(cold.min_by(f64::total_cmp).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }
}

/// Routes all of whose pools may scale to zero, with their models.
fn scaling_routes(config: &Json) -> Vec<(String, String)> {
    let scales = |name: &Json| {
        let pool = list(&config["pool"]).iter().find(|pool| pool["name"] == *name);
        pool.is_some_and(|pool| pool["scale"]["min_replicas"] == 0)
    };
    let is_it = |route: &&Json| {
        let pools = list(&route["pools"]);
        !pools.is_empty() && pools.iter().all(|pool| scales(&pool["pool"]))
    };
    let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
    let routes = list(&config["route"]).iter().filter(is_it);
    routes.map(|route| (text(&route["name"]), text(&route["model"]))).collect()
}

fn pools_of(config: &Json, route: &str) -> Vec<String> {
    let route = list(&config["route"]).iter().find(|known| known["name"] == route);
    let pools = route.map(|route| list(&route["pools"])).unwrap_or_default();
    pools.iter().filter_map(|pool| Some(pool["pool"].as_str()?.to_owned())).collect()
}

/// `server.listen`, at the host where the admin port is reached if it is every address there.
fn data_port(config: &Json, admin: &Endpoint) -> Result<Endpoint, MeasureError> {
    let server = &config["server"];
    let listen = server["listen"].as_str().unwrap_or_default();
    let address: std::net::SocketAddr =
        listen.parse().map_err(|_| MeasureError::NoData(format!("server.listen is {listen:?}")))?;
    let scheme = if server["tls"].is_null() { "http" } else { "https" };
    let reached = Endpoint { port: address.port(), ..admin.clone() };
    let authority = if address.ip().is_unspecified() { reached.authority() } else { address.to_string() };
    endpoint(&format!("{scheme}://{authority}")).map_err(MeasureError::NoData)
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map(Vec::as_slice).unwrap_or_default()
}

const WARM_REQUESTS: usize = 5;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// By then the request is with the gateway.
const SENT_AFTER: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Json {
        json!({
            "server": { "listen": "0.0.0.0:8080", "tls": null },
            "pool": [
                { "name": "a", "scale": { "min_replicas": 0 } },
                { "name": "b", "scale": { "min_replicas": 1 } },
            ],
            "route": [
                { "name": "one", "model": "m", "pools": [{ "pool": "a" }] },
                { "name": "two", "model": "*", "pools": [{ "pool": "a" }, { "pool": "b" }] },
            ],
        })
    }

    #[test]
    fn the_route_is_the_one_whose_pools_all_scale_to_zero() {
        assert_eq!(scaling_routes(&config()), [("one".to_owned(), "m".to_owned())]);
        assert_eq!(pools_of(&config(), "two"), ["a", "b"]);
    }

    #[test]
    fn the_data_port_is_reached_where_the_admin_port_is() {
        let admin = endpoint("http://gateway.internal:9090").unwrap();
        assert_eq!(data_port(&config(), &admin).unwrap().to_string(), "http://gateway.internal:8080");
        let mut local = config();
        local["server"] = json!({ "listen": "127.0.0.1:81", "tls": {} });
        assert_eq!(data_port(&local, &admin).unwrap().to_string(), "https://127.0.0.1:81");
        assert!(data_port(&json!({}), &admin).is_err());
    }
}
