//! What was measured, as a file: JSON, by engine and kind of work.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::fit::Fit;
use super::{Router, Work};

/// The version that is written, and the only one that is read: another one is measured anew.
const VERSION: u32 = 1;
/// A longer file is none of ours.
const LEN_MAX_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    engines: BTreeMap<String, BTreeMap<Work, Fit>>,
}

impl Router {
    /// Takes over what was measured before of the engines that there are. A file that is not there, cannot be read or is of another
    /// version says nothing: then is measured anew.
    pub fn load(&self, path: &Path) {
        let Some(state) = read(path) else { return };
        let mut known = self.known();
        for (number, engine) in self.engines.iter().enumerate() {
            for (work, fit) in state.engines.get(&engine.id).into_iter().flatten() {
                if fit.is_sound() {
                    known.fits.entry((number, *work)).or_insert_with(|| fit.clone());
                }
            }
        }
    }

    /// Keeps what was measured, beside what the file says of other engines. It is replaced whole, readable for its owner.
    ///
    /// # Errors
    /// What the host says.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut state = read(path).unwrap_or(State { version: VERSION, engines: BTreeMap::new() });
        for ((number, work), fit) in &self.known().fits {
            let engine = state.engines.entry(self.engines[*number].id.clone()).or_default();
            engine.insert(*work, fit.clone());
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let scratch = dir.join(name);
        let written = write(&scratch, &state).and_then(|()| fs::rename(&scratch, path));
        if written.is_err() {
            let _ = fs::remove_file(&scratch);
        }
        written
    }
}

fn write(path: &Path, state: &State) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec_pretty(state)?)
}

fn read(path: &Path) -> Option<State> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > LEN_MAX_BYTES {
        return None;
    }
    let state: State = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (state.version == VERSION).then_some(state)
}
