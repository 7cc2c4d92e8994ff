//! The command line of a service's executable: what it serves with, and the subcommands that all of them have.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::arguments::{explained, normalise};
use crate::command::{Check, Completions, Findings, Healthcheck, Version};
use crate::help::{Everyday, with_short_help};

/// An executable that serves with the arguments `S`.
#[derive(Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What it is for, in one sentence without a dot.
    pub about: &'static str,
    /// Its flags that are there or not, see [`normalise`].
    pub switches: &'static [&'static str],
    /// What `-h` shows of its flags and those of its subcommands, see [`with_short_help`].
    pub everyday: &'static [Everyday],
    /// Port of its admin pages on loopback.
    pub admin_port: u16,
    /// What `check` finds in a file.
    pub check: fn(&Path, Vec<u8>) -> Result<Findings, String>,
}

#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli<S: Args, C: Subcommand> {
    #[command(subcommand)]
    command: Option<Command<S, C>>,

    #[command(flatten)]
    serve: S,
}

#[derive(Subcommand)]
enum Command<S: Args, C: Subcommand> {
    /// Serve until asked to stop (what happens without a subcommand)
    Serve(Box<S>),
    /// Read a file as the service would and list all its defects
    Check(Check),
    /// Ask the admin pages of a running service whether it is well; exit code 1 when not
    Healthcheck(Healthcheck),
    /// Print the version
    Version(Version),
    /// Print the completions for a shell
    Completions(Completions),
    /// What only this executable has
    #[command(flatten)]
    Own(C),
}

/// No subcommands besides those that all have.
#[derive(Subcommand)]
enum NoOther {}

impl Program {
    /// Does what the command line asks for; `serve` is for serving.
    ///
    /// Wrong arguments end the process with exit code 2, as `--help` ends it with 0.
    pub fn start<S: Args>(
        &self,
        arguments: impl IntoIterator<Item = OsString>,
        serve: impl FnOnce(S) -> ExitCode,
    ) -> ExitCode {
        self.start_with(arguments, serve, |command: NoOther| match command {})
    }

    /// The same for an executable with subcommands `C` of its own, which `own` is for; of these, what takes any words
    /// is given them as they are.
    pub fn start_with<S: Args, C: Subcommand>(
        &self,
        arguments: impl IntoIterator<Item = OsString>,
        serve: impl FnOnce(S) -> ExitCode,
        own: impl FnOnce(C) -> ExitCode,
    ) -> ExitCode {
        let command = || with_short_help(Cli::<S, C>::command().name(self.name).about(self.about), self.everyday);
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let own_commands = C::augment_subcommands(clap::Command::new(self.name));
        let subcommand = arguments.get(1).and_then(|word| own_commands.find_subcommand(word));
        // The command line of another program at its end is left as it is: `run IMAGE ls -la`.
        let literal = subcommand.is_some_and(|own| own.get_arguments().any(clap::Arg::is_allow_hyphen_values_set));
        let arguments = if literal { arguments } else { normalise(arguments, self.switches) };
        let matches = command().try_get_matches_from(&arguments);
        let mut matches = matches.unwrap_or_else(|error| explained(error, &command(), &arguments).exit());
        let cli =
            Cli::<S, C>::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.format(&mut command()).exit());
        match cli.command {
            None => serve(cli.serve),
            Some(Command::Serve(arguments)) => serve(*arguments),
            Some(Command::Check(check)) => check.run(self.check),
            Some(Command::Healthcheck(healthcheck)) => healthcheck.run(self.admin_port),
            Some(Command::Version(version)) => version.run(self.name),
            Some(Command::Completions(completions)) => completions.run(command()),
            Some(Command::Own(command)) => own(command),
        }
    }
}
