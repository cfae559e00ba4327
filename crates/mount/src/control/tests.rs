use super::*;

fn info(mountpoint: &str, pid: u32) -> MountInfo {
    MountInfo { pid, ..MountInfo::new("/v", "vault", Path::new(mountpoint), false) }
}

fn verbs(verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
    match verb {
        "echo" => Some(Ok(args.clone())),
        "fail" => Some(Err(ControlError::answer(adit_core::ErrorKind::Busy, "in use"))),
        "panic" => panic!("in a verb"),
        _ => None,
    }
}

#[test]
fn a_mount_is_listed_answers_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::at(dir.path().join("run"));
    assert!(registry.list().is_empty());
    let mountpoint = dir.path().join("mnt");
    let info = MountInfo::new("/v", "vault", &mountpoint.canonicalize().unwrap_or(mountpoint.clone()), true);
    let registered = registry.register(&info, verbs).unwrap();
    assert_eq!(registry.list(), std::slice::from_ref(&info));
    let mode = std::fs::metadata(dir.path().join("run")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);

    let ping = registry.call(&mountpoint, "ping", &Value::Null).unwrap();
    assert!(ping.is_null(), "no number of a process is believed: {ping}");
    assert_eq!(registry.call(&mountpoint, IDENTITY, &Value::Null).unwrap(), serde_json::to_value(&info).unwrap());
    assert_eq!(registry.call(&mountpoint, "echo", &json!({"a": [1, "x\ny"]})).unwrap(), json!({"a": [1, "x\ny"]}));
    for (verb, kind) in [("fail", "Busy"), ("nonsense", "NotSupported"), ("panic", "Io")] {
        match registry.call(&mountpoint, verb, &Value::Null) {
            Err(ControlError::Answered { kind: k, .. }) => assert_eq!(k, kind),
            other => panic!("{verb}: {other:?}"),
        }
    }
    let elsewhere = registry.call(&dir.path().join("other"), "ping", &Value::Null);
    assert!(matches!(elsewhere, Err(ControlError::NotAMount(_))));

    drop(registered);
    assert!(registry.list().is_empty());
    assert!(std::fs::read_dir(dir.path().join("run")).unwrap().next().is_none());
}

/// Counts, in pieces, until nobody listens.
struct Counter {
    given_up: Arc<AtomicUsize>,
}

impl Verbs for Counter {
    fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
        verbs(verb, args)
    }

    fn stream(&self, verb: &str, args: &Value, parts: &mut Parts<'_>) -> Option<Result<Value, ControlError>> {
        match verb {
            "count" => {
                let end = args.as_u64().unwrap();
                let sent = (0..end).take_while(|n| parts.send(&json!([n, "x".repeat(1000)])).is_continue()).count();
                if (sent as u64) < end {
                    self.given_up.fetch_add(1, Ordering::SeqCst);
                }
                Some(Ok(json!(sent)))
            }
            "silent" => {
                while parts.is_wanted() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.given_up.fetch_add(1, Ordering::SeqCst);
                Some(Ok(Value::Null))
            }
            _ => None,
        }
    }
}

#[test]
fn an_answer_in_pieces_ends_with_its_listener() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::at(dir.path().join("run"));
    let given_up = Arc::new(AtomicUsize::new(0));
    let info = MountInfo::new("/v", "vault", &dir.path().join("mnt"), true);
    let registered = registry.register(&info, Counter { given_up: given_up.clone() }).unwrap();
    let mut seen = 0_u64;
    let mut each = |part: Value| {
        assert_eq!(part[0], seen);
        seen += 1;
        Ok(())
    };
    let result = registry.call_streaming(&info, "count", &json!(3000), &mut each, &mut || Ok(())).unwrap();
    assert_eq!((result, seen), (json!(3000), 3000));
    assert_eq!(registry.call_entry(&info, "echo", &json!(7)).unwrap(), 7, "others are answered as ever");
    // Who has enough goes away.
    let mut enough = |part: Value| if part[0] == 5 { Err(info.silent()) } else { Ok(()) };
    registry.call_streaming(&info, "count", &json!(1_u64 << 40), &mut enough, &mut || Ok(())).unwrap_err();
    let waited = std::time::Instant::now();
    let (registry2, info2) = (registry.clone(), info.clone());
    let mut gone = || Err(info2.silent());
    registry2.call_streaming(&info2, "silent", &Value::Null, &mut |_| Ok(()), &mut gone).unwrap_err();
    while given_up.load(Ordering::SeqCst) < 2 {
        assert!(waited.elapsed() < Duration::from_secs(60), "the work went on for nobody");
        std::thread::yield_now();
    }
    drop(registered);
}

#[test]
fn entries_of_dead_processes_and_rubbish_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::at(dir.path().join("run"));
    let live = registry.register(&info("/live", 1), verbs).unwrap();
    let run = dir.path().join("run");
    std::fs::write(run.join("77-0.json"), serde_json::to_vec(&info("/dead", 77)).unwrap()).unwrap();
    std::fs::write(run.join("77-0.sock"), b"").unwrap();
    std::fs::write(run.join("78-0.json"), b"{\xff").unwrap();
    let listed = registry.list();
    assert_eq!(listed.iter().map(|m| m.mountpoint.as_str()).collect::<Vec<_>>(), ["/live"]);
    assert!(!run.join("77-0.json").exists() && !run.join("77-0.sock").exists() && !run.join("78-0.json").exists());
    drop(live);
}

#[test]
fn a_directory_open_to_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
    let registry = Registry::at(&run);
    let refused = registry.register(&info("/m", 1), verbs).unwrap();
    assert!(matches!(refused.unannounced(), Some(ControlError::UnsafeDirectory { .. })), "{refused:?}");
    drop(refused);
    assert!(registry.list().is_empty());

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    let refused = Registry::at(&link).register(&info("/m", 1), verbs).unwrap();
    assert!(matches!(refused.unannounced(), Some(ControlError::UnsafeDirectory { .. })), "{refused:?}");
}

#[test]
fn rubbish_on_the_socket_gets_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::at(dir.path().join("run"));
    let registered = registry.register(&info("/m", 1), verbs).unwrap();
    let stream = registered.doors[0].connect(PING_TIMEOUT).unwrap();
    (&stream).write_all(b"not json\n{\"verb\":\"ping\"}\n").unwrap();
    let mut lines = BufReader::new(&stream).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((first["ok"].as_bool(), first["kind"].as_str()), (Some(false), Some("InvalidInput")));
    let second: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(second["ok"], true);
}

/// A process that is stopped: its socket takes connections and requests, as many as its queue holds, and answers none.
#[test]
fn who_says_nothing_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::at(dir.path().join("run"));
    let mount = info("/m", 1);
    create_private(&dir.path().join("run")).unwrap();
    let entry = dir.path().join("run/1-0.json");
    let _lock = write_locked(&entry, &mount).unwrap();
    let listener = UnixListener::bind(entry.with_extension("sock")).unwrap();
    let is_silent = |result: Result<(), ControlError>| match result {
        Err(ControlError::Silent { mountpoint, process }) => {
            assert_eq!((mountpoint, process), ("/m".into(), Some(mount.process())));
        }
        other => panic!("{other:?}"),
    };
    is_silent(registry.ping(&mount));
    // Whoever waits for long is asked whether to go on, and what came in the meantime is part of the answer.
    let server = std::thread::spawn(move || {
        let _the_ping_before = listener.accept().unwrap();
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"{\"ok\": true, ").unwrap();
        BufReader::new(&client).read_line(&mut String::new()).unwrap();
        (client, listener)
    });
    let door = registry.door_of(&mount).unwrap();
    let (mut asked, mut server) = (0, Some(server));
    let mut rest = None;
    let answer = ask(&mount, &door, "umount", &Value::Null, Duration::from_millis(200), &mut || {
        asked += 1;
        if asked == 2 {
            let (mut client, listener) = server.take().expect("once").join().unwrap();
            client.write_all(b"\"result\": 7}\n").unwrap();
            rest = Some((client, listener));
        }
        Ok(())
    });
    assert_eq!(answer.unwrap(), 7);
    assert!(asked >= 2);
    // A queue that is full is silence as well.
    let (_client, listener) = rest.expect("it was answered");
    rustix::net::listen(&listener, 1).unwrap();
    let connected: Vec<_> = (0..10).map(|_| door.connect(Duration::from_millis(50))).collect();
    let failed = connected.iter().filter_map(|stream| stream.as_ref().err()).collect::<Vec<_>>();
    assert!(!failed.is_empty() && failed.iter().all(|e| is_timeout(e)), "{failed:?}");
    is_silent(registry.ping(&mount));
}

#[test]
fn a_request_that_is_too_long_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::at(dir.path().join("run"));
    let mountpoint = dir.path().canonicalize().unwrap().join("mnt");
    let _registered = registry.register(&MountInfo::new("/v", "vault", &mountpoint, true), verbs).unwrap();
    let around = r#"{"args":"","verb":"echo"}"#.len() + 1;
    let longest = Value::from("x".repeat(REQUEST_LEN_MAX_BYTES as usize - around));
    assert!(registry.call(&mountpoint, "echo", &longest).unwrap() == longest);
    let longer = Value::from("x".repeat(REQUEST_LEN_MAX_BYTES as usize - around + 1));
    match registry.call(&mountpoint, "echo", &longer) {
        Err(ControlError::Answered { kind, message }) => {
            assert_eq!(kind, "InvalidInput");
            assert!(message.contains("8388609 bytes"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    // Also by the process itself, of whoever does not look before.
    let (_, door) = registry.locate(&mountpoint).unwrap();
    let stream = door.connect(PING_TIMEOUT).unwrap();
    (&stream).write_all(&vec![b' '; REQUEST_LEN_MAX_BYTES as usize]).unwrap();
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("more bytes, and may have 8388608"), "{answer}");
}

/// A mount is found by cron and sudo, whose environment does not name the runtime directory of its login.
#[test]
fn the_places_of_logins_are_looked_into() {
    let run = tempfile::tempdir().unwrap();
    let uid = rustix::process::geteuid();
    let login = run.path().join("user").join(uid.as_raw().to_string());
    let found = |given: Option<&Path>| places(given.map(Path::to_owned), run.path());
    let fixed = found(None);
    assert_eq!(fixed.len(), if uid.is_root() { 2 } else { 1 }, "there is no login: {fixed:?}");
    std::fs::create_dir_all(&login).unwrap();
    let with = |before: &[PathBuf], after: &[PathBuf]| [before, &fixed, after].concat();
    assert_eq!(found(None), with(&[], &[login.join("adit")]));
    assert_eq!(found(Some(&login)), with(&[login.join("adit")], &[]), "new ones go to the login's");
    let own = tempfile::tempdir().unwrap();
    assert_eq!(found(Some(own.path())), with(&[own.path().join("adit")], &[login.join("adit")]));
    assert_eq!(found(Some(Path::new("relative"))), found(None));
    if uid.is_root() {
        // Another user's could answer for our mounts.
        std::os::unix::fs::chown(&login, Some(65_534), None).unwrap();
        assert_eq!(found(Some(&login)), fixed);
    }
}
