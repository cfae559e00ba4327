//! Made-up engines: what a job takes on them is a formula with noise, so the best choice is known.

use std::time::Duration;

use adit_testkit::Rng;

use super::*;

/// What a job takes: for any job, and for each unit, in seconds.
#[derive(Clone, Copy)]
struct Made {
    fixed: f64,
    per: f64,
}

impl Made {
    fn secs(&self, amount: u64) -> f64 {
        self.fixed + self.per * amount as f64
    }
}

/// A processor of 110 ns a path, a large device, and a small one.
const ENGINES: [Made; 3] =
    [Made { fixed: 2e-7, per: 110e-9 }, Made { fixed: 90e-6, per: 3e-9 }, Made { fixed: 40e-6, per: 20e-9 }];

fn engine(name: &str) -> Engine {
    Engine { name: name.into(), id: format!("id of {name}"), software: false }
}

fn router(options: RouterOptions) -> Router {
    Router::new(["processor", "large", "small"].map(engine).into(), options)
}

fn job(amount: u64) -> Job {
    Job { work: Work::Resolve, amount }
}

/// Within a tenth of what it is, as on a machine that has other things to do.
fn noisy(rng: &mut Rng, secs: f64) -> Duration {
    Duration::from_secs_f64(secs * (0.9 + 0.2 * rng.below(1000) as f64 / 1000.0))
}

fn measure(router: &Router, rng: &mut Rng, engines: &[Made]) {
    for (number, made) in engines.iter().enumerate() {
        for amount in [1 << 8, 1 << 10, 1 << 14, 1 << 18] {
            router.learn(number, job(amount), noisy(rng, made.secs(amount)));
        }
    }
}

/// Jobs of all sizes; seconds that they took, and that they would have taken on the best engine each.
fn run(router: &Router, rng: &mut Rng, engines: &[Made], jobs: u32) -> (f64, f64) {
    let (mut took, mut best) = (0.0, 0.0);
    for _ in 0..jobs {
        let class = rng.below(21);
        let amount = 1 + rng.below(1 << class);
        let route = router.route(job(amount), |_| Ahead::default());
        let secs = engines[route.engine].secs(amount);
        router.learn(route.engine, job(amount), noisy(rng, secs));
        took += secs;
        best += engines.iter().map(|made| made.secs(amount)).fold(f64::MAX, f64::min);
    }
    (took, best)
}

#[test]
fn jobs_take_a_tenth_more_than_on_the_best_engine_at_most() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let router = router(RouterOptions::default());
        measure(&router, &mut rng, &ENGINES);
        let (took, best) = run(&router, &mut rng, &ENGINES, 4000);
        assert!(took <= 1.1 * best, "seed {seed}: {took} s, and {best} s would do");
        // Of each size, once it is known: near the crossover too.
        for class in 0..20 {
            let (mut took, mut best) = (0.0, 0.0);
            for _ in 0..200 {
                let amount = (1 << class) + rng.below(1 << class);
                let route = router.route(job(amount), |_| Ahead::default());
                let secs = ENGINES[route.engine].secs(amount);
                router.learn(route.engine, job(amount), noisy(&mut rng, secs));
                took += secs;
                best += ENGINES.iter().map(|made| made.secs(amount)).fold(f64::MAX, f64::min);
            }
            assert!(took <= 1.1 * best, "seed {seed}, class {class}: {took} s, and {best} s would do");
        }
    }
}

#[test]
fn what_was_measured_wrong_is_learned_from_real_jobs() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let router = router(RouterOptions::default());
        // The large device was busy when it was measured; the processor was not.
        let busy = ENGINES.map(|made| Made { fixed: made.fixed * 3.0, per: made.per * 3.0 });
        measure(&router, &mut rng, &[ENGINES[0], busy[1], busy[2]]);
        run(&router, &mut rng, &ENGINES, 20_000);
        let (took, best) = run(&router, &mut rng, &ENGINES, 4000);
        assert!(took <= 1.1 * best, "seed {seed}: {took} s, and {best} s would do");
        // And the other way round: it is slow from now on.
        let slow = [ENGINES[0], Made { fixed: 0.1, per: 1e-6 }, ENGINES[2]];
        run(&router, &mut rng, &slow, 2000);
        let (took, best) = run(&router, &mut rng, &slow, 4000);
        assert!(took <= 1.1 * best, "seed {seed}: {took} s, and {best} s would do");
    }
}

#[test]
fn two_engines_that_are_alike_do_not_take_turns() {
    let mut rng = Rng::new(5);
    let router = router(RouterOptions { explore_share: 0.0, ..RouterOptions::default() });
    let alike = [ENGINES[1], Made { per: ENGINES[1].per * 1.01, ..ENGINES[1] }, Made { fixed: 1.0, per: 1.0 }];
    measure(&router, &mut rng, &alike);
    let mut turns = 0;
    let mut before = None;
    for _ in 0..500 {
        let route = router.route(job(1 << 14), |_| Ahead::default());
        // Less noise than the hysteresis: 5 % either way would be a reason.
        let secs = alike[route.engine].secs(1 << 14) * (0.99 + 0.02 * rng.below(1000) as f64 / 1000.0);
        router.learn(route.engine, job(1 << 14), Duration::from_secs_f64(secs));
        turns += u32::from(before.replace(route.engine).is_some_and(|engine| engine != route.engine));
    }
    assert!(turns <= 2, "{turns} turns");
}

#[test]
fn a_device_that_was_never_measured_or_is_a_program_is_not_taken() {
    let mut engines = ["processor", "large", "small"].map(engine);
    engines[1].software = true;
    let made = |choice| Router::new(engines.clone().into(), RouterOptions { choice, ..RouterOptions::default() });
    let auto = made(Choice::Auto);
    assert_eq!(auto.route(job(1 << 20), |_| Ahead::default()).reason, Reason::Only);
    auto.learn(0, job(1 << 20), Duration::from_secs(1));
    auto.learn(1, job(1 << 20), Duration::from_nanos(1));
    let route = auto.route(job(1 << 20), |_| Ahead::default());
    assert_eq!((route.engine, route.reason), (0, Reason::Only));
    assert!(route.to_string().contains("it is a program on the processor"), "{route}");
    auto.learn(2, job(1 << 20), Duration::from_millis(1));
    assert_eq!(auto.route(job(1 << 20), |_| Ahead::default()).engine, 2);
    assert_eq!(auto.route(job(3), |_| Ahead::default()).reason, Reason::Small);
    // Forced, a real one is taken before the program, and the program before none if that was asked for.
    let strict = made(Choice::Gpu);
    assert_eq!(strict.route(job(1), |_| Ahead::default()).engine, 2);
    strict.give_up(2, "it was lost".into());
    assert_eq!(strict.route(job(1), |_| Ahead::default()).reason, Reason::Only);
    assert!(!strict.has_devices() && auto.has_devices() && !made(Choice::Cpu).has_devices());
    let options = RouterOptions { choice: Choice::Gpu, software: true, ..RouterOptions::default() };
    let forced = Router::new(engines.clone().into(), options);
    assert_eq!(
        (forced.route(job(1), |_| Ahead::default()).engine, forced.route(job(1), |_| Ahead::default()).reason),
        (2, Reason::Asked)
    );
    forced.give_up(2, "it was lost".into());
    assert_eq!(forced.route(job(1), |_| Ahead::default()).engine, 1);
    forced.give_up(1, "it was lost".into());
    assert_eq!(
        (forced.route(job(1), |_| Ahead::default()).engine, forced.route(job(1), |_| Ahead::default()).reason),
        (0, Reason::Only)
    );
    assert_eq!(made(Choice::Cpu).route(job(1 << 30), |_| Ahead::default()).reason, Reason::Asked);
}

#[test]
fn a_lost_device_is_out_and_the_processor_never_is() {
    let mut rng = Rng::new(1);
    let router = router(RouterOptions::default());
    measure(&router, &mut rng, &ENGINES);
    assert_eq!(router.route(job(1 << 20), |_| Ahead::default()).engine, 1);
    router.give_up(1, "the bus fell off".into());
    router.give_up(0, "no".into());
    let route = router.route(job(1 << 20), |_| Ahead::default());
    assert_eq!(route.engine, 2);
    assert!(route.to_string().contains("large: not taken, the bus fell off"), "{route}");
    assert_eq!((router.given_up(0), router.given_up(1).is_some()), (None, true));
}

#[test]
fn a_segment_is_brought_up_when_that_has_paid_off() {
    let mut rng = Rng::new(2);
    let router = router(RouterOptions { explore_share: 0.0, ..RouterOptions::default() });
    measure(&router, &mut rng, &ENGINES[..2]);
    router.learn(1, Job { work: Work::Upload, amount: 1 << 30 }, Duration::from_secs(1));
    // Each job of a million loses some 110 ms; a second is lost after nine or ten of them.
    let missing = |engine| Ahead { open: false, bytes: if engine == 1 { 1 << 30 } else { 0 } };
    let until = (0..100).position(|_| router.route(job(1 << 20), missing).engine == 1).unwrap();
    assert!((7..12).contains(&until), "after {until} jobs");
    assert_eq!(router.route(job(1 << 20), missing).reason, Reason::NotThere);
    // One job that gains more than that takes it there at once.
    assert_eq!(router.route(job(1 << 27), missing).reason, Reason::Fastest);
    // To open the device counts as well: nothing pays for that in one job.
    router.learn(1, Job { work: Work::Open, amount: 1 }, Duration::from_secs(100));
    let closed = |engine| Ahead { open: engine == 1, ..missing(engine) };
    let route = router.route(job(1 << 27), closed);
    assert_eq!(route.reason, Reason::NotThere);
    assert!(route.to_string().contains("to bring the index there"), "{route}");
    // It is there now.
    assert_eq!(router.route(job(1 << 20), |_| Ahead::default()).engine, 1);
}

#[test]
fn what_was_measured_is_kept_for_the_same_driver_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("devices.json");
    let mut rng = Rng::new(3);
    let before = router(RouterOptions::default());
    before.load(&path);
    measure(&before, &mut rng, &ENGINES);
    before.save(&path, None).unwrap();
    assert_eq!(known_devices(&path), None, "nobody has asked a driver");
    let later = router(RouterOptions::default());
    later.load(&path);
    for engine in 0..3 {
        assert_eq!(later.line(engine, Work::Resolve), before.line(engine, Work::Resolve));
    }
    let mut engines = ["processor", "large", "small"].map(engine);
    engines[1].id = "another driver".into();
    let other = Router::new(engines.into(), RouterOptions::default());
    other.load(&path);
    assert_eq!([0, 1, 2].map(|engine| other.is_measured(engine, Work::Resolve)), [true, false, true]);
    // What is kept of others stays.
    other.learn(1, job(1), Duration::from_secs(1));
    other.save(&path, Some(7)).unwrap();
    let known = known_devices(&path).unwrap();
    assert_eq!((known.asked_secs, &known.devices[..]), (7, &other.engines()[1..]));
    let again = router(RouterOptions::default());
    again.load(&path);
    assert!(again.is_measured(1, Work::Resolve));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_not_ours_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("devices.json");
    let point = |class: i32, secs: &str| {
        format!(
            r#"{{"version":2,"engines":{{"id of processor":{{"resolve":{{"points":[{{"class":{class},"amount":1.0,"secs":{secs},"seen":1}}]}}}}}}}}"#
        )
    };
    for text in ["", "{", "[]", r#"{"version":1,"engines":{}}"#, &point(3, "-1.0"), &point(99, "1.0"), &point(3, "0.0")]
    {
        std::fs::write(&path, text).unwrap();
        let router = router(RouterOptions::default());
        router.load(&path);
        assert!(!router.is_measured(0, Work::Resolve), "{text}");
    }
    std::fs::write(&path, point(3, "1.0")).unwrap();
    let router = router(RouterOptions::default());
    router.load(&path);
    assert!(router.is_measured(0, Work::Resolve));
}
