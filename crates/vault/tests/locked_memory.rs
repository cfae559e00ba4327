//! Where the crypto library keeps its keys. A process of its own, with one test: the library takes its memory from elsewhere
//! for good.

#[path = "support/vault.rs"]
mod vault;

use adit_core::types::Ino;
use adit_vault::format::Masterkey;
use adit_vault::format::content::ContentCipher;
use adit_vault::memory;
use vault::{COMBOS, Vault, name, new, read};

/// Bytes of this process that are locked, by the kernel's account.
fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line of locked memory");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Makes this thread one without rights, so that the limit of locked memory holds for it.
fn limit_locked_memory() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls. The raw ones change this thread alone: it loses its rights, but for those to its files.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &none), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::syscall(libc::SYS_setresuid, -1, 65_534, -1), 0);
            libc::syscall(libc::SYS_setfsuid, 0);
        }
    }
}

#[test]
fn keys_of_the_crypto_library_are_locked_as_far_as_the_limit_goes() {
    // SAFETY: the first use of the crate in this process, which has one test.
    assert!(unsafe { memory::hold_crypto_library() }, "once");
    // SAFETY: as above; it changes nothing.
    assert!(!unsafe { memory::hold_crypto_library() }, "and not twice");
    let masterkey = Masterkey::from_keys(&[1; 32], &[2; 32]);
    let mut open = Vec::new();
    for combo in COMBOS {
        let cipher = ContentCipher::new(&masterkey, combo).unwrap();
        let before = locked_bytes();
        open.extend((0..1000).map(|_| cipher.create_file().unwrap().0));
        let more = locked_bytes() - before;
        assert!((300_000..1 << 20).contains(&more), "{combo}: {more} bytes for a thousand keys");
    }
    let before = locked_bytes();
    open.clear();
    let cipher = ContentCipher::new(&masterkey, COMBOS[0]).unwrap();
    open.extend((0..1000).map(|_| cipher.create_file().unwrap().0));
    assert_eq!(locked_bytes(), before, "what was given back is used again");
    assert!(memory::is_locked());

    let vaults: Vec<Vault> = COMBOS.iter().map(|&combo| Vault::create(combo, 220)).collect();
    let stores: Vec<_> = vaults.iter().map(Vault::open).collect();
    limit_locked_memory();
    open.extend((0..3000).map(|_| cipher.create_file().unwrap().0));
    assert!(!memory::is_locked(), "it is told");
    // And all works as before.
    for store in &stores {
        let (attr, file) = adit_core::store::Store::create(store, Ino::ROOT, name("f"), &new(0o600)).unwrap();
        file.write_at(&[(0, b"content")]).unwrap();
        assert_eq!(read(store, attr.ino).unwrap(), b"content");
    }
}
