//! What the modes of a vault's entries, and of what carries them, let its users do: as ordinary users.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use common::run;
use mounts::OrdinaryUser;

/// Two users of a group, each with a mount of the vault in `shared`, whose mode is `$mode`: `as USER UMASK SCRIPT` runs a script of one of them.
const TWO_USERS: &str = r#"set -x
        chmod 711 . && chmod 644 password && chmod 755 adit
        mkdir -m $mode shared && chown 65534:65001 shared
        for u in 65534 1; do mkdir -m 700 home$u m$u && chown $u home$u m$u; done
        trap 'for u in 65534 1; do umount -l m$u 2>/dev/null || true; done' EXIT
        as() { u=$1; mask=$2
            HOME=$PWD/home$u XDG_RUNTIME_DIR=$PWD/home$u setpriv --reuid=$u --regid=65001 --groups=65001 sh -euxc "
                umask $mask; m=m$u
                on() { ./adit mount -q --password-file password shared/v \$m; cd \$m; }
                off() { cd ..; ./adit umount -q \$m; }
                many() { for n in \$(seq 60); do mkdir \$1\$n; done; }
                long=\$(printf 'L%.0s' \$(seq 200))
                $3"
        }
"#;

/// Two users of a group, each with a mount of his own, as on a file server: umask 002, and folders that hand their group on.
/// What one makes the other can use, and nothing is open beyond what the umask or a mode says.
#[test]
fn what_is_open_to_a_group_can_be_used_by_it() {
    let Some(user) = OrdinaryUser::new() else { return };
    let script = r#"
        as 65534 002 './adit vault init -q --password-file password shared/v
            test $(stat -c %a shared/v/masterkey.cryptomator) = 600
            chmod g+rw shared/v/masterkey.cryptomator
            on; mkdir team; echo 1 > team/file; echo 1 > short; echo 1 > $long; ln -s short link; ln -s short link$long
            mkdir dir$long theirs; mv team/file $long.file; mv $long.file team/file; many a; off'
        as 1 002 'on; ls -l > /dev/null; cat team/file short $long; test $(readlink link) = short
            test $(readlink link$long) = short; echo 2 >> short; echo 2 > team/other; echo 2 > dir$long/other
            rmdir theirs; rm link $long; mkdir own; many b; off'
        as 65534 002 'on; touch own/file; rm -r dir$long; many c; off'
        # What a mode opens is open whatever the umask was, and no more.
        find shared/v/d | sort > before
        as 65534 077 'on; mkdir closed opened $long; echo 1 > opened/file; echo 1 > f$long; ln -s x closed/link; off'
        find shared/v/d | sort > after
        test -z "$(comm -13 before after | xargs -d '\n' -I{} find {} -maxdepth 0 -perm /077)"
        as 1 002 'on; ls closed 2>/dev/null && exit 9; ls opened 2>/dev/null && exit 9; off'
        as 65534 077 'on; chmod 2770 opened $long; chmod 640 opened/file f$long; off'
        as 1 002 'on; ls closed 2>/dev/null && exit 9; cat opened/file f$long; echo 2 > opened/other; echo 2 > $long/other; off'
        as 65534 077 'on; chmod 700 opened; off'
        as 1 002 'on; ls opened 2>/dev/null && exit 9; off'
        as 65534 002 './adit vault check -q --password-file password shared/v'"#;
    run(user.command(&format!("mode=2775\n{TWO_USERS}{script}"), "true"), b"").expect(0);
}

/// As on ext4: the mode of a directory says nothing of whether it may be removed or replaced.
#[test]
fn directories_of_any_mode_are_removed_and_replaced() {
    let Some(user) = OrdinaryUser::new() else { return };
    let script = r#"set -x
        trap 'cd "$HOME" && ./adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        ./adit vault init -q --password-file password vault
        ./adit mount -q --password-file password vault mnt
        long=$(printf 'L%.0s' $(seq 200))
        for mode in 000 100 200 300 400 500 555; do
            for name in short $long; do
                mkdir mnt/t mnt/t/new mnt/t/$name mnt/t/full mnt/t/full/x
                chmod $mode mnt/t/$name && rmdir mnt/t/$name
                mkdir mnt/t/$name && chmod $mode mnt/t/$name && mv -T mnt/t/new mnt/t/$name
                test "$(ls mnt/t)" = "$(printf '%s\n' full $name | sort)"
                test -z "$(ls -A mnt/t/$name)"
                chmod $mode mnt/t/full
                rmdir mnt/t/full 2> said && exit 9
                grep -q 'not empty' said
                mv -T mnt/t/$name mnt/t/full 2> said && exit 9
                grep -q 'not empty' said
                test $(stat -c %a mnt/t/full) -eq $mode
                chmod 700 mnt/t/full && rmdir mnt/t/full/x mnt/t/full mnt/t/$name mnt/t
            done
        done
        ./adit umount -q mnt
        ./adit vault check -q --password-file password vault
        ./adit mount -q --password-file password vault mnt
        test -z "$(ls -A mnt)"
        ./adit umount -q mnt
        # Nothing of them is left: the root's content directory, and its id.
        test $(find vault/d -type f | wc -l) = 1"#;
    user.run(script).expect(0);
}

/// As on ext4: whose umask is private may give a folder to the group later, and a link has no mode, so that it is used by whoever may use
/// its directory.
#[test]
fn what_is_given_to_a_group_later_can_be_used_by_it() {
    let Some(user) = OrdinaryUser::new() else { return };
    let script = r#"
        as 65534 007 './adit vault init -q --password-file password shared/v
            chmod g+rw shared/v/masterkey.cryptomator'
        as 65534 077 'on; mkdir -p priv/E mine; ln -s t priv/ln; ln -s t priv/l$long; ln -s t mine/moved; ln -s t priv/back
            echo 3 > priv/E/f; off'
        test -z "$(find shared/v/d -mindepth 3 -perm /007)"
        as 65534 077 'on; chmod -R g+rwX priv; chmod g+s priv priv/E; mv mine/moved priv/; mv priv/back mine/; off'
        as 1 007 'on; cd priv; for n in ln l$long moved; do test $(readlink $n) = t; done; rm ln l$long moved
            rm E/f; rmdir E; cd ..; ls mine 2>/dev/null && exit 9; off'
        # What was taken back is.
        as 65534 077 'on; test -z "$(ls -A priv)"; ln -s t priv/ln; chmod 700 priv; off'
        test -z "$(find shared/v/d -name "*.c9r" -path "*/symlink.c9r" -perm /077)"
        as 65534 007 './adit vault check -q --password-file password shared/v'"#;
    run(user.command(&format!("mode=2770\n{TWO_USERS}{script}"), "true"), b"").expect(0);
}
