//! Requests and answers through the mount itself, in turns: each is an ioctl(2) that carries bytes both ways.
//!
//! At either end it is a pair of sockets, so nobody else knows of it. A turn has a head of [`HEAD_LEN`] bytes, in little-endian numbers: the number of the
//! exchange (8; 0 in a question begins one), how many bytes follow (4), and in an answer how many of the question were taken (4), with the upper bit where
//! nothing more will come from that end.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use super::Admission;
use crate::mountpoint::MountEntry;

/// Bytes of a turn, with its head: the number of an ioctl has 14 bits for that.
const TURN_LEN: usize = 8 << 10;
const HEAD_LEN: usize = 16;
/// `_IOWR(0xAD, 2, char[8192])`.
pub(super) const TURN: rustix::ioctl::Opcode = opcode::read_write::<[u8; TURN_LEN]>(0xAD, 2);
const ENDED: u32 = 1 << 31;
/// Exchanges at once.
const EXCHANGES_MAX: usize = 16;
/// After so long without a turn an exchange may be over, for its client has ended without a word: it goes where room is needed for another.
const SILENCE: Duration = Duration::from_millis(200);
/// Between two turns in which nothing was said.
const PAUSE: Duration = Duration::from_millis(5);

/// The head of a turn and what follows it.
struct Turn<'a> {
    number: u64,
    taken: u32,
    bytes: &'a [u8],
}

impl Turn<'_> {
    fn read(data: &[u8]) -> Option<Turn<'_>> {
        let (head, rest) = data.split_first_chunk::<HEAD_LEN>()?;
        let number = u64::from_le_bytes(*head.first_chunk()?);
        let word = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        Some(Turn { number, taken: word(12)?, bytes: rest.get(..word(8)? as usize)? })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut data = self.number.to_le_bytes().to_vec();
        data.extend((self.bytes.len() as u32).to_le_bytes());
        data.extend(self.taken.to_le_bytes());
        data.extend(self.bytes);
        data
    }
}

/// What the process of a mount has under way.
pub(super) struct Exchanges {
    admit: Admission,
    open: Mutex<HashMap<u64, (UnixStream, Instant)>>,
}

impl Exchanges {
    pub(super) fn new(admit: Admission) -> Exchanges {
        Exchanges { admit, open: Mutex::default() }
    }

    /// Carries a turn of a client, and never waits.
    pub(super) fn turn(&self, data: &[u8]) -> Result<Vec<u8>, Errno> {
        let question = Turn::read(data).ok_or(Errno::INVAL)?;
        let mut open = self.open.lock();
        if question.taken & ENDED != 0 {
            open.remove(&question.number);
            return Ok(Turn { number: question.number, taken: ENDED, bytes: &[] }.to_bytes());
        }
        let number = if question.number == 0 { self.begin(&mut open)? } else { question.number };
        let (stream, used) = open.get_mut(&number).ok_or(Errno::PIPE)?;
        *used = Instant::now();
        let taken = match question.bytes {
            [] => 0,
            bytes => now(stream.write(bytes)).unwrap_or(Some(0)).unwrap_or(0),
        };
        let mut buffer = [0; TURN_LEN - HEAD_LEN];
        let read = now(stream.read(&mut buffer)).unwrap_or(Some(0));
        let is_over = read == Some(0);
        if is_over {
            open.remove(&number);
        }
        let taken = taken as u32 | if is_over { ENDED } else { 0 };
        Ok(Turn { number, taken, bytes: &buffer[..read.unwrap_or(0)] }.to_bytes())
    }

    fn begin(&self, open: &mut HashMap<u64, (UnixStream, Instant)>) -> Result<u64, Errno> {
        if open.len() >= EXCHANGES_MAX {
            let oldest =
                open.iter().min_by_key(|(_, (_, used))| *used).filter(|(_, (_, used))| used.elapsed() >= SILENCE);
            let number = *oldest.ok_or(Errno::BUSY)?.0;
            open.remove(&number);
        }
        let failed = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let number = RandomState::new().hash_one(open.len()).max(1);
        open.insert(number, (ours, Instant::now()));
        (self.admit)(theirs);
        Ok(number)
    }
}

/// `None` if there is nothing to be done at the moment.
fn now(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        done => done.map(Some),
    }
}

/// A connection to the process of a mount through it. It ends when it is dropped.
pub(super) fn connect(mount: &MountEntry, patience: Duration) -> io::Result<UnixStream> {
    let opened = super::open_mount(&mount.mountpoint, &mount.device)?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_write_timeout(Some(patience))?;
    theirs.set_nonblocking(true)?;
    Builder::new().name("adit-exchange".into()).spawn(move || carry(&opened, &theirs))?;
    Ok(ours)
}

/// Takes turns until one end has gone. Its client hears of that by the end of its connection.
fn carry(mount: &File, client: &UnixStream) {
    let (mut number, mut left): (u64, Vec<u8>) = (0, Vec::new());
    let mut buffer = [0; TURN_LEN - HEAD_LEN];
    loop {
        let mut is_over = false;
        if left.is_empty() {
            match now((&mut &*client).read(&mut buffer)) {
                Ok(Some(0)) | Err(_) => is_over = true,
                Ok(len) => left.extend(&buffer[..len.unwrap_or(0)]),
            }
        }
        let mut turn = [0; TURN_LEN];
        let question = Turn { number, taken: if is_over { ENDED } else { 0 }, bytes: &left }.to_bytes();
        turn[..question.len()].copy_from_slice(&question);
        // SAFETY: the kernel reads and writes as many bytes as the number says, which the turn has; any bytes are an answer.
        if unsafe { ioctl(mount.as_fd(), Updater::<{ TURN }, [u8; TURN_LEN]>::new(&mut turn)) }.is_err() {
            return;
        }
        let Some(answer) = Turn::read(&turn) else { return };
        number = answer.number;
        let taken = (answer.taken & !ENDED) as usize;
        left.drain(..taken.min(left.len()));
        if client.set_nonblocking(false).and_then(|()| (&mut &*client).write_all(answer.bytes)).is_err() {
            return;
        }
        if answer.taken & ENDED != 0 || client.set_nonblocking(true).is_err() {
            return;
        }
        if taken == 0 && answer.bytes.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways_in_turns_and_an_end_is_told() {
        let (word, admitted) = std::sync::mpsc::channel();
        let exchanges = Exchanges::new(Box::new(move |client| word.send(client).unwrap()));
        let say = |number: u64, bytes: &[u8]| {
            let answer = exchanges.turn(&Turn { number, taken: 0, bytes }.to_bytes()).unwrap();
            let answer = Turn::read(&answer).unwrap();
            (answer.number, answer.taken, answer.bytes.to_vec())
        };
        let (number, taken, bytes) = say(0, b"question\n");
        assert_eq!((taken, bytes.len()), (9, 0));
        let mut client = admitted.recv().unwrap();
        let mut line = [0; 9];
        client.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"question\n");
        assert_eq!(say(number, b""), (number, 0, Vec::new()));
        client.write_all(&vec![b'x'; 10_000]).unwrap();
        let long = say(number, b"");
        assert_eq!(long.2.len(), TURN_LEN - HEAD_LEN);
        drop(client);
        assert_eq!(say(number, b"").2.len(), 10_000 - long.2.len());
        assert_eq!(say(number, b""), (number, ENDED, Vec::new()));
        assert_eq!(exchanges.turn(&Turn { number, taken: 0, bytes: b"" }.to_bytes()), Err(Errno::PIPE), "it is over");
        for rubbish in [&b""[..], &[0; 15], &[0xff; 16]] {
            assert_eq!(exchanges.turn(rubbish), Err(Errno::INVAL));
        }
        let (ended, ..) = say(0, b"");
        let end = Turn { number: ended, taken: ENDED, bytes: b"" }.to_bytes();
        assert_eq!(Turn::read(&exchanges.turn(&end).unwrap()).unwrap().taken, ENDED);
        assert!(exchanges.open.lock().is_empty(), "what a client ends takes no room");
        // One whose client went without a word makes room for the next.
        (0..EXCHANGES_MAX).for_each(|_| drop(say(0, b"")));
        let silent = *exchanges.open.lock().keys().next().unwrap();
        exchanges.open.lock().get_mut(&silent).unwrap().1 -= SILENCE;
        let (next, ..) = say(0, b"");
        assert!(exchanges.open.lock().contains_key(&next) && !exchanges.open.lock().contains_key(&silent));
        assert_eq!(exchanges.open.lock().len(), EXCHANGES_MAX);
    }
}
