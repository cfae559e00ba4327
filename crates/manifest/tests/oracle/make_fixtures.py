"""Makes fixtures/manifests: manifests as they may come, what each is in canonical form, and broken ones.

Needs nothing but Python's standard library: the canonical form of version 2023-03-03 *is* what its `json.dumps` gives. Run it in
the repository's root; it writes the same bytes each time.
"""

import json
import math
from pathlib import Path

ROOT = Path("fixtures/manifests")
CHUNK = 256 * 1024 * 1024


def h(n):
    return f"{n:032x}"


def dumps(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def utf16(path):
    return path.encode("utf-16_be", errors="surrogatepass")


def v2023(paths):
    entries = [{"hash": h(n + 1), "mtime": m, "path": p, "size": s} for n, (p, s, m) in enumerate(paths)]
    entries.sort(key=lambda e: utf16(e["path"]))
    return {"hashAlg": "xxh128", "manifestVersion": "2023-03-03", "paths": entries,
            "totalSize": sum(e["size"] for e in entries)}


def shorten(text, numbers):
    parent, slash, name = text.rpartition("/")
    return f"${numbers[parent]}/{name}" if slash and parent in numbers else text


def g(dirs, files, kind="relative-manifest-snapshot", parent=None):
    """Dialect G, canonical. dirs: paths, or (path, deleted); files: entries with full paths."""
    dirs = sorted((d, False) if isinstance(d, str) else d for d in dirs)
    numbers = {path: n for n, (path, _) in enumerate(dirs)}
    out_dirs = [{"path": shorten(p, numbers), **({"deleted": True} if gone else {})} for p, gone in dirs]
    out_files = []
    for entry in sorted(files, key=lambda e: utf16(e["path"])):
        entry = dict(entry, path=shorten(entry["path"], numbers))
        if "symlink" in entry:
            entry["symlink"] = {"target": shorten(entry["symlink"]["target"], numbers)}
        out_files.append(entry)
    total = sum(e.get("size", 0) for e in files)
    document = {"dirs": out_dirs, "files": out_files, "hashAlg": "xxh128",
                "specificationVersion": f"{kind}-beta-2025-12", "totalSize": total}
    if parent:
        document["parentManifestHash"] = parent
    return document


def as_l(document):
    """The same in dialect L."""
    def entry(e):
        e = dict(e, name=e["path"])
        del e["path"]
        if e.pop("deleted", False):
            e["delete"] = True
        if "symlink" in e:
            e["symlink"] = {"name": e["symlink"]["target"]}
        return e

    out = {k: v for k, v in document.items() if k != "specificationVersion"}
    out.update(dirs=[entry(d) for d in document["dirs"]], files=[entry(f) for f in document["files"]],
               manifestVersion="2025-12-04-beta")
    return out


def mixed(document):
    """Names as in L, version as in G: what a third writer makes."""
    out = as_l(document)
    del out["manifestVersion"]
    out["specificationVersion"] = document["specificationVersion"]
    return out


def file(path, n, size=1, mtime=1_700_000_000_000_000, **more):
    return {"path": path, "hash": h(n), "size": size, "mtime": mtime, **more}


def chunked(path, size, mtime=1_700_000_000_000_000, **more):
    hashes = [h(0xC0 + n) for n in range(math.ceil(size / CHUNK))]
    return {"path": path, "chunkhashes": hashes, "size": size, "mtime": mtime, **more}


def link(path, target):
    return {"path": path, "symlink": {"target": target}}


def gone(path):
    return {"path": path, "deleted": True}


def text(document, order=None, **style):
    """JSON in another layout: keys in `order`, then as they come."""
    if order:
        document = {key: document[key] for key in [*order, *(k for k in document if k not in order)]}
    return json.dumps(document, **style)


def sound():
    # The names of the official package's own test, with hashes and a sum that are sound.
    official = v2023([
        ("\r", 1, 1679079744833848), ("1", 1, 1679079344833868), ("another_test_file", 1, 1675079344833848),
        ("test_dir/test_file", 1, 1479079344833848), ("test_file", 1, 167907934333848), ("\x80", 1, 1679079344833348),
        ("\xc3\xb1", 1, 1679579344833848), ("\xf6", 1, 1679079344833848), ("\u20ac", 1, 1679079344836848),
        ("\U0001f600", 1, 1679579344833848), ("\ude0a", 1, 1679579344833848), ("\ufb33", 1, 1679039344833848)])
    yield "v2023-official-names", dumps(official), official
    yield "v2023-scrambled", text(
        {**official, "paths": [{"more": [{"x": None}], **e} for e in reversed(official["paths"])],
         "unknown": {"deep": [[["\ud800", 1e300, -0.5, True]]], "paths": 5}},
        ["paths", "unknown", "totalSize", "hashAlg"], indent=2), official
    plain = v2023([("é/ü", 3, 5), ("日本語/ファイル.exr", 4, 6), ("😀", 5, 7), ("a/b", 6, 8)])
    raw = json.dumps(plain, ensure_ascii=False, indent="\t").replace("a/b", "a\\/b").replace("\n", "\r\n")
    yield "v2023-raw-utf8", "\n" + raw + " \n\n", plain
    names = v2023([(name, 0, 0) for name in [
        "".join(map(chr, range(1, 32))), "\x7f", 'quote"', "back\\slash", "..\\x", "C:/x", "~", "$0/x", "$HOME", "-rf",
        "space ", " ", "...", "a.b", "a/b", "a-b", "caf\udce9", "\udc80\udcff", "\ud800", "\ud800x", "\udc7f", "\udd00",
        "\udfff/\ud83d", "\uffff", "\ufffe", "\ufeff", "\ue000", "\ud7ff", "\U00010000", "\U0010ffff",
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301", "\u00e9", "n" * 255, "\udcff" * 255]])
    yield "v2023-names", dumps(names), names
    # Escapes in upper case, and those that nobody needs.
    yield "v2023-escapes", dumps(names).replace("\\ud800", "\\uD800").replace('"path"', '"\\u0070ath"'), names
    numbers = v2023([("zero", 0, 0), ("before", 1, -1), ("first", 2, -2**63), ("last", 3, 2**63 - 1), ("large", 2**62, 1)])
    yield "v2023-numbers", dumps(numbers), numbers
    most = v2023([("most", 2**63 - 1, 1)])
    yield "v2023-largest", dumps(most), most

    tree = g(["a", "a/b", "a/b/c", "empty", "a-b", "é"], [
        file("top", 1), file("a/x", 2, 10), file("a/b/run.sh", 3, 20, runnable=True), file("a/b/c/deep", 4, 30),
        file("unlisted/dir/y", 5, 40), file("é/\U0001f600", 6, 50), file("é/\ufb00", 7, 60),
        chunked("a/big", CHUNK + 1), chunked("huge", 3 * CHUNK, runnable=True), file("whole", 8, 2 * CHUNK),
        link("l", "a/b/run.sh"), link("a/b/up", "../x"), link("a/b/same", "c"), link("a/b/out", "../../top"),
        link("dot", "."), link("a/lone", "\udce9/\ud800")])
    yield "g-snapshot", dumps(tree), tree
    yield "g-files-first", text(tree, ["files", "specificationVersion", "dirs"], indent=1), tree
    yield "g-nulls", dumps({**tree, "files": [
        {"hash": None, "chunkhashes": None, "symlink": None, "runnable": None, "deleted": False, **f}
        for f in tree["files"]]}), tree
    yield "l-snapshot", dumps(as_l(tree)), tree
    yield "l-files-first", text(as_l(tree), ["totalSize", "files"]), tree
    yield "third-writer", dumps({**mixed(tree), "fileChunkSizeBytes": CHUNK}), tree
    whole = g([], [file("a", 1, 5 * CHUNK)])
    yield "third-writer-whole", dumps({**mixed(whole), "fileChunkSizeBytes": -1}), whole
    empty = g([], [])
    yield "g-empty", dumps(empty), empty
    diff = g([("gone", True), ("gone/below", True), "new", ("was-dir", True), "was-file"],
             [gone("gone/f"), gone("gone/below/g"), file("new/f", 1, 5), file("was-dir", 2, 6), gone("was-file"),
              gone("was-dir/x"), link("new/l", "f")], "relative-manifest-diff", h(0xF))
    yield "g-diff", dumps(diff), diff
    yield "l-diff", dumps(as_l(diff)), diff
    absolute = g(["/home", "/home/user"], [file("/home/user/x", 1), file("/etc/y", 2), link("/home/user/l", "../z")],
                 "absolute-manifest-snapshot")
    yield "g-absolute", dumps(absolute), absolute
    absolute = g([("/home/old", True)], [gone("/home/old/x")], "absolute-manifest-diff", h(0xE))
    yield "g-absolute-diff", dumps(absolute), absolute
    dollar = g(["$0", "$0/$1", "$HOME"], [file("$0/x", 1), file("$0/$1/$2", 2), file("$HOME/y", 3), file("$", 4), file("$9", 5),
                                          link("l", "$0/x"), link("m", "./$5/x"), link("n", "$7")])
    yield "g-dollar", dumps(dollar), dollar
    # `$N` may stand for more than the directory that something lies in.
    far = g(["a", "a/b"], [file("a/b/c/d", 1), file("a/e", 2)])
    written = json.loads(dumps(far))
    written["files"] = [file("$0/b/c/d", 1), file("$0/e", 2)]
    yield "g-far-reference", dumps(written), far


def broken():
    one = v2023([("a", 1, 1)])
    snap = g(["d"], [file("d/x", 1)])
    diff = g([], [gone("x")], "relative-manifest-diff", h(1))

    def path(value, style=one):
        return dumps({**style, "paths": [{**style["paths"][0], "path": value}]})

    def field(**more):
        return dumps({**one, "paths": [{**one["paths"][0], **more}]})

    def without(document, key):
        return dumps({k: v for k, v in document.items() if k != key})

    def files(*entries, base=snap):
        return dumps({**base, "files": list(entries), "totalSize": sum(e.get("size", 0) or 0 for e in entries)})

    def target(value, at="l"):
        return files(link(at, value))

    yield "json-syntax", dumps(one)[:-1]
    yield "json-syntax@behind", dumps(one) + "{}"
    yield "json-syntax@empty", ""
    yield "json-syntax@comma", dumps(one).replace("[{", "[,{")
    yield "json-syntax@bom", "\ufeff" + dumps(one)
    yield "json-syntax@nan", dumps({**one, "x": float("nan")})
    yield "json-text", dumps(one).encode().replace(b'"a"', b'"\xff"')
    yield "json-text@surrogate", dumps(one).encode().replace(b'"a"', b'"\xed\xa0\x80"')
    yield "json-text@control", dumps(one).replace('"a"', '"a\n"')
    yield "json-text@unknown-key", dumps({**one, "x": "y"}).encode().replace(b'"y"', b'"\xc0\x80"')
    yield "json-depth", dumps({**one, "x": None}).replace("null", "[" * 40 + "]" * 40)
    yield "json-string", dumps({**one, "x": "y" * 40000})
    yield "json-string@path", path("y/" * 20000 + "y")
    yield "duplicate-key", dumps(one).replace('"totalSize"', '"totalSize":1,"totalSize"')
    yield "duplicate-key@entry", dumps(one).replace('"path":', '"path":"b","path":')
    yield "duplicate-key@both-spellings", files({**file("x", 1), "name": "x"})
    yield "duplicate-key@version", dumps(one).replace('"paths"', '"manifestVersion":"2023-03-03","paths"')
    yield "field-missing@algorithm", without(one, "hashAlg")
    yield "field-missing@paths", without(one, "paths")
    yield "field-missing@total", without(one, "totalSize")
    yield "field-missing@dirs", without(g([], [file("x", 1)]), "dirs")
    yield "field-missing@files", without({**snap, "totalSize": 0}, "files")
    for key in ["path", "hash", "size", "mtime"]:
        yield f"field-missing@{key}", dumps({**one, "paths": [{k: v for k, v in one["paths"][0].items() if k != key}]})
    yield "field-missing@size-2025", files({"path": "x", "hash": h(1), "mtime": 1})
    yield "field-missing@dir", dumps({**snap, "dirs": [{}], "files": [], "totalSize": 0})
    yield "field-type", "[]"
    yield "field-type@version", dumps({**one, "manifestVersion": 5})
    yield "field-type@paths", dumps({**one, "paths": {}})
    yield "field-type@entry", dumps({**one, "paths": ["a"]})
    yield "field-type@path", field(path=5)
    yield "field-type@size", field(size="1")
    yield "field-type@null", field(path=None)
    yield "field-type@runnable", files(file("x", 1, runnable="yes"))
    yield "field-type@symlink", files({"path": "l", "symlink": "x"})
    yield "field-type@two-targets", files({"path": "l", "symlink": {"target": "x", "name": "y"}})
    yield "field-type@no-target", files({"path": "l", "symlink": {}})
    yield "field-type@chunks", files({"path": "x", "chunkhashes": h(1), "size": 1, "mtime": 1})
    yield "unknown-version", dumps({**one, "manifestVersion": "2022-06-06"})
    yield "unknown-version@later", dumps({**snap, "specificationVersion": "relative-manifest-snapshot-2026-01"})
    yield "unknown-version@kind", dumps({**snap, "specificationVersion": "relative-manifest-history-beta-2025-12"})
    yield "unknown-version@none", without(one, "manifestVersion")
    yield "unknown-version@two", dumps({**snap, "manifestVersion": "2025-12-04-beta"})
    yield "unknown-version@other-entries", dumps({**snap, "files": [5], "specificationVersion": "9"})
    yield "unknown-hash-algorithm", dumps({**one, "hashAlg": "md5"})
    yield "unknown-hash-algorithm@case", dumps({**snap, "hashAlg": "XXH128"})
    yield "no-entries", dumps({**one, "paths": [], "totalSize": 0})
    yield "file-size", field(size=-1)
    yield "file-size@absurd", field(size=2**63)
    yield "file-size@more-absurd", field(size=10**30)
    yield "file-size@fraction", field(size=1.5)
    yield "file-size@exponent", dumps(one).replace('"size":1', '"size":1e0')
    yield "total-size", dumps({**one, "totalSize": 2})
    yield "total-size@negative", dumps({**one, "totalSize": -1})
    yield "total-size@absurd", dumps({**one, "totalSize": 10**30})
    yield "total-size@overflow", dumps(v2023([("a", 2**63 - 1, 1), ("b", 1, 1)]))
    yield "total-size@overflow-64", dumps(v2023([("a", 2**63 - 1, 1), ("b", 2**63 - 1, 1), ("c", 2**63 - 1, 1)]))
    yield "total-size@symlinks", dumps({**files_of(link("l", "x")), "totalSize": 1})
    yield "mtime", field(mtime=2**63)
    yield "mtime@fraction", field(mtime=1.5)
    yield "hash-text", field(hash="a")
    yield "hash-text@upper", field(hash="A" * 32)
    yield "hash-text@long", field(hash="0" * 33)
    yield "hash-text@other", field(hash="g" * 32)
    yield "hash-text@path", field(hash="../../../../../../../../../../aa")
    yield "hash-text@parent", dumps({**diff, "parentManifestHash": "x"})
    yield "hash-text@chunk", files({**chunked("x", CHUNK + 1), "chunkhashes": [h(1), "x"]})
    big = chunked("x", CHUNK + 1)
    yield "chunk-count", files({**big, "chunkhashes": [h(1)]})
    yield "chunk-count@more", files({**big, "chunkhashes": [h(1)] * 3})
    yield "chunk-count@small", files({**big, "chunkhashes": [h(1)], "size": CHUNK})
    yield "chunk-count@none", files({**big, "chunkhashes": [], "size": 0})
    yield "chunk-count@absurd", files({**big, "size": 2**63 - 1})
    yield "chunk-size", dumps({**snap, "fileChunkSizeBytes": 1024})
    yield "chunk-size@whole", dumps({**files_of(big), "fileChunkSizeBytes": -1})
    yield "chunk-size@fraction", dumps({**snap, "fileChunkSizeBytes": 0.5})
    yield "content", files({"path": "x", "size": 1, "mtime": 1})
    yield "content@two", files({**file("x", 1), "symlink": {"target": "y"}})
    yield "content@chunks-too", files({**big, "hash": h(1)})
    yield "content@deleted-file", dumps({**diff, "files": [{**gone("x"), "hash": h(1)}]})
    yield "content@deleted-mtime", dumps({**diff, "files": [{**gone("x"), "mtime": 0}]})
    yield "content@deleted-link", dumps({**diff, "files": [{**gone("x"), "symlink": {"target": "y"}}]})
    yield "deletion-in-snapshot", files(gone("x"))
    yield "deletion-in-snapshot@directory", dumps({**snap, "dirs": [gone("d")]})
    yield "deletion-in-snapshot@l", dumps(as_l(files_of(gone("x"))))
    yield "parent-hash", without(diff, "parentManifestHash")
    yield "parent-hash@snapshot", dumps({**snap, "parentManifestHash": h(1)})
    yield "directory-reference", files(file("$1/x", 1))
    yield "directory-reference@self", dumps({**snap, "dirs": [{"path": "$0/d"}]})
    yield "directory-reference@later", dumps({**snap, "dirs": [{"path": "$1/d"}, {"path": "e"}]})
    yield "directory-reference@name", files(file("$HOME/x", 1))
    yield "directory-reference@empty", files(file("$/x", 1))
    yield "directory-reference@sign", files(file("$-1/x", 1))
    yield "directory-reference@huge", files(file("$99999999999999999999/x", 1))
    yield "directory-reference@target", target("$1/x")
    yield "path-empty", path("")
    yield "path-empty@root", dumps({**g([], [file("/", 1)], "absolute-manifest-snapshot")})
    yield "path-absolute", path("/etc/passwd")
    yield "path-absolute@2025", files(file("/x", 1))
    yield "path-absolute@directory", dumps({**snap, "dirs": [{"path": "/d"}], "files": [], "totalSize": 0})
    yield "path-relative", dumps(g([], [file("x", 1)], "absolute-manifest-snapshot"))
    yield "path-relative@windows", dumps(g([], [file("C:/x", 1)], "absolute-manifest-snapshot"))
    yield "path-nul", path("a\0b")
    yield "path-nul@2025", files(file("$0/\0", 1))
    yield "path-empty-component", path("a//b")
    yield "path-empty-component@end", path("a/")
    yield "path-empty-component@reference", files(file("$0/", 1))
    yield "path-dot", path("a/./b")
    yield "path-dot@only", path(".")
    yield "path-parent", path("../a")
    yield "path-parent@inside", path("a/../../b")
    yield "path-parent@only", path("..")
    yield "path-parent@reference", files(file("$0/../../x", 1))
    yield "path-parent@directory", dumps({**snap, "dirs": [{"path": ".."}, {"path": "$0/.."}]})
    yield "path-parent@absolute", dumps(g([], [file("/../x", 1)], "absolute-manifest-snapshot"))
    yield "path-parent@deleted", dumps({**diff, "files": [gone("../x")]})
    yield "path-component-length", path("n" * 256)
    yield "path-component-length@bytes", path("é" * 128)
    yield "path-component-length@escapes", path("\udcff" * 256)
    yield "path-length", path("/".join(["n" * 250] * 17))
    yield "path-length@references", dumps({**snap, "dirs": [{"path": "n" * 250}] + [
        {"path": f"${n}/{'n' * 250}"} for n in range(20)]})
    yield "path-depth", path("/".join("n" * 513))
    yield "symlink-target", target("")
    yield "symlink-target@nul", target("a\0b")
    yield "symlink-target@long", target("n/" * 2048)
    yield "symlink-absolute", target("/etc/passwd")
    yield "symlink-absolute@slashes", target("//x")
    yield "symlink-escape", target("..")
    yield "symlink-escape@deep", target("../../x", "d/l")
    yield "symlink-escape@dots", target("./.././../x", "d/l")
    yield "symlink-escape@through-a-link", files(link("s", "."), link("evil", "s/s/s/../../../etc/passwd"))
    yield "symlink-escape@reference", target("$0/../../x")
    yield "duplicate-path", dumps({**one, "paths": one["paths"] * 2, "totalSize": 2})
    yield "duplicate-path@directory", dumps({**snap, "dirs": [{"path": "d"}, {"path": "d"}]})
    yield "duplicate-path@both", dumps({**snap, "files": [file("d", 1)]})
    yield "duplicate-path@references", files(file("$0/x", 1), file("d/x", 2))
    yield "duplicate-path@deleted", dumps({**diff, "files": [gone("x"), gone("x")]})
    yield "duplicate-path@deleted-and-there", dumps({**diff, "files": [gone("x"), file("x", 1)], "totalSize": 1})
    yield "file-against-directory", dumps(v2023([("a", 1, 1), ("a/b", 1, 1)]))
    yield "file-against-directory@far", dumps(v2023([("a/b/c/d", 1, 1), ("a-", 1, 1), ("a/b", 1, 1)]))
    yield "file-against-directory@link", files(link("l", "d"), file("l/x", 1))
    yield "file-against-directory@directory", dumps({**snap, "dirs": [{"path": "x/y"}], "files": [file("x", 1)]})


def files_of(*entries):
    return g([], list(entries))


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", errors="surrogatepass"))


def main():
    for name, content, canonical in sound():
        write(ROOT / "sound" / f"{name}.json", content)
        write(ROOT / "sound" / f"{name}.canonical", dumps(canonical))
    for name, content in broken():
        write(ROOT / "broken" / f"{name}.json", content)


main()
