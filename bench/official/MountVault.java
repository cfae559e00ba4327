import org.cryptomator.cryptofs.CryptoFileSystem;
import org.cryptomator.cryptofs.CryptoFileSystemProperties;
import org.cryptomator.cryptofs.CryptoFileSystemProvider;
import org.cryptomator.cryptolib.common.MasterkeyFileAccess;
import org.cryptomator.frontend.fuse.mount.LinuxFuseMountProvider;
import org.cryptomator.integrations.mount.Mount;

import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;

/**
 * Mounts a vault with the official stack, as the desktop application does: same library, same adapter, its default flags.
 *
 * <p>{@code MountVault DIR MOUNTPOINT PASSWORD_FILE} prints a line "mounted" and serves until its standard input ends; then it
 * unmounts, closes the vault and exits with 0.
 */
public final class MountVault {

	private MountVault() {}

	public static void main(String[] args) throws Exception {
		Path dir = Path.of(args[0]);
		Path mountpoint = Path.of(args[1]);
		String password = Files.readString(Path.of(args[2])).stripTrailing();
		CryptoFileSystemProperties properties = CryptoFileSystemProperties.cryptoFileSystemProperties() //
				.withKeyLoader(id -> new MasterkeyFileAccess(new byte[0], new SecureRandom()).load(dir.resolve("masterkey.cryptomator"), password)) //
				.build();
		try (CryptoFileSystem vault = CryptoFileSystemProvider.newFileSystem(dir, properties)) {
			var provider = new LinuxFuseMountProvider();
			Mount mount = provider.forFileSystem(vault.getPath("/")) //
					.setMountpoint(mountpoint) //
					.setMountFlags(provider.getDefaultMountFlags()) //
					.mount();
			System.err.println("flags " + provider.getDefaultMountFlags());
			System.out.println("mounted");
			System.out.flush();
			while (System.in.read() >= 0) {
				// Only the end of the input matters.
			}
			mount.unmount();
			mount.close();
		}
		System.exit(0);
	}
}
