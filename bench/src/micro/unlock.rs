//! Unlocking in this process: everything from the password to an engine, less scrypt.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use adit_core::engine::{Engine, EngineOptions};
use adit_media::HostDirectory;
use adit_vault::format::ScryptParams;
use adit_vault::{CreateOptions, OpenOptions, VaultStore};
use anyhow::{Context, Result};

use crate::report::{ADIT, Aim, Report, Row, Unit};

const REPEATS: usize = 21;
const PASSWORD: &str = "benchmark";

const fn row(name: &'static str, aim: Aim) -> Row {
    Row { name, unit: Unit::Millis, aim }
}

const ALL: Row = row("from the password to an engine", Aim::None);
const SCRYPT: Row = row("scrypt alone (N = 2^15, r = 8)", Aim::None);
const REST: Row = row("the same with the cheapest scrypt (N = 2): what Adit adds", Aim::Bound(5.0));

/// Measures unlocking.
pub fn run(dir: &Path, report: &mut Report) -> Result<()> {
    let title = "micro-unlock: in one process";
    report.group(
        title,
        "Key file, configuration, journal, store and engine. The difference of two long times is lost in their spread, so what \
         comes on top of scrypt is measured on a vault whose scrypt costs next to nothing.",
    );
    let usual = ScryptParams::default();
    let cheap = ScryptParams { cost: 2, ..usual };
    let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
    for (name, cost) in [("usual", usual), ("cheap", cheap)] {
        for part in ["vault", "state"] {
            std::fs::create_dir_all(work.path().join(name).join(part))?;
        }
        let root = HostDirectory::open(&work.path().join(name).join("vault"))?;
        let options = CreateOptions { scrypt: cost, ..CreateOptions::default() };
        adit_vault::create(&root, PASSWORD, &options)?;
    }
    let log_n = u8::try_from(usual.cost.trailing_zeros())?;
    let params = scrypt::Params::new(log_n, usual.block_size, 1).context("scrypt parameters")?;
    for _ in 0..REPEATS {
        report.add(title, &ALL, ADIT, unlock_ms(&work.path().join("usual"))?);
        let mut key = [0; 32];
        let started = Instant::now();
        scrypt::scrypt(PASSWORD.as_bytes(), b"12345678", &params, &mut key).context("scrypt")?;
        report.add(title, &SCRYPT, ADIT, started.elapsed().as_secs_f64() * 1e3);
        std::hint::black_box(key);
        report.add(title, &REST, ADIT, unlock_ms(&work.path().join("cheap"))?);
    }
    Ok(())
}

fn unlock_ms(work: &Path) -> Result<f64> {
    let started = Instant::now();
    let root = HostDirectory::open(&work.join("vault"))?;
    let keys = adit_vault::unlock(&root, PASSWORD)?;
    let (store, _) = VaultStore::open(OpenOptions {
        root: Arc::new(root),
        state: Some(Arc::new(HostDirectory::open(&work.join("state"))?)),
        abandoned: Vec::new(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: true,
    })?;
    let engine = Engine::new(Arc::new(store), EngineOptions::default());
    let took = started.elapsed().as_secs_f64() * 1e3;
    engine.shutdown()?;
    Ok(took)
}
