//! The ways to the process of a mount.
//!
//! A mount is announced in a folder where that can be had, with a socket beside it. But a folder depends on the environment, on rights and on a mount
//! namespace. So each mount also listens under an abstract name, which has no place, and tells that name to whoever asks *the mount*: by an ioctl(2)
//! on anything in it, at any place where it is mounted. Its user and root are answered, as on the socket.
//!
//! An abstract name belongs to a network namespace. From another one requests and answers themselves go through the mount ([`exchange`]): slower, with the
//! mount held busy meanwhile, and without a word of the kernel on who the process is.

mod exchange;

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl, opcode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use self::exchange::Exchanges;
use crate::mountpoint::MountEntry;

/// Room for the name in the answer, which zeros follow; in bytes.
const ANSWER_LEN: usize = 64;
/// `_IOR(0xAD, 1, char[64])`: the question for the name. No other filesystem has a meaning for it.
const QUESTION: rustix::ioctl::Opcode = opcode::read::<[u8; ANSWER_LEN]>(0xAD, 1);
const PREFIX: &str = "adit-";

/// Where a mount's process takes requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Door {
    /// A socket in a folder.
    Path(PathBuf),
    /// An abstract name.
    Name(String),
    /// The mount itself, at a place.
    Mount(Box<MountEntry>),
}

/// Why a mount did not tell its door.
#[derive(Debug)]
pub(super) enum DoorError {
    /// Its process says nothing.
    Silent,
    /// It has no process, its user is another one, or it is none of this program.
    Refused,
}

impl Door {
    /// A new abstract name, with somebody who listens there.
    pub(super) fn open() -> io::Result<(Door, UnixListener)> {
        let half = || RandomState::new().hash_one(std::process::id());
        let name = format!("{PREFIX}{:016x}{:016x}", half(), half());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok((Door::Name(name), listener))
    }

    /// Asks the mount itself, for `patience` at most. It is asked at its place in this process's view.
    pub(super) fn through(mount: &MountEntry, patience: Duration) -> Result<Door, DoorError> {
        let (place, device) = (mount.mountpoint.clone(), mount.device.clone());
        let (word, answer) = channel();
        // The call cannot be given up once the kernel waits for the mount's process; whoever waits for the thread can.
        let asked = Builder::new().name("adit-door".into()).spawn(move || {
            // Nobody waits any more if it took that long.
            let _ = word.send(ask(&place, &device));
        });
        asked.map_err(|_| DoorError::Refused)?;
        match answer.recv_timeout(patience) {
            Ok(Ok(name)) => match Door::Name(name) {
                name if name.connect(patience).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) => {
                    // Nobody else is believed, as on a socket.
                    let is_trusted = |user| user == 0 || user == rustix::process::geteuid().as_raw();
                    mount
                        .user
                        .is_some_and(is_trusted)
                        .then(|| Door::Mount(Box::new(mount.clone())))
                        .ok_or(DoorError::Refused)
                }
                name => Ok(name),
            },
            Ok(Err(_)) => Err(DoorError::Refused),
            Err(_) => Err(DoorError::Silent),
        }
    }

    /// A connection, made and written to within `patience` each: a process that hangs takes no more of them when its queue is full.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let stream = UnixStream::from(stream);
        stream.set_write_timeout(Some(patience))?;
        let address = match self {
            Door::Path(path) => SocketAddrUnix::new(path)?,
            Door::Name(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            Door::Mount(mount) => return exchange::connect(mount, patience),
        };
        loop {
            match rustix::net::connect(&stream, &address) {
                Err(Errno::INTR) => {}
                connected => break connected?,
            }
        }
        Ok(stream)
    }
}

impl std::fmt::Display for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Door::Path(path) => path.display().fmt(f),
            Door::Name(name) => write!(f, "@{name}"),
            Door::Mount(mount) => mount.mountpoint.display().fmt(f),
        }
    }
}

/// Opens what is mounted at a place, if it is the filesystem with that device.
fn open_mount(place: &Path, device: &str) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(place)?;
    let dev = opened.metadata()?.dev();
    if format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)) != device {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(opened)
}

fn ask(place: &Path, device: &str) -> io::Result<String> {
    let opened = open_mount(place, device)?;
    // SAFETY: the kernel writes as many bytes as the number of the question says, which the answer has room for; any bytes are an answer.
    let answer = unsafe { ioctl(&opened, Getter::<{ QUESTION }, [u8; ANSWER_LEN]>::new()) }?;
    let name = answer.split(|&b| b == 0).next().unwrap_or_default();
    match std::str::from_utf8(name) {
        Ok(name) if name.starts_with(PREFIX) => Ok(name.to_owned()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Takes a client as the sockets do.
type Admission = Box<dyn Fn(UnixStream) + Send + Sync>;

struct Plate {
    name: String,
    exchanges: Exchanges,
}

/// What a mount answers to whoever asks it for its process, once somebody listens. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Doorplate(Arc<OnceLock<Plate>>);

impl Doorplate {
    /// Says it from now on.
    pub(super) fn put_up(&self, door: &Door, admit: Admission) {
        if let Door::Name(name) = door {
            // A mount has one door as long as it lives.
            let _ = self.0.set(Plate { name: name.clone(), exchanges: Exchanges::new(admit) });
        }
    }

    /// The answer to the ioctl `command` with its data by a user: one of this process, or root.
    pub(crate) fn answer(&self, command: u32, data: &[u8], user: u32) -> Result<Vec<u8>, Errno> {
        let plate = self.0.get().filter(|_| [QUESTION, exchange::TURN].contains(&command)).ok_or(Errno::NOTTY)?;
        if user != 0 && user != rustix::process::geteuid().as_raw() {
            return Err(Errno::PERM);
        }
        if command == exchange::TURN {
            return plate.exchanges.turn(data);
        }
        let mut answer = plate.name.as_bytes().to_vec();
        answer.resize(ANSWER_LEN, 0);
        Ok(answer)
    }
}

impl std::fmt::Debug for Doorplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Doorplate").field(&self.0.get().map(|plate| &plate.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_tells_its_door_to_its_user_and_root_alone() {
        let plate = Doorplate::default();
        let question = QUESTION;
        assert_eq!(plate.answer(question, &[], 0), Err(Errno::NOTTY), "nobody listens yet");
        let (door, listener) = Door::open().unwrap();
        plate.put_up(&door, Box::new(drop));
        let own = rustix::process::geteuid().as_raw();
        for user in [0, own] {
            let answer = plate.answer(question, &[], user).unwrap();
            assert_eq!(format!("@{}", String::from_utf8_lossy(&answer).trim_end_matches('\0')), door.to_string());
        }
        assert_eq!(plate.answer(question, &[], own + 1), Err(Errno::PERM));
        assert_eq!(plate.answer(question + 7, &[], own), Err(Errno::NOTTY), "other questions are not ours");
        let client = door.connect(Duration::from_secs(5)).unwrap();
        assert_eq!(crate::process::user_of_peer(&client), Some(own));
        drop(listener);
    }

    #[test]
    fn a_folder_of_the_host_has_no_door() {
        let root = crate::mountpoint::find(std::path::Path::new("/")).unwrap();
        assert!(matches!(Door::through(&root, Duration::from_secs(60)), Err(DoorError::Refused)));
    }
}
