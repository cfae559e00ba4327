//! Unlocking: from the command to a usable mount, beside the key derivation alone.

use std::fs;
use std::time::Instant;

use adit_vault::format::{MasterkeyFile, ScryptParams};
use anyhow::{Context, Result, ensure};

use super::{Group, Turn, nothing_to_prepare};
use crate::report::{Aim, Row, Unit};
use crate::sides::mount_command;

/// Repetitions in one turn.
const REPEATS: usize = 5;
/// What a mount may cost beside scrypt.
const OVERHEAD_MAX_MS: f64 = 5.0;

const fn row(name: &'static str, aim: Aim) -> Row {
    Row { name, unit: Unit::Millis, aim }
}

static UNLOCK: Row = row("started until usable", Aim::Gocryptfs(1.0));
static SCRYPT: Row = row("scrypt alone, in this program", Aim::None);
static OVERHEAD: Row = row("started until usable, with the cheapest scrypt (N = 2)", Aim::Bound(OVERHEAD_MAX_MS));
static COMMAND: Row = row("the mount command, into the background", Aim::Gocryptfs(1.0));
static UNMOUNT: Row = row("the unmount command", Aim::None);

/// From the command to a usable mount.
pub const UNLOCK_GROUP: Group = Group {
    name: "unlock",
    about: |_| {
        format!(
            "An empty vault, caches warm; {REPEATS} times a round. Each side derives its key with its own parameters: \
             Cryptomator's scrypt costs N = 2^15, gocryptfs's N = 2^16. What comes on top of scrypt is measured on the same vault \
             with a key file whose scrypt costs next to nothing: the difference of two long times is lost in their spread."
        )
    },
    takes: |side| side.is_served() && side.keeps(),
    once: false,
    on_request: false,
    prepare: nothing_to_prepare,
    script,
};

fn script(turn: &mut Turn<'_>) -> Result<()> {
    for _ in 0..REPEATS {
        let started = Instant::now();
        let mounted = turn.side.mount(turn.place)?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        turn.unmount(mounted)?;
        turn.sample(&UNLOCK, took);
        if turn.side.is_cryptomator() {
            let scrypt = scrypt_ms(turn)?;
            turn.sample(&SCRYPT, scrypt);
        }
        if let Some([mut mount, mut umount]) = mount_command(turn.side, turn.place) {
            let started = Instant::now();
            let status = mount.status()?;
            let took = started.elapsed().as_secs_f64() * 1e3;
            ensure!(status.success(), "mount: {status}");
            let started = Instant::now();
            // What it mounted is not guarded: nothing but this call stands between.
            let status = umount.status()?;
            ensure!(status.success(), "unmount: {status}");
            turn.sample(&COMMAND, took);
            turn.sample(&UNMOUNT, started.elapsed().as_secs_f64() * 1e3);
        }
    }
    if turn.side.is_cryptomator() {
        make_scrypt_cheap(turn)?;
        for _ in 0..REPEATS {
            let started = Instant::now();
            let mounted = turn.side.mount(turn.place)?;
            turn.sample(&OVERHEAD, started.elapsed().as_secs_f64() * 1e3);
            turn.unmount(mounted)?;
        }
    }
    Ok(())
}

/// Locks the vault's keys again, at the lowest cost.
fn make_scrypt_cheap(turn: &Turn<'_>) -> Result<()> {
    let path = turn.place.backing().join("masterkey.cryptomator");
    let keys = MasterkeyFile::parse(&fs::read(&path)?)?.unlock(turn.place.password())?;
    let cost = ScryptParams { cost: 2, ..ScryptParams::default() };
    let file = MasterkeyFile::lock(&keys, turn.place.password(), cost)?;
    fs::write(&path, file.to_json()).context("cannot write the key file")
}

/// The time of the vault's own scrypt, with nothing around it.
fn scrypt_ms(turn: &Turn<'_>) -> Result<f64> {
    let bytes = fs::read(turn.place.backing().join("masterkey.cryptomator"))?;
    let cost = MasterkeyFile::parse(&bytes)?.scrypt_params();
    let log_n = u8::try_from(cost.cost.trailing_zeros())?;
    let params = scrypt::Params::new(log_n, cost.block_size, 1).context("scrypt parameters")?;
    let mut key = [0; 32];
    let started = Instant::now();
    scrypt::scrypt(turn.place.password().as_bytes(), b"12345678", &params, &mut key).context("scrypt")?;
    let took = started.elapsed().as_secs_f64() * 1e3;
    std::hint::black_box(key);
    Ok(took)
}
