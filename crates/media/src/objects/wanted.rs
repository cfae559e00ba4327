//! Which keys a listing of a tree is of: of a folder, or of collections on a server.

/// Which keys a listing is of.
pub struct Wanted<'a> {
    /// What they begin with.
    pub prefix: &'a str,
    /// What they come after.
    pub after: Option<&'a str>,
    /// How many at most.
    pub max: usize,
}

impl Wanted<'_> {
    /// Whether `key` is one of them.
    pub fn is(&self, key: &str) -> bool {
        key.starts_with(self.prefix) && self.after.is_none_or(|after| key > after)
    }

    /// Whether a key that begins with `dir` can be one.
    pub fn may_be_below(&self, dir: &str) -> bool {
        let of_prefix = dir.starts_with(self.prefix) || self.prefix.starts_with(dir);
        of_prefix && self.after.is_none_or(|after| dir > after || after.starts_with(dir))
    }
}
