//! Each source of credentials as it is used: a process with variables and files of its own asks a service on the loopback, and
//! signs a request with what it gets. Credentials that are about to end are renewed before a request fails.
//!
//! One cannot be reached here: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` is a path on an address that is no loopback.
#![cfg(feature = "objects")]

#[path = "credentials/services.rs"]
mod services;

use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use adit_core::media::{Content, Objects, PutOptions};
use adit_media::objects::{ObjectsOptions, S3Objects};
use adit_testkit::objects::{HttpResponse, LoopbackService};
use serde_json::{Value, json};

use self::services::*;

/// The process that the tests start, which is this program: it makes a request for each line.
#[test]
fn child() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let options = ObjectsOptions {
        endpoint: Some(endpoint),
        profile: std::env::var(PROFILE).ok(),
        tries_max: 3,
        pause_min: Duration::from_millis(2),
        pause_max: Duration::from_millis(20),
        ..Default::default()
    };
    let objects = S3Objects::open("bucket", "", &options).unwrap();
    for line in std::io::stdin().lock().lines() {
        let made = match line.unwrap().as_str() {
            "put" => objects.put("large", Content::Bytes(&vec![1; 11 << 20]), &PutOptions::default()).map(drop),
            "read" => objects.read_at("large", 0, &mut [0; 10], None).map(drop),
            // Several at once, within a second.
            "together" => {
                let options = ObjectsOptions { deadline: Duration::from_secs(1), ..options.clone() };
                let objects = S3Objects::open("bucket", "", &options).unwrap();
                let list = || objects.list("", None, 1).map(drop);
                let ended = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..4).map(|_| scope.spawn(list)).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
                });
                ended.into_iter().collect::<Result<Vec<()>, _>>().map(drop)
            }
            _ => objects.list("", None, 1).map(drop),
        };
        // On a line of its own, whatever the harness has begun.
        match made {
            Ok(()) => println!("\n> ok"),
            Err(e) => println!("\n> {:?}: {e}", e.kind()),
        }
    }
}

#[test]
fn variables_and_files_have_keys() {
    let world = World::new();
    for key in ["VARIABLE", "SHARED", "CONFIG", "OTHER"] {
        world.store.accept_key(key);
    }
    let keys = |key: &str| format!("aws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n");
    world.write(".aws/credentials", &format!("[default]\n{}[farm]\n{}", keys("SHARED"), keys("OTHER")));
    world.write(".aws/config", &format!("[default]\n{}[profile one]\n{}", keys("NOT_THIS"), keys("CONFIG")));
    let variable = [("AWS_ACCESS_KEY_ID", "VARIABLE"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_PROFILE", "farm")];
    for (variables, key) in [
        (&variable[..], "VARIABLE"),
        (&variable[2..], "OTHER"),
        (&[("AWS_ACCESS_KEY_ID", "")][..], "SHARED"),
        (&[("AWS_PROFILE", "one")][..], "CONFIG"),
    ] {
        assert_eq!(world.client(variables).ask(), "ok", "{key}");
        assert_eq!(world.signed_with().last().unwrap(), key);
    }
}

#[test]
fn a_role_is_assumed_with_the_keys_of_another_profile() {
    let world = World::new();
    let roles = format!("[profile farm]\nrole_arn = {ROLE}\nsource_profile = source\nregion = us-west-2\n");
    world.write(".aws/config", &roles);
    world.write(".aws/credentials", "[source]\naws_access_key_id = SOURCE\naws_secret_access_key = s\n");
    world.check_renewal("ROLE", &[("AWS_PROFILE", "farm")]);
    assert_eq!(world.given(), ["ROLE"; 2]);

    // The profile may name the service, too.
    let services = format!("services = here\n[services here]\nsts =\n  endpoint_url = {}\n", world.services());
    world.write(".aws/config", &format!("{roles}{services}"));
    world.store.accept_key(&key("ROLE", 3));
    assert_eq!(world.client(&[("AWS_PROFILE", "farm"), ("AWS_ENDPOINT_URL_STS", "")]).ask(), "ok");
}

#[test]
fn roles_are_assumed_with_what_other_sources_give() {
    for (given, source) in [
        ("SSO", "source_profile = new"),
        ("CONTAINER", "credential_source = EcsContainer"),
        ("MACHINE", "credential_source = Ec2InstanceMetadata"),
        ("", "credential_source = Environment"),
    ] {
        let world = World::new();
        let (_, file) = with_single_sign_on(&world)[0];
        world.write(file, &json!({"accessToken": "sso-token", "expiresAt": time_in(3600)}).to_string());
        let config = std::fs::read_to_string(world.path(".aws/config")).unwrap();
        world.write(".aws/config", &format!("{config}[profile farm]\nrole_arn = {ROLE}\n{source}\n"));
        let container = format!("{}/container", world.services());
        let variables = [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", container.as_str()),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token"),
            ("AWS_ACCESS_KEY_ID", "SOURCE"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_EC2_METADATA_DISABLED", "false"),
        ];
        world.store.accept_key(&key("ROLE", 1));
        // Named for the store, a profile goes before the variables.
        assert_eq!(world.client(&[&variables[..], &[(PROFILE, "farm")]].concat()).ask(), "ok", "{source}");
        assert_eq!(world.signed_with(), [&*key("ROLE", 1)]);
        let expected: Vec<&str> = [given, "ROLE"].into_iter().filter(|given| !given.is_empty()).collect();
        assert_eq!(world.given(), expected, "{source}");
    }
}

#[test]
fn sources_that_fail_say_why_and_nobody_else_is_asked() {
    let world = World::new();
    let token = world.write("token", "another-token");
    let (_, file) = with_single_sign_on(&world)[0];
    let config = std::fs::read_to_string(world.path(".aws/config")).unwrap();
    let profiles = format!(
        "[profile role]\nrole_arn = {ROLE}\nsource_profile = keys\n[profile web]\nrole_arn = {ROLE}\n\
         web_identity_token_file = {token}\n[profile keys]\naws_access_key_id = OTHER\naws_secret_access_key = s\n\
         [profile command]\ncredential_process = /bin/sh -c 'echo it is late >&2; exit 3'\n"
    );
    world.write(".aws/config", &format!("{config}{profiles}"));
    world.write(file, &json!({"accessToken": "sso-token", "expiresAt": time_in(3600)}).to_string());
    let container = format!("{}/container", world.services());
    for (variables, why) in [
        (&[("AWS_PROFILE", "role")][..], "the role of profile role: AccessDenied: a message"),
        (&[("AWS_PROFILE", "web")], "the web identity of profile web: AccessDenied: a message"),
        (
            &[("AWS_PROFILE", "command")],
            "the command of profile command: credential process failed with status 3: it is late",
        ),
        (
            &[("AWS_ROLE_ARN", ROLE), ("AWS_WEB_IDENTITY_TOKEN_FILE", &token)],
            "the web identity: AccessDenied: a message",
        ),
        (
            &[
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &container),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "another-token"),
            ],
            "the container: ECS credentials endpoint not found",
        ),
    ] {
        let machine = [("AWS_EC2_METADATA_DISABLED", "false")];
        let said = world.client(&[&machine[..], variables].concat()).ask();
        assert!(said.starts_with("PermissionDenied: ") && said.contains(why), "{why}: {said}");
    }
    assert!(world.given().is_empty(), "{:?}", world.given());
}

/// Each source, and what leads it to the service at `there`.
fn with_services_at<'t>(
    world: &World,
    there: &'t str,
    uri: &'t str,
) -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let (_, file) = with_single_sign_on(world)[0];
    let config = std::fs::read_to_string(world.path(".aws/config")).unwrap();
    let token = world.write("token", "web-token");
    let profiles = format!(
        "[profile role]\nrole_arn = {ROLE}\nsource_profile = keys\n[profile web]\nrole_arn = {ROLE}\n\
         web_identity_token_file = {token}\n[profile keys]\naws_access_key_id = SOURCE\naws_secret_access_key = s\n\
         [profile machine]\nrole_arn = {ROLE}\ncredential_source = Ec2InstanceMetadata\n"
    );
    world.write(".aws/config", &format!("{config}{profiles}"));
    world.write(file, &json!({"accessToken": "sso-token", "expiresAt": time_in(3600)}).to_string());
    let sts = |profile: &str| vec![("AWS_PROFILE", profile.to_owned()), ("AWS_ENDPOINT_URL_STS", there.to_owned())];
    let machine = || {
        vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", there.to_owned()), ("AWS_EC2_METADATA_DISABLED", "false".to_owned())]
    };
    vec![
        ("the role of profile role", sts("role")),
        ("the web identity of profile web", sts("web")),
        ("the single sign-on", vec![("AWS_PROFILE", "new".to_owned()), ("AWS_ENDPOINT_URL_SSO", there.to_owned())]),
        ("the container", vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.to_owned())]),
        ("the machine", machine()),
        ("the machine", [machine(), vec![("AWS_PROFILE", "machine".to_owned())]].concat()),
    ]
}

#[test]
fn a_source_that_cannot_be_reached_is_the_network() {
    let busy = LoopbackService::start(|_| HttpResponse::new(503, "<html>a secret of the request</html>")).unwrap();
    for (there, why) in [("http://127.0.0.1:1".to_owned(), "Connection refused"), (busy.endpoint(), "503")] {
        let world = World::new();
        let uri = format!("{there}/container");
        for (source, variables) in with_services_at(&world, &there, &uri) {
            let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let said = world.client(&variables).ask();
            assert!(said.starts_with("Network: "), "{source}: {said}");
            assert!(said.contains(source) && said.contains(why) && !said.contains("secret"), "{source}: {said}");
        }
        // The token has ended, and whoever renews it is not there: to log in is not what helps.
        let (_, file) = with_single_sign_on(&world)[0];
        world.write(file, &renewable(-60).to_string());
        let said = world.client(&[("AWS_PROFILE", "new"), ("AWS_ENDPOINT_URL_SSO_OIDC", &there)]).ask();
        assert!(said.starts_with("Network: ") && said.contains(why) && !said.contains("aws sso login"), "{said}");
        assert!(world.given().is_empty(), "{:?}", world.given());
    }
}

#[test]
fn services_of_the_machine_are_not_asked_through_a_proxy() {
    for source in ["CONTAINER", "MACHINE"] {
        let world = World::new();
        // What is to be asked without a proxy is told by address.
        let here = world.services().replace("127.0.0.1", "localhost");
        let uri = format!("{here}/container");
        let proxy = [("HTTP_PROXY", "http://127.0.0.1:1"), ("http_proxy", "http://127.0.0.1:1")];
        let variables = match source {
            "CONTAINER" => [
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str()),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token"),
            ],
            _ => [("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*here), ("AWS_EC2_METADATA_DISABLED", "false")],
        };
        world.store.accept_key(&key(source, 1));
        assert_eq!(world.client(&[&proxy[..], &variables].concat()).ask(), "ok", "{source}");
        assert_eq!(world.given(), [source]);
    }
}

#[test]
fn what_others_say_is_told_in_short_and_their_output_not_at_all() {
    let world = World::new();
    let long = "x".repeat(5000);
    let fails = world.write("fails", &format!("printf ' \\033[31mred\\n\\342\\200\\256line {long}' >&2\nexit 3\n"));
    let wrong = world.write(
        "wrong",
        "echo '{\"Version\": 1, \"AccessKeyId\": \"A\", \"SecretAccessKey\": [\"s\"], \"SessionToken\": \"hidden\"}'\n",
    );
    let other = world.write("other", "echo '{\"Version\": \"hidden\"}'\n");
    let refuses = LoopbackService::start(move |_| HttpResponse::new(403, format!("<html>\r\n{long}"))).unwrap();
    let token = world.write("token", "web-token");
    world.write(
        ".aws/config",
        &format!(
            "[profile fails]\ncredential_process = /bin/sh {fails}\n[profile wrong]\ncredential_process = /bin/sh {wrong}\n\
             [profile other]\ncredential_process = /bin/sh {other}\n\
             [profile web]\nrole_arn = {ROLE}\nweb_identity_token_file = {token}\n"
        ),
    );
    for (profile, why) in [
        ("fails", "credential process failed with status 3: [31mred line xxx"),
        ("wrong", "the command of profile wrong: its output is not what it should be"),
        ("other", "the command of profile other: its output is not what it should be"),
        ("web", "the web identity of profile web: STS request failed with 403 Forbidden: <html> xxx"),
    ] {
        let said = world.client(&[("AWS_PROFILE", profile), ("AWS_ENDPOINT_URL_STS", &refuses.endpoint())]).ask();
        assert!(said.starts_with("PermissionDenied: ") && said.contains(why), "{profile}: {said}");
        assert!(said.len() < 600 && !said.contains("hidden") && !said.contains('\u{202e}'), "{profile}: {said}");
    }
}

#[test]
fn why_there_were_none_is_forgotten_when_there_are_some() {
    let world = World::new();
    let fails = "echo it is late >&2; exit 3\n";
    let script = world.write("hand out", fails);
    world.write(".aws/config", &format!("[default]\ncredential_process = /bin/sh \"{script}\"\n"));
    let mut client = world.client(&[]);
    let said = client.ask();
    assert!(said.contains("it is late"), "{said}");
    // These are no good to sign anything with, for another reason.
    let ended = json!({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s", "Expiration": time_in(-60)});
    world.write("hand out", &format!("echo '{ended}'\n"));
    let said = client.ask();
    assert!(said.contains("gave none that can be used") && !said.contains("it is late"), "{said}");
}

#[test]
fn a_web_identity_has_a_role() {
    for of_profile in [false, true] {
        let world = World::new();
        let token = world.write("token", "web-token\n");
        world.write(".aws/config", &format!("[profile farm]\nrole_arn = {ROLE}\nweb_identity_token_file = {token}\n"));
        let variables = match of_profile {
            true => vec![("AWS_PROFILE", "farm")],
            false => vec![("AWS_ROLE_ARN", ROLE), ("AWS_WEB_IDENTITY_TOKEN_FILE", &token)],
        };
        // Whoever writes the file changes the token in time.
        world.check_renewal_after("WEB", &variables, || {
            world.write("token", "another-token");
            world.state.lock().unwrap().web_token = "another-token".to_owned();
        });
    }
}

#[test]
fn a_web_identity_of_the_variables_goes_before_a_profile_that_is_not_named_for_the_store() {
    let world = World::new();
    let token = world.write("token", "web-token");
    world.write(".aws/credentials", "[default]\naws_access_key_id = SHARED\naws_secret_access_key = s\n");
    let variables = [("AWS_ROLE_ARN", ROLE), ("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str())];
    let named = [(PROFILE, "default")];
    for (more, key) in [(&[][..], key("WEB", 1)), (&named, "SHARED".to_owned())] {
        world.store.accept_key(&key);
        assert_eq!(world.client(&[&variables[..], more].concat()).ask(), "ok", "{key}");
        assert_eq!(world.signed_with().last(), Some(&key));
    }
}

#[test]
fn a_command_gives_credentials_and_is_run_again() {
    let world = World::new();
    let hand_out = |end: &str| {
        let script = "echo run >> \"$1\"\nn=$(wc -l < \"$1\")\nprintf '{\"Version\": 1, \"AccessKeyId\": \
            \"COMMAND_____%04d\", \"SecretAccessKey\": \"s\", \"SessionToken\": \"t\", \"Expiration\": \"%s\"}' $n ";
        world.write("hand out", &format!("{script} {end}\n"))
    };
    let script = hand_out(&time_in(SHORT_SECS));
    let runs = world.path("runs of it").display().to_string();
    world.write(".aws/config", &format!("[default]\ncredential_process = /bin/sh \"{script}\" \"{runs}\"\n"));
    world.check_renewal_after("COMMAND", &[], || drop(hand_out(&time_in(3600))));
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 2);
}

/// `~/.aws/config` with both kinds of single sign-on, and the files of their tokens.
fn with_single_sign_on(world: &World) -> [(&'static str, &'static str); 2] {
    const ROLE_OF_ACCOUNT: &str = "sso_account_id = 123456789012\nsso_role_name = Artist+1\n";
    const START: &str = "sso_start_url = https://example.awsapps.com/start\nsso_region = us-west-2\n";
    let new = format!("[profile new]\nsso_session = my-sso\n{ROLE_OF_ACCOUNT}[sso-session my-sso]\n{START}");
    world.write(".aws/config", &format!("{new}[profile old]\n{ROLE_OF_ACCOUNT}{START}"));
    // SHA-1 of `my-sso`, and of the start URL.
    [
        ("new", ".aws/sso/cache/0ad374308c5a4e22f723adf10145eafad7c4031c.json"),
        ("old", ".aws/sso/cache/e8be5486177c5b5392bd9aa76563515b29358e6e.json"),
    ]
}

#[test]
fn single_sign_on_gives_the_keys_of_a_role() {
    for n in [0, 1] {
        let world = World::new();
        let (profile, file) = with_single_sign_on(&world)[n];
        let token = json!({"accessToken": "sso-token", "expiresAt": time_in(3600)});
        world.write(file, &token.to_string());
        world.check_renewal("SSO", &[("AWS_PROFILE", profile)]);
        assert_eq!(world.given(), ["SSO"; 2], "{profile}");
    }
}

/// A token that ends in so many seconds, with what renews it and with a field that nobody knows.
fn renewable(end_secs: i64) -> Value {
    json!({
        "startUrl": "https://example.awsapps.com/start", "region": "us-west-2", "accessToken": "sso-token",
        "expiresAt": time_in(end_secs), "clientId": "client", "clientSecret": "secret",
        "registrationExpiresAt": time_in(3600), "refreshToken": "refresh-token", "other": [1],
    })
}

#[test]
fn a_token_of_single_sign_on_is_renewed_and_written_back() {
    for end_secs in [-60, 60] {
        let world = World::new();
        let (_, file) = with_single_sign_on(&world)[0];
        let token = renewable(end_secs);
        let path = world.write(file, &token.to_string());
        let before = world.path("before");
        std::fs::hard_link(&path, &before).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        world.store.accept_key(&key("SSO", 1));
        assert_eq!(world.client(&[("AWS_PROFILE", "new")]).ask(), "ok");
        assert_eq!(world.given(), ["TOKEN", "SSO"]);

        let now: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut expected = token.clone();
        (expected["accessToken"], expected["refreshToken"]) = ("sso-token+".into(), "refresh-token+".into());
        expected["expiresAt"] = now["expiresAt"].clone();
        assert_eq!(now, expected);
        assert!(now["expiresAt"].as_str().unwrap() > time_in(1800).as_str());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(
            std::fs::read_to_string(&before).unwrap(),
            token.to_string(),
            "it is another file, not written over"
        );
        let files = std::fs::read_dir(world.path(".aws/sso/cache")).unwrap().count();
        assert_eq!(files, 1, "nothing else is left there");

        // The next process has it.
        world.store.accept_key(&key("SSO", 2));
        assert_eq!(world.client(&[("AWS_PROFILE", "new")]).ask(), "ok");
        assert_eq!(world.given(), ["TOKEN", "SSO", "SSO"]);
    }
}

#[test]
fn a_link_to_a_token_stays_one() {
    let world = World::new();
    let (_, file) = with_single_sign_on(&world)[0];
    let path = world.write("elsewhere/token.json", &renewable(-60).to_string());
    std::fs::create_dir_all(world.path(file).parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&path, world.path(file)).unwrap();
    world.store.accept_key(&key("SSO", 1));
    assert_eq!(world.client(&[("AWS_PROFILE", "new")]).ask(), "ok");
    assert!(std::fs::symlink_metadata(world.path(file)).unwrap().is_symlink());
    assert!(std::fs::read_to_string(&path).unwrap().contains("sso-token+"));
}

#[test]
fn a_token_that_cannot_be_written_back_serves_its_process() {
    let world = World::new();
    let (_, file) = with_single_sign_on(&world)[0];
    let token = renewable(-60).to_string();
    // Any longer name is none, for root as well.
    let path = world.write(&format!("elsewhere/{}", "n".repeat(255)), &token);
    std::fs::create_dir_all(world.path(file).parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&path, world.path(file)).unwrap();
    let mut client = world.client(&[("AWS_PROFILE", "new")]);
    for n in 1..=2 {
        world.store.accept_key(&key("SSO", n));
        assert_eq!(client.ask(), "ok");
    }
    assert_eq!(world.given(), ["TOKEN", "SSO", "SSO"]);
    assert_eq!(std::fs::read_to_string(world.path(file)).unwrap(), token);
    // Who logs out has logged out.
    std::fs::remove_file(world.path(file)).unwrap();
    world.store.expire_key(&key("SSO", 2));
    let said = client.ask();
    assert!(said.contains("nobody has logged in"), "{said}");
}

#[test]
fn who_has_to_log_in_is_told_how() {
    let world = World::new();
    let [(_, file), (_, old_file)] = with_single_sign_on(&world);
    // What the machine has is not meant.
    let ask = |profile: &str| world.client(&[("AWS_PROFILE", profile), ("AWS_EC2_METADATA_DISABLED", "false")]).ask();
    let check = |profile: &str, why: &str| {
        let said = ask(profile);
        let begins = "PermissionDenied: list objects s3://bucket/: permission denied: there are no credentials";
        assert!(said.starts_with(begins), "{said}");
        assert!(said.contains(&format!("{why}: run `aws sso login --profile {profile}`")), "{said}");
        assert!(!["-token", "secret"].iter().any(|secret| said.contains(secret)), "{said}");
    };
    check("new", "nobody has logged in");
    check("old", "nobody has logged in");
    let token = |token: &str, end: &str| json!({"accessToken": token, "expiresAt": end}).to_string();
    world.write(file, &token("sso-token", &time_in(-60)));
    check("new", "the login has ended");
    world.write(old_file, &token("sso-token", "2019-11-14T04:05:45UTC"));
    check("old", "the login has ended");
    world.write(file, &token("revoked-token", &time_in(3600)));
    check("new", "the login is not valid any more");
    world.write(file, "{");
    check("new", "nobody has logged in");
    let mut used = renewable(-60);
    used["refreshToken"] = "used-token".into();
    world.write(file, &used.to_string());
    check("new", "the login has ended, and cannot be renewed (400 invalid_grant)");
    for what in ["put", "read"] {
        let said = world.client(&[("AWS_PROFILE", "old")]).ask_for(what);
        assert!(said.starts_with("PermissionDenied: ") && said.contains("aws sso login --profile old"), "{said}");
    }
    assert!(world.given().is_empty());
    assert!(world.signed_with().is_empty(), "nothing is sent without credentials");

    // One that is still good is used while it cannot be renewed.
    used["expiresAt"] = time_in(200).into();
    world.write(file, &used.to_string());
    world.store.accept_key(&key("SSO", 1));
    assert_eq!(ask("new"), "ok");
}

#[test]
fn single_sign_on_that_is_half_set_up_is_told() {
    let world = World::new();
    for (profile, session, why) in [
        ("sso_session = s\nsso_account_id = 1\n", "", "there is no sso_start_url in [sso-session s]"),
        ("sso_session = s\nsso_account_id = 1\n", "sso_start_url = u\n", "there is no sso_region in [sso-session s]"),
        ("sso_session = s\nsso_account_id = 1\n", "sso_start_url = u\nsso_region = r\n", "there is no sso_role_name"),
        ("sso_start_url = u\nsso_region = r\nsso_role_name = n\n", "", "there is no sso_account_id"),
        ("sso_region = r\nsso_role_name = n\n", "", "there is no sso_start_url"),
        (
            "sso_session = s\nsso_account_id = 1\nsso_role_name = n\nsso_region = q\n",
            "sso_start_url = u\nsso_region = r\n",
            "sso_region is another than in [sso-session s]",
        ),
        ("sso_start_url = u\nsso_region = evil.example/\nsso_role_name = n\n", "", "sso_region is no name of a region"),
    ] {
        world.write(".aws/config", &format!("[profile p]\n{profile}[sso-session s]\n{session}"));
        let said = world.client(&[("AWS_PROFILE", "p")]).ask();
        assert!(said.starts_with("PermissionDenied: ") && said.contains(why), "{why}: {said}");
    }
}

#[test]
fn a_container_has_a_token_for_its_service() {
    for of_file in [false, true] {
        let world = World::new();
        let uri = format!("{}/container", world.services());
        let token = world.write("token", "container-token\n");
        let mut variables = vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str())];
        if of_file {
            // The file goes before: it is what changes.
            variables.push(("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token));
            variables.push(("AWS_CONTAINER_AUTHORIZATION_TOKEN", "not-this-one"));
        } else {
            variables.push(("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token"));
        }
        world.check_renewal_after("CONTAINER", &variables, || {
            if of_file {
                world.write("token", "another-token");
                world.state.lock().unwrap().container_token = "another-token".to_owned();
            }
        });
    }
}

#[test]
fn a_token_of_a_container_is_not_sent_to_others_in_the_clear() {
    let world = World::new();
    for uri in
        ["http://192.0.2.1/credentials", "http://127.0.0.1.example.com/credentials", "ftp://127.0.0.1/", "nonsense"]
    {
        let variables =
            [("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token")];
        let said = world.client(&variables).ask();
        assert!(said.contains("is neither https:// nor a service of this machine"), "{uri}: {said}");
    }
}

#[test]
fn a_machine_has_a_role() {
    let world = World::new();
    world.check_renewal("MACHINE", &[("AWS_EC2_METADATA_DISABLED", "false")]);
    assert_eq!(world.given(), ["MACHINE"; 2]);
    let said = world.client(&[]).ask();
    assert!(said.starts_with("PermissionDenied: ") && said.contains("there are no credentials"), "{said}");
    assert_eq!(world.given(), ["MACHINE"; 2], "where it is switched off it is not asked");
}

/// A command that hangs is waited for once, and not by each of those who queue for it in turn.
#[test]
fn those_who_waited_for_a_command_that_hangs_do_not_begin_it_anew() {
    let world = World::new();
    let begun = world.path("begun");
    let script = world.write("hang", &format!("echo x >>'{}'; exec sleep 100\n", begun.display()));
    world.write(".aws/config", &format!("[default]\ncredential_process = /bin/sh \"{script}\"\n"));
    let said = world.client(&[]).ask_for("together");
    assert!(said.starts_with("TimedOut: ") && said.contains("it did not end in time"), "{said}");
    assert_eq!(std::fs::read_to_string(begun).unwrap(), "x\n");
}
