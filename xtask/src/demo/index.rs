//! The tour's last part: indexes of a folder, a volume and a vault. Each answers as the tree itself would.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Adit, SECRET_DIR, Tour};
use crate::mounted::Workbench;
use crate::process;

/// Indexes `plain` and a vault that holds it, and asks.
pub fn tour(tour: &mut Tour, adit: &Adit, plain: &Path) -> Result<()> {
    let bench = Workbench::new("demo-index")?;
    let [tree, later, sealed] = ["tree.idx", "later.idx", "vault.idx"].map(|name| bench.dir.join(name));
    let verb = |words: &[&str]| {
        let mut command = Command::new(&adit.program);
        command.arg("index").args(words);
        command
    };
    let answer = |command: &mut Command| -> Result<String> {
        let output = command.stderr(Stdio::inherit()).output().context("adit does not start")?;
        ensure!(output.status.success(), "{command:?} ended with {}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    };

    tour.step("Index a folder, with the hash of each file");
    adit.run(verb(&["build", "--hash", "-o"]).arg(&tree).arg(plain))?;
    tour.done("one file that answers without the folder");

    tour.step("Find names in it, and compare with a walk of the folder");
    let found = answer(verb(&["find"]).arg(&tree).args(["--glob", "*.rs", "-t", "file"]))?;
    let mut found: Vec<&str> = found.lines().collect();
    let mut expected = Vec::new();
    walk(plain, "", &mut expected)?;
    expected.retain(|path| path.ends_with(".rs"));
    found.sort_unstable();
    expected.sort_unstable();
    ensure!(!found.is_empty() && found == expected, "the index and the folder do not have the same files");
    adit.run(verb(&["top", "-n", "3"]).arg(&tree))?;
    tour.done(&format!("{} files, the same in both", found.len()));

    tour.step("Change the folder, and ask what is different");
    fs::write(plain.join("adit/README.md"), "another text\n")?;
    fs::rename(plain.join("adit/Cargo.toml"), plain.join("adit/Moved.toml"))?;
    fs::copy(&tree, &later)?;
    adit.run(verb(&["update"]).arg(&later))?;
    let changes = answer(verb(&["diff"]).arg(&tree).arg(&later))?;
    print!("{changes}");
    for expected in ["changed  /adit/README.md", "renamed  /adit/Cargo.toml -> /adit/Moved.toml"] {
        ensure!(changes.lines().any(|line| line == expected), "the diff does not have: {expected}");
    }
    tour.done("the change and the renamed file, by its hash");

    tour.step("Index a vault: nothing of it can be read without the password");
    let vault = bench.vault();
    adit.with_password(&bench, &["vault".as_ref(), "init".as_ref(), vault.as_os_str()])?;
    adit.with_password(&bench, &["put".as_ref(), vault.as_os_str(), plain.as_os_str(), "/".as_ref()])?;
    let with_password =
        |command: &mut Command| -> Result<String> { answer(command.arg("--password-file").arg(bench.password_file())) };
    with_password(verb(&["build", "-o"]).arg(&sealed).arg(&vault))?;
    let bytes = fs::read(&sealed)?;
    let name = SECRET_DIR.as_bytes();
    ensure!(!bytes.windows(name.len()).any(|window| window == name), "a name of the vault lies in its index in clear");
    let found = with_password(verb(&["find"]).arg(&sealed).arg("my-secret").arg("--vault").arg(&vault))?;
    ensure!(found.lines().any(|line| line.ends_with(SECRET_DIR)), "the index of the vault does not know its folder");
    process::run(verb(&["info"]).arg(&sealed).stderr(Stdio::null()), super::STEP_LIMIT)
        .err()
        .context("the index of a vault was opened without its password")?;
    tour.done("found with the password, refused without");
    Ok(())
}

/// The files below `dir`, each with a slash in front.
fn walk(dir: &Path, at: &str, into: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = format!("{at}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), &path, into)?;
        } else if kind.is_file() {
            into.push(path);
        }
    }
    Ok(())
}
