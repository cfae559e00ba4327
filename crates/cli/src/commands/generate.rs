//! `completions` and `man`: made from the same definition as the help.

use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{self, EXIT_CODES_TITLE};
use crate::exit_code::{Code, TABLE, of_several};
use crate::failure::{Failure, Result};
use crate::output::Output;

/// A first line with a colon at its end is the title of a section if it is not longer than this.
const TITLE_LEN_MAX: usize = 48;

/// `adit completions`
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "adit", &mut script);
    let mut out = Output::new();
    out.bytes(&script)?;
    out.finish()
}

/// `adit man`
pub fn man(verb: &[String], dir: Option<&Path>) -> Result<()> {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        return write_all(&command, "adit", dir);
    }
    let mut found = &command;
    let mut name = "adit".to_owned();
    // Also as one word: `adit man "volume check"`.
    for word in verb.iter().flat_map(|words| words.split_whitespace()) {
        found =
            found.find_subcommand(word).ok_or_else(|| Failure::usage(format!("no such verb: {}", verb.join(" "))))?;
        name = format!("{name}-{}", found.get_name());
    }
    let mut out = Output::new();
    out.bytes(&page(found, &name)?)?;
    out.finish()
}

/// Writes the page of `command` and of everything below it.
fn write_all(command: &Command, name: &str, dir: &Path) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command, name)?).map_err(|e| Failure::io(path.display(), &e))?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_all(verb, &format!("{name}-{}", verb.get_name()), dir)?;
    }
    Ok(())
}

/// One page, named `name`(1). The examples keep their lines; the exit codes are a section of their own.
fn page(command: &Command, name: &str) -> Result<Vec<u8>> {
    let extra = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let shown = command.clone().name(name.to_owned()).after_help("").after_long_help("");
    let man = Man::new(shown).section("1").manual("adit");
    let mut text = Vec::new();
    let mut render = || -> std::io::Result<()> {
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if command.has_subcommands() {
            man.render_subcommands_section(&mut text)?;
        }
        let mut roff = Roff::default();
        notes(&mut roff, &extra);
        exit_status(&mut roff);
        if name != "adit" {
            roff.control("SH", ["SEE ALSO"]);
            roff.text([bold("adit"), roman("(1)")]);
        }
        roff.to_writer(&mut text)
    };
    render().map_err(|e| Failure::io("manual", &e))?;
    Ok(text)
}

/// The text below the options: each paragraph that begins with a title line ending in a colon is a section.
fn notes(roff: &mut Roff, text: &str) {
    let mut section = "";
    let of_codes = |p: &&str| p.starts_with(EXIT_CODES_TITLE) || **p == of_several();
    for paragraph in text.split("\n\n").filter(|p| !p.trim().is_empty() && !of_codes(p)) {
        let (title, body) = match paragraph.split_once('\n') {
            Some((first, rest)) if first.ends_with(':') && first.len() <= TITLE_LEN_MAX => {
                (first.trim_end_matches(':'), rest)
            }
            _ => ("Notes", paragraph),
        };
        match section == title {
            true => roff.control("PP", []),
            false => roff.control("SH", [title.to_uppercase().as_str()]),
        };
        section = title;
        // Lists and examples are shown as they are; running text is filled.
        let verbatim = body.lines().any(|line| line.starts_with("  "));
        if verbatim {
            roff.control("nf", []);
        }
        for line in body.lines() {
            let line = line.strip_prefix("  ").unwrap_or(line);
            roff.text([roman(line)]);
        }
        if verbatim {
            roff.control("fi", []);
        }
    }
}

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in TABLE {
        let code: Code = code;
        roff.control("TP", []);
        roff.text([bold((code as u8).to_string())]);
        roff.text([roman(meaning)]);
    }
    roff.control("PP", []);
    roff.text([roman(of_several())]);
}
