//! A server on WebDAV for the tests.

use std::ffi::OsString;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use adit_servers::WebDavServer;
use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::apt;

/// A server with an empty collection in a folder of its own; both are gone when this is dropped.
pub struct Scratch {
    server: WebDavServer,
    // After the server, which writes to it.
    _dir: TempDir,
}

impl Scratch {
    /// Installs Apache if it is missing, and starts it.
    pub fn start() -> Result<Scratch> {
        apt::ensure([&apt::APACHE])?;
        // Where anybody gets to: started by root, it runs as somebody else.
        let dir = TempDir::with_prefix("adit-webdav-").context("cannot make the server's folder")?;
        set_permissions(dir.path(), Permissions::from_mode(0o755)).context("cannot open the server's folder")?;
        let server = WebDavServer::start(dir.path()).context("cannot start Apache")?;
        Ok(Scratch { server, _dir: dir })
    }

    /// What names the collection to the tests.
    pub fn variable(&self) -> (&'static str, OsString) {
        ("ADIT_WEBDAV_URLS", self.server.url().into())
    }
}
