use super::*;

/// The flags of the mapping that holds this address, as `/proc/self/smaps` has them.
fn flags_at(address: usize) -> Vec<String> {
    let map = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    for line in map.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
            here = (start..end).contains(&address);
        } else if here && first == "VmFlags:" {
            return words.map(str::to_owned).collect();
        }
    }
    panic!("{address:x} is not mapped");
}

#[track_caller]
fn assert_locked(at: *const u8, len: usize) {
    for address in [at.addr(), at.addr() + len - 1] {
        let flags = flags_at(address);
        assert!(["lo", "dd"].iter().all(|flag| flags.iter().any(|f| f == flag)), "{flags:?}");
    }
}

#[test]
fn what_has_a_slot_is_locked_and_left_out_of_dumps() {
    for len in [0, 1, 48, 49, 600, ALLOCATION_MAX_BYTES] {
        let at = allocate(len).unwrap();
        assert_eq!(at.addr().get() % 16, 0);
        assert_locked(at.as_ptr(), len.max(1));
        // SAFETY: allocated above, and not used afterwards.
        unsafe { free(at) };
    }
    let beside = Box::new(7u8);
    assert!(!flags_at(std::ptr::from_ref(&*beside).addr()).iter().any(|flag| flag == "lo"));
}

#[test]
fn allocations_do_not_overlap_and_are_wiped() {
    let lens: Vec<usize> = (0..500).map(|n| n * 37 % 6000).collect();
    let all: Vec<NonNull<u8>> = lens.iter().map(|&len| allocate(len).unwrap()).collect();
    for (n, (&at, &len)) in all.iter().zip(&lens).enumerate() {
        // SAFETY: `len` bytes were allocated there.
        unsafe { ptr::write_bytes(at.as_ptr(), n as u8, len) };
    }
    for (n, (&at, &len)) in all.iter().zip(&lens).enumerate() {
        // SAFETY: written above.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
        assert!(bytes.iter().all(|&b| b == n as u8), "{n}: {len} bytes");
        // SAFETY: each once.
        unsafe { free(at) };
        if len <= ALLOCATION_MAX_BYTES && len > 0 {
            // SAFETY: slabs stay mapped. Another test may hold the slot by now, so only what nobody can write is looked
            // at: this test's byte is gone.
            let first = unsafe { at.as_ptr().read_volatile() };
            assert!(first != n as u8 || n as u8 == 0 || first == 0, "{n}");
        }
    }
}

#[test]
fn an_allocation_that_moves_keeps_its_bytes() {
    let at = c_malloc(5, ptr::null(), 0);
    // SAFETY: a life of an allocation as the crypto library leads it.
    unsafe {
        ptr::copy_nonoverlapping(b"bytes".as_ptr(), at.cast(), 5);
        let mut at = at;
        for len in [600, 5000, 10_000, 50, 5] {
            at = c_realloc(at, len, ptr::null(), 0);
            assert_eq!(std::slice::from_raw_parts(at.cast::<u8>(), 5), b"bytes");
        }
        c_free(at, ptr::null(), 0);
        c_free(ptr::null_mut(), ptr::null(), 0);
    }
}

#[test]
fn bytes_are_locked_and_cut() {
    let mut bytes = LockedBytes::from(&b"a password"[..]);
    assert_locked(bytes.as_ptr(), bytes.len());
    bytes.truncate(3);
    assert_eq!(&*bytes, b"a p");
    let long = LockedBytes::zeroed(70_000);
    assert_locked(long.as_ptr(), long.len());
    assert!(!format!("{bytes:?}").contains("a p"));
    assert!(LockedBytes::zeroed(0).is_empty());
}
