"""Makes the frozen vaults under fixtures/: `make_fixtures.py FIXTURES_DIR`, run by `cargo xtask fixtures`.

Needs ADIT_ORACLE_CMD (the official library's driver) and pycryptomator. Keys and nonces are random, so a vault made again
differs in every byte: a fixture that exists is kept, and only missing ones are made. Delete one to have it made afresh.

Each broken vault is one small sound vault with one damage; what the official library then does is recorded next to it.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import tempfile

from pycryptomator import Vault
from pycryptomator.cryptomator import aes_siv_encrypt

PASSWORD = "correct horse battery staple"
HEADER, CHUNK, OVERHEAD = 68, 32768, 28  # SIV_GCM
CTR_HEADER, CTR_OVERHEAD = 88, 48  # SIV_CTRMAC
FAST_SCRYPT = 1024

# name: (cipher, threshold, scrypt cost (0: the official default), profile, password)
GOOD = {
    "gcm-220": ("SIV_GCM", 220, 0, "fixture", "päßwörd – 密码"),
    "ctrmac-220": ("SIV_CTRMAC", 220, FAST_SCRYPT, "fixture", PASSWORD),
    "gcm-shortened": ("SIV_GCM", 36, FAST_SCRYPT, "names", PASSWORD),
    "ctrmac-shortened": ("SIV_CTRMAC", 100, FAST_SCRYPT, "tiny", PASSWORD),
    "gcm-empty": ("SIV_GCM", 220, FAST_SCRYPT, None, ""),
    "gcm-hs384": ("SIV_GCM", 220, FAST_SCRYPT, None, PASSWORD),
    "gcm-hs512": ("SIV_GCM", 220, FAST_SCRYPT, None, PASSWORD),
}


class Oracle:
    """The official library, one JVM for all commands."""

    def __init__(self):
        command = os.environ["ADIT_ORACLE_CMD"].split() + ["serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def answer(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def ask(self, **request):
        answer = self.answer(**request)
        if not answer["ok"]:
            raise RuntimeError(f"{request}: {answer}")
        return answer["items"]

    def make(self, directory, cipher, threshold, cost, profile, password):
        place = {"dir": directory, "password": password}
        self.ask(cmd="init", **place, cipher=cipher, threshold=threshold, scrypt_cost=cost)
        if profile:
            self.ask(cmd="populate", **place, seed=1, profile=profile)
            entries = self.ask(cmd="dump", **place)
            assert not [e for e in entries if "error" in e], entries
        assert not self.ask(cmd="health", **place)


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write_jsonl(path, items):
    lines = [json.dumps({k: v for k, v in item.items() if k != "mtime_ms"}, ensure_ascii=False) for item in items]
    write(path, "".join(line + "\n" for line in lines).encode())


def b64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def sign_config(vault, alg="HS256", kid="masterkeyfile:masterkey.cryptomator", key=None, **claims):
    """Replaces the vault's config by one of this content, correctly signed unless a key is given."""
    path = os.path.join(vault.base, "vault.cryptomator")
    old = json.loads(base64.urlsafe_b64decode(read(path).split(b".")[1] + b"=="))
    header = b64url(json.dumps({"kid": kid, "typ": "JWT", "alg": alg}).encode())
    payload = b64url(json.dumps(old | claims).encode())
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}.get(alg)
    signature = hmac.new(key or vault.pk + vault.hk, header + b"." + payload, digest).digest() if digest else b""
    write(path, header + b"." + payload + b"." + b64url(signature))


def make_good(root, oracle):
    for name, (cipher, threshold, cost, profile, password) in GOOD.items():
        target = os.path.join(root, "vault", name)
        if os.path.exists(target):
            continue
        vault = os.path.join(target, "vault")
        oracle.make(vault, cipher, threshold, cost, profile, password)
        if name.startswith("gcm-hs"):
            drop_backup(vault)
            sign_config(Vault(vault, password), alg=name.removeprefix("gcm-").upper())
        # Opening writes vault.cryptomator.<8 hex digits>.bkup: part of every vault that has been used.
        entries = oracle.ask(cmd="dump", dir=vault, password=password)
        assert not oracle.ask(cmd="health", dir=vault, password=password)
        write_jsonl(os.path.join(target, "expected.jsonl"), entries)
    passwords = {name: row[4] for name, row in GOOD.items()}
    write(os.path.join(root, "vault", "PASSWORDS.json"), (json.dumps(passwords, indent=2, ensure_ascii=False) + "\n").encode())


def drop_backup(vault):
    for name in os.listdir(vault):
        if name.endswith(".bkup"):
            os.remove(os.path.join(vault, name))


class Damage:
    """A vault about to be broken. `cleartext` and `ciphertext` name what the check is to report."""

    def __init__(self, base, vault):
        self.base, self.vault = base, vault
        self.cleartext = self.ciphertext = None

    def host(self, path):
        """The ciphertext path of an entry, the folder for directories, links and shortened names."""
        return self.vault.getInfo(path).realPathName

    def contents(self, path):
        return self.vault.getInfo(path).contentsC9

    def content_dir(self, path):
        return self.vault.getInfo(path).realDir

    def report(self, cleartext, host):
        self.cleartext = cleartext
        self.ciphertext = os.path.relpath(host, self.base)

    def keep_only(self, *names):
        """Drops the other files of the contents base, to keep the fixture small."""
        for name in ("hello.txt", "other.txt", "one chunk", "three chunks"):
            if name not in names:
                os.remove(self.contents("/" + name))

    def add_entry(self, dir_path, name, content):
        """Adds a file whose encrypted name is made of these very bytes."""
        info = self.vault.getInfo(dir_path)
        encrypted = aes_siv_encrypt(self.vault.pk, self.vault.hk, name, info.dirId.encode())
        host = os.path.join(info.realDir, base64.urlsafe_b64encode(encrypted).decode() + ".c9r")
        write(host, content)
        return host


def flip(path, offset):
    data = bytearray(read(path))
    data[offset] ^= 0x01
    write(path, bytes(data))


def file_damage(name, keep, edit):
    """A case that edits the ciphertext of one file of the contents base."""

    def apply(damage):
        damage.keep_only(name, *keep)
        host = damage.contents("/" + name)
        edit(damage, host)
        damage.report("/" + name, host)

    return apply


def in_chunk(index, edit_offset=20):
    return lambda _, host: flip(host, HEADER + index * (CHUNK + OVERHEAD) + edit_offset)


def swap_chunks(_, host):
    data, size = read(host), CHUNK + OVERHEAD
    head, first, second, rest = data[:HEADER], data[HEADER : HEADER + size], data[HEADER + size :][:size], data[HEADER + 2 * size :]
    write(host, head + second + first + rest)


def foreign_chunk(damage, host):
    write(host, read(host)[:HEADER] + read(damage.contents("/other.txt"))[HEADER:])


def swap_contents(damage, host):
    """Contents do not depend on names: undetectable, as the format is. Recorded, so that nobody thinks otherwise."""
    other = damage.contents("/other.txt")
    first, second = read(host), read(other)
    write(host, second)
    write(other, first)


def foreign_header(damage, host):
    write(host, read(damage.contents("/other.txt"))[:HEADER] + read(host)[HEADER:])


def cut(length):
    return lambda _, host: write(host, read(host)[:length])


def tail(length):
    return lambda _, host: write(host, read(host) + bytes(range(1, length + 1)))


def remove_dirid(d):
    host = os.path.join(d.content_dir("/dir"), "dirid.c9r")
    os.remove(host)
    d.report("/dir", host)


def flip_dirid(d):
    host = os.path.join(d.content_dir("/dir"), "dirid.c9r")
    flip(host, HEADER + 20)
    d.report("/dir", host)


def remove_root_dirid(d):
    host = os.path.join(d.vault.root, "dirid.c9r")
    os.remove(host)
    d.report("/", host)


def remove_content_dir(d):
    d.report("/dir", d.host("/dir"))
    content = d.content_dir("/dir")
    shutil.rmtree(os.path.dirname(content) if len(os.listdir(os.path.dirname(content))) == 1 else content)


def orphan(path, without_dirid=False):
    def apply(d):
        host, content = d.host(path), d.content_dir(path)
        shutil.rmtree(host)
        if without_dirid:
            os.remove(os.path.join(content, "dirid.c9r"))
        d.report(None, content)

    return apply


def set_dir_id(path, content):
    def apply(d):
        host = os.path.join(d.host(path), "dir.c9r")
        write(host, content(d))
        d.report(path, os.path.dirname(host))

    return apply


def nested_loop(d):
    """A directory below /dir that has the id of /dir itself: whoever follows it never ends."""
    info = d.vault.getInfo("/dir")
    encrypted = aes_siv_encrypt(d.vault.pk, d.vault.hk, b"again", info.dirId.encode())
    host = os.path.join(info.realDir, base64.urlsafe_b64encode(encrypted).decode() + ".c9r")
    os.mkdir(host)
    write(os.path.join(host, "dir.c9r"), info.dirId.encode())
    d.report("/dir/again", host)


def rename_to(path, new_name):
    def apply(d):
        host = d.host(path)
        target = os.path.join(os.path.dirname(host), new_name(os.path.basename(host)))
        os.rename(host, target)
        d.report(None, target)

    return apply


def unauthentic(name):
    return name[:9] + ("B" if name[9] != "B" else "C") + name[10:]


def moved_to_other_dir(d):
    host = d.host("/hello.txt")
    target = os.path.join(d.content_dir("/dir"), os.path.basename(host))
    os.rename(host, target)
    d.report(None, target)


def in_long_name(path, edit):
    def apply(d):
        host = d.host(path)
        edit(d, host)
        d.report(path, host)

    return apply


def in_link(edit):
    def apply(d):
        host = os.path.join(d.host("/link"), "symlink.c9r")
        edit(d, host)
        d.report("/link", host)

    return apply


def with_long_name_of(other):
    return lambda d, host: write(os.path.join(host, "name.c9s"), read(os.path.join(d.host(other), "name.c9s")))


def empty_folder(d):
    """X.c9r is a folder that says neither directory nor link."""
    host = d.host("/hello.txt")
    os.remove(host)
    os.mkdir(host)
    write(os.path.join(host, "notes.txt"), b"foreign")
    d.report("/hello.txt", host)


def foreign_files(d):
    """What sync tools and desktops leave behind. Nothing of it may be listed, changed or deleted."""
    root, hello = d.vault.root, d.host("/hello.txt")
    name = os.path.basename(hello)
    for host in (d.base, os.path.join(d.base, "d"), os.path.dirname(root), root, d.host("/dir")):
        write(os.path.join(host, ".DS_Store"), b"\0\0\0\1Bud1")
    write(os.path.join(root, name.removesuffix(".c9r") + " (conflict 2026-01-02).c9r"), read(hello))
    write(os.path.join(root, "." + name + ".swp"), b"foreign")
    write(os.path.join(root, "desktop.ini"), b"foreign")
    write(os.path.join(root, name.removesuffix(".c9r") + ".c9u"), b"foreign")
    os.mkdir(os.path.join(root, "@eaDir"))
    write(os.path.join(root, "@eaDir", "x"), b"foreign")
    write(os.path.join(d.base, "masterkey.cryptomator.00000000.bkup"), read(os.path.join(d.base, "masterkey.cryptomator")))
    write(os.path.join(d.base, "IMPORTANT.rtf"), b"foreign")
    d.report("/hello.txt", hello)


def conflict_copy(d):
    """A second version of a file under its canonical name plus the sync tool's suffix, both valid."""
    host = d.host("/hello.txt")
    copy = host.removesuffix(".c9r") + " (conflict).c9r"
    write(copy, read(d.host("/other.txt")))
    d.report("/hello.txt", copy)


def evil_names(d):
    """Names that authenticate and would leave their directory: whoever knows the key may be another program with a fault."""
    content = read(d.contents("/hello.txt"))
    for name in (b"..", b".", b"a/../../escape", b"/etc/passwd", b"nul\0byte", b"\xff\xfe not utf-8"):
        host = d.add_entry("/dir", name, content)
    d.report(None, host)


def nfd_name(d):
    host = d.add_entry("/dir", "cafe\u0301".encode(), read(d.contents("/hello.txt")))
    d.report("/dir/cafe\u0301", host)


def too_long_unshortened(d):
    host = d.add_entry("/dir", b"x" * 160, read(d.contents("/hello.txt")))
    d.report("/dir/" + "x" * 160, host)


def masterkey(edit):
    def apply(d):
        path = os.path.join(d.base, "masterkey.cryptomator")
        write(path, edit(read(path)))
        d.report(None, path)

    return apply


def wrong_version_mac(data):
    key = json.loads(data)
    mac = bytearray(base64.b64decode(key["versionMac"]))
    mac[0] ^= 1
    return json.dumps(key | {"versionMac": base64.b64encode(mac).decode()}, indent=2).encode()


def config(**change):
    def apply(d):
        sign_config(d.vault, **change)
        d.report(None, os.path.join(d.base, "vault.cryptomator"))

    return apply


def edit_config(edit):
    def apply(d):
        path = os.path.join(d.base, "vault.cryptomator")
        write(path, edit(read(path)))
        d.report(None, path)

    return apply


def raised_threshold(token):
    """The claims are changed, the signature is left as it was."""
    header, payload, signature = token.split(b".")
    claims = json.loads(base64.urlsafe_b64decode(payload + b"=="))
    return b".".join([header, b64url(json.dumps(claims | {"shorteningThreshold": 100}).encode()), signature])


def kid_escape(d):
    """The key the kid points at is real and lies one level up: obeying it would work, which is why it must not."""
    shutil.copy(os.path.join(d.base, "masterkey.cryptomator"), os.path.join(d.base, "..", "x"))
    config(kid="masterkeyfile:../x")(d)


LONG, LONG_DIR = "/long" + "x" * 156, "/longdir" + "x" * 153

# base: name: (finding, what was done, how). A finding of None: the vault is to pass the check.
BROKEN = {
    "contents": {
        "header-cut": ("unreadable-header", "The header lacks its last byte and all chunks.", file_damage("hello.txt", [], cut(HEADER - 1))),
        "header-flipped": ("unreadable-header", "One bit of the header is flipped.", file_damage("hello.txt", [], lambda _, h: flip(h, 30))),
        "header-foreign": ("unreadable-chunk", "The header is that of another file.", file_damage("hello.txt", ["other.txt"], foreign_header)),
        "file-empty": ("unreadable-header", "The ciphertext file is empty.", file_damage("hello.txt", [], cut(0))),
        "file-cut-in-chunk": ("unreadable-chunk", "The file ends within its last chunk.", file_damage("hello.txt", [], cut(HEADER + 60))),
        "chunk-first-flipped": ("unreadable-chunk", "One bit of chunk 0 of 3 is flipped.", file_damage("three chunks", [], in_chunk(0))),
        "chunk-middle-flipped": ("unreadable-chunk", "One bit of chunk 1 of 3 is flipped.", file_damage("three chunks", [], in_chunk(1))),
        "chunk-last-flipped": ("unreadable-chunk", "One bit of chunk 2 of 3 is flipped.", file_damage("three chunks", [], in_chunk(2))),
        "chunk-nonce-flipped": ("unreadable-chunk", "One bit of a chunk's nonce is flipped.", file_damage("hello.txt", [], in_chunk(0, 3))),
        "chunks-swapped": ("unreadable-chunk", "Chunks 0 and 1 have changed places.", file_damage("three chunks", [], swap_chunks)),
        "chunk-foreign": ("unreadable-chunk", "The chunk is chunk 0 of another file.", file_damage("hello.txt", ["other.txt"], foreign_chunk)),
        "contents-swapped": (None, "Two files have exchanged their whole ciphertext, which the format cannot detect.", file_damage("hello.txt", ["other.txt"], swap_contents)),
        "tail-1": ("unreadable-chunk", "One byte follows the last, full chunk.", file_damage("one chunk", [], tail(1))),
        "tail-28": ("unreadable-chunk", "28 bytes, nonce and tag of an empty chunk by length, follow the last, full chunk.", file_damage("one chunk", [], tail(28))),
        "tail-small": ("unreadable-chunk", "A header and 28 bytes that are no chunk.", file_damage("hello.txt", [], lambda _, h: write(h, read(h)[: HEADER + 28]))),
    },
    "tree": {
        "dirid-missing": ("missing-dirid", "A content directory lacks dirid.c9r.", remove_dirid),
        "dirid-missing-root": ("missing-dirid", "The root's content directory lacks dirid.c9r.", remove_root_dirid),
        "dirid-flipped": ("bad-dirid", "One bit of dirid.c9r is flipped.", flip_dirid),
        "content-dir-missing": ("missing-content-dir", "The content directory that a dir.c9r names does not exist.", remove_content_dir),
        "orphan": ("orphaned-content-dir", "The entry of a directory is gone, its contents are there.", orphan("/dir")),
        "orphan-long": ("orphaned-content-dir", "The entry (.c9s) of a directory is gone, its contents are there.", orphan(LONG_DIR)),
        "orphan-no-dirid": ("orphaned-content-dir", "As orphan, and dirid.c9r is gone too: its names are lost.", orphan("/dir", True)),
        "dir-id-duplicate": ("duplicate-dir-id", "/dir2 has the id of /dir; what was /dir2 is an orphan.", set_dir_id("/dir2", lambda d: d.vault.getInfo("/dir").dirId.encode())),
        "dir-id-loop": ("duplicate-dir-id", "A directory holds itself.", nested_loop),
        "dir-id-empty": ("bad-dir-file", "dir.c9r is empty, which would be the root's id.", set_dir_id("/dir", lambda d: b"")),
        "dir-id-huge": ("bad-dir-file", "dir.c9r has 1001 bytes.", set_dir_id("/dir", lambda d: b"a" * 1001)),
        "dir-id-binary": ("bad-dir-file", "dir.c9r is not text.", set_dir_id("/dir", lambda d: b"\xff\x00/../" * 6)),
        "name-unauthentic": ("unauthentic-name", "One character of a file's encrypted name has changed.", rename_to("/hello.txt", unauthentic)),
        "name-of-other-dir": ("unauthentic-name", "A file was moved, under its encrypted name, to another directory.", moved_to_other_dir),
        "name-not-base64": ("unauthentic-name", "A file's name is not base64url.", rename_to("/hello.txt", lambda name: "!" + name[1:])),
        "name-unpadded": ("unauthentic-name", "The padding of a directory's encrypted name is gone.", rename_to("/dir", lambda name: name.removesuffix(".c9r").rstrip("=") + ".c9r")),
        "name-nfd": ("not-nfc-name", "A name was encrypted in NFD.", nfd_name),
        "name-not-shortened": ("not-shortened-name", "A name above the threshold is not shortened.", too_long_unshortened),
        "names-evil": ("invalid-name", "Names that decrypt to '..', '.', paths, a NUL byte, invalid UTF-8.", evil_names),
        "long-no-name-file": ("broken-long-name", "name.c9s is gone (file).", in_long_name(LONG, lambda d, h: os.remove(h + "/name.c9s"))),
        "long-dir-no-name-file": ("broken-long-name", "name.c9s is gone (directory).", in_long_name(LONG_DIR, lambda d, h: os.remove(h + "/name.c9s"))),
        "long-wrong-name": ("broken-long-name", "name.c9s holds the name of another entry.", in_long_name(LONG, with_long_name_of(LONG_DIR))),
        "long-no-contents": ("broken-long-name", "The folder has name.c9s alone.", in_long_name(LONG, lambda d, h: os.remove(h + "/contents.c9r"))),
        "long-trailing-bytes": ("broken-long-name", "name.c9s ends in a line feed.", in_long_name(LONG, lambda d, h: write(h + "/name.c9s", read(h + "/name.c9s") + b"\n"))),
        "long-name-huge": ("broken-long-name", "name.c9s has more than 10 KiB.", in_long_name(LONG, lambda d, h: write(h + "/name.c9s", b"A" * 10300 + b".c9r"))),
        "long-ambiguous": ("ambiguous-entry", "contents.c9r and dir.c9r in one folder.", in_long_name(LONG, lambda d, h: write(h + "/dir.c9r", b"9d9ae4e6-3b1c-4d5e-8f90-0123456789ab"))),
        "folder-without-kind": ("unknown-entry", "A .c9r folder has neither dir.c9r nor symlink.c9r.", empty_folder),
        "link-flipped": ("unreadable-chunk", "One bit of a link's target is flipped.", in_link(lambda d, h: flip(h, HEADER + 15))),
        "link-empty": ("unreadable-header", "symlink.c9r is empty.", in_link(lambda d, h: write(h, b""))),
        "foreign-files": (None, "Files of sync tools and desktops everywhere; to be left alone.", foreign_files),
        "conflict-copy": (None, "A sync tool's second version of a file; to be left alone or shown, never lost.", conflict_copy),
    },
    "empty": {
        "masterkey-version-mac": ("bad-masterkey", "versionMac is wrong.", masterkey(wrong_version_mac)),
        "masterkey-cut": ("bad-masterkey", "The file ends in the middle.", masterkey(lambda data: data[:150])),
        "masterkey-huge-cost": ("bad-masterkey", "scryptCostParam asks for 1 TiB of memory.", masterkey(lambda data: json.dumps(json.loads(data) | {"scryptCostParam": 1 << 30}).encode())),
        "config-bad-signature": ("bad-config", "The shortening threshold was changed without signing.", edit_config(raised_threshold)),
        "config-alg-none": ("bad-config", "alg is none, without signature.", config(alg="none")),
        "config-hub": ("hub-vault", "The key is with a Hub.", config(kid="hub+https://hub.example.com/hub/vaults/42/")),
        "config-format-7": ("old-format", "format is 7.", config(format=7)),
        "config-format-9": ("new-format", "format is 9.", config(format=9)),
        "config-unknown-cipher": ("bad-config", "cipherCombo is unknown.", config(cipherCombo="SIV_ROT13")),
        "config-kid-escape": ("bad-config", "kid points out of the vault.", kid_escape),
        "config-missing": ("old-format", "vault.cryptomator is gone: looks like format 7 or older.", edit_config(lambda token: b"")),
    },
    "ctrmac": {
        "ctrmac-header-flipped": ("unreadable-header", "SIV_CTRMAC: one bit of the header is flipped.", lambda d: ctrmac(d, 100, lambda h: flip(h, 30))),
        "ctrmac-chunk-flipped": ("unreadable-chunk", "SIV_CTRMAC: one bit of chunk 0 is flipped.", lambda d: ctrmac(d, 100, lambda h: flip(h, CTR_HEADER + 20))),
        "ctrmac-tail-48": ("unreadable-chunk", "SIV_CTRMAC: 48 bytes follow the last, full chunk.", lambda d: ctrmac(d, CHUNK, lambda h: write(h, read(h) + bytes(range(48))))),
    },
}

CTR_FILES = {100: "/hello.txt", CHUNK: "/one chunk"}


def ctrmac(d, size, edit):
    """pycryptomator knows SIV_GCM alone, so the file is found by its size; hello.txt and other.txt have the same one."""
    root = next(os.path.join(path) for path, _, files in os.walk(os.path.join(d.base, "d")) if "dirid.c9r" in files)
    hosts = {os.path.getsize(f.path): f.path for f in os.scandir(root) if f.name != "dirid.c9r"}
    host = hosts.pop(CTR_HEADER + size + CTR_OVERHEAD)
    for other in hosts.values():
        os.remove(other)
    edit(host)
    d.report(CTR_FILES[size], host)


def make_bases(directory, oracle):
    rows = {"contents": ("SIV_GCM", "contents"), "tree": ("SIV_GCM", "tiny"), "empty": ("SIV_GCM", None), "ctrmac": ("SIV_CTRMAC", None)}
    for name, (cipher, profile) in rows.items():
        oracle.make(os.path.join(directory, name), cipher, 220, FAST_SCRYPT, profile, PASSWORD)
        drop_backup(os.path.join(directory, name))
    ops = [{"op": "write", "path": path, "len": size, "seed": 1} for size, path in CTR_FILES.items()]
    oracle.ask(cmd="apply", dir=os.path.join(directory, "ctrmac"), password=PASSWORD, ops=ops)
    drop_backup(os.path.join(directory, "ctrmac"))


def official_view(oracle, vault):
    """What the official library makes of it, found out on a copy because it may repair (or break) things while it looks."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = os.path.join(scratch, "case", "vault")
        shutil.copytree(os.path.dirname(vault), os.path.dirname(copy))
        view = {}
        for cmd in ("health", "dump"):
            answer = oracle.answer(cmd=cmd, dir=copy, password=PASSWORD)
            view[cmd] = answer["items"] if answer["ok"] else answer["error"]
    if isinstance(view["health"], list):
        view["health"] = sorted(f"{item['severity']} {item['result']}" for item in view["health"])
    if isinstance(view["dump"], list):
        view["dump"] = [{k: v for k, v in item.items() if k != "mtime_ms"} for item in view["dump"]]
    return view


def make_broken(root, oracle):
    with tempfile.TemporaryDirectory() as bases:
        make_bases(bases, oracle)
        for base, cases in BROKEN.items():
            for name, (finding, what, apply) in cases.items():
                target = os.path.join(root, "vault-broken", name)
                if os.path.exists(target):
                    continue
                vault = os.path.join(target, "vault")
                shutil.copytree(os.path.join(bases, base), vault)
                damage = Damage(vault, Vault(vault, PASSWORD) if base != "ctrmac" else None)
                apply(damage)
                if name == "config-missing":
                    os.remove(os.path.join(vault, "vault.cryptomator"))
                record = {
                    "what": what,
                    "password": PASSWORD,
                    "finding": finding,
                    "cleartext": damage.cleartext,
                    "ciphertext": damage.ciphertext,
                    "official": official_view(oracle, vault),
                }
                write(os.path.join(target, "what.json"), (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def main():
    (root,) = sys.argv[1:]
    oracle = Oracle()
    make_good(root, oracle)
    make_broken(root, oracle)
    oracle.process.stdin.close()
    oracle.process.wait()


if __name__ == "__main__":
    main()
