//! Paths and targets of symbolic links: checked once, then trusted.

use std::borrow::{Borrow, Cow};
use std::fmt;

use adit_core::error::{ErrorKind, FsError};

use super::entry::PathStyle;
use super::limits::{NAME_LEN_MAX_BYTES, PATH_DEPTH_MAX, PATH_LEN_MAX_BYTES, TARGET_LEN_MAX_BYTES};
use super::rule::{FormatError, Quoted, Rule};
use super::wtf8;

/// The path of an entry below the root: WTF-8, names joined with `/`, none of them empty, `.` or `..`, without NUL.
///
/// It is ordered by its bytes. Of an absolute path, the `/` in front is not part of it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryPath<'a>(Cow<'a, [u8]>);

impl<'a> EntryPath<'a> {
    /// Checks the text of a manifest.
    ///
    /// # Errors
    /// The rule that forbids it. The text is in the message.
    pub fn parse(text: &'a [u8], style: PathStyle) -> Result<Self, FormatError> {
        let path = match (style, text.strip_prefix(b"/")) {
            (PathStyle::Relative, Some(_)) => Err(FormatError::new(Rule::PathAbsolute, "is absolute")),
            (PathStyle::Absolute, None) => Err(FormatError::new(Rule::PathRelative, "does not begin with \"/\"")),
            (PathStyle::Relative, None) => Ok(text),
            (PathStyle::Absolute, Some(path)) => Ok(path),
        };
        path.and_then(|path| check(path).map(|()| EntryPath(Cow::Borrowed(path)))).map_err(|e| e.at(text))
    }

    /// A host's path, relative to the root.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn from_host(bytes: &'a [u8]) -> Result<Self, FormatError> {
        EntryPath::checked(wtf8::from_host(bytes))
    }

    /// The path with this [listing](Self::to_listing), relative to the root.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn from_listing(bytes: &'a [u8]) -> Result<Self, FormatError> {
        EntryPath::checked(wtf8::from_listing(bytes))
    }

    /// A path of this text, relative to the root.
    fn checked(text: Cow<'a, [u8]>) -> Result<Self, FormatError> {
        check(&text).map_err(|e| e.at(&text))?;
        Ok(EntryPath(text))
    }

    /// The path of these names, each of them text.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn of_names<'n>(names: impl IntoIterator<Item = Cow<'n, [u8]>>) -> Result<EntryPath<'static>, FormatError> {
        let mut text = Vec::new();
        for (at, name) in names.into_iter().enumerate() {
            text.extend_from_slice(if at > 0 { b"/" } else { b"" });
            text.extend_from_slice(&name);
        }
        EntryPath::checked(Cow::Owned(text))
    }

    /// The text as WTF-8.
    #[must_use]
    pub fn as_wtf8(&self) -> &[u8] {
        &self.0
    }

    /// The names on the way from the root, as WTF-8.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/')
    }

    /// The last name, as WTF-8.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.components().next_back().unwrap_or_default()
    }

    /// The directories on the way, the uppermost first; without the root.
    pub fn ancestors(&self) -> impl Iterator<Item = EntryPath<'_>> {
        let slashes = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| EntryPath(Cow::Borrowed(&self.0[..at])))
    }

    /// The directory that it lies in; none in the root.
    #[must_use]
    pub fn parent(&self) -> Option<EntryPath<'_>> {
        let slash = self.0.iter().rposition(|&byte| byte == b'/')?;
        Some(EntryPath(Cow::Borrowed(&self.0[..slash])))
    }

    /// The bytes under which a mount lists it: those of [`to_host`](Self::to_host), and where there are none, WTF-8.
    #[must_use]
    pub fn to_listing(&self) -> Cow<'_, [u8]> {
        wtf8::to_listing(&self.0)
    }

    /// The bytes that the path has on a host.
    ///
    /// # Errors
    /// `IllegalName` (EILSEQ) if it has a lone surrogate that stands for no byte.
    pub fn to_host(&self) -> Result<Cow<'_, [u8]>, FsError> {
        wtf8::to_host(&self.0).ok_or_else(|| {
            FsError::new(ErrorKind::IllegalName)
                .on("materialise", self)
                .because("a lone surrogate has no bytes; rename the file where the manifest is made")
        })
    }

    /// Whether the host's bytes give the same text again. They do not where bytes that are UTF-8 are written as escapes
    /// (`\udcc3\udca9` for `é`): the two texts are one name on a host.
    #[must_use]
    pub fn comes_back(&self) -> bool {
        wtf8::to_host(&self.0).is_some_and(|host| *wtf8::from_host(&host) == *self.0)
    }

    /// With bytes of its own.
    #[must_use]
    pub fn into_owned(self) -> EntryPath<'static> {
        EntryPath(Cow::Owned(self.0.into_owned()))
    }
}

impl Borrow<[u8]> for EntryPath<'_> {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for EntryPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&self.0), f)
    }
}

impl fmt::Debug for EntryPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&self.0), f)
    }
}

fn check(path: &[u8]) -> Result<(), FormatError> {
    let refuse = |rule, detail: &str| Err(FormatError::new(rule, detail));
    if path.is_empty() {
        return refuse(Rule::PathEmpty, "is empty");
    }
    if path.contains(&0) {
        return refuse(Rule::PathNul, "has a NUL character");
    }
    if !wtf8::is_wtf8(path) {
        return refuse(Rule::JsonText, "is not WTF-8");
    }
    let mut depth = 0;
    for name in path.split(|&byte| byte == b'/') {
        depth += 1;
        match name {
            b"" => return refuse(Rule::PathEmptyComponent, "has an empty component"),
            b"." => return refuse(Rule::PathDot, "has a component \".\""),
            b".." => return refuse(Rule::PathParent, "has a component \"..\""),
            _ if name.len() > NAME_LEN_MAX_BYTES && wtf8::listing_len(name) > NAME_LEN_MAX_BYTES => {
                let detail = format!("has a component of more than {NAME_LEN_MAX_BYTES} bytes");
                return refuse(Rule::PathComponentLength, &detail);
            }
            _ => {}
        }
    }
    if depth > PATH_DEPTH_MAX {
        return refuse(Rule::PathDepth, &format!("has {depth} components, {PATH_DEPTH_MAX} are read"));
    }
    if path.len() > PATH_LEN_MAX_BYTES && wtf8::listing_len(path) > PATH_LEN_MAX_BYTES {
        return refuse(Rule::PathLength, &format!("has more than {PATH_LEN_MAX_BYTES} bytes"));
    }
    Ok(())
}

/// The target of a symbolic link: relative to the link's directory, WTF-8, and never outside of the root.
///
/// It goes up, if at all, before it goes down: after a name, `..` would be taken from wherever that name leads, which another
/// link can decide. So a target that follows this rule stays below the root whatever else the tree holds.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinkTarget<'a>(Cow<'a, [u8]>);

impl<'a> LinkTarget<'a> {
    /// Checks the text of the target of the link at `link`.
    ///
    /// # Errors
    /// The rule that forbids it. The link's path is in the message.
    pub fn parse(text: &'a [u8], link: &EntryPath<'_>) -> Result<Self, FormatError> {
        Self::check(text, link).map_err(|e| e.at(link.as_wtf8()))
    }

    /// The same, without the link's path in the message.
    pub(crate) fn check(text: &'a [u8], link: &EntryPath<'_>) -> Result<Self, FormatError> {
        check_target(text, link)?;
        Ok(LinkTarget(Cow::Borrowed(text)))
    }

    /// A host's target of the link at `link`.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn from_host(bytes: &'a [u8], link: &EntryPath<'_>) -> Result<Self, FormatError> {
        let text = wtf8::from_host(bytes);
        check_target(&text, link).map_err(|e| e.at(link.as_wtf8()))?;
        Ok(LinkTarget(text))
    }

    /// The text as WTF-8.
    #[must_use]
    pub fn as_wtf8(&self) -> &[u8] {
        &self.0
    }

    /// The bytes that the target has on a host.
    ///
    /// # Errors
    /// `IllegalName` (EILSEQ) if it has a lone surrogate that stands for no byte.
    pub fn to_host(&self) -> Result<Cow<'_, [u8]>, FsError> {
        wtf8::to_host(&self.0).ok_or_else(|| {
            FsError::new(ErrorKind::IllegalName)
                .on("materialise the symbolic link to", Quoted(&self.0))
                .because("a lone surrogate has no bytes")
        })
    }

    /// With bytes of its own.
    #[must_use]
    pub fn into_owned(self) -> LinkTarget<'static> {
        LinkTarget(Cow::Owned(self.0.into_owned()))
    }
}

impl fmt::Debug for LinkTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Quoted(&self.0), f)
    }
}

fn check_target(target: &[u8], link: &EntryPath<'_>) -> Result<(), FormatError> {
    let refuse = |rule, detail: &str| Err(FormatError::new(rule, format!("target {} {detail}", Quoted(target))));
    if target.is_empty() {
        return refuse(Rule::SymlinkTarget, "is empty");
    }
    if target.contains(&0) {
        return refuse(Rule::SymlinkTarget, "has a NUL character");
    }
    if !wtf8::is_wtf8(target) {
        return refuse(Rule::JsonText, "is not WTF-8");
    }
    if wtf8::listing_len(target) > TARGET_LEN_MAX_BYTES {
        return refuse(Rule::SymlinkTarget, &format!("has more than {TARGET_LEN_MAX_BYTES} bytes"));
    }
    if target.starts_with(b"/") {
        return refuse(Rule::SymlinkAbsolute, "is absolute");
    }
    let mut above = link.components().count() - 1;
    let mut went_down = false;
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if went_down => return refuse(Rule::SymlinkEscape, "goes up again after it went down"),
            b".." if above == 0 => return refuse(Rule::SymlinkEscape, "leads out of the root"),
            b".." => above -= 1,
            _ => went_down = true,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule_of(text: &[u8]) -> Option<Rule> {
        EntryPath::parse(text, PathStyle::Relative).err().map(|e| e.rule)
    }

    fn target_rule(link: &str, target: &[u8]) -> Option<Rule> {
        let link = EntryPath::parse(link.as_bytes(), PathStyle::Relative).expect("a path");
        LinkTarget::parse(target, &link).err().map(|e| e.rule)
    }

    #[test]
    fn paths_are_checked() {
        for good in ["a", "a/b", "...", ". ", "a\\..\\b", "C:/x", "~", "-", " ", "a\nb"] {
            assert_eq!(rule_of(good.as_bytes()), None, "{good}");
        }
        for (bad, rule) in [
            (&b""[..], Rule::PathEmpty),
            (b"/a", Rule::PathAbsolute),
            (b"a\0b", Rule::PathNul),
            (b"a//b", Rule::PathEmptyComponent),
            (b"a/", Rule::PathEmptyComponent),
            (b"./a", Rule::PathDot),
            (b"a/.", Rule::PathDot),
            (b"..", Rule::PathParent),
            (b"a/../b", Rule::PathParent),
            (b"\xff", Rule::JsonText),
        ] {
            assert_eq!(rule_of(bad), Some(rule), "{bad:?}");
        }
    }

    #[test]
    fn lengths_are_those_on_a_host() {
        assert_eq!(rule_of(&[b'x'; 255]), None);
        assert_eq!(rule_of(&[b'x'; 256]), Some(Rule::PathComponentLength));
        // 255 bytes on a host, 765 in WTF-8.
        let escaped = wtf8::from_host(&[0xff; 255]).into_owned();
        assert_eq!(rule_of(&escaped), None);
        assert_eq!(rule_of(&wtf8::from_host(&[0xff; 256])), Some(Rule::PathComponentLength));
        let long = |len: usize| [&b"x".repeat(255), &b"/"[..]].concat().repeat(17)[..len].to_vec();
        assert_eq!(rule_of(&long(4095)), None);
        assert_eq!(rule_of(&[long(4096), b"y".to_vec()].concat()), Some(Rule::PathLength));
        assert_eq!(rule_of(&b"x/".repeat(512)[..1023]), None);
        assert_eq!(rule_of(&b"x/".repeat(513)[..1025]), Some(Rule::PathDepth));
    }

    #[test]
    fn absolute_paths_lose_their_slash() {
        let path = EntryPath::parse(b"/home/x", PathStyle::Absolute).expect("a path");
        assert_eq!(path.as_wtf8(), b"home/x");
        for (bad, rule) in [
            (&b"home/x"[..], Rule::PathRelative),
            (b"/", Rule::PathEmpty),
            (b"//x", Rule::PathEmptyComponent),
            (b"/../x", Rule::PathParent),
            (b"C:/x", Rule::PathRelative),
        ] {
            assert_eq!(EntryPath::parse(bad, PathStyle::Absolute).err().map(|e| e.rule), Some(rule), "{bad:?}");
        }
    }

    #[test]
    fn the_way_to_a_path() {
        let path = EntryPath::parse(b"a/b/c", PathStyle::Relative).expect("a path");
        let ancestors: Vec<_> = path.ancestors().map(|path| path.as_wtf8().to_vec()).collect();
        assert_eq!(ancestors, [b"a".to_vec(), b"a/b".to_vec()]);
        assert_eq!(path.parent().expect("it has one").as_wtf8(), b"a/b");
        assert_eq!(path.name(), b"c");
        assert_eq!(EntryPath::from_host(b"c").expect("a path").parent(), None);
    }

    #[test]
    fn what_a_host_cannot_hold_is_told() {
        let path = EntryPath::parse(b"x/\xed\xa0\x80", PathStyle::Relative).expect("it stays in the codec");
        let error = path.to_host().expect_err("no bytes");
        assert_eq!(error.kind(), ErrorKind::IllegalName);
        assert!(error.to_string().contains(r#""x/\ud800""#), "{error}");
        assert_eq!(&*path.to_listing(), b"x/\xed\xa0\x80");
        assert!(!path.comes_back());
        let escaped = EntryPath::parse(b"\xed\xb3\x83\xed\xb2\xa9", PathStyle::Relative).expect("two bytes");
        assert_eq!(&*escaped.to_host().expect("bytes"), "é".as_bytes());
        assert!(!escaped.comes_back(), "it is the name of another text");
        assert!(EntryPath::from_host(b"caf\xe9").expect("a path").comes_back());
    }

    #[test]
    fn targets_stay_inside() {
        for (link, target) in [
            ("l", "x"),
            ("l", "."),
            ("l", "./x//y/"),
            ("a/l", ".."),
            ("a/l", "../b/c"),
            ("a/b/l", "../.././x"),
            ("l", "..x"),
            ("l", "$0/x"),
        ] {
            assert_eq!(target_rule(link, target.as_bytes()), None, "{link} {target}");
        }
        for (link, target, rule) in [
            ("l", "", Rule::SymlinkTarget),
            ("l", "a\0b", Rule::SymlinkTarget),
            ("l", "/etc/passwd", Rule::SymlinkAbsolute),
            ("l", "//x", Rule::SymlinkAbsolute),
            ("l", "..", Rule::SymlinkEscape),
            ("a/l", "../..", Rule::SymlinkEscape),
            ("a/l", ".././../x", Rule::SymlinkEscape),
            // With `s` a link to ".", this would lead to the root's parent.
            ("l", "s/s/../..", Rule::SymlinkEscape),
            ("a/b/l", "x/../y", Rule::SymlinkEscape),
        ] {
            assert_eq!(target_rule(link, target.as_bytes()), Some(rule), "{link} {target}");
        }
        assert_eq!(target_rule("l", &[b'x'; 4095]), None);
        assert_eq!(target_rule("l", &[b'x'; 4096]), Some(Rule::SymlinkTarget));
    }
}
