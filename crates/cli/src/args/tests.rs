//! The command line as people and mount(8) type it.

use std::time::Duration;

use clap::error::ErrorKind;

use super::mount_options::{MEMORY_DEFAULT_BYTES, MEMORY_MIN_BYTES, MountRequest, Part, memory_default_bytes};
use super::*;
use crate::exit_code::Code;

fn parsed(line: &[&str]) -> Result<LowArgs, clap::Error> {
    parse(line.iter().map(OsString::from))
}

fn mount(line: &[&str]) -> crate::failure::Result<MountRequest> {
    match parsed(line).expect("it parses").command {
        Command::Mount(args) => MountRequest::new(args),
        other => panic!("not a mount: {other:?}"),
    }
}

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn verbs_of_later_stores_are_not_offered() {
    assert_eq!(parsed(&["adit", "serve"]).unwrap_err().kind(), ErrorKind::InvalidSubcommand);
    let with_password = parsed(&["adit", "mount", "v", "m", "--password=secret"]);
    assert_eq!(with_password.unwrap_err().kind(), ErrorKind::UnknownArgument);
}

#[test]
fn the_store_of_a_manifest_is_named_by_flags_and_options() {
    let of = |more: &[&str]| mount(&[&["adit", "mount", "v", "m"], more].concat()).map(|request| request.cas);
    let flags = ["--cas=s3://x", "--cache-size=1G", "--strict", "--endpoint-url=http://h", "--region=r", "--profile=p"];
    let more = [
        "--verify-first=2M",
        "--path-style",
        "--no-sign-request",
        "--connect-timeout=1s",
        "--request-timeout=2s",
        "--store-timeout=9s",
        "--request-payer",
        "--cache-dir=d",
        "--webdav-user=u",
        "--webdav-password-file=f",
        "--requests=9",
        "--part-size=16M",
        "--parts=2",
        "--cache-block=2M",
    ];
    let flags = of(&[&flags[..], &more[..]].concat()).unwrap();
    let options = "cas=s3://x,cache_size=1G,strict,verify_first=2M,endpoint_url=http://h,region=r,profile=p,path_style,no_sign_request,\
                   connect_timeout=1s,request_timeout=2s,store_timeout=9s,request_payer,cache_dir=d,webdav_user=u,webdav_password_file=f,requests=9,part_size=16M,parts=2,\
                   cache_block=2M";
    assert_eq!(format!("{:?}", of(&["-o", options]).unwrap()), format!("{flags:?}"));
    assert_eq!(of(&["--cas=a", "-o", "cas=b"]).unwrap().cas.as_deref(), Some(OsStr::new("a")), "the flag wins");
    assert_eq!((flags.cache_size, flags.store.request_timeout), (Some(1 << 30), Some(Duration::from_secs(2))));
    let unsent = [
        "requests=0",
        "requests=1025",
        "part_size=4M",
        "part_size=2G",
        "parts=0",
        "parts=many",
        "cache_block=3M",
        "cache_block=32K",
        "cache_block=128M",
    ];
    let bad = ["cache_size=x", "verify_first=x", "strict=1", "region=", "request_timeout=soon", "webdav_user="];
    for bad in bad.iter().chain(&unsent) {
        assert_eq!(of(&["-o", bad]).unwrap_err().code(), Code::Usage, "{bad}");
    }
}

#[test]
fn blocks_of_a_cache_are_a_small_part_of_the_memory() {
    let of = |list: &str| mount(&["adit", "mount", "v", "m", "-o", list]);
    for good in ["cache_block=2M", "cache_block=1M,memory=24M", "cache_block=8M,memory=1G", "memory=8G,cache_block=64M"]
    {
        assert!(of(good).is_ok(), "{good}");
    }
    for bad in ["cache_block=4M", "cache_block=2M,memory=255M", "cache_block=64M,memory=4G"] {
        let refused = of(bad).unwrap_err();
        assert_eq!(refused.code(), Code::Usage, "{bad}");
        assert!(refused.text().contains("--cache-block and --memory"), "{}", refused.text());
    }
}

#[test]
fn a_mount_has_safe_defaults() {
    let request = mount(&["adit", "mount", "v", "m"]).unwrap();
    assert!(!request.options.allow_other && !request.options.read_only && !request.exclusive && !request.foreground);
    let default_bytes = memory_default_bytes(adit_core::cgroup::memory_limit_bytes());
    assert_eq!((request.memory_bytes, request.idle), (default_bytes, None));
    assert_eq!((request.options.source.as_str(), request.options.kind.as_str()), ("v", "vault"));
    assert_eq!(request.password, Origin::Ask);
}

#[test]
fn each_flag_is_an_option_too() {
    let flags = ["adit", "mount", "v", "m", "--read-only", "--allow-other", "--foreground"];
    let more = ["--idle", "10m", "--memory", "64M", "--password-file", "/p,q"];
    let by_flags = mount(&[&flags[..], &more[..]].concat()).unwrap();
    let list = r"ro,allow_other,foreground,idle=10m,memory=64M,password_file=/p\,q";
    let by_options = mount(&["adit", "mount", "-o", list, "v", "m"]).unwrap();
    for request in [by_flags, by_options] {
        assert!(request.options.read_only && request.options.allow_other && request.foreground);
        assert_eq!((request.idle, request.memory_bytes), (Some(Duration::from_secs(600)), 64 << 20));
        assert_eq!(request.password, Origin::File("/p,q".into()));
    }
}

#[test]
fn options_of_others_are_ignored_and_unknown_ones_refused() {
    let list =
        "_netdev,nofail,noauto,user,x-systemd.automount,attr_timeout=1.5,entry_timeout=2,negative_timeout=0,exclusive";
    let request = mount(&["adit", "mount", "v", "m", "-o", list, "-o", "threads=3"]).unwrap();
    assert_eq!(request.timeouts.attr, Some(Duration::from_millis(1500)));
    assert_eq!(request.timeouts.negative, Some(Duration::ZERO));
    assert!(request.exclusive);
    assert_eq!(request.options.threads.get(), 3);
    assert_eq!(mount(&["adit", "mount", "v", "m", "--idle", "0"]).unwrap().idle, None);
    let logged = mount(&["adit", "mount", "v", "m", "-o", "log=warn,verbose,quiet"]).unwrap();
    assert_eq!((logged.log.as_deref(), logged.verbose, logged.quiet), (Some("warn"), 1, true));
    for bad in ["nonsense", "attr_timeout=x", "attr_timeout", "threads=0", "memory=1K", "cas", "exclusive=1"] {
        assert_eq!(mount(&["adit", "mount", "v", "m", "-o", bad]).unwrap_err().code(), Code::Usage, "{bad}");
    }
}

#[test]
fn one_part_of_a_volume_is_mounted() {
    let part = |more: &[&str]| mount(&[&["adit", "mount", "v", "m"], more].concat()).map(|request| request.part);
    assert_eq!(part(&[]).unwrap(), Part::Live);
    assert_eq!(part(&["--snapshot", "s"]).unwrap(), Part::Snapshot("s".into()));
    assert_eq!(part(&["-o", "snapshot=s"]).unwrap(), Part::Snapshot("s".into()));
    assert_eq!(part(&["--branch=b"]).unwrap(), Part::Branch("b".into()));
    for both in [&["--branch=b", "-o", "snapshot=s"][..], &["-o", "branch=b,branch=c"], &["-o", "branch="]] {
        assert_eq!(part(both).unwrap_err().code(), Code::Usage, "{both:?}");
    }
    let sync = mount(&["adit", "mount", "v", "m", "-o", "durability=sync"]).unwrap();
    assert_eq!(sync.durability, Some(adit_volume::volume::Durability::Sync));
    assert_eq!(mount(&["adit", "mount", "v", "m", "-o", "durability=no"]).unwrap_err().code(), Code::Usage);
}

#[test]
fn mount_8_calls_its_helper() {
    let line =
        ["/sbin/mount.fuse.adit", "/v", "/m", "-s", "-n", "-v", "-t", "fuse.adit", "-o", "rw,noauto,password_env=P"];
    let request = mount(&line).unwrap();
    assert_eq!((request.source.as_os_str(), request.mountpoint.as_path()), (OsStr::new("/v"), Path::new("/m")));
    assert_eq!(request.password, Origin::Env("P".into()));
    assert!(!request.fake);
    // `-f` means a fake mount here, and not one in the foreground; letters may stand together.
    for bundle in [&["-f"][..], &["-sfnv"], &["-vf"], &["-fnvo", "rw"], &["-forw"], &["-s", "-n", "-f", "-v"]] {
        let request = mount(&[&["mount.fuse.adit", "/v", "/m"], bundle].concat()).unwrap();
        assert!(request.fake && !request.foreground && !request.options.read_only, "{bundle:?}");
    }
    // mount(8) never says `dev` and `suid`, and means them for root; whoever types `adit mount` says them.
    let is_root = rustix::process::geteuid().is_root();
    for (options, dev, suid) in [("rw", is_root, is_root), ("nodev", false, is_root), ("nosuid,nodev", false, false)] {
        let helped = mount(&["mount.fuse.adit", "/v", "/m", "-o", options]).unwrap().options;
        let typed = mount(&["adit", "mount", "/v", "/m", "-o", options]).unwrap().options;
        assert_eq!((helped.dev, helped.suid, typed.dev, typed.suid), (dev, suid, false, false), "{options}");
    }
    // Sloppy: what is not known here does not matter; what is known must still make sense.
    let line = ["mount.fuse.adit", "/v", "/m", "-o", "ro,nonsense,uid=1000,password_file=/p"];
    assert_eq!(mount(&line).unwrap_err().code(), Code::Usage);
    for sloppy in ["-s", "-sn", "-vs"] {
        let request = mount(&[&line[..], &[sloppy]].concat()).unwrap();
        assert!(request.options.read_only && request.password == Origin::File("/p".into()), "{sloppy}");
    }
    assert_eq!(mount(&["mount.fuse.adit", "/v", "/m", "-s", "-o", "threads=0"]).unwrap_err().code(), Code::Usage);
    for bundle in [&["-r"][..], &["-sro", "nosuid"], &["-oro,nosuid"], &["-nN", "/proc/1/ns/mnt", "-o", "ro"]] {
        let request = mount(&[&["mount.fuse.adit", "/v", "/m"], bundle].concat()).unwrap();
        assert!(request.options.read_only && !request.fake, "{bundle:?}");
    }
    let verbose = parsed(&["mount.fuse.adit", "/v", "/m", "-sv"]).unwrap().global.verbose;
    assert_eq!((verbose, parsed(&["mount.fuse.adit", "/v", "/m", "-sn"]).unwrap().global.verbose), (1, 0));
    assert_eq!(parsed(&["mount.fuse.adit", "/v", "/m", "-sX"]).unwrap_err().kind(), ErrorKind::UnknownArgument);
}

#[test]
fn an_upper_is_named_in_one_way() {
    let of = |more: &[&str]| mount(&[&["adit", "mount", "v", "m"], more].concat());
    let dir = of(&["--upper-dir", "d", "--log-file", "l"]).unwrap();
    assert!(dir.is_overlay() && dir.upper_dir.as_deref() == Some(Path::new("d")));
    assert_eq!(dir.log_file.as_deref(), Some(Path::new("l")));
    for two in ["upper_dir=d,writable", "upper_dir=d,upper=u", "upper=u,writable", "upper_dir=d,rebind"] {
        assert_eq!(of(&["-o", two]).unwrap_err().code(), Code::Usage, "{two}");
    }
    assert!(parsed(&["adit", "mount", "v", "m", "--upper-dir=d", "--writable"]).is_err());
}

#[test]
fn a_worker_calls_its_program() {
    let line = ["/opt/deadline_vfs/bin/deadline_vfs", "/s/mnt", "-f", "--clienttype=deadline", "--bucket=b"];
    let more = ["--manifest=/s/m,1", "--region=us-west-2", "-oallow_other", "--casprefix=DeadlineCloud/Data"];
    let of = |end: &[&str]| mount(&[&line[..], &more[..], end].concat()).unwrap();
    let request = of(&["--cachedir=/s/a,b"]);
    assert_eq!(
        (request.source.as_os_str(), request.mountpoint.as_path()),
        (OsStr::new("manifest:/s/m,1"), Path::new("/s/mnt"))
    );
    assert!(request.foreground && request.options.allow_other && request.nonempty && request.is_overlay());
    assert_eq!(request.cas.cas.as_deref(), Some(OsStr::new("s3://b/DeadlineCloud")));
    assert_eq!(request.cas.store.region.as_deref(), Some("us-west-2"));
    let dir = Some(Path::new("/s/a,b"));
    assert_eq!((request.cas.cache_dir.as_deref(), request.upper_dir.as_deref()), (dir, dir));
    // Older workers name no cache, and Python's word for no region.
    let request = mount(&["deadline_vfs", "/m", "--bucket=b", "--manifest=m", "--region=None"]).unwrap();
    assert_eq!(request.cas.cas.as_deref(), Some(OsStr::new("s3://b")));
    assert_eq!((request.cas.store.region, request.foreground), (None, false));
    assert_eq!(request.upper_dir.as_deref(), Some(Path::new(".vfs_object_cache")));
    // What an installation says of all mounts wins.
    let request = of(&["--cachedir=/s/c", "-o", "cache_dir=/var/c,strict"]);
    assert_eq!(request.cas.cache_dir.as_deref(), Some(Path::new("/var/c")));
    assert!(request.cas.strict && request.upper_dir.as_deref() == Some(Path::new("/s/c")));
    // A variable of the worker's machine goes before the folder of the session, for what is fetched.
    let shared = |cache: &str| {
        let line = [&line[..], &more[..], &["--cachedir=/s/c"]].concat().into_iter().map(OsString::from).collect();
        let line = worker::vfs_as_mount(line, Some(cache.into())).unwrap();
        let request = mount(&line.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>()).unwrap();
        (request.cas.cache_dir.unwrap(), request.upper_dir.unwrap())
    };
    let of_session = Path::new("/s/c").to_owned();
    assert_eq!(shared("/var/vfs"), (Path::new("/var/vfs").to_owned(), of_session.clone()));
    assert_eq!(shared("on"), (of_session.clone(), of_session), "no path from the root");
    for bad in ["--casprefix=Queue", "--casprefix=MyData", "--nonsense"] {
        assert!(parsed(&[&line[..], &["--manifest=m", bad]].concat()).is_err(), "{bad}");
    }
}

#[test]
fn what_fusermount_is_asked_for() {
    let of = |line: &[&str]| worker::unmount_of(&line.iter().map(OsString::from).collect::<Vec<_>>());
    let m = || Path::new("/m").to_owned();
    assert_eq!(of(&["-u", "/m"]), Some((m(), false)));
    assert_eq!(of(&["-uz", "--", "/m"]), Some((m(), true)));
    assert_eq!(of(&["-q", "-u", "/m"]), Some((m(), false)));
    for others in
        [&["-V"][..], &["-o", "ro", "--", "/m"], &["/m"], &["-u"], &["-u", "/m", "/n"], &["--auto-unmount", "-u", "/m"]]
    {
        assert_eq!(of(others), None, "{others:?}");
    }
    let parsed = parsed(&["/x/link/fusermount3", "-u", "/m"]).unwrap();
    assert!(matches!(parsed.command, Command::Worker(worker::WorkerCommand::Fusermount(_))));
}

#[test]
fn one_password_only() {
    let both = ["adit", "cat", "v", "p", "--password-stdin", "--password-file", "f"];
    assert_eq!(parsed(&both).unwrap_err().kind(), ErrorKind::ArgumentConflict);
    let mixed = mount(&["adit", "mount", "v", "m", "--password-stdin", "-o", "password_file=f"]);
    assert_eq!(mixed.unwrap_err().code(), Code::Usage);
    // The current and the new password are two.
    assert!(parsed(&["adit", "vault", "passwd", "v", "--password-stdin", "--new-password-stdin"]).is_ok());
}

/// Every page of the help, by the name of its command.
fn pages() -> Vec<(String, clap::Command)> {
    fn visit(command: &clap::Command, name: &str, pages: &mut Vec<(String, clap::Command)>) {
        for verb in command.get_subcommands() {
            visit(verb, &format!("{name} {}", verb.get_name()), pages);
        }
        pages.push((name.to_owned(), command.clone()));
    }
    let mut pages = Vec::new();
    visit(&command(), "adit", &mut pages);
    pages
}

#[test]
fn every_page_tells_the_exit_codes_and_has_summaries() {
    for (name, mut command) in pages() {
        assert!(command.get_about().is_some(), "{name} has no summary");
        for argument in command.get_arguments().filter(|a| !a.is_hide_set()) {
            assert!(argument.get_help().is_some(), "{name} {} has no help", argument.get_id());
        }
        let page = command.render_long_help().to_string();
        assert_eq!(page.matches(EXIT_CODES_TITLE).count(), 1, "{name}");
        for (code, meaning) in crate::exit_code::TABLE {
            // The terminal may break a line within the meaning.
            let start = meaning.split_whitespace().next().unwrap();
            assert!(page.contains(&format!("\n  {:2}  {start}", code as u8)), "{name}: {code:?} in {page}");
        }
        // Whatever else a page says of an exit code is in the table.
        for told in page.split("exit code ").skip(1) {
            let number: String = told.chars().take_while(char::is_ascii_digit).collect();
            assert!(number.is_empty() || number.parse::<u8>().is_ok_and(|n| n <= 10), "{name}: {told}");
        }
    }
}

#[test]
fn no_line_of_the_help_is_wrapped_twice() {
    for (name, command) in pages() {
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        for paragraph in text.split("\n\n").filter(|p| !p.starts_with(EXIT_CODES_TITLE)) {
            let lines: Vec<&str> = paragraph.lines().collect();
            // Running text is one line, or one below a title; lists and examples fit 80 columns.
            let running = lines.iter().filter(|line| line.chars().count() > 80).count();
            let begins = lines.first().is_some_and(|line| line.ends_with(':'));
            assert!(running == 0 || lines.len() == 1 + usize::from(begins), "{name}: {paragraph}");
            assert!(lines.iter().all(|line| line.len() <= 80 || !line.starts_with(' ')), "{name}: {paragraph}");
        }
    }
}

#[test]
fn the_readme_has_the_table_of_exit_codes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    for (code, meaning) in crate::exit_code::TABLE {
        assert!(readme.contains(&format!("| {} | {meaning} |", code as u8)), "{code:?}: {meaning}");
    }
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(readme.contains(&crate::exit_code::of_several()), "the rule for several failures");
}

#[test]
fn a_control_group_with_little_memory_gets_a_mount_with_little() {
    let of = |mib: u64| memory_default_bytes(Some(mib << 20)) >> 20;
    assert_eq!(memory_default_bytes(None), MEMORY_DEFAULT_BYTES);
    assert_eq!((of(8), of(64), of(256), of(1024), of(1 << 20)), (MEMORY_MIN_BYTES >> 20, 24, 64, 256, 256));
}
