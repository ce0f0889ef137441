//! `clearway completions` and `clearway man`, for packages.

use anyhow::Result;
use clap_complete::Shell;

use crate::out;

/// Arguments of `clearway completions`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway completions bash > /usr/share/bash-completion/completions/clearway
  clearway completions zsh > /usr/share/zsh/site-functions/_clearway")]
pub struct Args {
    /// Shell: bash, elvish, fish, powershell or zsh.
    shell: Shell,
}

/// Prints what a shell needs to complete commands and flags.
pub fn run(args: &Args, mut program: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "clearway", &mut script);
    out::text(&String::from_utf8_lossy(&script))
}

/// Prints the manual page: the command, then each of its subcommands.
pub fn man(program: clap::Command) -> Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(program.clone()).render(&mut page)?;
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("clearway {}", command.get_name());
        page.extend(format!(".SH \"{}\"\n", name.to_uppercase()).as_bytes());
        let own = clap_mangen::Man::new(command.clone().bin_name(name));
        own.render_description_section(&mut page)?;
        own.render_synopsis_section(&mut page)?;
        own.render_options_section(&mut page)?;
    }
    out::text(&String::from_utf8_lossy(&page))
}
