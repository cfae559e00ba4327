//! How a volume is kept in the repository, and how one is broken.
//!
//! Each file of a volume is kept without its zeros: its length, then each stretch of sectors that are not all zero as offset,
//! length, bytes. Integers are u64, little-endian. The name has `.sectors` behind it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: usize = 512;
const SUFFIX: &str = ".sectors";

/// Keeps the files below `from` in `to`.
pub fn pack(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            pack(&path, &to.join(name));
        } else {
            fs::write(to.join(name + SUFFIX), encode(&fs::read(&path).unwrap())).unwrap();
        }
    }
}

fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    let sectors: Vec<&[u8]> = bytes.chunks(SECTOR).collect();
    let mut at = 0;
    for stretch in sectors.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len: usize = stretch.iter().map(|sector| sector.len()).sum();
        if !is_zero(stretch[0]) {
            out.extend((at as u64).to_le_bytes());
            out.extend((len as u64).to_le_bytes());
            out.extend(stretch.concat());
        }
        at += len;
    }
    out
}

fn is_zero(sector: &[u8]) -> bool {
    sector.iter().all(|byte| *byte == 0)
}

/// Makes again what [`pack`] kept.
pub fn unpack(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            unpack(&path, &to.join(name));
        } else if let Some(name) = name.strip_suffix(SUFFIX) {
            decode(&fs::read(&path).unwrap(), &to.join(name));
        }
    }
}

fn decode(kept: &[u8], to: &Path) {
    let number = |at: usize| u64::from_le_bytes(kept[at..at + 8].try_into().unwrap());
    let file = fs::File::create(to).unwrap();
    file.set_len(number(0)).unwrap();
    let mut at = 8;
    while at < kept.len() {
        let len = number(at + 8) as usize;
        file.write_all_at(&kept[at + 16..at + 16 + len], number(at)).unwrap();
        at += 16 + len;
    }
}

/// Does one line of harm to the volume in `dir`: `xor FILE OFFSET BYTE`, `zero FILE OFFSET LEN`, `cut FILE LEN`,
/// `write FILE OFFSET HEX`, `remove PATH` (a file or a folder), `move FROM TO`.
pub fn harm(dir: &Path, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let path = dir.join(words[1]);
    let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"));
    let write = |bytes: &[u8]| {
        fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(bytes, number(2)).unwrap();
    };
    match words[0] {
        "xor" => {
            let mut byte = [0];
            fs::File::open(&path).unwrap().read_exact_at(&mut byte, number(2)).unwrap();
            write(&[byte[0] ^ number(3) as u8]);
        }
        "zero" => write(&vec![0; number(3) as usize]),
        "cut" => fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(number(2)).unwrap(),
        "write" => {
            let digits = |at: usize| u8::from_str_radix(&words[3][at..at + 2], 16).unwrap();
            write(&(0..words[3].len()).step_by(2).map(digits).collect::<Vec<u8>>());
        }
        "remove" if path.is_dir() => fs::remove_dir_all(&path).unwrap(),
        "remove" => fs::remove_file(&path).unwrap(),
        "move" => fs::rename(&path, dir.join(words[2])).unwrap(),
        _ => panic!("{line}: no such harm"),
    }
}
