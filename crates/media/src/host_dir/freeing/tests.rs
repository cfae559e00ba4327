use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::mpsc::channel;

use super::*;

fn full() -> io::Error {
    Errno::NOSPC.into()
}

fn held(freeing: &Arc<Freeing>) -> Held {
    freeing.hold(|| File::open("/dev/null").ok().map(OwnedFd::from)).expect("room for one more")
}

#[test]
fn who_finds_no_space_waits_for_what_was_removed() {
    let freeing = Arc::new(Freeing::holding(HELD_MAX));
    let held = held(&freeing);
    let (found_none, holder) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            holder.recv().unwrap();
            drop(held);
        });
        let mut calls = 0;
        let done = freeing.with_space(|| {
            calls += 1;
            if calls == 1 {
                // Held a moment ago, however slow this machine is.
                freeing.held_last_ms.store(freeing.now_ms() + 60_000, Ordering::SeqCst);
                found_none.send(()).unwrap();
                return Err(full());
            }
            Ok(freeing.held.load(Ordering::SeqCst))
        });
        assert_eq!((done.unwrap(), calls), (0, 2), "it is freed before the second try");
    });
}

#[test]
fn what_is_freed_during_the_call_counts() {
    let freeing = Arc::new(Freeing::holding(HELD_MAX));
    let mut file = Some(held(&freeing));
    let done = freeing.with_space(|| match file.take() {
        Some(file) => {
            drop(file);
            Err(full())
        }
        None => Ok(()),
    });
    done.unwrap();
}

#[test]
fn where_a_name_would_stay_nothing_is_held() {
    let freeing = Arc::new(Freeing::holding(0));
    assert!(freeing.hold(|| panic!("nothing is opened")).is_none());
    // Of the kernel's own making, and not among them.
    let proc = Freeing::new(&OwnedFd::from(File::open("/proc").unwrap()));
    assert_eq!(proc.max, 0);
}

#[test]
fn where_nothing_is_to_be_freed_an_error_is_one() {
    let freeing = Arc::new(Freeing::holding(HELD_MAX));
    let mut calls = 0;
    let done = freeing.with_space(|| {
        calls += 1;
        Err::<(), _>(full())
    });
    assert_eq!((done.unwrap_err().kind(), calls), (io::ErrorKind::StorageFull, 1));
    let _held = held(&freeing);
    let mut calls = 0;
    let other = freeing.with_space(|| {
        calls += 1;
        Err::<(), _>(Errno::IO.into())
    });
    assert!(other.is_err() && calls == 1, "no other error waits");
    // What is held for long is in use.
    std::thread::sleep(LET_GO_MAX);
    assert!(!freeing.awaits_holders());
}

/// The one end of a pipe is freed when the other one ends.
#[test]
fn who_lets_go_does_not_wait_for_the_freeing() {
    let freeing = Arc::new(Freeing::holding(HELD_MAX));
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let file = freeing.hold(|| Some(writer.try_clone().unwrap().into())).unwrap();
    writer.write_all(b"x").unwrap();
    drop((file, writer));
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    freeing.settle();
    assert_eq!((all.as_slice(), freeing.held.load(Ordering::SeqCst)), (&b"x"[..], 0));
    let names = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_thread = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    assert!(names().map(is_thread).any(|name| name.trim() == "adit-freeing"), "a thread of its own");
}
