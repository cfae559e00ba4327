use std::fs::File;
use std::sync::mpsc::channel;

use super::*;

fn full() -> io::Error {
    Errno::NOSPC.into()
}

fn held(freeing: &Arc<Freeing>) -> Remains {
    let remains = freeing.hold(|| File::open("/dev/null").ok().map(OwnedFd::from));
    assert!(remains.is_some());
    remains
}

#[test]
fn who_finds_no_space_waits_for_what_was_removed() {
    let freeing = Arc::new(Freeing::holding(HELD_MAX));
    let remains = held(&freeing);
    let (found_none, freer) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            freer.recv().unwrap();
            drop(remains);
        });
        let mut calls = 0;
        let done = freeing.with_space(|| {
            calls += 1;
            if calls == 1 {
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
    let mut remains = Some(held(&freeing));
    let done = freeing.with_space(|| match remains.take() {
        Some(remains) => {
            drop(remains);
            Err(full())
        }
        None => Ok(()),
    });
    done.unwrap();
}

#[test]
fn where_a_name_would_stay_nothing_is_held() {
    let freeing = Arc::new(Freeing::holding(0));
    assert!(!freeing.hold(|| panic!("nothing is opened")).is_some());
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
    let _remains = held(&freeing);
    let mut calls = 0;
    let other = freeing.with_space(|| {
        calls += 1;
        Err::<(), _>(Errno::IO.into())
    });
    assert!(other.is_err() && calls == 1, "no other error waits");
}
