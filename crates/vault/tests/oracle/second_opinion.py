"""Dumps a vault with pycryptomator, an implementation that shares no code with the official one.

    second_opinion.py DIR PASSWORD_FILE

prints the lines that the oracle's `dump` prints: {path, kind, mtime_ms, size, sha256 | target}, or {path, kind, error}, sorted
by the bytes of the path. SIV_GCM only. Names appear as they were encrypted: pycryptomator does not normalise them.

Its own directory walk follows symbolic links and refuses names that Windows does not allow, so only its primitives (unlocking,
directory hash, name and content decryption) are used here, and the walk is ours. They print a warning where they should raise;
every output of theirs is therefore taken for an error.
"""

import contextlib
import hashlib
import io
import json
import os
import sys

from pycryptomator import Vault


def strictly(function, *args):
    """Calls `function`; what it prints becomes an error."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = function(*args)
    if printed.getvalue():
        raise ValueError(printed.getvalue().strip())
    return result


def content(vault, file):
    clear = io.BytesIO()
    with open(file, "rb") as source:
        strictly(Vault._decryptf, vault.pk, source, clear)
    return clear.getvalue()


def entry_name(vault, dir_id, host):
    """The cleartext name of a directory entry, None for what is not one."""
    name = os.path.basename(host)
    if name.endswith(".c9s"):
        with open(os.path.join(host, "name.c9s"), "rb") as file:
            name = file.read().decode("ascii")
    if not name.endswith(".c9r") or name == "dirid.c9r":
        return None
    return strictly(vault.decryptName, dir_id.encode(), name.encode()).decode("utf-8")


def describe(vault, host):
    """The members of an entry but for its path, and its directory id if it is a directory."""

    def mtime_ms(path):
        return os.lstat(path).st_mtime_ns // 1_000_000

    file = host
    if os.path.isdir(host):
        dir_file = os.path.join(host, "dir.c9r")
        if os.path.exists(dir_file):
            with open(dir_file, encoding="ascii") as source:
                dir_id = source.read()
            return {"kind": "dir", "mtime_ms": mtime_ms(content_dir(vault, dir_id))}, dir_id
        link = os.path.join(host, "symlink.c9r")
        if os.path.exists(link):
            item = {"kind": "symlink", "mtime_ms": mtime_ms(link)}
            return item | {"target": content(vault, link).decode("utf-8")}, None
        file = os.path.join(host, "contents.c9r")
    clear = content(vault, file)
    item = {"kind": "file", "mtime_ms": mtime_ms(file), "size": len(clear)}
    return item | {"sha256": hashlib.sha256(clear).hexdigest()}, None


def content_dir(vault, dir_id):
    digest = strictly(vault.hashDirId, dir_id)
    return os.path.join(vault.base, "d", digest[:2], digest[2:])


def walk(vault, dir_id, prefix, items):
    for entry in os.scandir(content_dir(vault, dir_id)):
        try:
            name = entry_name(vault, dir_id, entry.path)
        except Exception as error:
            items.append({"path": prefix + "/?" + entry.name, "kind": "unknown", "error": type(error).__name__})
            continue
        if name is None:
            continue
        path = prefix + "/" + name
        try:
            item, child_id = describe(vault, entry.path)
        except Exception as error:
            items.append({"path": path, "kind": "unknown", "error": type(error).__name__})
            continue
        items.append({"path": path} | item)
        if child_id is not None:
            walk(vault, child_id, path, items)


def main():
    base, password_file = sys.argv[1:]
    with open(password_file, encoding="utf-8") as file:
        password = file.read().rstrip()
    # pycryptomator raises plain BaseException.
    try:
        vault = strictly(Vault, base, password)
    except BaseException as error:
        sys.exit(f"{type(error).__name__}: {error}")
    items = []
    walk(vault, "", "", items)
    items.sort(key=lambda item: item["path"].encode("utf-8", "surrogatepass"))
    sys.stdout.reconfigure(encoding="utf-8")
    for item in items:
        print(json.dumps(item, ensure_ascii=False))


if __name__ == "__main__":
    main()
