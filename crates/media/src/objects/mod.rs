//! Object stores: the seam [`Objects`] over S3, over WebDAV and over a folder of this machine.
//!
//! [`open_objects`] takes what was typed. [`FolderObjects`] is ours from top to bottom, because what it promises of names, links
//! and power cuts no general library does. [`S3Objects`] speaks the protocol with opendal, on a small runtime that all of
//! them share ([`runtime`]) and through a transport of its own ([`transport`]), which has the limits. [`WebDavObjects`] sends its own requests
//! through that.

mod begun;
mod body;
mod calls;
mod cancel;
mod credentials;
mod endpoint;
mod failure;
mod folder;
mod ini;
mod near;
mod options;
mod pieces;
mod profile;
mod proxy;
mod runtime;
mod s3;
mod tls;
mod transport;
mod upload;
mod wanted;
mod webdav;

use std::path::PathBuf;
use std::sync::Arc;

use adit_core::Result;
use adit_core::media::Objects;

pub use cancel::Cancel;
pub use folder::FolderObjects;
pub use options::{ObjectsOptions, StoreUrl};
pub use s3::S3Objects;
pub use webdav::{Collection as WebDavCollection, WebDavObjects};

/// Opens the object store that `url` names: `s3://bucket/prefix`, `davs://host/path`, `dav://host:port/path`, a folder, or `file:///folder`.
///
/// Nothing goes over the network yet, so a bucket that is not there, or not ours, shows at the first call.
pub fn open_objects(url: &str, options: &ObjectsOptions) -> Result<Arc<dyn Objects>> {
    open_objects_for(url, options, &Owner::default())
}

/// For whom a store works, beside its options.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// What ends its calls over a network.
    pub cancel: Cancel,
    /// The folder in which uploads in parts are noted, so that one that was killed is gone on with; it need not be there. Without, each begins anew.
    pub uploads: Option<PathBuf>,
    /// Takes the line about a store that is waited for.
    pub notice: Notice,
}

/// Takes a line for the user: a store does not answer as it should, and is tried again for a while. By default it goes nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Notice(pub fn(&str));

impl Default for Notice {
    fn default() -> Notice {
        Notice(|_| ())
    }
}

/// The same for an owner.
pub fn open_objects_for(url: &str, options: &ObjectsOptions, owner: &Owner) -> Result<Arc<dyn Objects>> {
    Ok(match StoreUrl::parse(url)? {
        StoreUrl::S3 { bucket, prefix } => Arc::new(S3Objects::open_for(&bucket, &prefix, options, owner)?),
        StoreUrl::WebDav(collection) => Arc::new(WebDavObjects::open_for(&collection, options, owner)?),
        StoreUrl::Folder(path) => Arc::new(FolderObjects::open(&path)?),
    })
}
