//! What was changed on a mount, and has no place in a manifest of its version.

use adit_core::path::{Last, Tree};
use adit_manifest::commit::Changed;
use adit_manifest::format::Format;
use adit_manifest::snapshot::Names;
use adit_manifest::store::ListedNames;
use serde_json::Value;

use super::name;

/// Permissions that let anybody run a file.
const EXEC: u16 = 0o111;

/// How much of what was changed is in no manifest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Folders with nothing in them, of version 2023.
    pub directories: u64,
    /// Files that can be run, of version 2023.
    pub exec_bits: u64,
    /// Files and folders with other permissions, another owner or other extended attributes: of a manifest of 2025 all but exec bits.
    pub attributes: u64,
}

impl Lost {
    /// What was found while the tree was hashed; changes are [counted](Lost::count) to it.
    pub fn beside(changed: &Changed) -> Lost {
        Lost { exec_bits: changed.exec_bits, ..Lost::default() }
    }

    /// Counts a change, which the process told of, if it is not in `changed`. `tree` is what was looked at, with these `names`.
    pub fn count(&mut self, change: &Value, changed: &Changed, names: &ListedNames<'_>, tree: &Tree<'_>) {
        let manifest = &changed.manifest;
        let is_2023 = manifest.header().format == Format::V2023;
        let Some(path) = name(change, "path") else { return };
        let path = path.strip_prefix(b"/").unwrap_or(&path);
        // Who looks at the tree has told of a name that a manifest cannot have.
        let Ok(entry) = names.path(path) else { return };
        let is_there = manifest.get(&entry).is_some();
        match (change["kind"].as_str(), change["change"].as_str()) {
            (Some("directory"), Some("attributes")) => self.attributes += 1,
            (Some("directory"), Some("added" | "renamed")) if is_2023 => {
                self.directories += u64::from(!is_there && manifest.below(&entry).next().is_none());
            }
            (Some("file"), Some("attributes")) if !is_there => {
                let found = tree.resolve(path, Last::Keep);
                // Those are counted.
                let can_be_run = is_2023 && found.is_ok_and(|node| node.attr().perm & EXEC != 0);
                self.attributes += u64::from(!can_be_run);
            }
            _ => {}
        }
    }

    /// In words, if it is something.
    pub fn words(&self, format: Format) -> Option<String> {
        let kinds = [
            (self.directories, "empty folder", "empty folders"),
            (self.exec_bits, "exec bit", "exec bits"),
            (
                self.attributes,
                "change of permissions, owners or extended attributes",
                "changes of permissions, owners or extended attributes",
            ),
        ];
        let part = |(count, one, many): (u64, &str, &str)| {
            (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
        };
        let parts: Vec<String> = kinds.into_iter().filter_map(part).collect();
        let what = parts.join(", ");
        (!parts.is_empty()).then(|| match format {
            Format::V2023 => format!("v2023 has files only; not kept: {what}"),
            Format::V2025(_) => format!(
                "of permissions, owners and extended attributes a manifest keeps exec bits alone; not kept: {what}"
            ),
        })
    }
}
