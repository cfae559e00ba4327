//! Many small transactions that are each durable when they return: SQLite on the mount.
//!
//! A transaction is like pgbench's: it changes one of many accounts and notes it in a history. `synchronous=FULL`, so that
//! each ends with an `fsync` (a rollback journal takes several).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::bytes::Stream;
use super::{Group, Turn};
use crate::report::{Aim, Row, Unit};
use crate::{RunArgs, rivals};

const ACCOUNTS: u64 = 10_000;
const TRANSACTIONS: u64 = 2_000;
/// At most 1.5 times the time of the plain folder.
const OF_HOST: f64 = 1.0 / 1.5;

const fn row(name: &'static str) -> Row {
    Row { name, unit: Unit::PerSec, aim: Aim::Host(OF_HOST) }
}

static DELETE: Row = row("transactions with a rollback journal");
static WAL: Row = row("transactions with a write-ahead log");

/// Transactions that end with an fsync.
pub const SQLITE: Group = Group {
    name: "sqlite",
    about: |args| {
        format!(
            "SQLite's shell on a database of {ACCOUNTS} accounts: {} transactions of an UPDATE and an INSERT, one after the \
             other, `synchronous=FULL`; with `journal_mode=DELETE` and `WAL`.",
            args.scaled(TRANSACTIONS)
        )
    },
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare,
    script,
};

const MODES: [(&Row, &str); 2] = [(&DELETE, "delete"), (&WAL, "wal")];

fn prepare(args: &RunArgs, dir: &Path) -> Result<()> {
    rivals::sqlite()?;
    for (_, mode) in MODES {
        let mut fill = format!("PRAGMA journal_mode={mode};\n");
        fill += "CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, filler TEXT NOT NULL);
                 CREATE TABLE history(account INTEGER NOT NULL, delta INTEGER NOT NULL, filler TEXT NOT NULL);
                 BEGIN;\n";
        for id in 0..ACCOUNTS {
            let _ = writeln!(fill, "INSERT INTO accounts VALUES({id}, 0, '{:084}');", id);
        }
        fs::write(dir.join(format!("fill-{mode}.sql")), fill + "COMMIT;\n")?;
    }
    let mut transactions = String::from("PRAGMA synchronous=FULL;\n");
    let order = Stream::new(11).permutation(ACCOUNTS);
    for (number, id) in (0..args.scaled(TRANSACTIONS)).zip(order.iter().cycle()) {
        let _ = writeln!(
            transactions,
            "BEGIN; UPDATE accounts SET balance = balance + {number} WHERE id = {id}; \
             INSERT INTO history VALUES({id}, {number}, '{number:022}'); COMMIT;"
        );
    }
    fs::write(dir.join("transactions.sql"), transactions).context("cannot write the transactions")
}

fn script(turn: &mut Turn<'_>) -> Result<()> {
    let count = turn.args.scaled(TRANSACTIONS);
    for (row, mode) in MODES {
        let mounted = turn.mount_cold()?;
        let database = mounted.root().join(format!("{mode}.db"));
        sqlite(&database, &turn.dir.join(format!("fill-{mode}.sql")))?;
        let started = Instant::now();
        sqlite(&database, &turn.dir.join("transactions.sql"))?;
        turn.sample(row, count as f64 / started.elapsed().as_secs_f64());
        ensure_written(&database, count)?;
        turn.unmount(mounted)?;
    }
    Ok(())
}

/// Runs a script in a shell of its own.
fn sqlite(database: &Path, script: &Path) -> Result<()> {
    let mut shell = Command::new("sqlite3");
    shell.args(["-batch", "-bail", "-init", "/dev/null"]).arg(database).stdin(File::open(script)?);
    let output = shell.stdout(Stdio::null()).output().context("cannot start sqlite3")?;
    ensure!(output.status.success(), "sqlite3 failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn ensure_written(database: &Path, count: u64) -> Result<()> {
    let mut shell = Command::new("sqlite3");
    shell.args(["-batch", "-init", "/dev/null"]).arg(database).arg("SELECT count(*) FROM history;");
    let output = shell.stdin(Stdio::null()).output()?;
    let found = String::from_utf8_lossy(&output.stdout);
    ensure!(found.trim() == count.to_string(), "the database holds {:?} of {count} transactions", found.trim());
    Ok(())
}
