//! Where a segment lies: what a session knows of each device, from its driver's offer to segments that are there.

use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use super::Session;
use crate::gpu::{Adapter, Device, Ending, GpuError, Resident, adapters};
use crate::router::{Ahead, Job, Work};
use crate::segment::Segment;

/// What is known of a device.
pub(super) enum Place {
    /// A file says that there is one. Its driver was not asked.
    Known,
    Offered(Adapter),
    Open(Device),
    There(There),
    Gone,
}

/// Segments that lie on a device.
#[derive(Clone)]
pub(super) struct There {
    /// The session's own.
    pub own: Resident,
    /// The last one that it was compared with.
    pub other: Option<Resident>,
}

impl There {
    /// That segment, if it is one of them.
    pub fn has(&self, segment: &Arc<Segment>) -> Option<&Resident> {
        [Some(&self.own), self.other.as_ref()].into_iter().flatten().find(|there| Arc::ptr_eq(there.segment(), segment))
    }
}

impl Session {
    fn place(&self, engine: usize) -> MutexGuard<'_, Place> {
        self.places[engine - 1].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The devices that are open: those that were asked already, and did not fail.
    pub fn devices(&self) -> Vec<Device> {
        let opened = |engine: usize| match &*self.place(engine) {
            Place::Open(device) => Some(device.clone()),
            Place::There(there) => Some(there.own.device().clone()),
            Place::Known | Place::Offered(_) | Place::Gone => None,
        };
        (1..=self.places.len()).filter_map(opened).collect()
    }

    /// Ends the session, and waits until its devices are given back to their drivers: a program that ends while a driver is at work may crash.
    /// Waits for ever if somebody holds one of its devices, or what lies there.
    pub fn close(self) {
        let endings: Vec<Ending> = std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner));
        drop(self);
        endings.into_iter().for_each(Ending::wait);
    }

    /// The session's segment on a device: on the first that is open, or one that is opened now. For who asks more of it than a session does.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`] if there is no device; as [`Resident::new`].
    pub fn resident(&self) -> Result<Resident, GpuError> {
        let usable = |engine: &usize| self.router.is_usable(*engine);
        let engine = (1..=self.places.len()).find(usable);
        let engine = engine.ok_or_else(|| GpuError::NoAdapter { wanted: "any".into() })?;
        self.residents(engine, None).map(|there| there.own)
    }

    /// What has to be done before an engine can begin with a job. One that is just being given the segment has none of it yet: nobody
    /// waits for that to learn it.
    pub(super) fn ahead(&self, engine: usize, work: Work, other: Option<&Arc<Segment>>) -> Ahead {
        let Some(at) = engine.checked_sub(1) else { return Ahead::default() };
        let place = match self.places[at].try_lock() {
            Ok(place) => Some(place),
            Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let (open, there) = match place.as_deref() {
            Some(Place::There(there)) => (false, Some(there)),
            Some(Place::Open(_)) | None => (false, None),
            Some(Place::Known | Place::Offered(_) | Place::Gone) => (true, None),
        };
        let missing = |segment: &Arc<Segment>| match there.and_then(|there| there.has(segment)) {
            Some(_) => 0,
            None => Resident::len_of(segment),
        };
        let content = match (work, there) {
            (Work::Twins, Some(there)) if there.own.has_content() => 0,
            (Work::Twins, _) => Resident::content_len_of(&self.segment),
            _ => 0,
        };
        Ahead { open, bytes: missing(&self.segment) + other.map_or(0, missing) + content }
    }

    /// The segment on a device, and the other one if there is one: brought there, if they are not. A device that cannot have them is given
    /// up.
    pub(super) fn residents(&self, engine: usize, other: Option<&Arc<Segment>>) -> Result<There, GpuError> {
        let mut place = self.place(engine);
        let brought = self.bring(engine, &mut place, other);
        if let Err(e) = &brought {
            *place = Place::Gone;
            self.router.give_up(engine, e.to_string());
        }
        brought
    }

    fn bring(&self, engine: usize, place: &mut Place, other: Option<&Arc<Segment>>) -> Result<There, GpuError> {
        let mut there = match place {
            Place::There(there) => there.clone(),
            _ => {
                let device = self.open(engine, place)?;
                self.opened.lock().unwrap_or_else(PoisonError::into_inner).push(device.ending());
                *place = Place::Open(device.clone());
                There { own: self.upload(engine, &device, &self.segment, 0)?, other: None }
            }
        };
        if let Some(other) = other
            && there.has(other).is_none()
        {
            // The last one makes room first.
            there.other = None;
            *place = Place::There(there.clone());
            there.other = Some(self.upload(engine, there.own.device(), other, there.own.len_bytes())?);
        }
        *place = Place::There(there.clone());
        Ok(there)
    }

    fn open(&self, engine: usize, place: &Place) -> Result<Device, GpuError> {
        let known = &self.router.engines()[engine];
        match place {
            Place::There(there) => Ok(there.own.device().clone()),
            Place::Open(device) => Ok(device.clone()),
            Place::Offered(adapter) => adapter.open(&self.options.device),
            Place::Known => {
                let found = adapters().into_iter().find(|adapter| adapter.facts().id == known.id);
                let found = found.ok_or_else(|| GpuError::NoAdapter { wanted: known.name.clone() })?;
                found.open(&self.options.device)
            }
            Place::Gone => {
                let why = self.router.given_up(engine).unwrap_or_default();
                Err(GpuError::Lost { adapter: known.name.clone(), why })
            }
        }
    }

    /// Brings a segment to a device beside what lies there, and learns what that took.
    fn upload(
        &self,
        engine: usize,
        device: &Device,
        segment: &Arc<Segment>,
        beside: u64,
    ) -> Result<Resident, GpuError> {
        let (needs, limit) = (beside + Resident::len_of(segment), self.options.resident_len_max_bytes);
        if needs > limit {
            return Err(GpuError::Unfit { what: "memory of a device for indexes", needs, limit });
        }
        let resident = Resident::new(device, segment.clone())?;
        let job = Job { work: Work::Upload, amount: resident.len_bytes() };
        self.router.learn(engine, job, resident.upload_time());
        Ok(resident)
    }

    /// A job of a device came to nothing.
    pub(super) fn failed(&self, engine: usize, work: Work, e: &GpuError) {
        self.log.failed(work, e.to_string());
        if e.is_lost() {
            *self.place(engine) = Place::Gone;
            self.router.give_up(engine, e.to_string());
        }
    }
}
