//! What is known of devices, for people and programs: [`Found`].

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};

use adit_index::gpu::{AdapterFacts, adapters};
use adit_index::router::{Cost, Engine, Router, RouterOptions, Work, known_devices};
use adit_index::session::Session;
use serde_json::{Value, json};

use super::routed::state;
use crate::args::units::show_size;

/// A driver that has not said by then which devices there are never will.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

/// A driver is still at work in a thread that nobody waits for.
static DRIVER_AT_WORK: AtomicBool = AtomicBool::new(false);

/// Whether a driver is at work that nobody waits for: a program that ends as usual takes away beneath it what it works with, and may crash.
pub fn is_driver_at_work() -> bool {
    DRIVER_AT_WORK.load(Relaxed)
}

/// Devices that drivers offer, and what was measured of them and of the processor.
pub struct Found {
    facts: Vec<AdapterFacts>,
    engines: Vec<Measured>,
    /// Drivers did not say which devices there are.
    silent: bool,
}

/// What was measured of an engine.
struct Measured {
    engine: Engine,
    /// Of each work, what any job takes, and what each unit takes, in seconds.
    lines: Vec<(Work, f64, f64)>,
}

impl Found {
    /// Asks drivers which devices there are, and the file of measurements what is known of them. One that hangs is not waited for.
    pub fn ask() -> Found {
        let (answer, answered) = channel();
        let asking = thread::spawn(move || {
            let facts: Vec<AdapterFacts> = adapters().iter().map(|adapter| adapter.facts().clone()).collect();
            let _ = answer.send(facts);
        });
        let facts = answered.recv_timeout(ANSWER_TIME_MAX);
        let silent = facts.is_err();
        match silent {
            true => DRIVER_AT_WORK.store(true, Relaxed),
            // What drivers do at the end of a thread, they do before the program ends.
            false => drop(asking.join()),
        }
        let facts = facts.unwrap_or_default();
        let of =
            |facts: &AdapterFacts| Engine { name: facts.name.clone(), id: facts.id.clone(), software: facts.software };
        let engines = std::iter::once(Engine::processor()).chain(facts.iter().map(of)).collect();
        let router = Router::new(engines, RouterOptions::default());
        if let Some(state) = state() {
            router.load(&state);
        }
        Found { facts, engines: measured(&router), silent }
    }

    /// What a session knows.
    pub fn of(session: &Session) -> Found {
        Found { facts: Vec::new(), engines: measured(session.router()), silent: false }
    }

    /// Why a command that is left to choose knows no device.
    pub fn known_words() -> String {
        match state().as_deref().and_then(known_devices) {
            Some(known) => {
                let asked = SystemTime::UNIX_EPOCH + Duration::from_secs(known.asked_secs);
                let days = asked.elapsed().unwrap_or_default().as_secs() / 86_400;
                format!("no device: drivers offered none when they were asked, {days} days ago")
            }
            None => "no device: drivers were not asked yet, which `adit index measure X` does".to_owned(),
        }
    }

    /// In a line.
    pub fn summary(&self) -> String {
        let names = |software: bool| {
            let devices = self.engines[1..].iter().filter(|known| known.engine.software == software);
            devices.map(|known| known.engine.name.clone()).collect::<Vec<_>>().join(", ")
        };
        match (names(false), names(true)) {
            _ if self.silent => "not known: a driver does not say which it has".to_owned(),
            (real, _) if !real.is_empty() => real,
            (_, played) if !played.is_empty() => {
                format!("none but {played}, a program on the processor, which is only taken if it is named")
            }
            _ => "none: the processor answers all questions to an index".to_owned(),
        }
    }

    /// Limits and measurements, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for known in &self.engines {
            let facts = self.facts.iter().find(|facts| facts.id == known.engine.id);
            if let Some(facts) = facts {
                let AdapterFacts { name, backend, driver, binding_len_max_bytes, bindings_max, .. } = facts;
                let most = show_size(*binding_len_max_bytes);
                lines.push(format!("{name}: {backend}, {driver}; {bindings_max} buffers of {most} at once"));
            } else if !known.lines.is_empty() {
                lines.push(known.engine.name.clone());
            }
            let costs = known.lines.iter().map(|(work, job, each)| (work, Cost { job: *job, each: *each }));
            lines.extend(costs.map(|(work, cost)| format!("  {work}: {cost}")));
        }
        if self.engines.iter().all(|known| known.lines.is_empty()) {
            lines.push("nothing was measured yet".to_owned());
        }
        lines
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let of = |known: &Measured| {
            let measured: Vec<Value> = known
                .lines
                .iter()
                .map(|(work, fixed, each)| json!({ "work": work, "job_ns": fixed * 1e9, "each_ns": each * 1e9 }))
                .collect();
            let mut told = json!({ "name": known.engine.name, "id": known.engine.id, "measured": measured });
            if let Some(facts) = self.facts.iter().find(|facts| facts.id == known.engine.id) {
                told["backend"] = facts.backend.clone().into();
                told["driver"] = facts.driver.clone().into();
                told["binding_len_max_bytes"] = facts.binding_len_max_bytes.into();
                told["bindings_max"] = facts.bindings_max.into();
            }
            told
        };
        let device = |known: &Measured| {
            let mut told = of(known);
            told["software"] = known.engine.software.into();
            told
        };
        let devices: Vec<Value> = self.engines[1..].iter().map(device).collect();
        json!({ "built_in": true, "silent": self.silent, "processor": of(&self.engines[0]), "devices": devices })
    }
}

fn measured(router: &Router) -> Vec<Measured> {
    let works = [&Work::QUESTIONS[..], &[Work::Upload, Work::Open]].concat();
    let of = |(number, engine): (usize, &Engine)| {
        let line = |work: &Work| router.line(number, *work).map(|(fixed, each)| (*work, fixed, each));
        Measured { engine: engine.clone(), lines: works.iter().filter_map(line).collect() }
    };
    router.engines().iter().enumerate().map(of).collect()
}
