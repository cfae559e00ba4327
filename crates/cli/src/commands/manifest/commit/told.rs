//! What is told of a commit.

use adit_core::FsError;
use adit_core::media::Objects;
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
    /// Where it was written, or would be; and whether that was done now, or had to be.
    places: Vec<(String, bool)>,
    is_dry: bool,
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
        let parent = changed.header().kind.parent().unwrap_or(hash);
        let Counts { files, bytes, directories, symlinks } = Counts::of(changed);
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
            "parent": parent.to_string(),
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
        let is_dry = args.dry_run;
        Ok(Told { object, format, subject, untold, lost, restated, places, is_dry, is_streamed, has_failures })
    }

    /// `manifest`, the whole tree, is what is written.
    pub fn is_whole(&mut self, manifest: &Manifest) {
        let Counts { files, bytes, directories, symlinks } = Counts::of(manifest);
        self.object["whole"] =
            json!({"files": files, "bytes": bytes, "directories": directories, "symlinks": symlinks});
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

    /// What it would get, what of that cannot be read, and where the manifest would go: looked up as for a commit, so that a place that has it already is told.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn would_go(
        &mut self,
        manifest: &Manifest,
        looked: &Looked,
        failed: Failed,
        places: &Places,
        objects: &dyn Objects,
    ) -> Result<()> {
        self.object["would_upload"] = json!({
            "missing": looked.missing.0,
            "missing_bytes": looked.missing.1,
            "present": looked.present.0,
            "present_bytes": looked.present.1,
        });
        self.object["failures"] = failed.into_json();
        if let Some(encoded) = self.encode(manifest)? {
            self.places = places.show(&encoded, objects)?;
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
        let place = |(place, changes): &(String, bool)| match self.is_dry {
            true => json!({"place": place, "written": false, "would_write": changes}),
            false => json!({"place": place, "written": changes}),
        };
        self.object["manifests"] = self.places.iter().map(place).collect();
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
            self.for_people();
        }
        Ok(())
    }

    fn for_people(&self) {
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
        say(match (self.is_nothing(), self.object.get("whole")) {
            // Written all the same: as a whole, or over one that told more.
            (true, _) => "nothing is changed".to_owned(),
            (false, None) => in_words(&self.object),
            (false, Some(_)) => format!("changed: {}", in_words(&self.object)),
        });
        if let Some(whole) = self.object.get("whole") {
            let verb = if self.is_dry { "would be listed" } else { "is listed" };
            say(format!("the whole tree {verb}: {}", in_words(whole)));
        }
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
        if self.is_dry && is_written {
            say("nothing of this was done: it was a dry run".to_owned());
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
        if !self.is_streamed && self.places.iter().all(|(_, written)| !written) {
            let verb = if self.is_dry { "would be" } else { "is" };
            say(format!("it was committed before, and nothing was changed since: nothing {verb} written"));
        }
    }
}

/// What is in a manifest.
struct Counts {
    files: u64,
    /// Of all files.
    bytes: u64,
    directories: u64,
    symlinks: u64,
}

impl Counts {
    fn of(manifest: &Manifest) -> Counts {
        let mut counts = Counts { files: 0, bytes: 0, directories: 0, symlinks: 0 };
        for (_, body) in manifest.entries() {
            match body {
                Body::Directory => counts.directories += 1,
                Body::Symlink(_) => counts.symlinks += 1,
                Body::File(file) => (counts.files, counts.bytes) = (counts.files + 1, counts.bytes + file.size_bytes),
                Body::Deleted(_) => {}
            }
        }
        counts
    }
}

/// The counts in an object for programs, for people.
fn in_words(object: &Value) -> String {
    let number = |field: &str| object[field].as_u64().unwrap_or(0);
    let count = |field: &str, one: &str, many: &str| {
        let count = number(field);
        (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
    };
    let parts = [
        count("files", "file", "files").map(|text| format!("{text} ({})", show_size(number("bytes")))),
        count("directories", "folder", "folders"),
        count("symlinks", "link", "links"),
        count("deletions", "deletion", "deletions"),
    ];
    let words: Vec<String> = parts.into_iter().flatten().collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}
