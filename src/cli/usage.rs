//! `tokenway usage`: what tenants, models and keys of a running gateway have used, as a table, CSV or JSON.

use std::io;

use clap::Args;
use serde_json::json;

use super::admin_client::{AdminClient, AdminFlags, AskError};
use super::replay::grid;
use super::{Outputs, print};
use crate::api::usage::{UsageAnswer, UsageRow};
use crate::config::segment;

/// Arguments of `usage`.
#[derive(Args, Debug)]
pub struct UsageArgs {
    #[command(flatten)]
    admin: AdminFlags,
    /// From when on: a duration such as 7d, a date such as 2026-11-01, or 2026-11-01T10:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "1d")]
    since: String,
    /// Up to when, the same [default: now]
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// What rows are by: a list of tenant, model, key, day (UTC)
    #[arg(long, value_name = "NAMES", default_value = "tenant")]
    by: String,
    /// As CSV, without a total
    #[arg(long)]
    csv: bool,
    /// As JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
}

/// Asks the gateway and prints what was used. The result is the exit code.
pub fn run(args: &UsageArgs, env: &dyn Fn(&str) -> Option<String>, outputs: Outputs<'_>) -> io::Result<u8> {
    print(ask(args, env), outputs)
}

async fn ask(args: &UsageArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<String, AskError> {
    let client = AdminClient::new(&args.admin.url, &args.admin.token, env)?;
    let until = args.until.as_ref().map(|until| format!("&until={}", segment(until))).unwrap_or_default();
    let (since, by) = (segment(&args.since), segment(&args.by));
    let answer = client.get(&format!("/api/v1/usage?since={since}{until}&by={by}")).await?;
    Ok(match (args.json, args.csv) {
        (true, _) => format!("{:#}\n", json!(answer)),
        (false, true) => csv(&answer),
        (false, false) => table(&answer),
    })
}

/// Names of the columns, and one row's values: names first.
fn columns(answer: &UsageAnswer) -> Vec<String> {
    let names = answer.by.iter().map(String::as_str);
    names.chain(FIGURES.map(|(name, _)| name)).map(str::to_owned).collect()
}

fn values(by: &[String], row: &UsageRow) -> Vec<String> {
    let name = |by: &String| match by.as_str() {
        "tenant" => &row.tenant,
        "model" => &row.model,
        "key" => &row.key,
        _ => &row.day,
    };
    let names = by.iter().map(|by| name(by).clone().unwrap_or_default());
    names.chain(FIGURES.map(|(_, cell)| cell(row))).collect()
}

/// RFC 4180.
fn csv(answer: &UsageAnswer) -> String {
    let quoted = |field: String| match field.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    };
    let line = |fields: Vec<String>| fields.into_iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n";
    let rows = answer.rows.iter().map(|row| line(values(&answer.by, row)));
    [line(columns(answer))].into_iter().chain(rows).collect()
}

fn table(answer: &UsageAnswer) -> String {
    let Some(since) = &answer.since else { return format!("nothing was used up to {}\n", answer.until) };
    let mut total = values(&answer.by, &answer.total);
    if let Some(first) = total.first_mut() {
        "total".clone_into(first);
    }
    let rows = answer.rows.iter().map(|row| values(&answer.by, row));
    let lines: Vec<_> = [columns(answer)].into_iter().chain(rows).chain([total]).collect();
    format!("since {since} until {}\n{}", answer.until, grid(&lines, answer.by.len()))
}

/// A heading, and what stands below it.
type Column = (&'static str, fn(&UsageRow) -> String);

const FIGURES: [Column; 7] = [
    ("requests", |row| row.requests.to_string()),
    ("input_tokens", |row| row.input_tokens.to_string()),
    ("cached_tokens", |row| row.cached_tokens.to_string()),
    ("output_tokens", |row| row.output_tokens.to_string()),
    ("prefill_seconds", |row| format!("{:.6}", row.prefill_seconds)),
    ("decode_seconds", |row| format!("{:.6}", row.decode_seconds)),
    ("engine_other_seconds", |row| format!("{:.6}", row.engine_other_seconds)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_as_a_table_and_as_csv() {
        let row = |tenant: &str, requests, output_tokens| UsageRow {
            tenant: Some(tenant.to_owned()),
            requests,
            output_tokens,
            decode_seconds: 1.5,
            ..UsageRow::default()
        };
        let answer = UsageAnswer {
            by: vec!["tenant".to_owned()],
            rows: vec![row("a", 1, 20), row("b,c", 2, 3)],
            since: Some("2026-11-24T10:00:00Z".to_owned()),
            total: UsageRow { tenant: None, ..row("", 3, 23) },
            until: "2026-11-24T11:00:00Z".to_owned(),
        };
        let head = "tenant,requests,input_tokens,cached_tokens,output_tokens,prefill_seconds,decode_seconds,\
                    engine_other_seconds";
        let rows = "a,1,0,0,20,0.000000,1.500000,0.000000\r\n\"b,c\",2,0,0,3,0.000000,1.500000,0.000000";
        assert_eq!(csv(&answer), format!("{head}\r\n{rows}\r\n"));
        let text = table(&answer);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "since 2026-11-24T10:00:00Z until 2026-11-24T11:00:00Z");
        assert_eq!((lines.len(), lines[2].len()), (5, lines[4].len()), "{text}");
        assert!(lines[4].starts_with("total") && lines[4].contains("       23  "), "{text}");
    }
}
