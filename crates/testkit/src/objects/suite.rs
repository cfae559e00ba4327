//! What every object store promises, as one function.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use adit_core::ErrorKind;
use adit_core::media::{Content, ContentSource, Objects, PutOptions, Stored, Tag};

use crate::Rng;

/// A content that is larger than any part of a multipart upload, in bytes.
const LARGE_LEN_BYTES: u64 = (20 << 20) + 12_345;

/// Checks that `objects` keeps what [`Objects`] promises. Everything is done below a prefix of its own, and removed at the
/// end; what else is there does not matter. Panics at the first difference.
pub fn check_objects(objects: &dyn Objects) {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    let suite = Suite { objects, prefix: format!("suite-{now:x}-{}-{run}", std::process::id()) };
    suite.what_is_stored_is_read();
    suite.ranges_end_with_the_object();
    suite.what_is_not_there();
    suite.tags_tell_contents_apart();
    suite.absent_means_absent();
    suite.metadata_comes_back();
    suite.strange_names();
    suite.listings();
    suite.keys_that_nobody_has();
    suite.a_large_object();
    suite.many_at_once();
    suite.clean();
}

struct Suite<'a> {
    objects: &'a dyn Objects,
    prefix: String,
}

/// Bytes that differ from place to place, without any of them in memory.
struct Pattern(u64);

impl Pattern {
    fn byte(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16).wrapping_mul(37)) as u8
    }
}

impl ContentSource for Pattern {
    fn content_len(&self) -> u64 {
        self.0
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset + buf.len() as u64 > self.0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (at, byte) in (offset..).zip(buf) {
            *byte = Pattern::byte(at);
        }
        Ok(())
    }
}

const IF_ABSENT: PutOptions<'static> = PutOptions { if_absent: true, metadata: &[] };

impl Suite<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Option<Tag> {
        match self.objects.put(&self.key(name), Content::Bytes(bytes), &PutOptions::default()) {
            Ok(Stored::New(tag)) => tag,
            other => panic!("put {name}: {other:?}"),
        }
    }

    fn read(&self, name: &str, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        let fetched = self.objects.read_at(&self.key(name), offset, &mut buf, None);
        let fetched = fetched.unwrap_or_else(|e| panic!("read {name} at {offset}: {e}"));
        assert!(fetched.count <= len);
        assert!(buf[fetched.count..].iter().all(|b| *b == 0xee), "{name}: bytes beyond the count were written");
        buf.truncate(fetched.count);
        buf
    }

    fn keys(&self, prefix: &str, page: usize) -> Vec<String> {
        let prefix = self.key(prefix);
        let (mut keys, mut after) = (Vec::new(), None::<String>);
        loop {
            let listed = self.objects.list(&prefix, after.as_deref(), page).unwrap();
            assert!(listed.objects.len() <= page);
            assert!(!listed.objects.is_empty() || !listed.more, "an empty page with more to come never ends");
            keys.extend(listed.objects.into_iter().map(|object| object.key));
            if !listed.more {
                break;
            }
            after = keys.last().cloned();
        }
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        keys.iter().map(|key| key.strip_prefix(&self.key("")).expect("a key of the prefix").to_owned()).collect()
    }

    fn what_is_stored_is_read(&self) {
        for (name, bytes) in [("plain", &b"some bytes"[..]), ("empty", b""), ("deep/er/still", &[7; 70_000])] {
            self.put(name, bytes);
            assert_eq!(self.read(name, 0, 100_000), bytes, "{name}");
            let head = self.objects.head(&self.key(name)).unwrap();
            assert_eq!(head.len, bytes.len() as u64);
            assert_eq!(head.metadata, []);
        }
        self.put("plain", b"others");
        assert_eq!(self.read("plain", 0, 100), b"others", "an object is replaced as a whole");
    }

    fn ranges_end_with_the_object(&self) {
        let bytes: Vec<u8> = (0..1000).map(Pattern::byte).collect();
        self.put("ranges", &bytes);
        for (offset, len) in [(0, 1), (0, 1000), (1, 999), (500, 100), (999, 1), (990, 100), (0, 5000), (0, 0), (5, 0)]
        {
            let end = (offset + len).min(1000);
            assert_eq!(self.read("ranges", offset as u64, len), bytes[offset..end], "{offset}+{len}");
        }
        for offset in [1000, 1001, 1 << 40] {
            assert_eq!(self.read("ranges", offset, 10), b"", "{offset}");
        }
        let mut buf = [0; 10];
        let fetched = self.objects.read_at(&self.key("ranges"), 995, &mut buf, None).unwrap();
        assert_eq!((fetched.count, fetched.object.len), (5, 1000), "a read tells the length of the whole");
        let fetched = self.objects.read_at(&self.key("ranges"), 2000, &mut buf, None).unwrap();
        assert_eq!((fetched.count, fetched.object.len), (0, 1000));
        let fetched = self.objects.read_at(&self.key("empty"), 0, &mut buf, None).unwrap();
        assert_eq!((fetched.count, fetched.object.len), (0, 0));
    }

    fn what_is_not_there(&self) {
        let key = self.key("no/such/object");
        let kind = |e: adit_core::FsError| (e.kind(), e.to_string());
        for (kind, message) in [
            self.objects.read_at(&key, 0, &mut [0; 4], None).map_err(kind).unwrap_err(),
            self.objects.read_at(&key, 0, &mut [], None).map_err(kind).unwrap_err(),
            self.objects.head(&key).map_err(kind).unwrap_err(),
        ] {
            assert_eq!(kind, ErrorKind::NotFound);
            assert!(message.contains("no/such/object"), "the error names the object: {message}");
        }
        self.objects.delete(&key).expect("to delete what is not there is well");
        // A key with objects below it is none.
        let below = self.key("deep/er");
        assert_eq!(self.objects.head(&below).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(self.objects.read_at(&below, 0, &mut [0; 4], None).unwrap_err().kind(), ErrorKind::NotFound);

        self.put("goes", b"x");
        self.objects.delete(&self.key("goes")).unwrap();
        assert_eq!(self.objects.head(&self.key("goes")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    fn tags_tell_contents_apart(&self) {
        let key = self.key("tagged");
        let stored = self.put("tagged", b"the first content");
        let mut buf = [0; 4];
        let first = self.objects.read_at(&key, 0, &mut buf, None).unwrap().object.tag;
        let Some(first) = first else { panic!("{} gives no tags", self.objects.describe()) };
        if let Some(stored) = stored {
            assert_eq!(stored, first, "put and read tell the same tag");
        }
        assert_eq!(self.objects.head(&key).unwrap().tag.as_ref(), Some(&first), "head and read tell the same tag");
        let again = self.objects.read_at(&key, 4, &mut buf, Some(&first)).unwrap();
        assert_eq!((&buf, again.object.tag.as_ref()), (b"first"[..4].try_into().unwrap(), Some(&first)));
        // Of the same length, and perhaps within one tick of the store's clock.
        self.put("tagged", b"a second content.");
        let changed = self.objects.read_at(&key, 4, &mut buf, Some(&first)).unwrap_err();
        assert_eq!(changed.kind(), ErrorKind::Stale, "{changed}");
        let beyond = self.objects.read_at(&key, 4000, &mut buf, Some(&first));
        assert_eq!(beyond.unwrap_err().kind(), ErrorKind::Stale, "also beyond the end");
        assert_ne!(self.objects.head(&key).unwrap().tag, Some(first));
    }

    fn absent_means_absent(&self) {
        let key = self.key("once");
        let stored = self.objects.put(&key, Content::Bytes(b"mine"), &IF_ABSENT).unwrap();
        assert!(matches!(stored, Stored::New(_)), "{stored:?}");
        for _ in 0..2 {
            let stored = self.objects.put(&key, Content::Bytes(b"yours"), &IF_ABSENT).unwrap();
            assert_eq!(stored, Stored::AlreadyThere { len: 4 });
        }
        assert_eq!(self.read("once", 0, 100), b"mine");
        assert!(self.objects.if_absent_is_atomic().is_some(), "it is known after such a put");

        if self.objects.if_absent_is_atomic() == Some(true) {
            let key = self.key("raced");
            let contents: Vec<_> = (0..8).map(|n| vec![b'a' + n; 1000]).collect();
            let put = &|bytes: &[u8]| self.objects.put(&key, Content::Bytes(bytes), &IF_ABSENT).unwrap();
            let stored: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = contents.iter().map(|bytes| scope.spawn(move || put(bytes))).collect();
                all.into_iter().map(|one| one.join().expect("no panic")).collect()
            });
            let winners: Vec<_> = (0..8).filter(|n| matches!(stored[*n], Stored::New(_))).collect();
            assert_eq!(winners.len(), 1, "one of eight wins: {stored:?}");
            assert_eq!(self.read("raced", 0, 2000), contents[winners[0]]);
            self.objects.delete(&key).unwrap();
        }
    }

    fn metadata_comes_back(&self) {
        let key = self.key("described");
        let metadata = [("file-system-location-name", "a b"), ("asset-root", "\"/caf\\u00e9 %41+&=\"")];
        let options = PutOptions { metadata: &metadata, ..Default::default() };
        self.objects.put(&key, Content::Bytes(b"x"), &options).unwrap();
        let mut expected = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
        expected.sort();
        assert_eq!(self.objects.head(&key).unwrap().metadata, expected);
        // It goes with the content that it was stored with.
        self.put("described", b"y");
        assert_eq!(self.objects.head(&key).unwrap().metadata, []);
        let refused = PutOptions { metadata: &[("Bad Name", "x")], ..Default::default() };
        let e = self.objects.put(&key, Content::Bytes(b"z"), &refused).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert_eq!(self.read("described", 0, 10), b"y");
    }

    fn strange_names(&self) {
        let names = [
            "sp ace",
            "per%63ent",
            "plus+and&",
            "ques?tion",
            "ha#sh",
            "näme 日本 🎼",
            "q'u\"ote",
            "..dots..",
            "~t:i,l;d=e",
        ];
        for name in names {
            let name = format!("strange/{name}");
            self.put(&name, name.as_bytes());
            assert_eq!(self.read(&name, 0, 100), name.as_bytes(), "{name}");
        }
        let mut expected = names.map(|name| format!("strange/{name}"));
        expected.sort();
        assert_eq!(self.keys("strange/", 4), expected);
        for name in names {
            self.objects.delete(&self.key(&format!("strange/{name}"))).unwrap();
        }
        assert_eq!(self.keys("strange/", 100), [""; 0]);
    }

    fn listings(&self) {
        // `-` and `.` come before `/`, `0` after it: the order is that of whole keys, not of a tree.
        let names = ["list/a", "list/a-b", "list/a.b", "list/a/b", "list/a/c/d", "list/a0", "list/b", "listed"];
        for (at, name) in names.iter().enumerate().rev() {
            if *name != "list/a" {
                self.put(name, &vec![0; at]);
            }
        }
        let expected = |keep: &dyn Fn(&str) -> bool| -> Vec<String> {
            names[1..].iter().filter(|name| keep(name)).map(|name| (*name).to_owned()).collect()
        };
        for page in [1, 2, 3, 100] {
            assert_eq!(self.keys("list", page), expected(&|_| true));
            assert_eq!(self.keys("list/", page), expected(&|name| name.starts_with("list/")));
            assert_eq!(self.keys("list/a", page), expected(&|name| name.starts_with("list/a")));
            assert_eq!(self.keys("list/a/", page), expected(&|name| name.starts_with("list/a/")));
            assert_eq!(self.keys("list/none", page), [""; 0]);
        }
        for after in ["list/a-b", "list/a/", "list/a/b", "list/a/bb", "list/az", "list/zz", "zz"] {
            let page = self.objects.list(&self.key("list/"), Some(&self.key(after)), 100).unwrap();
            let keys: Vec<_> = page.objects.iter().map(|object| object.key.clone()).collect();
            let all = expected(&|name| name.starts_with("list/") && name > after);
            assert_eq!(keys, all.iter().map(|name| self.key(name)).collect::<Vec<_>>(), "after {after}");
            assert!(!page.more);
        }
        let page = self.objects.list(&self.key("list/a/"), None, 100).unwrap();
        assert_eq!(page.objects.iter().map(|object| object.len).collect::<Vec<_>>(), [3, 4]);
        for object in page.objects {
            let head = self.objects.head(&object.key).unwrap();
            assert!(object.tag.is_none() || object.tag == head.tag, "listed and asked for, a tag is the same");
        }
        assert_eq!(self.objects.list(&self.key("list/"), None, 0).unwrap().objects, []);
    }

    fn keys_that_nobody_has(&self) {
        for key in ["", "/etc/passwd", "../up", "a/../../up", "a//b", "a/", "./a", "nul\0"] {
            let kinds = [
                self.objects.head(key).unwrap_err().kind(),
                self.objects.read_at(key, 0, &mut [0; 4], None).unwrap_err().kind(),
                self.objects.put(key, Content::Bytes(b"x"), &PutOptions::default()).unwrap_err().kind(),
                self.objects.delete(key).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::InvalidInput; 4], "{key:?}");
        }
        assert_eq!(self.objects.list("../", None, 10).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    fn a_large_object(&self) {
        let key = self.key("large");
        let content = Pattern(LARGE_LEN_BYTES);
        let options = PutOptions { if_absent: true, metadata: &[("kind", "large")] };
        let stored = self.objects.put(&key, Content::Source(&content), &options).unwrap();
        assert!(matches!(stored, Stored::New(_)), "{stored:?}");
        let head = self.objects.head(&key).unwrap();
        assert_eq!(head.len, LARGE_LEN_BYTES);
        assert_eq!(head.metadata, [("kind".to_owned(), "large".to_owned())]);
        let mut buf = vec![0; 3 << 20];
        let mut offset = 0;
        while offset < LARGE_LEN_BYTES {
            let fetched = self.objects.read_at(&key, offset, &mut buf, head.tag.as_ref()).unwrap();
            let wrong = buf[..fetched.count].iter().zip(offset..).find(|(byte, at)| **byte != Pattern::byte(*at));
            assert_eq!(wrong, None);
            assert_eq!(fetched.count as u64, (LARGE_LEN_BYTES - offset).min(buf.len() as u64));
            offset += fetched.count as u64;
        }
        let stored = self.objects.put(&key, Content::Source(&Pattern(LARGE_LEN_BYTES)), &options).unwrap();
        assert_eq!(stored, Stored::AlreadyThere { len: LARGE_LEN_BYTES });

        struct Unreadable;
        impl ContentSource for Unreadable {
            fn content_len(&self) -> u64 {
                LARGE_LEN_BYTES
            }
            fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
                // Far enough in that parts of it are on their way.
                if offset + buf.len() as u64 > 18 << 20 { Err(io::Error::other("unreadable")) } else { Ok(()) }
            }
        }
        let stored = self.objects.put(&self.key("half"), Content::Source(&Unreadable), &PutOptions::default());
        assert_eq!(stored.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(
            self.objects.head(&self.key("half")).unwrap_err().kind(),
            ErrorKind::NotFound,
            "whole or not at all"
        );
    }

    fn many_at_once(&self) {
        let key = self.key("large");
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let key = &key;
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let mut buf = vec![0; 200_000];
                    for _ in 0..8 {
                        let offset = rng.below(LARGE_LEN_BYTES);
                        let fetched = self.objects.read_at(key, offset, &mut buf, None).unwrap();
                        assert!(buf[..fetched.count].iter().zip(offset..).all(|(byte, at)| *byte == Pattern::byte(at)));
                    }
                    let name = format!("many/{thread}");
                    self.put(&name, name.as_bytes());
                    assert_eq!(self.read(&name, 0, 100), name.as_bytes());
                });
            }
        });
        assert_eq!(self.keys("many/", 7).len(), 16);
    }

    fn clean(&self) {
        for name in self.keys("", 1000) {
            self.objects.delete(&self.key(&name)).unwrap();
        }
        assert_eq!(self.keys("", 1000), [""; 0]);
    }
}
