import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.security.DigestInputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;

/**
 * Lists a whole vault: {@code {path, kind, mtime_ms, size, sha256 | target}} per entry, or {@code error} for what failed.
 *
 * <p>A path starts with '/', the root itself is not listed. The library normalises every name to NFC. An entry whose attributes
 * cannot be read has the kind "unknown".
 */
final class VaultDump {

	private static final Comparator<Path> BY_BYTES = (a, b) -> Arrays.compareUnsigned(utf8(a), utf8(b));

	private VaultDump() {}

	private static byte[] utf8(Path path) {
		return path.toString().getBytes(StandardCharsets.UTF_8);
	}

	static void dump(Path root, ArrayNode items) {
		List<Path> paths = new ArrayList<>();
		List<ObjectNode> broken = new ArrayList<>();
		collect(root, paths, broken);
		paths.sort(BY_BYTES);
		for (Path path : paths) {
			items.add(describe(path));
		}
		broken.forEach(items::add);
	}

	/** A directory that cannot be listed is reported after all entries, under the kind "listing". */
	private static void collect(Path dir, List<Path> paths, List<ObjectNode> broken) {
		try (DirectoryStream<Path> entries = Files.newDirectoryStream(dir)) {
			for (Path entry : entries) {
				paths.add(entry);
				if (Files.isDirectory(entry, LinkOption.NOFOLLOW_LINKS)) {
					collect(entry, paths, broken);
				}
			}
		} catch (Exception | AssertionError e) {
			broken.add(failed(VaultOracle.JSON.createObjectNode().put("path", dir.toString()).put("kind", "listing"), e));
		}
	}

	private static ObjectNode failed(ObjectNode item, Throwable e) {
		return item.put("error", e.getClass().getSimpleName());
	}

	private static ObjectNode describe(Path path) {
		ObjectNode item = VaultOracle.JSON.createObjectNode().put("path", path.toString());
		BasicFileAttributes attributes;
		try {
			attributes = Files.readAttributes(path, BasicFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
		} catch (Exception | AssertionError e) {
			return failed(item.put("kind", "unknown"), e);
		}
		item.put("kind", attributes.isDirectory() ? "dir" : attributes.isSymbolicLink() ? "symlink" : "file");
		item.put("mtime_ms", attributes.lastModifiedTime().toMillis());
		try {
			if (attributes.isSymbolicLink()) {
				item.put("target", Files.readSymbolicLink(path).toString());
			} else if (!attributes.isDirectory()) {
				item.put("size", attributes.size());
				item.put("sha256", sha256(path));
			}
		} catch (Exception | AssertionError e) {
			failed(item, e);
		}
		return item;
	}

	private static String sha256(Path path) throws IOException, NoSuchAlgorithmException {
		MessageDigest digest = MessageDigest.getInstance("SHA-256");
		try (InputStream in = new DigestInputStream(Files.newInputStream(path), digest)) {
			in.transferTo(OutputStream.nullOutputStream());
		}
		return HexFormat.of().formatHex(digest.digest());
	}
}
