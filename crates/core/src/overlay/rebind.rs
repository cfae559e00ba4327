//! Whether a lower is the one that an upper was begun on, where the upper does not know it: in another place.

use std::sync::Arc;

use super::changes::{Names, child, is_gone};
use super::layer::{Held, Layer};
use super::record::{Origin, Own, shown};
use super::{LowerIdentity, Overlay, anchor, name_of, names, record};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::Store;
use crate::types::{Attr, Ino, Kind, XattrSet};

/// How a lower fits what an upper has noted of its own.
#[derive(Default, Debug)]
pub struct Fit {
    /// Things that were changed above and are in the lower as they were then.
    pub same: u64,
    /// Of these, those that are no directories: size and times agree as well, which no other folder has by chance.
    pub same_files: u64,
    /// The paths in the lower of what was removed above, and is not there to be removed. (What was below a directory that is among
    /// `other` is not looked at.)
    pub unremoved: Vec<String>,
    /// The paths in the lower of those that are not there, or not as they were.
    pub other: Vec<String>,
}

impl Overlay {
    /// Compares all that `upper` has noted of its lower with `lower`. It costs what was changed.
    ///
    /// # Errors
    /// `Corrupt`; what the stores say.
    pub fn fit(lower: Arc<dyn Store>, upper: Arc<dyn Store>) -> Result<Fit> {
        let (lower, upper) = (Layer::new(lower), Layer::new(upper));
        let fit = fit(&lower, &upper);
        lower.settle();
        upper.settle();
        fit
    }

    /// Has `upper`, an overlay's, belong to the lower `identity` from now on.
    ///
    /// # Errors
    /// `InvalidInput` for an identity that does not fit; what the store says.
    pub fn bind(upper: &dyn Store, identity: &LowerIdentity) -> Result<()> {
        let value = record::encode_root(identity)?;
        upper.set_xattr(Ino::ROOT, Own::Root.name(), &value, XattrSet::Replace)?;
        upper.sync_all()
    }
}

fn fit(lower: &Arc<Layer>, upper: &Arc<Layer>) -> Result<Fit> {
    let mut fit = Fit::default();
    let part = |name: &[u8]| -> Result<Held> {
        let missing =
            || FsError::new(ErrorKind::Corrupt).on("open", "the upper layer").because("a part of it is missing");
        Ok(upper.find(Ino::ROOT, name_of(name)?)?.ok_or_else(missing)?.1)
    };
    let whiteout = part(names::WHITEOUT)?;
    let (tree, index) = (part(names::TREE)?, part(names::INDEX)?);
    let index_ino = index.ino;
    // With where the lower has what a directory shows of it.
    let mut todo = vec![(tree, Some(Names::new())), (index, None)];
    while let Some((dir, below)) = todo.pop() {
        let mut entries = Names::new();
        upper.store.read_dir(dir.ino, 0, &mut |entry| {
            entries.push(entry.name.as_bytes().to_vec());
            std::ops::ControlFlow::Continue(())
        })?;
        for name in entries {
            let Some((attr, held)) = upper.find(dir.ino, name_of(&name)?)? else { continue };
            if held.ino == whiteout.ino {
                if let Some(below) = &below {
                    let path = child(below, &name);
                    if find(lower, &path)?.is_none() {
                        fit.unremoved.push(shown(&path));
                    }
                }
                continue;
            }
            let mut shows = None;
            let value = match upper.store.xattr(held.ino, Own::Origin.name()) {
                Ok(value) => Some(value),
                Err(e) if e.kind() == ErrorKind::NoAttribute => None,
                Err(e) => return Err(e),
            };
            if let Some(value) = value {
                let origin = Origin::decode(&value, &format!("inode {} of the upper layer", held.ino.0))?;
                let path = anchor::path(upper, index_ino, &origin.way)?;
                if is_there(lower, &origin, &path)? {
                    fit.same += 1;
                    fit.same_files += u64::from(attr.kind != Kind::Directory);
                    shows = Some(path);
                } else {
                    fit.other.push(shown(&path));
                }
            }
            if attr.kind == Kind::Directory {
                todo.push((held, shows));
            }
        }
    }
    fit.other.sort_unstable();
    fit.other.dedup();
    fit.unremoved.sort_unstable();
    Ok(fit)
}

/// Whether the lower has what an origin with this path is about.
fn is_there(lower: &Arc<Layer>, origin: &Origin, path: &Names) -> Result<bool> {
    Ok(match find(lower, path)? {
        Some(attr) => lower.is_same(&origin.print, &attr),
        None => path.is_empty(),
    })
}

/// What the lower has at `path`; `None` also for its root.
fn find(lower: &Arc<Layer>, path: &Names) -> Result<Option<Attr>> {
    let (mut at, mut attr): (Held, _) = (lower.root(), None);
    for name in path {
        match lower.find(at.ino, name_of(name)?) {
            Ok(Some((found, held))) => (attr, at) = (Some(found), held),
            Ok(None) => return Ok(None),
            Err(e) if is_gone(&e) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Ok(attr)
}
