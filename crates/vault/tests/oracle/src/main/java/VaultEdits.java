import com.fasterxml.jackson.databind.JsonNode;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.CopyOption;
import java.nio.file.FileSystem;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributeView;
import java.nio.file.attribute.FileTime;
import java.util.HexFormat;

/**
 * Edits of a vault, each a JSON object with {@code op} and {@code path}:
 *
 * <pre>
 * write    offset (0), and hex or len + seed: creates the file if it is missing; a gap is filled with zeros
 * truncate size: shrinks or grows (with zeros)
 * mkdir    symlink target    rm (file, link or empty directory)    mv to [replace]    settime mtime_ms
 * </pre>
 */
final class VaultEdits {

	private VaultEdits() {}

	static void apply(FileSystem fs, JsonNode ops) throws IOException {
		for (JsonNode op : ops) {
			try {
				applyOne(fs, op);
			} catch (IOException | RuntimeException e) {
				throw new IOException(e.getClass().getSimpleName() + " in " + op + ": " + e.getMessage(), e);
			}
		}
	}

	private static void applyOne(FileSystem fs, JsonNode op) throws IOException {
		Path path = fs.getPath(VaultOracle.text(op, "path"));
		switch (VaultOracle.text(op, "op")) {
			case "write" -> write(path, op);
			case "truncate" -> truncate(path, op.get("size").asLong());
			case "mkdir" -> Files.createDirectory(path);
			case "symlink" -> Files.createSymbolicLink(path, fs.getPath(VaultOracle.text(op, "target")));
			case "rm" -> Files.delete(path);
			case "mv" -> {
				CopyOption[] options = op.path("replace").asBoolean() ? new CopyOption[] {StandardCopyOption.REPLACE_EXISTING} : new CopyOption[0];
				Files.move(path, fs.getPath(VaultOracle.text(op, "to")), options);
			}
			case "settime" -> Files.getFileAttributeView(path, BasicFileAttributeView.class, LinkOption.NOFOLLOW_LINKS) //
					.setTimes(FileTime.fromMillis(op.get("mtime_ms").asLong()), null, null);
			default -> throw new IllegalArgumentException("unknown operation");
		}
	}

	private static void write(Path path, JsonNode op) throws IOException {
		byte[] bytes = op.has("hex") ? HexFormat.of().parseHex(op.get("hex").asText()) : content(op.path("seed").asLong(), op.get("len").asInt());
		try (FileChannel channel = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.READ)) {
			ByteBuffer buffer = ByteBuffer.wrap(bytes);
			long position = op.path("offset").asLong();
			while (buffer.hasRemaining()) {
				position += channel.write(buffer, position);
			}
		}
	}

	private static void truncate(Path path, long size) throws IOException {
		try (FileChannel channel = FileChannel.open(path, StandardOpenOption.WRITE, StandardOpenOption.READ)) {
			if (size > channel.size()) {
				channel.write(ByteBuffer.allocate(1), size - 1);
			} else {
				channel.truncate(size);
			}
		}
	}

	/**
	 * Reproducible bytes: xorshift64* (Vigna 2014: shifts 12, 25, 27; multiplier 0x2545F4914F6CDD1D), started at
	 * seed XOR 0x9E3779B97F4A7C15 (or that constant where the result would be zero), each output little-endian.
	 */
	static byte[] content(long seed, int lenBytes) {
		long state = seed ^ 0x9E3779B97F4A7C15L;
		if (state == 0) {
			state = 0x9E3779B97F4A7C15L;
		}
		byte[] bytes = new byte[lenBytes];
		for (int i = 0; i < lenBytes; ) {
			state ^= state >>> 12;
			state ^= state << 25;
			state ^= state >>> 27;
			long output = state * 0x2545F4914F6CDD1DL;
			for (int j = 0; j < Long.BYTES && i < lenBytes; j++, i++) {
				bytes[i] = (byte) (output >>> (8 * j));
			}
		}
		return bytes;
	}

	/** FNV-1a, 64 bit, over the UTF-8 path: gives every file of the standard tree contents of its own. */
	static long seedOf(long seed, String path) {
		long hash = 0xCBF29CE484222325L ^ seed;
		for (byte b : path.getBytes(StandardCharsets.UTF_8)) {
			hash = (hash ^ (b & 0xFF)) * 0x100000001B3L;
		}
		return hash;
	}
}
