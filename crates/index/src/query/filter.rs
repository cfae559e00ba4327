//! What has to be true of a node beside the pattern that found it: [`Filter`].

use std::collections::HashMap;
use std::ops::Range;

use adit_core::error::Result;

use super::find::{ALL_KINDS, Query};
use super::paths::Paths;
use super::pattern::{Matcher, Pattern, Target};
use super::view::{Facts, slice};
use crate::layout::Section;
use crate::segment::{NodeId, Segment};

/// All that a query asks for but one pattern, with the memory that asking takes: for one thread.
pub(super) struct Filter<'a> {
    query: &'a Query,
    segment: &'a Segment,
    names: Vec<Matcher>,
    paths: Vec<Matcher>,
    excludes: Vec<Matcher>,
    at: Paths<'a>,
    /// Of directories that were met, whether they are excluded, or something above them.
    excluded: HashMap<u32, bool>,
}

impl<'a> Filter<'a> {
    /// Without the pattern number `but`, which was looked at already, unless that was not exact.
    pub fn new(query: &'a Query, segment: &'a Segment, but: Option<usize>) -> Filter<'a> {
        let is_asked = |(at, pattern): &(usize, &Pattern)| Some(*at) != but || !pattern.is_exact();
        let rest = || query.patterns.iter().enumerate().filter(is_asked).map(|(_, pattern)| pattern);
        let of = |target| rest().filter(|pattern| pattern.target() == target).map(Pattern::matcher).collect();
        Filter {
            query,
            segment,
            names: of(Target::Name),
            paths: of(Target::Path),
            excludes: query.excludes.iter().map(Pattern::matcher).collect(),
            at: Paths::new(segment),
            excluded: HashMap::new(),
        }
    }

    /// What [`Filter::has_facts`] needs of these nodes.
    pub fn facts(&self, nodes: &Range<u32>) -> Result<Facts<'a>> {
        let (first, count) = (nodes.start, nodes.end - nodes.start);
        let mut facts = Facts { first, ..Facts::default() };
        let query = self.query;
        if query.sizes.is_some() || query.kinds != ALL_KINDS {
            facts.modes = slice(self.segment, Section::Modes, first, count)?;
        }
        if query.sizes.is_some() {
            facts.sizes = slice(self.segment, Section::Sizes, first, count)?;
        }
        if query.times.is_some() {
            facts.times = slice(self.segment, Section::Times, first, count)?;
        }
        Ok(facts)
    }

    /// Whether kind, size and time are those that are asked for.
    #[inline]
    pub fn has_facts(&self, facts: &Facts<'_>, node: u32) -> bool {
        let query = self.query;
        if query.kinds == ALL_KINDS && query.sizes.is_none() && query.times.is_none() {
            return true;
        }
        let kind = if facts.modes.is_empty() { adit_core::types::Kind::File } else { facts.kind(node) };
        let size = if facts.sizes.is_empty() { 0 } else { facts.size(node) };
        let time = if facts.times.is_empty() { 0 } else { facts.mtime_ns(node) };
        query.accepts_facts(kind, size, time)
    }

    /// Whether [`Filter::has_name`] has to be asked.
    pub fn needs_names(&self) -> bool {
        let extensions = &self.query.extensions;
        !(extensions.is_empty() && self.names.is_empty() && self.paths.is_empty() && self.excludes.is_empty())
    }

    /// Whether name and path are those that are asked for.
    #[inline]
    pub fn has_name(&mut self, node: u32, name: &[u8]) -> Result<bool> {
        if !self.query.accepts_extension(name) || !self.names.iter_mut().all(|matcher| matcher.is_match(name)) {
            return Ok(false);
        }
        if self.paths.is_empty() && self.excludes.is_empty() {
            return Ok(true);
        }
        self.has_path(node, name)
    }

    fn has_path(&mut self, node: u32, name: &[u8]) -> Result<bool> {
        let dir = self.segment.parent(NodeId(node))?;
        if !self.paths.is_empty() {
            let path = self.at.of_child(NodeId(node), dir, name)?;
            if !self.paths.iter_mut().all(|matcher| matcher.is_match(path)) {
                return Ok(false);
            }
        }
        Ok(self.excludes.is_empty() || !(self.is_below_excluded(dir)? || self.is_excluded(node)?))
    }

    /// Whether a directory below the search's beginning is excluded, or one above it.
    fn is_below_excluded(&mut self, dir: NodeId) -> Result<bool> {
        let mut unknown = Vec::new();
        let mut at = dir;
        let mut excluded = loop {
            if at <= self.query.start {
                break false;
            }
            match self.excluded.get(&at.0) {
                Some(excluded) => break *excluded,
                None => unknown.push(at.0),
            }
            at = self.segment.parent(at)?;
        };
        while let Some(dir) = unknown.pop() {
            excluded = excluded || self.is_excluded(dir)?;
            self.excluded.insert(dir, excluded);
        }
        Ok(excluded)
    }

    /// Whether a node is excluded itself.
    fn is_excluded(&mut self, node: u32) -> Result<bool> {
        let path = self.at.of(NodeId(node))?;
        Ok(self.excludes.iter_mut().any(|matcher| match matcher.pattern().target() {
            Target::Path => matcher.is_match(path),
            Target::Name => matcher.is_match(super::pattern::last_name(path)),
        }))
    }
}
