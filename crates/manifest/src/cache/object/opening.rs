//! The files of an object: opened, noted as used, taken out of use and out of the folder.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::generation::{Found, Generation, Trust};
use super::super::space::UNIT_LEN;
use super::super::stats::add;
use super::CachedObject;

/// Seconds after which the use of an object is noted again.
const TOUCH_SECS: u64 = 60;

impl CachedObject {
    /// What is open of it; with `create`, it is made if there is nothing. `None` if there is nothing, or the folder failed.
    pub(in crate::cache) fn generation(&self, create: bool) -> Option<Arc<Generation>> {
        let mut state = self.state.lock();
        loop {
            match &state.generation {
                Some(generation) if !generation.is_gone() => return Some(generation.clone()),
                _ if !state.is_opening => break,
                _ => self.opened.wait(&mut state),
            }
        }
        let old = state.generation.take();
        state.is_opening = true;
        drop(state);
        // Perhaps closes files.
        drop(old);
        let _end = EndOfOpening(self);
        let (host, options) = (&*self.inner.host, &self.inner.options);
        let opened = match Generation::open(host, self.id) {
            // Without room for a block there is no use for one.
            Ok(None) if create && self.inner.space.fits(u64::from(options.block_len) + UNIT_LEN) => {
                // The map.
                self.inner.space.added(UNIT_LEN);
                Generation::create(host, self.id, options.block_len).map(Some)
            }
            result => result,
        };
        match opened {
            Ok(generation) => {
                let generation = Arc::new(generation?);
                self.state.lock().generation = Some(generation.clone());
                self.touch(&generation);
                Some(generation)
            }
            Err(e) => {
                if e.kind() != std::io::ErrorKind::Unsupported {
                    self.inner.note("open an object", &self.id, &e);
                }
                self.inner.look_for_room(&e);
                None
            }
        }
    }

    /// Lets go of files whose names were taken away: by whomever, if `look` says so.
    pub(in crate::cache) fn let_go(&self, look: bool) {
        let (generation, whole) = {
            let state = self.state.lock();
            (state.generation.clone(), state.whole.clone())
        };
        if let Some(generation) = generation
            && (generation.is_gone() || look && generation.look_if_gone().unwrap_or(true))
        {
            let state = &mut *self.state.lock();
            if state.generation.take_if(|open| Arc::ptr_eq(open, &generation)).is_some() {
                self.drops.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(whole) = whole
            && (!look || whole.stat().map_or(true, |attr| attr.nlink == 0))
        {
            let state = &mut *self.state.lock();
            state.whole.take_if(|open| Arc::ptr_eq(open, &whole));
        }
    }

    /// Notes that all of its files were removed by this process.
    pub(in crate::cache) fn removed(&self) {
        if let Some(generation) = &self.state.lock().generation {
            generation.set_gone();
        }
        self.let_go(false);
    }

    /// Takes a generation out of use, and its files out of the folder.
    pub(in crate::cache) fn discard(&self, generation: &Generation) {
        if let Err(e) = generation.remove(&*self.inner.host) {
            self.inner.note("remove an object", &self.id, &e);
        }
        self.let_go(false);
    }

    /// A block is not what was written. Of an object with a verdict nothing is ever changed, so that who has its file open reads on;
    /// it begins anew. Else the block alone is taken away.
    pub(in crate::cache) fn damaged(&self, generation: &Arc<Generation>, block: u64) {
        let is_taken = if generation.trust() > Trust::None {
            self.discard(generation);
            true
        } else {
            // Somebody who fills it knows better.
            let Ok(claim) = self.claim(block..block + 1, false) else { return };
            let taken = take_if_bad(generation, block);
            claim.end(Ok(()));
            taken.unwrap_or_else(|e| {
                self.inner.note("take a damaged block away", &self.id, &e);
                self.discard(generation);
                true
            })
        };
        if is_taken {
            add(&self.inner.counters.damaged, 1);
            tracing::warn!(object = %self.id, block, "the cache folder held damaged data; it is fetched again");
        }
    }

    /// Notes its use in the folder, now and then.
    pub(in crate::cache) fn touch(&self, generation: &Generation) {
        if self.is_due()
            && let Err(e) = generation.touch()
        {
            self.inner.note("note the use of an object", &self.id, &e);
        }
    }

    /// Whether its use is to be noted again; if so, it is.
    pub(in crate::cache) fn is_due(&self) -> bool {
        let now = self.inner.now_secs() + 1;
        let last = self.touched_secs.load(Ordering::Relaxed);
        (last == 0 || now >= last + TOUCH_SECS)
            && self.touched_secs.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Takes a block's record away if it is damaged, and nobody else is at work on it.
fn take_if_bad(generation: &Generation, block: u64) -> std::io::Result<bool> {
    let Some(_lock) = generation.lock(block..block + 1)? else { return Ok(false) };
    if generation.check(block, None)? != Found::Bad {
        return Ok(false);
    }
    generation.clear_record(block).map(|()| true)
}

/// Lets others open it again.
struct EndOfOpening<'a>(&'a CachedObject);

impl Drop for EndOfOpening<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_opening = false;
        self.0.opened.notify_all();
    }
}
