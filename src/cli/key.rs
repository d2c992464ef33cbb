//! `tokenway key add|list|revoke`: API keys of a running gateway, over its admin port.

use std::io;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::admin_client::{AdminClient, AdminFlags, AskError};
use super::{Outputs, print};
use crate::api::keys::{Key, KeyMade, KeyOrder, Keys};
use crate::config::segment;

/// Arguments of `key`.
#[derive(Args, Debug)]
pub struct KeyArgs {
    #[command(flatten)]
    admin: AdminFlags,
    #[command(subcommand)]
    order: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key and print it, once: only its digest is kept
    Add {
        /// Name of a [[tenant]]
        tenant: String,
        /// Its name among the keys of the tenant [default: key-, then digits of its digest]
        #[arg(long)]
        name: Option<String>,
        /// When it ends: a duration such as 30d, or a date such as 2026-12-31 [default: never]
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// Names or models of routes that it may use [default: all of the tenant]
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        routes: Option<Vec<String>>,
        /// What it may use in a window, such as day:tokens=1000000,requests=5000; keys are those of [[tenant.budget]]
        #[arg(long, value_name = "WINDOW:KEY=N", value_parser = budget)]
        budget: Vec<Value>,
    },
    /// List keys, without their secrets
    List {
        /// Only of this tenant
        tenant: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Refuse a key from now on
    Revoke {
        /// Its tenant
        tenant: String,
        /// Its name
        name: String,
    },
}

/// Asks the gateway and prints what it answers. The result is the exit code.
pub fn run(args: KeyArgs, env: &dyn Fn(&str) -> Option<String>, (out, err): Outputs<'_>) -> io::Result<u8> {
    let mut note = String::new();
    let asked = async {
        let client = AdminClient::new(&args.admin.url, &args.admin.token, env)?;
        carry_out(&client, args.order, &mut note).await
    };
    let code = print(asked, (out, &mut *err))?;
    // The key alone on stdout, for `KEY=$(tokenway key add …)`.
    write!(err, "{note}").map(|()| code)
}

async fn carry_out(client: &AdminClient, order: KeyCommand, note: &mut String) -> Result<String, AskError> {
    match order {
        KeyCommand::Add { tenant, name, expires, routes, budget } => {
            let order = KeyOrder { budget, expires, name, routes, tenant };
            let made: KeyMade = client.send("/api/v1/keys", &order).await?;
            *note = made_note(&made);
            Ok(format!("{}\n", made.secret))
        }
        KeyCommand::List { tenant, json } => {
            let query = tenant.map(|tenant| format!("?tenant={}", segment(&tenant))).unwrap_or_default();
            let keys: Keys = client.get(&format!("/api/v1/keys{query}")).await?;
            Ok(if json { format!("{:#}\n", json!(keys)) } else { table(&keys.keys) })
        }
        KeyCommand::Revoke { tenant, name } => {
            let path = format!("/api/v1/keys/{}/{}/revoke", segment(&tenant), segment(&name));
            let Key { tenant, name, .. } = client.post(&path).await?;
            Ok(format!("revoked: key {name} of tenant {tenant}\n"))
        }
    }
}

fn made_note(made: &KeyMade) -> String {
    let Key { tenant, name, expires, .. } = &made.key;
    let end = expires.as_ref().map_or("never expires".to_owned(), |at| format!("expires {at}"));
    let lost =
        if made.kept { "" } else { "warning: this gateway keeps no state: a restart forgets the key\n" };
    format!("key {name} of tenant {tenant}, {end}; it is shown this once\n{lost}")
}

fn table(keys: &[Key]) -> String {
    if keys.is_empty() {
        return "no keys were made at run time\n".to_owned();
    }
    let line = |key: &Key| {
        let Key { tenant, name, state, expires, created, .. } = key;
        let expires = expires.as_deref().unwrap_or("never");
        let routes = key.routes.as_ref().map(|routes| format!(" routes={}", routes.join(",")));
        let budgets: String = key.budget.iter().map(|budget| format!(" budget={}", stated(budget))).collect();
        let routes = routes.unwrap_or_default();
        format!("{tenant} {name} state={state} created={created} expires={expires}{routes}{budgets}\n")
    };
    keys.iter().map(line).collect()
}

/// `day:tokens=1000000`, as the flag has it.
fn stated(budget: &Value) -> String {
    let keys = budget.as_object().into_iter().flatten();
    let keys = keys.filter(|(key, value)| !value.is_null() && key.as_str() != "window");
    let is_usual = |key: &str, value: &Value| match key {
        "hard" => *value == true,
        "time_zone" => *value == "UTC" || *value == "+00:00",
        _ => false,
    };
    let keys = keys.filter(|(key, value)| !is_usual(key, value));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let keys: Vec<_> = keys.map(|(key, value)| format!("{key}={}", text(value))).collect();
    format!("{}:{}", budget["window"].as_str().unwrap_or_default(), keys.join(","))
}

fn budget(text: &str) -> Result<Value, String> {
    let (window, keys) = text.split_once(':').ok_or("write WINDOW:KEY=N, such as day:tokens=1000000")?;
    let mut budget = Map::from_iter([("window".to_owned(), json!(window))]);
    for pair in keys.split(',') {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not KEY=N"))?;
        let read = serde_json::from_str(value).ok().filter(|value: &Value| !value.is_string());
        budget.insert(key.to_owned(), read.unwrap_or_else(|| json!(value)));
    }
    Ok(budget.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_written_as_it_is_listed() {
        let text = "day:model=llama-8b,requests=5,tokens=1000000";
        let read = budget(text).unwrap();
        assert_eq!(read, json!({"window":"day","tokens":1_000_000,"requests":5,"model":"llama-8b"}));
        assert_eq!(stated(&read), text);
        assert_eq!(
            stated(&budget("week:hard=false,tokens=1,time_zone=+02:00").unwrap()),
            "week:hard=false,time_zone=+02:00,tokens=1"
        );
        assert!(budget("tokens=5").is_err() && budget("day:tokens").is_err());
    }
}
