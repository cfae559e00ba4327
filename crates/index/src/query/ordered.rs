//! Work that is divided among threads, with the answers in order: [`ordered`].

use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// So many answers for each thread may wait for one before them.
const AHEAD: usize = 8;

struct State<T> {
    /// The next piece of work that nobody has.
    next: usize,
    /// How many answers were given out.
    given: usize,
    /// Those that wait, from number `given`: [`AHEAD`] for each thread.
    waiting: Vec<Option<T>>,
    /// Nothing more is wanted, or a thread has panicked.
    is_over: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    pieces: usize,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, piece: usize, answer: T) {
        let mut state = self.lock();
        let slots = state.waiting.len();
        state.waiting[piece % slots] = Some(answer);
        drop(state);
        self.changed.notify_all();
    }
}

impl<T> State<T> {
    /// A piece of work, if there is room for its answer.
    fn take(&mut self, pieces: usize) -> Option<usize> {
        if self.next == pieces || self.next >= self.given + self.waiting.len() {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

/// Ends the work of all if one panics: the others would wait for its answer.
struct EndOnPanic<'a, T>(&'a Shared<T>);

impl<T> Drop for EndOnPanic<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().is_over = true;
            self.0.changed.notify_all();
        }
    }
}

/// Does `pieces` pieces of work on up to `threads` threads, the caller's among them, and gives the answers to `sink` in their order, on
/// the caller's thread, each as soon as it and those before it are there. [`ControlFlow::Break`] ends all. Each thread makes
/// itself a `W` to work with.
pub(super) fn ordered<W, T: Send>(
    threads: usize,
    pieces: usize,
    make: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, usize) -> T + Sync,
    sink: &mut dyn FnMut(T) -> ControlFlow<()>,
) {
    let threads = threads.min(pieces);
    if threads <= 1 {
        let mut own = make();
        let _ = (0..pieces).try_for_each(|piece| sink(work(&mut own, piece)));
        return;
    }
    let waiting = (0..threads * AHEAD).map(|_| None).collect();
    let state = Mutex::new(State { next: 0, given: 0, waiting, is_over: false });
    let shared = Shared { state, changed: Condvar::new(), pieces };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| help(&shared, &make, &work));
        }
        let _end = EndOnPanic(&shared);
        lead(&shared, &make, &work, sink);
    });
}

/// What each thread but the caller's does.
fn help<W, T>(shared: &Shared<T>, make: &impl Fn() -> W, work: &impl Fn(&mut W, usize) -> T) {
    let _end = EndOnPanic(shared);
    let mut own = make();
    let mut state = shared.lock();
    while !state.is_over && state.next < shared.pieces {
        match state.take(shared.pieces) {
            Some(piece) => {
                drop(state);
                shared.put(piece, work(&mut own, piece));
                state = shared.lock();
            }
            None => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// What the caller's thread does: gives answers out, and works where none is there.
fn lead<W, T>(
    shared: &Shared<T>,
    make: &impl Fn() -> W,
    work: &impl Fn(&mut W, usize) -> T,
    sink: &mut dyn FnMut(T) -> ControlFlow<()>,
) {
    let mut own = make();
    let mut state = shared.lock();
    while !state.is_over && state.given < shared.pieces {
        let slot = state.given % state.waiting.len();
        if let Some(answer) = state.waiting[slot].take() {
            state.given += 1;
            drop(state);
            shared.changed.notify_all();
            let flow = sink(answer);
            state = shared.lock();
            state.is_over |= flow.is_break();
        } else if let Some(piece) = state.take(shared.pieces) {
            drop(state);
            shared.put(piece, work(&mut own, piece));
            state = shared.lock();
        } else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    state.is_over = true;
    drop(state);
    shared.changed.notify_all();
}
