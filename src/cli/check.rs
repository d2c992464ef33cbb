//! `tokenway check FILE`: everything that is wrong with a file, or a summary of what it says.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::config::load::{Source, load};
use crate::config::{Config, ModelMatch, Overrides};

use super::{EXIT_FAILED, EXIT_OK};

/// Arguments of `tokenway check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Checks the file: the summary goes to `out`, faults go to `err`. The result is the exit code.
///
/// # Errors
/// When `out` or `err` cannot be written.
pub fn run(
    args: &CheckArgs,
    env: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    match load(&Source::File(args.file.clone()), &Overrides::default(), env) {
        Ok(config) => {
            writeln!(out, "{}: ok", args.file.display())?;
            summarise(&config, out)?;
            Ok(EXIT_OK)
        }
        Err(error) => {
            writeln!(err, "{error}")?;
            Ok(EXIT_FAILED)
        }
    }
}

fn summarise(config: &Config, out: &mut dyn Write) -> io::Result<()> {
    for pool in &config.pools {
        write!(out, "  pool {} (revision {}): {} replicas", pool.name, pool.revision, pool.replicas.len())?;
        for source in pool.discovery.describe() {
            write!(out, ", and those of {source}")?;
        }
        writeln!(out)?;
        if let Some(file) = pool.discovery.file.as_ref().filter(|file| !file.is_file()) {
            writeln!(
                out,
                "  warning: {} cannot be read yet; the pool has no replicas of it until then",
                file.display()
            )?;
        }
    }
    for route in &config.routes {
        let model = match &route.model {
            ModelMatch::Any => "*",
            ModelMatch::Named(model) => model,
        };
        let pools: Vec<_> = route
            .pools
            .iter()
            .filter_map(|weighted| Some((config.pools.get(weighted.pool)?, weighted.weight)))
            .map(|(pool, weight)| format!("{} (weight {weight})", pool.name))
            .collect();
        let policy = route.policy.as_str();
        writeln!(
            out,
            "  route {}: model {model} to {}, policy {policy}, slo {}",
            route.name,
            pools.join(" and "),
            route.slo
        )?;
    }
    for tenant in &config.tenants {
        writeln!(out, "  tenant {}: {} keys", tenant.name, tenant.key_digests.len())?;
    }
    writeln!(out, "  data on {}, admin on {}", config.server.listen, config.admin.listen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str) -> (u8, String, String) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gateway.toml");
        std::fs::write(&file, content).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&CheckArgs { file }, &|_| None, &mut out, &mut err).unwrap();
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn a_good_file_is_summed_up() {
        let (code, out, err) = check("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n");
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(
            out.contains("gateway.toml: ok\n  pool p (revision p): 1 replicas\n  route *: model * to p"),
            "{out}"
        );
    }

    #[test]
    fn a_bad_file_is_explained_on_stderr() {
        let (code, out, err) = check("[server]\nlisten = \"nowhere\"\n");
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("gateway.toml:2:10: \"nowhere\" is not an IP address with a port\n"), "{err}");
        assert!(err.contains(" 2 | listen = \"nowhere\"\n   |          ^^^^^^^^^\nhint: "), "{err}");
    }
}
