//! Answers of `PROPFIND` and `PROPPATCH` (RFC 4918, 13): what a server tells of resources, read while it comes.
//!
//! [`responses`] hands on one [`Response`] after the other, so a collection may have any number of members. What is in the document beside
//! them is passed over. There are no entities but those of XML itself, no document types, and limits on the depth and on each text.

use std::io::BufRead;

use quick_xml::NsReader;
use quick_xml::events::Event;
use quick_xml::name::ResolveResult;

use super::super::transport::Trouble;

/// The namespace of what is ours among a resource's properties.
pub const NAMESPACE: &str = "urn:adit:objects";
/// The property with the user metadata of an object: a JSON object of texts.
pub const METADATA: &str = "metadata";

/// Most elements within each other.
const DEPTH_MAX: usize = 64;
/// Longest text of a property, and longest piece of the document, in bytes: user metadata take a fourth of it.
const TEXT_LEN_MAX_BYTES: usize = 16 << 10;

/// What a server tells of one resource. Properties are those that it has, and lets us see.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Response {
    /// Where it is, as the server spells it.
    pub href: String,
    /// The status of all of it, if it was given.
    pub status: Option<u16>,
    /// What is known of it.
    pub props: Props,
    /// The first status of properties that is no success.
    pub refused: Option<u16>,
    /// That of our metadata, if they came with such a one: 404 if there are none.
    pub metadata_refused: Option<u16>,
}

/// Properties of a resource.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Props {
    /// Whether it is a collection: `resourcetype`, which all resources have. None if the server did not tell.
    pub is_collection: Option<bool>,
    /// `getcontentlength`, in bytes.
    pub len: Option<u64>,
    /// `getetag`.
    pub tag: Option<String>,
    /// `getlastmodified`.
    pub modified: Option<String>,
    /// Ours, as text.
    pub metadata: Option<String>,
}

impl Props {
    fn add(&mut self, others: Props) {
        self.is_collection = self.is_collection.max(others.is_collection);
        self.len = others.len.or(self.len);
        self.tag = others.tag.or(self.tag.take());
        self.modified = others.modified.or(self.modified.take());
        self.metadata = others.metadata.or(self.metadata.take());
    }
}

/// A source of bytes that lets so many of them through until it is told that they were made use of.
pub struct Measured<R> {
    source: R,
    left: usize,
}

impl<R: BufRead> std::io::Read for Measured<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.fill_buf()?.len().min(buf.len());
        buf[..count].copy_from_slice(&self.fill_buf()?[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Measured<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        let bytes = self.source.fill_buf()?;
        if self.left == 0 && !bytes.is_empty() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a piece of it is far too long"));
        }
        Ok(&bytes[..bytes.len().min(self.left)])
    }

    fn consume(&mut self, count: usize) {
        self.left -= count;
        self.source.consume(count);
    }
}

/// Elements that mean something here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Element {
    Multistatus,
    Response,
    Href,
    Propstat,
    Prop,
    Status,
    ResourceType,
    Collection,
    Len,
    Tag,
    Modified,
    Metadata,
    Other,
}

impl Element {
    fn of(namespace: &ResolveResult<'_>, name: &str) -> Element {
        let ResolveResult::Bound(namespace) = namespace else { return Element::Other };
        match (namespace.as_ref(), name) {
            ("DAV:", "multistatus") => Element::Multistatus,
            ("DAV:", "response") => Element::Response,
            ("DAV:", "href") => Element::Href,
            ("DAV:", "propstat") => Element::Propstat,
            ("DAV:", "prop") => Element::Prop,
            ("DAV:", "status") => Element::Status,
            ("DAV:", "resourcetype") => Element::ResourceType,
            ("DAV:", "collection") => Element::Collection,
            ("DAV:", "getcontentlength") => Element::Len,
            ("DAV:", "getetag") => Element::Tag,
            ("DAV:", "getlastmodified") => Element::Modified,
            (NAMESPACE, METADATA) => Element::Metadata,
            _ => Element::Other,
        }
    }

    /// Whether its text is read.
    fn is_text(self) -> bool {
        use Element::{Href, Len, Metadata, Modified, Status, Tag};
        matches!(self, Href | Status | Len | Tag | Modified | Metadata)
    }
}

/// What was read so far.
#[derive(Default)]
struct Parsed {
    /// The elements that are open, the outermost first.
    open: Vec<Element>,
    text: String,
    response: Response,
    props: Props,
    props_status: Option<u16>,
    /// Our metadata are among the properties, as it were: without a text where they are refused.
    tells_metadata: bool,
    is_complete: bool,
}

/// Hands on what a document tells, one resource after the other.
///
/// # Errors
/// Those of `each`; `Contradiction` if it is no such document, or not all of one. What goes wrong in reading `source` is told so as well.
pub fn responses(source: impl BufRead, each: &mut dyn FnMut(Response) -> Result<(), Trouble>) -> Result<(), Trouble> {
    let mut reader = NsReader::from_reader(Measured { source, left: 0 });
    let (mut parsed, mut buf) = (Parsed::default(), Vec::new());
    loop {
        reader.get_mut().left = TEXT_LEN_MAX_BYTES;
        buf.clear();
        let (namespace, event) = reader.read_resolved_event_into(&mut buf).map_err(|e| wrong(&e.to_string()))?;
        match event {
            Event::Start(start) => parsed.opens(Element::of(&namespace, start.local_name().into_inner()))?,
            Event::Empty(start) => {
                parsed.opens(Element::of(&namespace, start.local_name().into_inner()))?;
                parsed.closes(each)?;
            }
            Event::End(_) => parsed.closes(each)?,
            Event::Text(text) => parsed.says(&text.xml10_content())?,
            Event::CData(text) => parsed.says(&text.xml10_content())?,
            Event::GeneralRef(entity) => {
                let c = match entity.resolve_char_ref().map_err(|e| wrong(&e.to_string()))? {
                    Some(c) => c,
                    None => match &*entity {
                        "amp" => '&',
                        "lt" => '<',
                        "gt" => '>',
                        "quot" => '"',
                        "apos" => '\'',
                        _ => return Err(wrong("it has an entity")),
                    },
                };
                parsed.says(c.encode_utf8(&mut [0; 4]))?;
            }
            Event::DocType(_) => return Err(wrong("it has a document type")),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    if parsed.is_complete { Ok(()) } else { Err(wrong("it ends too early")) }
}

fn wrong(what: &str) -> Trouble {
    Trouble::Contradiction(format!("the answer is no multistatus of WebDAV: {what}"))
}

/// The number in a line like `HTTP/1.1 200 OK`.
fn status_of(line: &str) -> Option<u16> {
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

impl Parsed {
    fn opens(&mut self, element: Element) -> Result<(), Trouble> {
        if self.open.len() == DEPTH_MAX {
            return Err(wrong("its elements are too deep in each other"));
        }
        let above = self.open.last().copied();
        match (element, above) {
            (Element::Multistatus, None) => {}
            (_, None) => return Err(wrong("it is another document")),
            (Element::Response, Some(Element::Multistatus)) => self.response = Response::default(),
            (Element::Propstat, Some(Element::Response)) => {
                (self.props, self.props_status, self.tells_metadata) = Default::default();
            }
            (Element::Metadata, _) if self.is_in_prop(0) => self.tells_metadata = true,
            (Element::ResourceType, _) if self.is_in_prop(0) => {
                self.props.is_collection.get_or_insert(false);
            }
            (Element::Collection, Some(Element::ResourceType)) if self.is_in_prop(1) => {
                self.props.is_collection = Some(true);
            }
            _ => {}
        }
        self.text.clear();
        self.open.push(element);
        Ok(())
    }

    /// Whether what is open but for the innermost `count` is a property's place in an answer.
    fn is_in_prop(&self, count: usize) -> bool {
        const PLACE: [Element; 4] = [Element::Multistatus, Element::Response, Element::Propstat, Element::Prop];
        self.open.len() == PLACE.len() + count && self.open.starts_with(&PLACE)
    }

    fn says(&mut self, text: &str) -> Result<(), Trouble> {
        if self.open.last().is_some_and(|element| element.is_text()) {
            self.text.push_str(text);
        }
        if self.text.len() > TEXT_LEN_MAX_BYTES { Err(wrong("a text in it is far too long")) } else { Ok(()) }
    }

    fn closes(&mut self, each: &mut dyn FnMut(Response) -> Result<(), Trouble>) -> Result<(), Trouble> {
        let in_prop = self.is_in_prop(1);
        let Some(element) = self.open.pop() else { return Err(wrong("an element ends that did not begin")) };
        let (above, text) = (self.open.last().copied(), self.text.trim());
        let some = || (!text.is_empty()).then(|| text.to_owned());
        match (element, above) {
            (Element::Href, Some(Element::Response)) => self.response.href = text.to_owned(),
            (Element::Status, Some(Element::Response)) => self.response.status = status_of(text),
            (Element::Status, Some(Element::Propstat)) => self.props_status = status_of(text),
            (Element::Len, _) if in_prop => self.props.len = text.parse().ok(),
            (Element::Tag, _) if in_prop => self.props.tag = some(),
            (Element::Modified, _) if in_prop => self.props.modified = some(),
            (Element::Metadata, _) if in_prop => self.props.metadata = some(),
            (Element::Propstat, Some(Element::Response)) => match self.props_status {
                Some(200..=299) => self.response.props.add(std::mem::take(&mut self.props)),
                other => {
                    self.response.refused = self.response.refused.or(other);
                    if self.tells_metadata {
                        self.response.metadata_refused = other;
                    }
                }
            },
            (Element::Response, Some(Element::Multistatus)) => each(std::mem::take(&mut self.response))?,
            (Element::Multistatus, None) => self.is_complete = true,
            _ => {}
        }
        self.text.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use adit_testkit::{Rng, seeds};

    use super::*;

    fn read(text: &str) -> Result<Vec<Response>, Trouble> {
        let mut all = Vec::new();
        responses(text.as_bytes(), &mut |response| {
            all.push(response);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn what_servers_say_is_understood() {
        let text = r#"<?xml version="1.0" encoding="utf-8"?>
            <D:multistatus xmlns:D="DAV:" xmlns:ns0="DAV:" xmlns:x="urn:adit:objects">
            <D:response><D:href>/root/a%20b</D:href><D:propstat><D:prop>
              <ns0:resourcetype/><ns0:getcontentlength>12</ns0:getcontentlength>
              <D:getetag>"1&amp;&#x32;"</D:getetag><D:getlastmodified>Thu, 01 Jan 2026 00:00:00 GMT</D:getlastmodified>
              <x:metadata><![CDATA[{"a":]]>&quot;b&quot;}</x:metadata>
              <other xmlns="urn:another"><D:href>/elsewhere</D:href><D:getetag>"3"</D:getetag></other>
            </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>
            <D:propstat><D:prop><D:getetag>"not there"</D:getetag></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>
            </D:response>
            <response xmlns="DAV:"><href>http://host/root/c/</href><propstat><prop><resourcetype><collection/></resourcetype></prop>
            <status>HTTP/1.1 200 OK</status></propstat></response>
            <D:response><D:href>/gone</D:href><D:status>HTTP/1.1 404 Not Found</D:status></D:response>
            </D:multistatus>"#;
        let all = read(text).unwrap();
        let props = Props {
            len: Some(12),
            tag: Some("\"1&2\"".to_owned()),
            modified: Some("Thu, 01 Jan 2026 00:00:00 GMT".to_owned()),
            metadata: Some(r#"{"a":"b"}"#.to_owned()),
            is_collection: Some(false),
        };
        assert_eq!(
            all[0],
            Response {
                href: "/root/a%20b".to_owned(),
                status: None,
                props,
                refused: Some(404),
                metadata_refused: None
            }
        );
        assert_eq!((all[1].href.as_str(), all[1].props.is_collection), ("http://host/root/c/", Some(true)));
        assert_eq!((all[2].status, all.len()), (Some(404), 3));
        assert_eq!(read(r#"<multistatus xmlns="DAV:"/>"#).unwrap(), []);
    }

    #[test]
    fn whether_it_is_a_collection_is_told_with_success_only() {
        for (inner, told) in [
            ("<prop><resourcetype/></prop><status>HTTP/1.1 200 OK</status>", Some(false)),
            ("<prop><resourcetype><other/></resourcetype></prop><status>HTTP/1.1 200 OK</status>", Some(false)),
            ("<prop><resourcetype><collection/></resourcetype></prop><status>HTTP/1.1 200 OK</status>", Some(true)),
            ("<prop><resourcetype/></prop><status>HTTP/1.1 403 Forbidden</status>", None),
            ("<prop><resourcetype><collection/></resourcetype></prop><status>HTTP/1.1 500 x</status>", None),
            ("<prop><resourcetype/></prop><status>what?</status>", None),
            ("<prop><resourcetype/></prop>", None),
            ("<prop><getetag>1</getetag></prop><status>HTTP/1.1 200 OK</status>", None),
            ("<prop><x><resourcetype/></x></prop><status>HTTP/1.1 200 OK</status>", None),
            ("<resourcetype/><status>HTTP/1.1 200 OK</status>", None),
        ] {
            let text = format!(
                r#"<multistatus xmlns="DAV:"><response><href>/a</href><propstat>{inner}</propstat></response></multistatus>"#
            );
            assert_eq!(read(&text).unwrap()[0].props.is_collection, told, "{inner}");
        }
    }

    /// Bytes of a server never panic, whatever they are, and no more of them is kept than the limits say.
    #[test]
    fn damaged_documents_are_read_or_refused() {
        const WHOLE: &[u8] = br#"<?xml version="1.0"?><D:multistatus xmlns:D="DAV:"><D:response><D:href>/a&amp;&#65;</D:href>
            <D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype><D:getcontentlength>12</D:getcontentlength>
            <m:metadata xmlns:m="urn:adit:objects"><![CDATA[{}]]></m:metadata></D:prop><D:status>HTTP/1.1 200 OK</D:status>
            </D:propstat></D:response></D:multistatus>"#;
        for seed in seeds(4) {
            eprintln!("ADIT_TEST_SEED={seed}");
            let mut rng = Rng::new(seed);
            for _ in 0..2000 {
                let mut bytes = WHOLE.to_vec();
                for _ in 0..=rng.below(4) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    match rng.below(4) {
                        0 => bytes.truncate(at.max(1)),
                        1 => drop(bytes.remove(at)),
                        2 => bytes[at] = b"<>/&;:\"'!-\0\xff"[rng.below(12) as usize],
                        _ => bytes.extend_from_within(at..),
                    }
                    bytes.push(b' ');
                }
                let run_len = rng.below(4 * TEXT_LEN_MAX_BYTES as u64) as usize;
                let run = vec![b"<>/&;:\"= x-\xff"[rng.below(12) as usize]; run_len];
                let at = rng.below(bytes.len() as u64 + 1) as usize;
                // One of ten, for the time that they take.
                let source = bytes[..at].chain(&run[..if rng.percent(10) { run_len } else { 0 }]).chain(&bytes[at..]);
                // Each is an answer or an error.
                drop(responses(source, &mut |told| {
                    let texts = [told.props.tag, told.props.modified, told.props.metadata, Some(told.href)];
                    for text in texts.into_iter().flatten() {
                        assert!(text.len() <= TEXT_LEN_MAX_BYTES, "{} bytes", text.len());
                    }
                    Ok(())
                }));
            }
        }
    }

    /// Without a limit on each piece, a source without an end would be kept until there is no memory.
    #[test]
    fn what_never_ends_is_refused() {
        let whole = r#"<multistatus xmlns="DAV:"><response><href>/a</href><propstat><prop><getetag>"1"</getetag><x y="z"/>
            </prop></propstat></response><!-- x --><?x y?><![CDATA[x]]></multistatus>"#;
        let read_max = TEXT_LEN_MAX_BYTES * (DEPTH_MAX + 2);
        for (at, _) in whole.char_indices() {
            for endless in [" ", "x", "<", "<a>", "<a b='", "x=''", "]]"] {
                let mut read = 0;
                let source = super::super::requests::Joined::new(|| {
                    read += endless.len();
                    assert!(read <= read_max, "`{endless}` at {at} is read on and on");
                    Ok(Some(bytes::Bytes::from_static(endless.as_bytes())))
                });
                let e = responses(whole.as_bytes()[..at].chain(source), &mut |_| Ok(())).unwrap_err();
                assert!(matches!(e, Trouble::Contradiction(_)), "{e}");
            }
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let of = |inner: &str| format!(r#"<multistatus xmlns="DAV:">{inner}</multistatus>"#);
        let long = "x".repeat(TEXT_LEN_MAX_BYTES + 1);
        let many = "<!-- -->x".repeat(TEXT_LEN_MAX_BYTES + 1);
        for text in [
            "".to_owned(),
            "<html>what?</html>".to_owned(),
            "not even that".to_owned(),
            of("")[..30].to_owned(),
            of("<response>"),
            of("</response>"),
            of("<href>&lol;</href>"),
            format!("<!DOCTYPE x [<!ENTITY lol \"lol\">]>{}", of("")),
            of(&format!("<response><href>{long}</href></response>")),
            of(&format!("<response><href>{many}</href></response>")),
            of(&format!("<{long}/>")),
            of(&"<a>".repeat(DEPTH_MAX)),
            r#"<multistatus xmlns="not:DAV"></multistatus>"#.to_owned(),
        ] {
            let e = read(&text).unwrap_err();
            assert!(matches!(e, Trouble::Contradiction(_)), "{} {e}", &text[..text.len().min(80)]);
        }
        let e = responses(of("<response/>").as_bytes(), &mut |_| Err(Trouble::Interrupted)).unwrap_err();
        assert_eq!(e, Trouble::Interrupted);
    }
}
