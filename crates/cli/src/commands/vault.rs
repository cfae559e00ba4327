//! `vault init|info|passwd|check|conflicts`.

use std::path::Path;

use adit_media::HostDirectory;
use adit_vault::CreateOptions;
use adit_vault::format::{CipherCombo, KeyId, ScryptParams};
use serde_json::{Value, json};

use crate::args::low::{Cipher, GlobalArgs, InfoArgs, InitArgs, PasswdArgs, VaultCommand};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::output::{self, Output};
use crate::secrets::{self, NEW_LEN_MIN_CHARS, Origin, Password, Role};
use crate::{open, source};

/// `adit vault …`
pub fn vault(command: &VaultCommand, global: &GlobalArgs) -> Result<()> {
    match command {
        VaultCommand::Init(args) => init(args, global),
        VaultCommand::Info(args) => info(args),
        VaultCommand::Passwd(args) => passwd(args, global),
        VaultCommand::Check(args) => super::check::check(args, global),
        VaultCommand::Conflicts(args) => super::conflicts::conflicts(args, global),
    }
}

fn init(args: &InitArgs, global: &GlobalArgs) -> Result<()> {
    let dir = &args.dir;
    let made = make_empty(dir)?;
    let subject = dir.display().to_string();
    let result = secrets::read(&args.password.origin(), Role::First, &subject).and_then(|password| {
        warn_if_short(&password, global);
        create(dir, &password, args)
    });
    if result.is_err() && made {
        // Only if it is still empty; what stands in it is the failed attempt, for the user to look at.
        let _ = std::fs::remove_dir(dir);
    }
    result?;
    if !global.quiet {
        eprintln!("adit: {subject}: vault created; nobody can restore a lost password");
    }
    Ok(())
}

fn create(dir: &Path, password: &Password, args: &InitArgs) -> Result<()> {
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let cipher_combo = match args.cipher {
        Cipher::SivGcm => CipherCombo::SivGcm,
        Cipher::SivCtrmac => CipherCombo::SivCtrmac,
    };
    let options =
        CreateOptions { cipher_combo, shortening_threshold: args.shortening_threshold, ..CreateOptions::default() };
    adit_vault::create(&root, password.as_str(), &options).map_err(|e| Failure::fs(dir.display(), &e))
}

/// Makes the folder, or finds it empty. Returns whether it was made.
fn make_empty(dir: &Path) -> Result<bool> {
    let fail = |e| Failure::io(dir.display(), &e);
    match std::fs::create_dir(dir) {
        Ok(()) => return Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(fail(e)),
    }
    let mut entries = std::fs::read_dir(dir).map_err(fail)?;
    if entries.next().is_none() {
        return Ok(false);
    }
    let what = match source::vault_dir(dir.as_os_str()) {
        Ok(_) => "there is a vault already",
        Err(_) => "the folder is not empty",
    };
    Err(Failure::new(Code::Failure, format!("{}: {what}; nothing was changed", dir.display()))
        .hint("name a new or empty folder"))
}

fn warn_if_short(password: &Password, global: &GlobalArgs) {
    if !global.quiet && password.as_str().chars().count() < NEW_LEN_MIN_CHARS {
        eprintln!(
            "adit: warning: the password has fewer than {NEW_LEN_MIN_CHARS} characters, which Cryptomator's own applications do not accept for new vaults"
        );
    }
}

fn info(args: &InfoArgs) -> Result<()> {
    let dir = source::vault_dir(args.dir.as_os_str())?;
    let root = HostDirectory::open(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut out = Output::new();
    let config = match adit_vault::info(&root) {
        Ok(config) => config,
        Err(e) => {
            // What is there is told all the same; the error and its exit code say what is missing.
            describe(&mut out, &json!({"path": dir.to_string_lossy(), "kind": "vault", "verified": false}), args.json)?;
            out.finish()?;
            return Err(open::vault::locked_out(&dir, &e));
        }
    };
    let key = match &config.key_id {
        KeyId::MasterkeyFile(name) => format!("file {name}"),
        KeyId::Hub(url) => format!("Cryptomator Hub {url}"),
    };
    let value = json!({
        "path": dir.to_string_lossy(),
        "kind": "vault",
        "format": config.alleged_format,
        "cipher": config.alleged_cipher_combo,
        "shortening_threshold": config.alleged_shortening_threshold,
        "key": key,
        // The signature can be checked with the key only: see `vault check`.
        "verified": false,
    });
    describe(&mut out, &value, args.json)?;
    out.finish()?;
    // What it is was told; whether it can be opened here is the exit code.
    open::vault::check_openable(&dir)
}

fn describe(out: &mut Output, value: &Value, as_json: bool) -> Result<()> {
    if as_json { out.json(value) } else { output::human(out, value, 0) }
}

fn passwd(args: &PasswdArgs, global: &GlobalArgs) -> Result<()> {
    let dir = source::vault_dir(args.dir.as_os_str())?;
    let subject = dir.display().to_string();
    let (current, fresh) = (args.password.origin(), args.new_password.origin());
    open::vault::check_openable(&dir)?;
    let (old, new) = match current {
        // A person learns of a wrong password before typing a new one twice.
        Origin::Ask => (open::vault::password(&dir, &current)?.0, secrets::read(&fresh, Role::New, &subject)?),
        _ => secrets::read_both(&current, &fresh, &subject)?,
    };
    warn_if_short(&new, global);
    let root = HostDirectory::open(&dir).map_err(|e| Failure::io(&subject, &e))?;
    let backup = adit_vault::change_password(&root, old.as_str(), new.as_str(), ScryptParams::default())
        .map_err(|e| open::vault::locked_out(&dir, &e))?;
    if !global.quiet {
        eprintln!("adit: {subject}: password changed; the old key file is kept as {backup}");
    }
    Ok(())
}
