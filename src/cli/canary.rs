//! `tokenway canary URL [ACTION]`: shows the canaries of a gateway, or acts on one, over its admin port.

use std::io::{self, Read as _, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value as Json;

use super::{EXIT_FAILED, EXIT_OK};
use crate::config::Endpoint;
use crate::config::check::parse_endpoint;

/// Arguments of `canary`.
#[derive(Args, Debug)]
pub struct CanaryArgs {
    /// URL of the gateway's admin port, such as http://127.0.0.1:9090
    #[arg(value_name = "URL", value_parser = parse_endpoint, env = "TOKENWAY_CANARY_URL")]
    url: Endpoint,
    /// What becomes of the canary; without it canaries are listed
    #[arg(value_name = "ACTION")]
    action: Option<CanaryAction>,
    /// The canary's route; not needed where only one route has one
    #[arg(long, env = "TOKENWAY_CANARY_ROUTE", value_name = "ROUTE")]
    route: Option<String>,
    /// The admin token
    #[arg(long, env = "TOKENWAY_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
}

/// What an operator may do.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CanaryAction {
    /// All traffic to the canary
    Promote,
    /// All traffic back
    Rollback,
    /// Stay at this step
    Pause,
    /// Go on
    Resume,
}

/// Runs the subcommand.
///
/// # Errors
/// When `out` or `err` cannot be written.
pub fn run(args: &CanaryArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    match answer(args) {
        Ok(text) => {
            write!(out, "{text}")?;
            Ok(EXIT_OK)
        }
        Err(message) => {
            writeln!(err, "error: {message}")?;
            Ok(EXIT_FAILED)
        }
    }
}

fn answer(args: &CanaryArgs) -> Result<String, String> {
    let listed = call(args, "GET", "/api/v1/canaries")?;
    let canaries = listed["canaries"].as_array().cloned().unwrap_or_default();
    let Some(action) = args.action else { return Ok(table(&canaries)) };
    let route = match (&args.route, &*canaries) {
        (Some(route), _) => route.clone(),
        (None, [only]) => only["route"].as_str().unwrap_or_default().to_owned(),
        (None, []) => return Err("this gateway has no canary".to_owned()),
        (None, _) => return Err("several routes have a canary: name one with --route".to_owned()),
    };
    let action = match action {
        CanaryAction::Promote => "promote",
        CanaryAction::Rollback => "rollback",
        CanaryAction::Pause => "pause",
        CanaryAction::Resume => "resume",
    };
    let done = call(args, "POST", &format!("/api/v1/canaries/{}/{action}", escaped(&route)))?;
    Ok(table(std::slice::from_ref(&done["canary"])))
}

fn table(canaries: &[Json]) -> String {
    let line = |canary: &Json| {
        let text = |key: &str| canary[key].as_str().unwrap_or("-").to_owned();
        format!(
            "{} revision={} state={} step={}/{} weight={}% {}\n",
            text("route"),
            text("revision"),
            text("state"),
            canary["step"],
            canary["steps"],
            canary["weight"],
            text("reason")
        )
    };
    if canaries.is_empty() { "no canaries\n".to_owned() } else { canaries.iter().map(line).collect() }
}

/// One request on a connection of its own.
fn call(args: &CanaryArgs, method: &str, path: &str) -> Result<Json, String> {
    if args.url.is_tls {
        return Err("the admin port speaks plain HTTP: write http://".to_owned());
    }
    let failed = |error: io::Error| format!("{}: {error}", args.url);
    let text = send(args, method, path).map_err(failed)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("{}: no HTTP answer", args.url))?;
    let json: Json =
        serde_json::from_str(body).map_err(|_| format!("{}: not a gateway's admin port", args.url))?;
    let is_good = head.split(' ').nth(1).is_some_and(|status| status.starts_with('2'));
    if is_good { Ok(json) } else { Err(json["error"]["message"].as_str().unwrap_or("refused").to_owned()) }
}

fn send(args: &CanaryArgs, method: &str, path: &str) -> io::Result<String> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "no such host");
    let address = (&*args.url.host, args.url.port).to_socket_addrs()?.next().ok_or_else(unknown)?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let token =
        args.token.as_ref().map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    // HTTP/1.0: the answer ends with the connection and has no chunks.
    write!(
        stream,
        "{method} {}{path} HTTP/1.0\r\nhost: {}\r\nx-tokenway-admin: 1\r\ncontent-length: 0\r\n{token}\r\n",
        args.url.base_path,
        args.url.authority()
    )?;
    let mut text = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut text)?;
    Ok(text)
}

/// A route's name as one segment of a path.
fn escaped(route: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    route.bytes().map(escape).collect()
}

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_one_segment() {
        assert_eq!(escaped("meta/llama 8b"), "meta%2Fllama%208b");
        assert_eq!(escaped("chat-1.0_x~"), "chat-1.0_x~");
    }
}
