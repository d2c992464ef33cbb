//! `tokenway init`: a commented configuration file from flags, or from a few questions at a terminal.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use clap::Args;

use super::draft::{Draft, DraftPool, DraftRoute, replica_url};
use super::{EXIT_FAILED, EXIT_OK, EXIT_USAGE, Outputs};
use crate::config::check::parse_model_name;
use crate::config::{Endpoint, parse_endpoint};

/// Arguments of `tokenway init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// File to write; - is stdout
    #[arg(value_name = "FILE", default_value = "gateway.toml")]
    file: PathBuf,
    /// Replica; may be repeated, and is asked for at a terminal
    #[arg(long, aliases = ["worker-urls", "worker-url"], value_name = "URL", num_args = 1.., value_delimiter = ',', value_parser = parse_endpoint)]
    upstream: Vec<Endpoint>,
    /// Model name that clients ask for [default: every name that the replicas know]
    #[arg(long, value_name = "NAME", value_parser = parse_model_name)]
    model: Option<String>,
    /// What goodput counts against
    #[arg(long, value_name = "CLASS", value_parser = ["interactive", "standard", "batch"])]
    slo: Option<String>,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
}

/// Writes the file. Without `--upstream` it asks where `questions` has answers. The result is the exit code.
pub fn run(args: &InitArgs, questions: Option<&mut dyn BufRead>, (out, err): Outputs<'_>) -> io::Result<u8> {
    let mut answers = Answers {
        replicas: args.upstream.iter().map(ToString::to_string).collect(),
        model: args.model.clone(),
        slo: args.slo.clone(),
    };
    if answers.replicas.is_empty() {
        let asked = match questions {
            Some(input) => answers.ask(input, err)?,
            None => false,
        };
        if !asked {
            writeln!(err, "error: no replica: give --upstream URL for each; at a terminal it is asked for")?;
            return Ok(EXIT_USAGE);
        }
    }
    for url in answers.take_repeated() {
        writeln!(err, "note: {url} is given twice; it is written once")?;
    }
    let is_printed = args.file.as_os_str() == "-";
    let name = if is_printed { "gateway.toml".into() } else { args.file.to_string_lossy() };
    let text = answers.draft().render("Tokenway's configuration, made by `tokenway init`.", &name);
    if is_printed {
        out.write_all(text.as_bytes())?;
        return Ok(EXIT_OK);
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).create_new(!args.force).truncate(args.force);
    let file = args.file.display();
    match options.open(&args.file).and_then(|mut opened| opened.write_all(text.as_bytes())) {
        Ok(()) => {
            writeln!(
                out,
                "wrote {file}; next:\n  tokenway check {file} --online\n  tokenway serve --config {file}"
            )?;
            Ok(EXIT_OK)
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::AlreadyExists if !args.file.is_dir() => {
                    "\nhint: --force writes over it; `tokenway init -` writes to stdout"
                }
                _ => "\nhint: `tokenway init -` writes to stdout",
            };
            writeln!(err, "error: cannot write {file}: {error}{hint}")?;
            Ok(EXIT_FAILED)
        }
    }
}

struct Answers {
    replicas: Vec<String>,
    model: Option<String>,
    slo: Option<String>,
}

impl Answers {
    /// Asks for what no flag gave; `false` where the input ends without a replica.
    fn ask(&mut self, input: &mut dyn BufRead, err: &mut dyn Write) -> io::Result<bool> {
        while self.replicas.is_empty() {
            let Some(line) =
                answer(input, err, "URLs of your replicas (http://gpu-1:8000 http://gpu-2:8000): ")?
            else {
                return Ok(false);
            };
            for url in line.split([' ', ',']).filter(|url| !url.is_empty()) {
                match replica_url(url) {
                    Ok(url) => self.replicas.push(url),
                    Err(error) => writeln!(err, "  {url}: {error}")?,
                }
            }
        }
        while self.model.is_none() {
            let line = answer(input, err, "Model name that clients ask for [every name]: ")?;
            let Some(line) = line.filter(|line| !line.is_empty()) else { break };
            match parse_model_name(&line) {
                Ok(name) => self.model = Some(name),
                Err(error) => writeln!(err, "  {line}: {error}")?,
            }
        }
        while self.slo.is_none() {
            let line =
                answer(input, err, "SLO: interactive, standard or batch [standard]: ")?.unwrap_or_default();
            let line = if line.is_empty() { "standard".to_owned() } else { line };
            self.slo = Some(line).filter(|slo| ["interactive", "standard", "batch"].contains(&slo.as_str()));
        }
        Ok(true)
    }

    /// Takes out the replicas that were given before.
    fn take_repeated(&mut self) -> Vec<String> {
        let mut seen = HashSet::new();
        // Replicas are named by what follows the scheme.
        let name = |url: &str| url.split_once("://").map_or(url, |(_, name)| name).to_owned();
        self.replicas.extract_if(.., |url| !seen.insert(name(url))).collect()
    }

    fn draft(&self) -> Draft {
        let pool = DraftPool { name: "main".to_owned(), replicas: self.replicas.clone(), keys: Vec::new() };
        let route = DraftRoute {
            model: self.model.clone().unwrap_or_else(|| "*".to_owned()),
            pools: vec![("main".to_owned(), 1)],
            slo: self.slo.clone(),
            ..DraftRoute::default()
        };
        Draft { pools: vec![pool], routes: vec![route], ..Draft::default() }
    }
}

fn answer(input: &mut dyn BufRead, err: &mut dyn Write, question: &str) -> io::Result<Option<String>> {
    write!(err, "{question}")?;
    err.flush()?;
    let mut line = String::new();
    Ok((input.read_line(&mut line)? > 0).then(|| line.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, printed};
    use crate::config::check::check_str;

    fn init(args: &[&str], input: Option<&str>) -> (u8, String, String) {
        let Command::Init(args) = Cli::read(["tokenway", "init"].iter().chain(args)).unwrap().command else {
            panic!("not init")
        };
        let mut input = input.map(str::as_bytes);
        let input = input.as_mut().map(|input| input as &mut dyn BufRead);
        printed(|outputs| run(&args, input, outputs))
    }

    #[test]
    fn flags_or_answers_become_a_file_that_passes_check() {
        let (code, text, _) =
            init(&["-", "--upstream", "http://a:1", "http://b:2", "--model", "llama \"8b\""], None);
        let config = check_str("gateway.toml", &text, &|_| None).unwrap();
        assert_eq!(
            (code, config.pools[0].replicas.len(), config.routes[0].model.as_str()),
            (0, 2, "llama \"8b\"")
        );
        let (_, text, _) = init(&["-", "--upstream", "http://a:1", "--model", "none"], None);
        assert!(check_str("gateway.toml", &text, &|_| None).is_ok(), "{text}");
        let mistyped = "gpu\nhttp://a:1/v1, http://b:2\nfa\tst\n\nfast\nbatch\n";
        let (code, text, shown) = init(&["-"], Some(mistyped));
        let config = check_str("gateway.toml", &text, &|_| None).unwrap();
        assert_eq!(
            (code, config.pools[0].replicas.len(), &*config.routes[0].slo),
            (0, 2, "batch"),
            "{shown}"
        );
        assert!(shown.contains("  gpu: ") && shown.contains("is not a model name"), "{shown}");
        for (args, input) in [
            (&["-", "--upstream", "http://a:1", "http://A:1/,http://b:2"] as &[_], None),
            (&["-"], Some("http://a:1 http://a:1/v1 http://b:2\n\n\n")),
        ] {
            let (_, text, shown) = init(args, input);
            let config = check_str("gateway.toml", &text, &|_| None).unwrap();
            assert_eq!(config.pools[0].replicas.len(), 2, "{text}");
            assert!(shown.contains("http://a:1 is given twice"), "{shown}");
        }
        assert_eq!(init(&["-"], None).0, EXIT_USAGE);
        assert_eq!(init(&["-"], Some("")).0, EXIT_USAGE);
    }

    #[test]
    fn a_file_that_is_there_or_cannot_be_written_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gateway.toml");
        let file = file.to_str().unwrap();
        assert_eq!(init(&[file, "--upstream", "http://a:1"], None).0, 0);
        let (code, _, shown) = init(&[file, "--upstream", "http://b:1"], None);
        assert!(code == EXIT_FAILED && shown.contains("hint: --force"), "{shown}");
        assert_eq!(init(&[file, "--upstream", "http://b:1", "--force"], None).0, 0);
        assert!(std::fs::read_to_string(file).unwrap().contains("http://b:1"));
        let (code, _, shown) = init(&["/proc/no/gateway.toml", "--upstream", "http://a:1"], None);
        assert!(code == EXIT_FAILED && shown.contains("cannot write /proc/no/gateway.toml"), "{shown}");
    }
}
