import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.cryptomator.cryptofs.CryptoFileSystem;
import org.cryptomator.cryptofs.CryptoFileSystemProperties;
import org.cryptomator.cryptofs.CryptoFileSystemProvider;
import org.cryptomator.cryptofs.VaultConfig;
import org.cryptomator.cryptofs.health.api.DiagnosticResult.Severity;
import org.cryptomator.cryptofs.health.api.HealthCheck;
import org.cryptomator.cryptolib.api.CryptorProvider;
import org.cryptomator.cryptolib.api.Masterkey;
import org.cryptomator.cryptolib.api.MasterkeyLoader;
import org.cryptomator.cryptolib.common.MasterkeyFileAccess;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Drives the official Cryptomator library for the interoperability tests.
 *
 * <p>Every command is one JSON object, the request, answered by one JSON object. {@code serve} reads requests from standard
 * input, a line each; the other commands build one request from their arguments and print the answer's items a line each:
 *
 * <pre>
 * init     DIR PASSWORD_FILE [--cipher SIV_GCM|SIV_CTRMAC] [--threshold N] [--scrypt-cost N]
 * populate DIR PASSWORD_FILE SEED [PROFILE]   the tree of {@link StandardTree} (PROFILE: full, fixture, tiny)
 * apply    DIR PASSWORD_FILE OPS.jsonl        arbitrary edits, see {@link VaultEdits}
 * dump     DIR PASSWORD_FILE                  one line per entry, sorted by the bytes of its path, see {@link VaultDump}
 * health   DIR PASSWORD_FILE                  the official checks: every result that is not GOOD; exit 1 from WARN up
 * script   SEED [PROFILE]                     the operations of populate, without a vault
 * serve
 * </pre>
 *
 * <p>A request carries the same as members: {@code cmd, dir, password, cipher, threshold, scrypt_cost, seed, profile, ops}.
 * The answer is {@code {"ok":true,"items":[...]}} or {@code {"ok":false,"error":CLASS,"message":TEXT}}. A vault is opened and
 * closed within one request, so nothing of it is cached between two.
 */
public final class VaultOracle {

	static final ObjectMapper JSON = new ObjectMapper();
	private static final URI KEY_ID = URI.create("masterkeyfile:masterkey.cryptomator");
	private static final int VAULT_FORMAT = 8;

	private VaultOracle() {}

	public static void main(String[] args) throws IOException {
		var out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
		if (args.length == 1 && args[0].equals("serve")) {
			serve(out);
			return;
		}
		ObjectNode answer = answer(requestFromArguments(args));
		if (!answer.get("ok").asBoolean()) {
			System.err.println(answer.get("error").asText() + ": " + answer.get("message").asText());
			System.exit(2);
		}
		boolean unhealthy = false;
		for (JsonNode item : answer.get("items")) {
			out.println(item);
			String severity = item.path("severity").asText();
			unhealthy |= severity.equals("WARN") || severity.equals("CRITICAL");
		}
		out.flush();
		System.exit(unhealthy ? 1 : 0);
	}

	private static void serve(PrintStream out) throws IOException {
		var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
		for (String line = in.readLine(); line != null; line = in.readLine()) {
			if (!line.isBlank()) {
				out.println(answer(JSON.readTree(line)));
				out.flush();
			}
		}
	}

	private static JsonNode requestFromArguments(String[] args) throws IOException {
		ObjectNode request = JSON.createObjectNode();
		String cmd = args.length > 0 ? args[0] : "";
		request.put("cmd", cmd);
		int next = 1;
		if (!cmd.equals("script")) {
			if (args.length < 3) {
				System.err.println("usage: VaultOracle init|populate|apply|dump|health DIR PASSWORD_FILE ... | script SEED | serve");
				System.exit(64);
			}
			request.put("dir", args[1]);
			request.put("password", Files.readString(Path.of(args[2])).stripTrailing());
			next = 3;
		}
		switch (cmd) {
			case "populate", "script" -> {
				request.put("seed", Long.parseUnsignedLong(args[next]));
				if (args.length > next + 1) {
					request.put("profile", args[next + 1]);
				}
			}
			case "apply" -> {
				ArrayNode ops = request.putArray("ops");
				for (String line : Files.readAllLines(Path.of(args[next]))) {
					if (!line.isBlank()) {
						ops.add(JSON.readTree(line));
					}
				}
			}
			default -> {
				for (; next + 1 < args.length; next += 2) {
					request.put(args[next].replaceFirst("^--", "").replace('-', '_'), args[next + 1]);
				}
			}
		}
		return request;
	}

	private static ObjectNode answer(JsonNode request) {
		ObjectNode answer = JSON.createObjectNode();
		try {
			ArrayNode items = run(request);
			answer.put("ok", true);
			answer.set("items", items);
		} catch (Exception | AssertionError | StackOverflowError e) {
			answer.put("ok", false);
			answer.put("error", e.getClass().getSimpleName());
			answer.put("message", String.valueOf(e.getMessage()));
		}
		return answer;
	}

	private static ArrayNode run(JsonNode request) throws Exception {
		ArrayNode items = JSON.createArrayNode();
		switch (text(request, "cmd")) {
			case "init" -> init(request);
			case "populate" -> edit(request, standardTree(request));
			case "apply" -> edit(request, request.get("ops"));
			case "script" -> items.addAll(standardTree(request));
			case "health" -> health(request, items);
			case "dump" -> {
				try (CryptoFileSystem fs = open(request, Set.of(CryptoFileSystemProperties.FileSystemFlags.READONLY))) {
					VaultDump.dump(fs.getPath("/"), items);
				}
			}
			default -> throw new IllegalArgumentException("unknown command " + request);
		}
		return items;
	}

	static String text(JsonNode request, String member) {
		JsonNode value = request.get(member);
		if (value == null) {
			throw new IllegalArgumentException("missing \"" + member + "\" in " + request);
		}
		return value.asText();
	}

	private static ArrayNode standardTree(JsonNode request) {
		return StandardTree.operations(request.path("seed").asLong(), request.path("profile").asText("full"));
	}

	private static void edit(JsonNode request, JsonNode ops) throws IOException {
		try (CryptoFileSystem fs = open(request, Set.of())) {
			VaultEdits.apply(fs, ops);
		}
	}

	/** Creates a vault in a directory that exists or is created here. */
	private static void init(JsonNode request) throws Exception {
		Path dir = Path.of(text(request, "dir"));
		Files.createDirectories(dir);
		SecureRandom random = SecureRandom.getInstanceStrong();
		MasterkeyFileAccess access = new MasterkeyFileAccess(new byte[0], random);
		try (Masterkey key = Masterkey.generate(random)) {
			persist(access, key, dir.resolve("masterkey.cryptomator"), text(request, "password"), request.path("scrypt_cost").asInt(0));
		}
		CryptoFileSystemProperties properties = CryptoFileSystemProperties.cryptoFileSystemProperties() //
				.withKeyLoader(keyLoader(request)) //
				.withCipherCombo(CryptorProvider.Scheme.valueOf(request.path("cipher").asText("SIV_GCM"))) //
				.withShorteningThreshold(request.path("threshold").asInt(220)) //
				.build();
		CryptoFileSystemProvider.initialize(dir, properties, KEY_ID);
	}

	/** The library's cost parameter is fixed at 2^15; a lower one, which it opens all the same, makes tests faster. */
	private static void persist(MasterkeyFileAccess access, Masterkey key, Path file, String password, int cost) throws Exception {
		if (cost == 0) {
			access.persist(key, file, password);
			return;
		}
		Method withCost = MasterkeyFileAccess.class.getDeclaredMethod("persist", Masterkey.class, OutputStream.class, CharSequence.class, int.class, int.class);
		withCost.setAccessible(true);
		try (OutputStream out = Files.newOutputStream(file)) {
			withCost.invoke(access, key, out, password, 999, cost);
		}
	}

	private static MasterkeyLoader keyLoader(JsonNode request) {
		Path file = Path.of(text(request, "dir")).resolve("masterkey.cryptomator");
		String password = text(request, "password");
		return keyId -> new MasterkeyFileAccess(new byte[0], new SecureRandom()).load(file, password);
	}

	private static CryptoFileSystem open(JsonNode request, Set<CryptoFileSystemProperties.FileSystemFlags> flags) throws IOException {
		CryptoFileSystemProperties properties = CryptoFileSystemProperties.cryptoFileSystemProperties() //
				.withKeyLoader(keyLoader(request)) //
				.withFlags(flags) //
				.build();
		return CryptoFileSystemProvider.newFileSystem(Path.of(text(request, "dir")), properties);
	}

	private static void health(JsonNode request, ArrayNode items) throws Exception {
		Path dir = Path.of(text(request, "dir"));
		String token = Files.readString(dir.resolve("vault.cryptomator"), StandardCharsets.US_ASCII);
		VaultConfig.UnverifiedVaultConfig unverified = VaultConfig.decode(token);
		try (Masterkey key = keyLoader(request).loadKey(unverified.getKeyId())) {
			VaultConfig config = unverified.verify(key.getEncoded(), VAULT_FORMAT);
			try (var cryptor = CryptorProvider.forScheme(config.getCipherCombo()).provide(key.copy(), SecureRandom.getInstanceStrong())) {
				for (HealthCheck check : HealthCheck.allChecks()) {
					check.check(dir, config, key, cryptor, result -> {
						if (result.getSeverity() != Severity.GOOD) {
							ObjectNode item = items.addObject();
							item.put("check", check.name());
							item.put("severity", result.getSeverity().name());
							item.put("result", result.getClass().getSimpleName());
							item.put("text", result.toString());
							ObjectNode details = item.putObject("details");
							for (Map.Entry<String, String> detail : new TreeMap<>(result.details()).entrySet()) {
								details.put(detail.getKey(), detail.getValue());
							}
						}
					});
				}
			}
		}
	}
}
