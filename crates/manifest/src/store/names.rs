//! From the names that a mount lists back to those of the manifest.
//!
//! A lone surrogate without bytes on a host is listed as its WTF-8 ([`EntryPath::to_listing`]). A name that a host has with just these bytes is
//! written with an escape for each byte, and is listed the same. So the manifest is asked which of them it has; a name that it does not have is
//! taken for what the mount shows by it, a lone surrogate.

use std::collections::HashSet;
use std::sync::OnceLock;

use adit_index::{NodeId, Segment};

use super::extra::Extra;
use crate::format::{EntryPath, FormatError, wtf8};
use crate::snapshot::Names;

/// The names of a tree that shows a manifest, or lies on one.
pub struct ListedNames<'a> {
    segment: &'a Segment,
    /// The names that it has with escapes, as they are listed. Looked for when it matters.
    escaped: OnceLock<HashSet<Vec<u8>>>,
}

impl<'a> ListedNames<'a> {
    /// Of the manifest behind `segment`.
    pub fn new(segment: &'a Segment) -> Self {
        ListedNames { segment, escaped: OnceLock::new() }
    }

    fn escaped(&self) -> &HashSet<Vec<u8>> {
        self.escaped.get_or_init(|| {
            let (mut escaped, mut lone) = (HashSet::new(), HashSet::new());
            for id in (0..self.segment.len()).map(NodeId) {
                // What is damaged in it is told by whoever needs it.
                let (Ok(name), Ok(extra)) = (self.segment.name(id), self.segment.extra(id)) else { continue };
                match Extra::decode(extra).and_then(|extra| extra.text) {
                    Some(text) => {
                        let names = text.split(|&byte| byte == b'/').filter(|name| !wtf8::has_host_bytes(name));
                        lone.extend(names.map(|name| wtf8::to_listing(name).into_owned()));
                    }
                    None if is_ambiguous(name) => drop(escaped.insert(name.to_vec())),
                    None => {}
                }
            }
            // A folder that the manifest does not list has no text: those in it do.
            escaped.retain(|name| !lone.contains(name));
            escaped
        })
    }
}

/// Whether two texts are listed so.
fn is_ambiguous(name: &[u8]) -> bool {
    str::from_utf8(name).is_err() && wtf8::from_listing(name) != wtf8::from_host(name)
}

impl Names for ListedNames<'_> {
    fn path(&self, listing: &[u8]) -> Result<EntryPath<'static>, FormatError> {
        if !is_ambiguous(listing) {
            return EntryPath::from_host(listing).map(EntryPath::into_owned);
        }
        EntryPath::of_names(listing.split(|&byte| byte == b'/').map(|name| {
            match is_ambiguous(name) && !self.escaped().contains(name) {
                true => wtf8::from_listing(name),
                false => wtf8::from_host(name),
            }
        }))
    }
}
