//! What was measured, as a file: JSON, by engine and kind of work.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::fit::Fit;
use super::{Engine, Router, Work};

/// The version that is written, and the only one that is read: another one is measured anew.
const VERSION: u32 = 2;
/// A longer file is none of ours.
const LEN_MAX_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    /// When drivers were asked which devices there are, in seconds since 1970; 0 if they never were.
    #[serde(default)]
    asked: u64,
    /// What they said.
    #[serde(default)]
    devices: Vec<Engine>,
    engines: BTreeMap<String, BTreeMap<Work, Fit>>,
}

/// What a file of measurements says of the devices that there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownDevices {
    /// When drivers were asked, in seconds since 1970.
    pub asked_secs: u64,
    /// The devices that they offered.
    pub devices: Vec<Engine>,
}

/// The devices that a file of measurements knows. `None` if there is no such file, or drivers were never asked.
pub fn known_devices(path: &Path) -> Option<KnownDevices> {
    let state = read(path)?;
    (state.asked > 0).then_some(KnownDevices { asked_secs: state.asked, devices: state.devices })
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

    /// Keeps what was measured, beside what the file says of other engines; and, if drivers were `asked` at that time, in seconds since
    /// 1970, that these are all devices that there are. The file is replaced whole, readable for its owner.
    ///
    /// # Errors
    /// What the host says.
    pub fn save(&self, path: &Path, asked: Option<u64>) -> io::Result<()> {
        let empty = State { version: VERSION, asked: 0, devices: Vec::new(), engines: BTreeMap::new() };
        let mut state = read(path).unwrap_or(empty);
        if let Some(asked) = asked {
            (state.asked, state.devices) = (asked, self.engines[1..].to_vec());
        }
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
