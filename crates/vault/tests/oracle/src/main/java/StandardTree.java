import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.text.Normalizer;
import java.util.List;

/**
 * The tree that {@code populate} writes, as a list of {@link VaultEdits} operations: everything of the format that has ever
 * been got wrong. The seed changes the contents alone; content of a file = xorshift64*(FNV-1a of its path, mixed with the seed).
 *
 * <p>Profiles: {@code full}; {@code fixture}, the same with fewer large files, for vaults that are committed; {@code names},
 * names and links alone; {@code tiny} (tree) and {@code contents} (files), the bases of the broken fixtures.
 */
final class StandardTree {

	private static final int CHUNK = 32 * 1024;
	/** Names that give ciphertext names around the default threshold of 220: 146 bytes stay whole, 147 are shortened. */
	private static final List<Integer> NAME_LENS = List.of(1, 15, 16, 17, 50, 143, 145, 146, 147, 148, 200, 250, 255);
	private static final List<Integer> FULL_SIZES = List.of(0, 1, 2, 15, 16, 17, 4095, 4096, CHUNK - 1, CHUNK, CHUNK + 1, //
			2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 3 * CHUNK - 1, 3 * CHUNK, 3 * CHUNK + 1, 100_000, 1_000_000);
	private static final List<Integer> FIXTURE_SIZES = List.of(0, 1, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1);

	private final ArrayNode ops = VaultOracle.JSON.createArrayNode();
	private final long seed;

	private StandardTree(long seed) {
		this.seed = seed;
	}

	static ArrayNode operations(long seed, String profile) {
		StandardTree tree = new StandardTree(seed);
		switch (profile) {
			case "full" -> tree.standard(FULL_SIZES);
			case "fixture" -> tree.standard(FIXTURE_SIZES);
			case "names" -> tree.names();
			case "tiny" -> tree.tiny();
			case "contents" -> tree.contents();
			default -> throw new IllegalArgumentException("unknown profile " + profile);
		}
		return tree.ops;
	}

	private void standard(List<Integer> sizes) {
		mkdir("/sizes");
		for (int size : sizes) {
			file("/sizes/%07d.bin".formatted(size), size);
		}
		names();
		deep(40);
		edited();
	}

	private void names() {
		longNames();
		unicode();
		symlinks();
		mkdir("/empty dir");
		mkdir("/dirs");
		mkdir("/dirs/" + name("dir", 146));
		file("/dirs/" + name("dir", 146) + "/inside", 5);
		mkdir("/dirs/" + name("dir", 147));
		file("/dirs/" + name("dir", 147) + "/inside", 6);
	}

	private void longNames() {
		mkdir("/names");
		for (int len : NAME_LENS) {
			file("/names/" + name("n", len), len);
		}
		// Two bytes a character: the limit counts bytes of the UTF-8 form.
		file("/names/" + "ä".repeat(73), 146);
		file("/names/" + "ä".repeat(73) + "b", 147);
		file("/names/" + "日".repeat(83) + "x", 250);
	}

	/** The library stores NFC whatever it is given: these five are given as NFD. */
	private void unicode() {
		mkdir("/unicode");
		for (String name : List.of("café", "Ångström", "ḍ̇", "한글", "e\u0301\u0323\u0302")) {
			file("/unicode/" + Normalizer.normalize(name, Normalizer.Form.NFD), 3);
		}
		for (String name : List.of("naïve.txt", "日本語", "\uD83D\uDE80 rocket", "עברית", "a b  c ", " leading", "trailing.", "tab\tname", //
				"new\nline", "back\\slash", "q\"uote'", "con", "*?<>|:", "-rf", "~", ".hidden", "..double", "%00%2F", "\u0001control", "\u200Dzwj", "Ω", "K")) {
			file("/unicode/" + name, 4);
		}
	}

	private void symlinks() {
		mkdir("/links");
		link("/links/relative", "../sizes/0000001.bin");
		link("/links/absolute", "/sizes");
		link("/links/dangling", "no/such/file");
		link("/links/to link", "relative");
		link("/links/loop", "loop");
		link("/links/dir", "../empty dir");
		link("/links/unicode", "../unicode/日本語");
		link("/links/long target", "x".repeat(200) + "/" + "y/".repeat(1000) + "z");
		link("/links/" + name("link", 147), "relative");
	}

	private void deep(int levels) {
		StringBuilder path = new StringBuilder("/deep");
		mkdir(path.toString());
		for (int i = 1; i <= levels; i++) {
			mkdir(path.append("/level").append(i).toString());
		}
		file(path + "/bottom.txt", 64);
	}

	/** Files and directories that were not written in one go: appended, overwritten, cut, grown, moved, moved to a long name. */
	private void edited() {
		mkdir("/edited");
		file("/edited/appended", CHUNK - 10);
		write("/edited/appended", CHUNK - 10, 20);
		file("/edited/overwritten", CHUNK + 100);
		write("/edited/overwritten", CHUNK - 5, 10);
		file("/edited/cut", CHUNK + 100);
		op("truncate", "/edited/cut").put("size", CHUNK);
		file("/edited/cut to nothing", 100);
		op("truncate", "/edited/cut to nothing").put("size", 0);
		file("/edited/grown", 10);
		op("truncate", "/edited/grown").put("size", 1000);
		file("/edited/moved from", 33);
		op("mv", "/edited/moved from").put("to", "/edited/moved to");
		file("/edited/short to long", 34);
		op("mv", "/edited/short to long").put("to", "/edited/" + name("moved", 180));
		file("/edited/" + name("long", 180), 35);
		op("mv", "/edited/" + name("long", 180)).put("to", "/edited/long to short");
		mkdir("/edited/" + name("ldir", 180));
		file("/edited/" + name("ldir", 180) + "/inside", 7);
		op("mv", "/edited/" + name("ldir", 180)).put("to", "/edited/dir long to short");
		file("/edited/deleted", 9);
		op("rm", "/edited/deleted");
		op("settime", "/edited/grown").put("mtime_ms", 1_234_567_890_123L);
	}

	private void contents() {
		file("/hello.txt", 100);
		file("/other.txt", 100);
		file("/one chunk", CHUNK);
		file("/three chunks", 2 * CHUNK + 100);
	}

	private void tiny() {
		file("/hello.txt", 100);
		file("/other.txt", 100);
		file("/empty", 0);
		mkdir("/dir");
		file("/dir/inside.txt", 50);
		mkdir("/dir2");
		file("/dir2/second.txt", 60);
		link("/link", "hello.txt");
		file("/" + name("long", 160), 70);
		mkdir("/" + name("longdir", 160));
		file("/" + name("longdir", 160) + "/inside.txt", 80);
	}

	private static String name(String start, int lenBytes) {
		return lenBytes < start.length() ? start.substring(0, lenBytes) : start + "x".repeat(lenBytes - start.length());
	}

	private ObjectNode op(String kind, String path) {
		return ops.addObject().put("op", kind).put("path", path);
	}

	private void mkdir(String path) {
		op("mkdir", path);
	}

	private void link(String path, String target) {
		op("symlink", path).put("target", target);
	}

	private void file(String path, int size) {
		write(path, 0, size);
	}

	private void write(String path, int offset, int len) {
		op("write", path).put("offset", offset).put("len", len) //
				.put("seed", VaultEdits.seedOf(seed + offset, Normalizer.normalize(path, Normalizer.Form.NFC)));
	}
}
