//! What a store that changes files does on its host, found out by trying: no flag of a mount tells it.

use std::io;
use std::path::Path;

use adit_core::host::free_name::{is_of_the_moment, temporary_name};
use adit_core::media::{HostDir, HostFile, NewFile};
use adit_core::types::{Access, Kind, RenameFlags};
use rustix::io::Errno;

use super::HostDirectory;

/// Tries in `folder` what a store that changes files does, and removes what it made. See [`HostDir::trial`].
pub(super) fn changes(host: &HostDirectory, folder: &Path) -> io::Result<()> {
    let [first, second] = [(); 2].map(|()| folder.join(temporary_name()));
    let new = NewFile { content: &[b'x'; 4096], perm: 0o600, owner: None, durable: false };
    let file = match host.publish(&first, &new) {
        Err(e) if Errno::from_io_error(&e).is_some_and(|e| is_of_the_moment(e) || is_of_rights(e)) => return Ok(()),
        other => other?,
    };
    let worked = change(host, file, &first, &second);
    // Only one of them is there.
    let _ = (host.remove(&first, Kind::File), host.remove(&second, Kind::File));
    match worked {
        Err(e) if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Ok(()),
        worked => worked,
    }
}

fn change(host: &HostDirectory, file: Box<dyn HostFile>, first: &Path, second: &Path) -> io::Result<()> {
    let step = |what: &str, done: io::Result<()>| done.map_err(|e| io::Error::new(e.kind(), format!("{what}: {e}")));
    let read = |file: &dyn HostFile, wanted: &[u8]| {
        let mut found = vec![0; wanted.len()];
        let got = file.read_at(10, &mut found)?;
        if found[..got] == *wanted { Ok(()) } else { Err(io::Error::other("something else is read")) }
    };
    step("a new file cannot be read", read(&*file, b"xxxx"))?;
    step("a file cannot be renamed", host.rename(first, second, RenameFlags::NOREPLACE))?;
    drop(file);
    let file = host.open(second, Access::Write);
    let file = file.map_err(|e| io::Error::new(e.kind(), format!("a file cannot be opened to change it: {e}")))?;
    step("a file cannot be changed", file.write_at(10, b"abcd").and_then(|()| read(&*file, b"abcd")))?;
    step("a file cannot be cut", file.set_len(12).and_then(|()| read(&*file, b"ab")))
}

/// Whether the error is about who asks, or where.
fn is_of_rights(e: Errno) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::NOENT, Errno::NOTDIR, Errno::MFILE, Errno::NFILE].contains(&e)
}
