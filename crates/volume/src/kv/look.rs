//! The linear space for a store that is only looked at.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::pages::{PAGE, PAGE_LEN, Pages};

/// The space as it is, for a store that looks at it and whose writes go nowhere.
pub(super) struct Look {
    pages: Arc<Pages>,
    state: RwLock<LookState>,
}

struct LookState {
    len: u64,
    written: HashMap<u64, Box<[u8]>>,
    met_damage: bool,
}

impl Look {
    pub fn new(pages: Arc<Pages>) -> Look {
        let state = RwLock::new(LookState { len: pages.len(), written: HashMap::new(), met_damage: false });
        Look { pages, state }
    }

    /// Whether a page was asked for that does not have its checksum.
    pub fn met_damage(&self) -> bool {
        self.state.read().met_damage
    }

    pub fn len(&self) -> u64 {
        self.state.read().len
    }

    pub fn set_len(&self, len: u64) {
        let mut state = self.state.write();
        state.len = len;
        state.written.retain(|page, _| *page < len.div_ceil(PAGE));
    }

    fn page(&self, page: u64) -> io::Result<Box<[u8]>> {
        if let Some(bytes) = self.state.read().written.get(&page) {
            return Ok(bytes.clone());
        }
        let mut bytes = vec![0; PAGE_LEN];
        if (page + 1) * PAGE <= self.pages.len() {
            let read = self.pages.read_pages(page, &mut bytes);
            read.inspect_err(|_| self.state.write().met_damage = true)?;
        }
        Ok(bytes.into())
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (bytes, from) = (self.page(at / PAGE)?, (at % PAGE) as usize);
            let len = (out.len() - done).min(PAGE_LEN - from);
            out[done..done + len].copy_from_slice(&bytes[from..from + len]);
            done += len;
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let from = (at % PAGE) as usize;
            let len = (bytes.len() - done).min(PAGE_LEN - from);
            // What is written over as a whole may have been damaged.
            let mut page = if len == PAGE_LEN { vec![0; PAGE_LEN].into() } else { self.page(at / PAGE)? };
            page[from..from + len].copy_from_slice(&bytes[done..done + len]);
            self.state.write().written.insert(at / PAGE, page);
            done += len;
        }
        Ok(())
    }
}
