//! Help of two lengths: `-h` fits a screen and shows the flags that most people need, `--help` shows all by topic.

use clap::{Arg, Command};

/// A command, such as `up` or `network plan`, and the flags that its `-h` shows, without their dashes; the executable itself has
/// the name "".
pub type Everyday = (&'static str, &'static [&'static str]);

/// The command with a short `-h` for each command that `everyday` names; all others show all of their flags.
pub fn with_short_help(command: Command, everyday: &[Everyday]) -> Command {
    everyday.iter().fold(command, |command, (name, flags)| {
        let (first, rest) = name.split_once(' ').unwrap_or((name, ""));
        if first.is_empty() {
            shortened(command, flags)
        } else {
            command.mut_subcommand(first, |own| with_short_help(own, &[(rest, flags)]))
        }
    })
}

fn shortened(command: Command, flags: &[&str]) -> Command {
    let is_flag = |flag: &&str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    debug_assert!(flags.iter().all(is_flag), "{} has not all of {flags:?}", command.get_name());
    let is_everyday = |arg: &Arg| arg.is_positional() || arg.get_long().is_some_and(|flag| flags.contains(&flag));
    command.mut_args(|arg| {
        let hidden = !is_everyday(&arg);
        arg.hide_short_help(hidden)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_help_shows_everyday_flags_and_the_long_one_all() {
        let flag = |name: &'static str| Arg::new(name).long(name).help(name).help_heading("Topic");
        let all = || Command::new("all").args([flag("usual"), flag("rare"), flag("further").help_heading("Rare ones")]);
        let all = || all().arg(Arg::new("file").help("file"));
        let inner = all().name("inner");
        let sub = all().name("sub").subcommand(inner);
        let command = with_short_help(all().subcommand(sub), &[("", &["usual"]), ("sub inner", &["rare"])]);
        let of = |mut command: Command, long: bool| {
            let help = if long { command.render_long_help() } else { command.render_help() };
            ["usual", "rare", "Rare ones", "file"].map(|word| help.to_string().contains(word))
        };
        let sub = command.find_subcommand("sub").unwrap().clone();
        assert_eq!(of(command.clone(), false), [true, false, false, true]);
        assert_eq!(of(command, true), [true; 4]);
        let inner = sub.find_subcommand("inner").unwrap().clone();
        assert_eq!(of(sub, false), [true; 4]);
        assert_eq!(of(inner, false), [false, true, false, true]);
    }
}
