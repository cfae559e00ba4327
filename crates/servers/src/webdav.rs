//! A server on WebDAV: Apache with mod_dav, in one process that needs no files of the system's.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::guard::Guarded;
use crate::{PORTS_MAX, answering, free_address};

/// The program, and the folder of its modules, as Debian's package `apache2-bin` has them.
pub const APACHE: &str = "/usr/sbin/apache2";
const MODULES: &str = "/usr/lib/apache2/modules";

/// A running server with one empty collection, killed when this is dropped.
#[derive(Debug)]
pub struct WebDavServer {
    address: SocketAddr,
    _process: Guarded,
}

impl WebDavServer {
    /// Starts Apache, and waits until it answers. `dir` gets what it stores and its log; whoever it runs as has to reach that.
    pub fn start(dir: &Path) -> io::Result<WebDavServer> {
        for folder in ["data", "data/root", "locks"] {
            fs::create_dir_all(dir.join(folder))?;
            // Started by root, it becomes somebody else.
            fs::set_permissions(dir.join(folder), Permissions::from_mode(0o777))?;
        }
        for _ in 0..PORTS_MAX {
            let address = free_address()?;
            match start_at(dir, address) {
                // Whoever else has the port now is why it did not start.
                Err(_) if TcpListener::bind(address).is_err() => {}
                Err(error) => return Err(error),
                Ok(process) => return Ok(WebDavServer { address, _process: process }),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{PORTS_MAX} free ports were taken before Apache was")))
    }

    /// Where it listens: always on the loopback.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The collection in it, as a URL of a store.
    pub fn url(&self) -> String {
        format!("dav://{}/root", self.address)
    }
}

fn start_at(dir: &Path, address: SocketAddr) -> io::Result<Guarded> {
    let (config, log) = (dir.join("httpd.conf"), dir.join("server.log"));
    OpenOptions::new().write(true).create(true).truncate(true).open(&config)?.write_all(
        format!(
            "ServerRoot {dir}\nServerName {ip}\nListen {address}\nPidFile {dir}/pid\nErrorLog {log}\n\
             LoadModule mpm_event_module {MODULES}/mod_mpm_event.so\n\
             LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
             LoadModule dir_module {MODULES}/mod_dir.so\n\
             LoadModule dav_module {MODULES}/mod_dav.so\n\
             LoadModule dav_fs_module {MODULES}/mod_dav_fs.so\n\
             User nobody\nGroup nogroup\nDocumentRoot {dir}/data\nDAVLockDB {dir}/locks/db\n\
             <Directory {dir}/data>\nDav On\nRequire all granted\n</Directory>\n",
            dir = dir.display(),
            log = log.display(),
            ip = address.ip(),
        )
        .as_bytes(),
    )?;
    let mut command = Command::new(APACHE);
    // In one process: others would not end with it.
    command.current_dir(dir).arg("-X").arg("-f").arg(&config);
    let process = Guarded::start(&command, &OpenOptions::new().append(true).create(true).open(&log)?)?;
    answering("Apache", process, address, &log)
}
