//! What is told of a commit.

use adit_core::FsError;
use adit_index::Segment;
use adit_manifest::commit::Looked;
use adit_manifest::format::{Body, Format, Manifest, Removed, Written};
use adit_manifest::store::Identity;
use adit_manifest::upload::Uploaded;
use serde_json::{Value, json};

use super::lost::Lost;
use super::place::Places;
use super::{Scanned, has_no_entries};
use crate::args::low::GlobalArgs;
use crate::args::manifest_commit::ManifestCommitArgs;
use crate::args::units::show_size;
use crate::commands::manifest::failed::{Failed, ended};
use crate::commands::manifest::upload;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::output::{Output, counted};

/// A manifest as it is written.
pub struct Encoded {
    pub text: Vec<u8>,
    pub written: Written,
    pub format: Format,
}

/// What a commit found and did, for programs and for people.
pub struct Told {
    object: Value,
    format: Format,
    subject: String,
    /// Deletions that v2023 cannot hold.
    untold: u64,
    /// What else has no place.
    lost: Lost,
    /// Files that are told though they did not change, because v2023 has no manifest of nothing.
    restated: u64,
    /// Where it was written, or would be; and whether that was done now.
    places: Vec<(String, bool)>,
    is_streamed: bool,
    /// Files could not be brought to the store.
    has_failures: bool,
}

impl Told {
    /// What is told of `changed`, a diff of the manifest behind `segment`.
    ///
    /// # Errors
    /// Of a damaged index.
    pub fn of(
        changed: &Manifest,
        segment: &Segment,
        scanned: Scanned,
        lost: Lost,
        args: &ManifestCommitArgs,
    ) -> Result<Told> {
        let subject = args.mountpoint.display().to_string();
        let Identity { header, hash, .. } = Identity::of(segment).map_err(|e| Failure::fs(&subject, &e))?;
        let (mut files, mut bytes, mut directories, mut symlinks) = (0u64, 0u64, 0u64, 0u64);
        for (_, body) in changed.entries() {
            match body {
                Body::Directory => directories += 1,
                Body::Symlink(_) => symlinks += 1,
                Body::File(file) => (files, bytes) = (files + 1, bytes + file.size_bytes),
                Body::Deleted(_) => {}
            }
        }
        // A tree of 2023 has no folders of its own.
        let is_told = |removed: &Removed| header.format != Format::V2023 || *removed == Removed::File;
        let deletions = changed.deletions().filter(|(_, removed)| is_told(removed)).count() as u64;
        let untold = if header.format == Format::V2023 && !args.full { deletions } else { 0 };
        let object = json!({
            "mountpoint": subject,
            "format": if header.format == Format::V2023 { "v2023" } else { "v2025" },
            "kind": match (args.full, header.format) {
                (true, _) => "snapshot",
                (false, Format::V2023) => "output",
                (false, Format::V2025(_)) => "diff",
            },
            "parent": hash.to_string(),
            "files": files,
            "bytes": bytes,
            "directories": directories,
            "symlinks": symlinks,
            "deletions": deletions,
            "lost": {
                "deletions": untold,
                "directories": lost.directories,
                "runnable": lost.exec_bits,
                "attributes": lost.attributes,
            },
            "restated": 0,
            "dry_run": args.dry_run,
            "known_files": scanned.known_files,
            "hashed_bytes": scanned.hashed_bytes,
            "left_out": scanned.left_out,
            "failures": [],
            "manifests": [],
        });
        let (format, places) = (header.format, Vec::new());
        let (restated, is_streamed, has_failures) = (0, false, false);
        Ok(Told { object, format, subject, untold, lost, restated, places, is_streamed, has_failures })
    }

    /// Whether nothing differs.
    pub fn is_nothing(&self) -> bool {
        ["files", "directories", "symlinks", "deletions"].iter().all(|field| self.object[field] == 0)
    }

    /// Whether the version has no place for a manifest of `changed` alone: that of 2023 has one file at least.
    pub fn cannot_be_told(&self, changed: &Manifest) -> bool {
        self.format == Format::V2023 && !changed.entries().any(|(_, body)| matches!(body, Body::File(_)))
    }

    /// In the place of that `same` is written, whose files are as they were. What was told before is in `taken`.
    ///
    /// # Errors
    /// `NotSupported` if it has none: what was told before stays, and is not so any more.
    pub fn tells_instead(&mut self, same: &Manifest, taken: &[String]) -> Result<()> {
        self.restated = same.entries().count() as u64;
        self.object["restated"] = self.restated.into();
        if self.restated > 0 {
            return Ok(());
        }
        let place = taken.join(", ");
        let what =
            format!("{}: v2023 has no manifest of an empty tree, and an earlier one stays: {place}", self.subject);
        Err(Failure::new(Code::NotSupported, what).hint("it tells of what is not there any more: remove it"))
    }

    /// The manifest as bytes; none if v2023 has no place for what changed.
    ///
    /// # Errors
    /// `NotSupported` for what the version cannot hold.
    pub fn encode(&mut self, manifest: &Manifest) -> Result<Option<Encoded>> {
        let mut text = Vec::new();
        let written = match manifest.encode(self.format, &mut text) {
            Ok(written) => written,
            Err(e) if has_no_entries(&e) => return Ok(None),
            Err(e) => return Err(self.not_written(&e)),
        };
        self.object["hash"] = written.hash.to_string().into();
        self.object["size"] = written.total_size_bytes.into();
        Ok(Some(Encoded { text, written, format: self.format }))
    }

    fn not_written(&self, e: &FsError) -> Failure {
        Failure::new(Code::NotSupported, format!("{}: the manifest cannot be written: {e}", self.subject))
    }

    /// What the store got, and what could not be brought to it.
    pub fn brought(&mut self, uploaded: &Uploaded, failed: Failed) {
        self.object["uploaded"] = upload::describe(uploaded);
        self.has_failures = !failed.is_empty();
        self.object["failures"] = failed.into_json();
    }

    /// The end of a commit that failed. Which files it was, is told to who asked for JSON.
    pub fn failed(self, failure: Failure, args: &ManifestCommitArgs) -> Failure {
        ended(&self.object, failure, args.json && self.has_failures)
    }

    /// What it would get.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn would_go(&mut self, manifest: &Manifest, looked: &Looked, places: &Places) -> Result<()> {
        self.object["would_upload"] = json!({
            "missing": looked.missing.0,
            "missing_bytes": looked.missing.1,
            "present": looked.present.0,
            "present_bytes": looked.present.1,
        });
        if self.encode(manifest)?.is_some() {
            self.places = places.show()?.into_iter().map(|place| (place, false)).collect();
        }
        Ok(())
    }

    /// It is there, and was written just now or not.
    pub fn is_at(&mut self, place: &str, written: bool) {
        self.places.push((place.to_owned(), written));
    }

    /// It went to standard output.
    pub fn is_on_output(&mut self) {
        self.is_streamed = true;
    }

    /// Says that nothing is to be written.
    ///
    /// # Errors
    /// Of standard output.
    pub fn nothing(mut self, args: &ManifestCommitArgs, global: &GlobalArgs) -> Result<()> {
        self.places.clear();
        self.print(args, global)
    }

    /// Tells all of it.
    ///
    /// # Errors
    /// Of standard output.
    pub fn print(mut self, args: &ManifestCommitArgs, global: &GlobalArgs) -> Result<()> {
        let written = |(place, written): &(String, bool)| json!({"place": place, "written": written});
        self.object["manifests"] = self.places.iter().map(written).collect();
        let mut out = Output::new();
        if args.json {
            out.json(&self.object)?;
            return out.finish();
        }
        // Standard output has the manifest alone, where that goes there.
        for (place, _) in self.places.iter().filter(|_| !self.is_streamed) {
            out.line(format_args!("{place}"))?;
        }
        out.finish()?;
        if !global.quiet {
            self.for_people(args.dry_run);
        }
        Ok(())
    }

    fn for_people(&self, dry_run: bool) {
        let say = |text: String| eprintln!("adit: {}: {text}", self.subject);
        let is_written = self.is_streamed || !self.places.is_empty();
        if let Some(words) = self.lost.words(self.format) {
            say(words);
        }
        if self.is_nothing() && !is_written {
            return say(match self.lost == Lost::default() {
                true => "nothing was changed: nothing is written".to_owned(),
                false => "nothing that the manifest has a place for was changed: nothing is written".to_owned(),
            });
        }
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let count = |field: &str, one: &str, many: &str| {
            let count = number(&self.object[field]);
            (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
        };
        let parts = [
            count("files", "file", "files")
                .map(|text| format!("{text} ({})", show_size(number(&self.object["bytes"])))),
            count("directories", "folder", "folders"),
            count("symlinks", "link", "links"),
            count("deletions", "deletion", "deletions"),
        ];
        say(match self.is_nothing() {
            // Written all the same: as a whole, or over one that told more.
            true => "nothing is changed".to_owned(),
            false => parts.into_iter().flatten().collect::<Vec<_>>().join(", "),
        });
        if let Some(uploaded) = self.object.get("uploaded") {
            let stored = show_size(number(&uploaded["stored_bytes"]));
            let count = counted(number(&uploaded["stored"]), "object");
            say(format!("{count} stored ({stored}), {} there already", uploaded["present"]));
        }
        if let Some(would) = self.object.get("would_upload") {
            let missing = show_size(number(&would["missing_bytes"]));
            let count = counted(number(&would["missing"]), "object");
            say(format!("{count} would be stored ({missing}), {} there already", would["present"]));
        }
        if self.untold > 0 {
            say(format!(
                "v2023 cannot tell deletions: {} in all; who puts the result over its parent keeps what was deleted (--full lists the \
                 whole tree without it)",
                self.untold
            ));
        }
        if self.restated > 0 {
            let files = counted(self.restated, "file");
            say(format!("v2023 has no manifest of nothing: in the place of what was told before is {files} as it was"));
        }
        if !is_written {
            return say("no file was added or changed: nothing is written".to_owned());
        }
        for (place, _) in self.places.iter().filter(|_| self.is_streamed) {
            say(format!("the manifest is {place}"));
        }
        if !dry_run && !self.is_streamed && self.places.iter().all(|(_, written)| !written) {
            say("it was committed before, and nothing was changed since: nothing is written".to_owned());
        }
    }
}
