//! The `tokenway` binary: parses the command line, makes one call per subcommand, ends with 0, 1 or 2.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use tokenway::app::logging;
use tokenway::app::process::{self, Front, Launch};
use tokenway::cli::style::Style;
use tokenway::cli::{self, Cli, Command, EXIT_FAILED, EXIT_OK, showcase, sim};
use tokenway::config::schema::json_schema;

/// A request may end on another thread than it began on, and memory freed elsewhere goes back under a lock in the
/// system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let log = logging::init(&cli.log_level, cli.log_format);
    let flush_log = log.flusher();
    let env = |name: &str| std::env::var(name).ok();
    let (out, err) = (&mut std::io::stdout(), &mut std::io::stderr());
    let code = match cli.command {
        Command::Serve(args) => {
            let (source, overrides, front) = (args.source.source(), args.overrides(), Front::OpenAi);
            done(process::serve(Launch { source, overrides, log, front }))
        }
        Command::Epp(args) => {
            let (source, overrides, front) = (args.source.source(), args.overrides(), Front::EndpointPicker);
            done(process::serve(Launch { source, overrides, log, front }))
        }
        Command::Init(args) => {
            let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
            let mut stdin = std::io::stdin().lock();
            let questions = is_terminal.then_some(&mut stdin as &mut dyn std::io::BufRead);
            done(cli::init::run(&args, questions, (out, err)))
        }
        Command::Import(args) => done(cli::import::run(&args, (out, err))),
        Command::Check(args) => {
            let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
            let style = Style::for_terminal(is_terminal, &env);
            done(cli::check::run(&args, &env, (out, err), style))
        }
        Command::Canary(args) => done(cli::canary::run(&args, &env, (out, err))),
        Command::Key(args) => done(cli::key::run(args, &env, (out, err))),
        Command::Usage(args) => done(cli::usage::run(&args, &env, (out, err))),
        Command::Schema => done(writeln!(std::io::stdout(), "{:#}", json_schema())),
        Command::Completions(args) => done(cli::completions::run(&args, &mut std::io::stdout())),
        Command::Demo(args) => done(showcase::run(&args, log)),
        Command::Sim(args) => done(simulate(&args)),
        Command::Replay(args) => done(cli::replay::run(&args, &env, out, err)),
        Command::Bench(args) => {
            let shows_progress = std::io::stderr().is_terminal();
            done(cli::bench::run(&args, &env, (out, err), shows_progress))
        }
        Command::Drift(args) => done(cli::drift::run(&args, &env, (out, err))),
        Command::Top(args) => done(cli::top::run(&args, &env, (out, err))),
        Command::Explain(args) => {
            let style = Style::of(&std::io::stdout(), &env);
            done(cli::explain::run(&args, &env, (out, err), style))
        }
    };
    flush_log();
    ExitCode::from(code)
}

fn simulate(args: &sim::SimArgs) -> Result<(), sim::SimError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(sim::run(args, &mut std::io::stdout()))
}

/// The exit code of a subcommand; what went wrong is said on stderr.
fn done<T: Into<Exit>, E: std::error::Error + 'static>(result: Result<T, E>) -> u8 {
    match result {
        Ok(code) => code.into().0,
        // The reader has what it wanted, as `head` does.
        Err(error) if is_closed_pipe(&error) => EXIT_OK,
        Err(error) => {
            // In one write: the log goes to the same place. Without a stderr there is nobody to tell.
            let _ = std::io::stderr().write_all(format!("error: {error}\n").as_bytes());
            EXIT_FAILED
        }
    }
}

fn is_closed_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

struct Exit(u8);

impl From<u8> for Exit {
    fn from(code: u8) -> Self {
        Self(code)
    }
}

impl From<()> for Exit {
    fn from((): ()) -> Self {
        Self(EXIT_OK)
    }
}
