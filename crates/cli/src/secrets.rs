//! Passwords: where they come from, and that they go nowhere else.
//!
//! A [`Password`] is in locked memory, is wiped on drop, and is never printed. It comes from standard input, a file, a command, an environment
//! variable, or a person at a terminal; never from an argument. The variable is wiped from this process's environment at
//! once, also where `/proc/PID/environ` shows it, so a daemon that is forked later does not carry it. One trailing newline
//! is removed, as editors and `echo` add one.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use adit_vault::memory::LockedBytes;
use zeroize::{Zeroize, Zeroizing};

use crate::failure::{Failure, Result};

/// Longest password that is read, in bytes; anything longer is a mistaken file.
const PASSWORD_LEN_MAX_BYTES: usize = 64 * 1024;
/// Shortest new password that Cryptomator's own applications accept, in characters.
pub const NEW_LEN_MIN_CHARS: usize = 8;

/// A password in locked memory, wiped on drop. Invariant: it is UTF-8.
pub struct Password(LockedBytes);

impl Password {
    /// The text; do not copy it.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when it was made")
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(…)")
    }
}

/// Where a password comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The rest of standard input.
    Stdin,
    /// A file.
    File(PathBuf),
    /// What a shell command prints.
    Command(OsString),
    /// An environment variable of this process.
    Env(OsString),
    /// A person at a terminal.
    Ask,
}

/// Which password, for prompts and messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The one that opens an existing vault.
    Current,
    /// The first one of something new; a person types it twice.
    First,
    /// One that takes another's place; a person types it twice.
    New,
}

impl Role {
    fn flag(self) -> &'static str {
        match self {
            Role::Current | Role::First => "--password",
            Role::New => "--new-password",
        }
    }
}

/// Reads the password of `subject`. An empty one is a password like others, unless it is new.
///
/// Call it before the first thread starts: it may change the environment.
///
/// # Errors
/// Usage, wherever it is to come from: there is nothing to read, or it is no password.
pub fn read(origin: &Origin, role: Role, subject: &str) -> Result<Password> {
    let bytes = match origin {
        Origin::Stdin => read_stdin()?,
        Origin::File(path) => File::open(path).and_then(read_limited).map_err(|e| not_given(path.display(), &e))?,
        Origin::Command(command) => run(command)?,
        Origin::Env(name) => take_variable(name)?,
        Origin::Ask => return ask(role, subject),
    };
    parse(bytes, origin, role)
}

/// Reads two passwords of which both may come from standard input: then the first line is `current`. From one and the same
/// variable, which can be taken once, come two that are the same.
pub fn read_both(current: &Origin, new: &Origin, subject: &str) -> Result<(Password, Password)> {
    if let (Origin::Env(name), true) = (current, current == new) {
        let bytes = take_variable(name)?;
        let again = LockedBytes::from(&*bytes);
        return Ok((parse(bytes, current, Role::Current)?, parse(again, new, Role::New)?));
    }
    if *current != Origin::Stdin || *new != Origin::Stdin {
        // A command that gives the one password is not to find the other in its environment.
        if matches!(new, Origin::Env(_)) {
            let new = read(new, Role::New, subject)?;
            return Ok((read(current, Role::Current, subject)?, new));
        }
        return Ok((read(current, Role::Current, subject)?, read(new, Role::New, subject)?));
    }
    let mut bytes = read_stdin()?;
    let Some(end) = bytes.iter().position(|&b| b == b'\n') else {
        return Err(Failure::usage("standard input: two lines are needed, the current password and the new one"));
    };
    let second = LockedBytes::from(&bytes[end + 1..]);
    bytes.truncate(end + 1);
    Ok((parse(bytes, current, Role::Current)?, parse(second, new, Role::New)?))
}

fn read_stdin() -> Result<LockedBytes> {
    read_limited(io::stdin().lock()).map_err(|e| not_given("standard input", &e))
}

/// No password came from there.
fn not_given(subject: impl std::fmt::Display, e: &io::Error) -> Failure {
    let failure = Failure::io(subject, e);
    Failure::usage(format!("no password: {}", failure.text()))
}

/// Reads all of `source` into one buffer that never moves, so that no copy of a secret is left behind.
fn read_limited(mut source: impl Read) -> io::Result<LockedBytes> {
    let mut bytes = LockedBytes::zeroed(PASSWORD_LEN_MAX_BYTES + 1);
    let mut len = 0;
    while len < bytes.len() {
        match source.read(&mut bytes[len..]) {
            Ok(0) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("longer than {PASSWORD_LEN_MAX_BYTES} bytes: not a password"),
    ))
}

/// One trailing newline goes; the rest must be text, because a password is normalised as text.
fn parse(bytes: LockedBytes, origin: &Origin, role: Role) -> Result<Password> {
    let line = bytes.strip_suffix(b"\n").map_or(&*bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
    // As long as it is, on pages of its own: what it was read into is much longer.
    let bytes = LockedBytes::from(line);
    let subject = match origin {
        Origin::Stdin => "standard input".to_owned(),
        Origin::File(path) => path.display().to_string(),
        Origin::Command(_) => "password command".to_owned(),
        Origin::Env(name) => format!("variable {}", name.display()),
        Origin::Ask => "terminal".to_owned(),
    };
    // An existing vault may have an empty password; a new one may not.
    if bytes.is_empty() && role != Role::Current {
        return Err(Failure::usage(format!("{subject}: the password is empty")));
    }
    match std::str::from_utf8(&bytes) {
        Ok(_) => Ok(Password(bytes)),
        Err(_) => Err(Failure::usage(format!("{subject}: the password is not UTF-8 text"))),
    }
}

fn run(command: &OsStr) -> Result<LockedBytes> {
    let failed = |what: String| Failure::usage(format!("no password: password command: {what}"));
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let output = child.stdout.take().map(read_limited);
    let status = child.wait().map_err(|e| failed(e.to_string()))?;
    match output {
        _ if !status.success() => Err(failed(format!("it failed ({status})"))),
        Some(bytes) => bytes.map_err(|e| failed(e.to_string())),
        None => Err(failed("it has no output".to_owned())),
    }
}

/// Takes the value out of the environment, and wipes it where the kernel shows it to others.
fn take_variable(name: &OsStr) -> Result<LockedBytes> {
    let unset = || Failure::usage(format!("no password: variable {}: not set", name.display()));
    let c_name = CString::new(name.as_bytes()).map_err(|_| unset())?;
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(unset());
    }
    // SAFETY: the name is a C string. Nothing else reads or changes the environment meanwhile, because passwords are read
    // before the first thread starts; so the value stays valid until `remove_var`, and is ours to overwrite.
    unsafe {
        let value = libc::getenv(c_name.as_ptr());
        if value.is_null() {
            return Err(unset());
        }
        let len = libc::strlen(value);
        let value = std::slice::from_raw_parts_mut(value.cast::<u8>(), len);
        let bytes = LockedBytes::from(&*value);
        value.zeroize();
        std::env::remove_var(name);
        Ok(bytes)
    }
}

fn ask(role: Role, subject: &str) -> Result<Password> {
    if !crate::process::can_ask() {
        let flag = role.flag();
        return Err(Failure::usage(format!("{subject}: a password is needed, and there is no terminal to ask on"))
            .hint(format!("use {flag}-stdin, {flag}-file FILE, {flag}-command COMMAND or {flag}-env NAME")));
    }
    let prompt = |text: &str| {
        rpassword::prompt_password(format!("{text} {subject}: "))
            .map(Zeroizing::new)
            .map_err(|e| Failure::io("terminal", &e))
    };
    let first = prompt(match role {
        Role::Current => "Password for",
        Role::First | Role::New => "New password for",
    })?;
    if role != Role::Current {
        if first.is_empty() {
            return Err(Failure::usage(format!("{subject}: the password is empty")));
        }
        let second = prompt("Again, new password for")?;
        if *first != *second {
            return Err(Failure::usage(format!("{subject}: the two passwords differ; nothing was changed")));
        }
    }
    Ok(Password(LockedBytes::from(first.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_code::Code;

    fn parsed(bytes: &[u8]) -> Result<Password> {
        parse(LockedBytes::from(bytes), &Origin::Stdin, Role::New)
    }

    #[test]
    fn one_trailing_newline_goes() {
        for (given, kept) in
            [("pass\n", "pass"), ("pass\r\n", "pass"), ("pass\n\n", "pass\n"), (" p w ", " p w "), ("pass", "pass")]
        {
            assert_eq!(parsed(given.as_bytes()).unwrap().as_str(), kept);
        }
        for bad in [&b""[..], b"\n", b"\r\n", b"\xff\xfe"] {
            assert_eq!(parsed(bad).unwrap_err().code(), Code::Usage);
        }
    }

    #[test]
    fn no_child_finds_a_password_in_its_environment() {
        let (env, command) = ("ADIT_TEST_NEW_PASSWORD", Origin::Command("printf \"x$ADIT_TEST_NEW_PASSWORD\"".into()));
        for env_is_new in [true, false] {
            // SAFETY: the standard library's own readers take its lock; nothing else here reads the environment but
            // `take_variable`, in this thread.
            unsafe { std::env::set_var(env, "secret") };
            let by_env = Origin::Env(env.into());
            let (current, new) = if env_is_new { (&command, &by_env) } else { (&by_env, &command) };
            let (current, new) = read_both(current, new, "v").unwrap();
            let told = if env_is_new { (current.as_str(), new.as_str()) } else { (new.as_str(), current.as_str()) };
            assert_eq!(told, ("x", "secret"));
        }
    }

    #[test]
    fn one_variable_gives_both_passwords() {
        let name = "ADIT_TEST_BOTH_PASSWORDS";
        // SAFETY: as above.
        unsafe { std::env::set_var(name, "secret") };
        let origin = Origin::Env(name.into());
        let (current, new) = read_both(&origin, &origin, "v").unwrap();
        assert_eq!((current.as_str(), new.as_str()), ("secret", "secret"));
        assert!(std::env::var_os(name).is_none(), "it is taken out all the same");
    }

    #[test]
    fn too_much_is_not_a_password() {
        assert!(read_limited(&[b'x'; PASSWORD_LEN_MAX_BYTES][..]).is_ok());
        assert!(read_limited(&[b'x'; PASSWORD_LEN_MAX_BYTES + 1][..]).is_err());
    }

    #[test]
    fn a_password_is_not_printed() {
        let password = parsed(b"hunter2!").unwrap();
        assert!(!format!("{password:?}").contains("hunter2"));
    }

    #[test]
    fn commands_and_files_give_passwords() {
        let command = Origin::Command("printf 'pa ss\\n'".into());
        assert_eq!(read(&command, Role::Current, "v").unwrap().as_str(), "pa ss");
        let failing = Origin::Command("echo secret; exit 3".into());
        let failure = read(&failing, Role::Current, "v").unwrap_err();
        assert!(!failure.text().contains("secret"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pw");
        std::fs::write(&path, "ünï\n").unwrap();
        assert_eq!(read(&Origin::File(path), Role::Current, "v").unwrap().as_str(), "ünï");
        let missing = Origin::File(folder.path().join("none"));
        // One rule, wherever it was to come from.
        let unset = Origin::Env("ADIT_TEST_UNSET".into());
        for nothing in [missing, Origin::File(folder.path().into()), failing, unset] {
            let failure = read(&nothing, Role::Current, "v").unwrap_err();
            assert_eq!(failure.code(), Code::Usage, "{nothing:?}");
            assert!(failure.text().starts_with("no password: "), "{}", failure.text());
        }
        let empty = Origin::Command("true".into());
        assert_eq!(read(&empty, Role::Current, "v").unwrap().as_str(), "");
        assert_eq!(read(&empty, Role::New, "v").unwrap_err().code(), Code::Usage);
    }
}
