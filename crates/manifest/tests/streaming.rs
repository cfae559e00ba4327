//! A manifest is streamed: what is in memory does not grow with its entries.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::sync::Mutex;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_manifest::format::{
    Body, Content, ContentHash, Entry, EntryPath, Kind, PathStyle, Sink, Source, decode, header, v2023, v2025,
};
use adit_testkit::{PeakAllocator, peak_bytes, scaled};

/// Tests that measure take turns.
static TURN: Mutex<()> = Mutex::new(());

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// A text made of a beginning, pieces by number, and an end, so that it is never in memory as a whole.
struct Made<'a> {
    parts: Vec<Part<'a>>,
    opened: Cell<u32>,
}

enum Part<'a> {
    Text(String),
    Repeated(u64, &'a dyn Fn(u64, &mut String)),
}

impl<'a> Made<'a> {
    fn new(parts: Vec<Part<'a>>) -> Self {
        Made { parts, opened: Cell::new(0) }
    }
}

impl Source for Made<'_> {
    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        self.opened.set(self.opened.get() + 1);
        Ok(Box::new(Making { made: self, part: 0, number: 0, text: String::new(), read: 0 }))
    }

    fn len_bytes(&self) -> Option<u64> {
        None
    }
}

struct Making<'a> {
    made: &'a Made<'a>,
    part: usize,
    number: u64,
    text: String,
    read: usize,
}

impl Read for Making<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.text.len() {
            self.text.clear();
            self.read = 0;
            match self.made.parts.get(self.part) {
                None => return Ok(0),
                Some(Part::Text(text)) => {
                    self.text.push_str(text);
                    self.part += 1;
                }
                Some(Part::Repeated(count, _)) if self.number == *count => {
                    (self.part, self.number) = (self.part + 1, 0)
                }
                Some(Part::Repeated(_, make)) => {
                    make(self.number, &mut self.text);
                    self.number += 1;
                }
            }
        }
        let len = buffer.len().min(self.text.len() - self.read);
        buffer[..len].copy_from_slice(&self.text.as_bytes()[self.read..self.read + len]);
        self.read += len;
        Ok(len)
    }
}

/// Counts, and remembers how progress went.
#[derive(Default)]
struct Count {
    entries: u64,
    path_bytes: u64,
    told: Vec<u64>,
    fail_at: Option<u64>,
}

impl Sink for Count {
    fn entry(&mut self, entry: Entry<'_>) -> Result<()> {
        self.entries += 1;
        self.path_bytes += entry.path.as_wtf8().len() as u64;
        match self.fail_at {
            Some(at) if at == self.entries => Err(FsError::new(ErrorKind::NoSpace).on("keep", &entry.path)),
            _ => Ok(()),
        }
    }

    fn progress(&mut self, read_bytes: u64) -> Result<()> {
        self.told.push(read_bytes);
        Ok(())
    }
}

fn comma(number: u64) -> &'static str {
    if number == 0 { "" } else { "," }
}

fn path_of_2023(number: u64, text: &mut String) {
    let directory = number / 100;
    let separator = comma(number);
    write!(
        text,
        r#"{separator}{{"hash":"{number:032x}","mtime":{number},"path":"shots/{directory:06}/frame.{number:09}.exr","size":1}}"#
    )
    .expect("a string takes it");
}

fn of_2023(count: u64) -> Made<'static> {
    Made::new(vec![
        Part::Text(r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":["#.into()),
        Part::Repeated(count, &path_of_2023),
        Part::Text(format!(r#"],"totalSize":{count}}}"#)),
    ])
}

#[test]
fn memory_does_not_grow_with_the_files() {
    let _turn = TURN.lock();
    let count = scaled(200_000) as u64;
    for count in [10_000, count] {
        let source = of_2023(count);
        let peak = peak_bytes(|| {
            let mut sink = Count::default();
            let summary = decode(&source, &mut sink).expect("a manifest");
            assert_eq!((summary.totals.files, sink.entries), (count, count));
            assert_eq!(summary.totals.size_bytes, count);
            assert!(sink.told.is_sorted() && sink.told.len() as u64 == count / 4096);
            assert!(sink.told.last().is_some_and(|told| *told <= summary.len_bytes));
        });
        assert!(peak < 1 << 20, "{peak} bytes for {count} files");
    }
}

fn directory_of_2025(number: u64, text: &mut String) {
    let parent = number.checked_sub(1).map_or(String::new(), |_| format!("${}/", (number - 1) / 10));
    write!(text, r#"{}{{"path":"{parent}directory.{number}"}}"#, comma(number)).expect("a string takes it");
}

fn file_of_2025(number: u64, text: &mut String) {
    let (separator, directory) = (comma(number), number / 10);
    write!(text, r#"{separator}{{"hash":"{number:032x}","mtime":{number},"path":"${directory}/f{number}","size":1}}"#)
        .expect("a string takes it");
}

fn of_2025(count: u64, files_first: bool) -> Made<'static> {
    let directories = count.div_ceil(10);
    let mut parts = vec![
        Part::Text(r#"{"dirs":["#.into()),
        Part::Repeated(directories, &directory_of_2025),
        Part::Text(r#"],"files":["#.into()),
        Part::Repeated(count, &file_of_2025),
        Part::Text("]".into()),
    ];
    if files_first {
        parts.swap(1, 3);
        parts[0] = Part::Text(r#"{"files":["#.into());
        parts[2] = Part::Text(r#"],"dirs":["#.into());
    }
    parts.push(Part::Text(format!(
        r#","hashAlg":"xxh128","specificationVersion":"relative-manifest-snapshot-beta-2025-12","totalSize":{count}}}"#
    )));
    Made::new(parts)
}

#[test]
fn directories_take_a_few_bytes_each() {
    let _turn = TURN.lock();
    let count = scaled(200_000) as u64;
    let mut path_bytes = None;
    for files_first in [false, true] {
        let source = of_2025(count, files_first);
        let peak = peak_bytes(|| {
            let mut sink = Count::default();
            let summary = decode(&source, &mut sink).expect("a manifest");
            assert_eq!((summary.totals.files, summary.totals.directories), (count, count.div_ceil(10)));
            assert_eq!(*path_bytes.get_or_insert(sink.path_bytes), sink.path_bytes, "the same in either order");
        });
        // Eight bytes and a name of at most 16, in vectors that double.
        let most = (1 << 20) + 64 * count.div_ceil(10) as i64;
        assert!(peak < most, "{peak} bytes for {count} files");
        assert_eq!(source.opened.get(), if files_first { 3 } else { 2 });
    }
}

#[test]
fn a_header_of_2023_takes_the_beginning_only() {
    let source = of_2023(1 << 40);
    assert_eq!(header(&source).expect("a header").kind, Kind::Snapshot);
}

#[test]
fn a_sink_that_fails_ends_the_reading() {
    let source = of_2023(1 << 40);
    let mut sink = Count { fail_at: Some(5000), ..Count::default() };
    let error = decode(&source, &mut sink).expect_err("it fails");
    assert_eq!((error.kind(), sink.entries), (ErrorKind::NoSpace, 5000));
    assert!(error.to_string().contains("frame.000004999.exr"), "{error}");
}

#[test]
fn a_source_that_fails_is_told() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(110)) // ETIMEDOUT
        }
    }
    impl Source for Failing {
        fn open(&self) -> io::Result<Box<dyn Read + '_>> {
            Ok(Box::new(br#"{"hashAlg":"xxh128","#.chain(Failing)))
        }
        fn len_bytes(&self) -> Option<u64> {
            None
        }
    }
    let error = decode(&Failing, &mut Count::default()).expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

#[test]
fn a_source_that_changes_is_told() {
    struct Changing(Cell<bool>);
    impl Source for Changing {
        fn open(&self) -> io::Result<Box<dyn Read + '_>> {
            let kind = if self.0.replace(true) { "absolute" } else { "relative" };
            let text = format!(
                r#"{{"dirs":[],"files":[],"hashAlg":"xxh128","specificationVersion":"{kind}-manifest-snapshot-beta-2025-12","totalSize":0}}"#
            );
            Ok(Box::new(io::Cursor::new(text)))
        }
        fn len_bytes(&self) -> Option<u64> {
            None
        }
    }
    let error = decode(&Changing(Cell::new(false)), &mut Count::default()).expect_err("it changed");
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
}

#[test]
fn a_file_is_read_without_moving_its_position() {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = tempfile::tempfile().expect("a file");
    let mut text = String::new();
    io::read_to_string(of_2023(3).open().expect("it opens")).expect("text").clone_into(&mut text);
    file.write_all(text.as_bytes()).expect("room");
    file.seek(SeekFrom::Start(7)).expect("a position");
    let summary = decode(&file, &mut Count::default()).expect("a manifest");
    assert_eq!((summary.len_bytes, file.len_bytes()), (text.len() as u64, Some(text.len() as u64)));
    assert_eq!(summary.hash, ContentHash::of(text.as_bytes()));
    assert_eq!(file.stream_position().expect("a position"), 7);
}

#[test]
fn the_writers_stream_what_they_read() {
    let _turn = TURN.lock();
    let count = scaled(50_000) as u64;
    let source = of_2023(count);
    let mut expected = None;
    let peak = peak_bytes(|| {
        let mut writer = v2023::Writer::new(io::sink()).expect("a sink");
        let summary = decode(&source, &mut |entry: Entry<'_>| writer.entry(&entry)).expect("a manifest in order");
        let written = writer.finish().expect("a sink");
        assert_eq!((written.hash, written.len_bytes), (summary.hash, summary.len_bytes), "it was canonical");
        expected = Some(written);
    });
    assert!(peak < 1 << 20, "{peak} bytes for {count} files");
    assert!(expected.is_some_and(|written| written.total_size_bytes == count));
}

#[test]
fn the_writers_refuse_what_is_out_of_order() {
    let path = |text: &'static str| EntryPath::parse(text.as_bytes(), PathStyle::Relative).expect("a path");
    let hash = ContentHash([1; 16]);
    for (first, second) in [("b", "a"), ("a", "a"), ("\u{fb00}", "\u{1f600}")] {
        let mut writer = v2023::Writer::new(io::sink()).expect("a sink");
        writer.file(&path(first), &hash, 1, 1).expect("the first");
        assert_eq!(writer.file(&path(second), &hash, 1, 1).expect_err("not that").kind(), ErrorKind::InvalidInput);
    }
    let body = || {
        let content = Content::Whole(hash);
        Body::File(adit_manifest::format::File { size_bytes: 1, mtime_micros: 1, runnable: false, content })
    };
    let mut writer = v2025::Writer::new(io::sink(), PathStyle::Relative, Kind::Snapshot).expect("a sink");
    let mut put = |at, body| writer.entry(&Entry { path: path(at), body });
    put("d", Body::Directory).expect("a directory");
    assert_eq!(put("d", Body::Directory).expect_err("again").kind(), ErrorKind::InvalidInput);
    assert_eq!(put("$x/y", Body::Directory).expect_err("$x is not listed").kind(), ErrorKind::InvalidInput);
    put("d/f", body()).expect("a file");
    assert_eq!(put("e", Body::Directory).expect_err("behind files").kind(), ErrorKind::InvalidInput);
    assert_eq!(put("d/e", body()).expect_err("before the last").kind(), ErrorKind::InvalidInput);
    let gone = Body::Deleted(adit_manifest::format::Removed::File);
    assert_eq!(put("g", gone).expect_err("a snapshot").kind(), ErrorKind::InvalidInput);
    put("f", body()).expect("a file");
}
