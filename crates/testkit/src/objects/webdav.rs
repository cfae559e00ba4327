//! A server on WebDAV on loopback, with its resources in memory, as far as a client of objects needs it: `GET` with ranges, `HEAD`, `PUT`,
//! `DELETE`, `MKCOL`, `MOVE`, `PROPFIND` of a depth of zero and one, and `PROPPATCH` of the one property that a client has.
//!
//! [`WebDavHabits`] are what servers differ in, honest and not; faults of the network are those of [`FaultyServer`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::http::{Request, Response, decode};
use super::server::{Backend, FaultyServer, RequestLog};

/// The property that is kept: its name, and what it is between.
const PROPERTY: (&str, &str) = ("<metadata xmlns=\"urn:adit:objects\">", "</metadata>");

/// What servers differ in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WebDavHabits {
    /// `Overwrite: F` means nothing.
    pub ignores_overwrite: bool,
    /// No properties of clients.
    pub refuses_properties: bool,
    /// Properties are lost where a resource gets another name.
    pub forgets_properties: bool,
    /// No entity tags.
    pub no_tags: bool,
    /// Entity tags come with the content, and are empty among the properties: so does nginx.
    pub no_tags_in_properties: bool,
    /// Nothing tells how long a file is but its content.
    pub no_lengths: bool,
    /// Entity tags are told to be weak.
    pub weak_tags: bool,
    /// Places are told as whole URLs.
    pub absolute: bool,
    /// What is asked of a collection without a `/` at its end is sent there.
    pub redirects: bool,
    /// Nothing is known of ranges.
    pub no_ranges: bool,
    /// Only so many bytes of a body are kept.
    pub keeps_bytes_max: Option<usize>,
    /// What has to be in the header `Authorization`.
    pub authorization: Option<&'static str>,
    /// What is told with the members of `root`.
    pub more_members: &'static str,
    /// What is told of a collection in place of its properties.
    pub collections_told_as: Option<&'static str>,
}

#[derive(Clone)]
enum Resource {
    Collection,
    /// Each content has a number of its own.
    File {
        bytes: Arc<[u8]>,
        number: u64,
        property: Option<String>,
    },
}

/// What the server has, by path.
#[derive(Default)]
pub struct Tree {
    resources: BTreeMap<String, Resource>,
    numbers: u64,
    habits: WebDavHabits,
}

/// The server. It ends when this is dropped. What a request is about is its path, decoded, without a `/` at either end.
pub struct FaultyWebDav(FaultyServer<Tree>);

impl Deref for FaultyWebDav {
    type Target = FaultyServer<Tree>;

    fn deref(&self) -> &FaultyServer<Tree> {
        &self.0
    }
}

impl FaultyWebDav {
    /// A server with the empty collection `root`.
    pub fn start() -> io::Result<FaultyWebDav> {
        let resources = BTreeMap::from([("root".to_owned(), Resource::Collection)]);
        FaultyServer::with(Tree { resources, ..Tree::default() }).map(FaultyWebDav)
    }

    /// The collection `root`, as a URL of a store.
    pub fn url(&self) -> String {
        self.endpoint().replace("http://", "dav://") + "/root"
    }

    /// From now on, it has these habits.
    pub fn set_habits(&self, habits: WebDavHabits) {
        self.0.backend(|tree| tree.habits = habits);
    }

    /// Puts a file there; collections above it as well.
    pub fn store(&self, path: &str, bytes: &[u8]) {
        self.0.backend(|tree| {
            for (at, _) in path.match_indices('/') {
                tree.resources.entry(path[..at].to_owned()).or_insert(Resource::Collection);
            }
            tree.put(path, bytes.into());
        });
    }

    /// Takes a file away.
    pub fn remove_file(&self, path: &str) {
        self.0.backend(|tree| tree.resources.remove(path));
    }

    /// The bytes of a file.
    pub fn bytes(&self, path: &str) -> Option<Arc<[u8]>> {
        self.0.backend(|tree| match tree.resources.get(path) {
            Some(Resource::File { bytes, .. }) => Some(bytes.clone()),
            _ => None,
        })
    }

    /// The paths of all files.
    pub fn files(&self) -> Vec<String> {
        self.0.backend(|tree| {
            let is_file = |(path, resource): (&String, &Resource)| {
                matches!(resource, Resource::File { .. }).then(|| path.clone())
            };
            tree.resources.iter().filter_map(is_file).collect()
        })
    }
}

/// When the content with this number was stored: each a second after the one before.
fn modified(number: u64) -> String {
    let (minutes, seconds) = (number / 60, number % 60);
    format!("Thu, 01 Jan 2026 {:02}:{:02}:{seconds:02} GMT", minutes / 60 % 24, minutes % 60)
}

fn path_of(text: &str) -> &str {
    text.trim_matches('/')
}

/// As it stands in a URL. Servers differ in what they encode; this one spares letters, digits and a few others.
fn encode(path: &str) -> String {
    let mut encoded = String::new();
    for b in path.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' | b'\'' | b'!' => {
                encoded.push(char::from(b));
            }
            // Writing to a string does not fail.
            b => drop(write!(encoded, "%{b:02x}")),
        }
    }
    encoded
}

impl Backend for Tree {
    fn key(request: &Request) -> &str {
        path_of(request.path())
    }

    fn log(request: &Request) -> RequestLog {
        RequestLog {
            method: request.method.clone(),
            key: path_of(request.path()).to_owned(),
            query: request.query.clone(),
            range: request.header("range").map(str::to_owned),
            access_key: request.header("authorization").map(str::to_owned),
            is_paid: false,
        }
    }

    fn answer(&mut self, request: &Request) -> Response {
        if let Some(wanted) = self.habits.authorization
            && request.header("authorization") != Some(wanted)
        {
            return Response::new(401, "").with("WWW-Authenticate", "Basic realm=\"x\"");
        }
        let path = path_of(request.path()).to_owned();
        let is_bare = !request.path().ends_with('/') && !path.is_empty();
        if self.habits.redirects && is_bare && matches!(self.resources.get(&path), Some(Resource::Collection)) {
            return Response::new(301, "<html>moved</html>").with("Location", format!("/{}/", encode(&path)));
        }
        match request.method.as_str() {
            "GET" | "HEAD" => self.get(request, &path),
            "PUT" => self.store(request, &path),
            "DELETE" => self.delete(&path),
            "MKCOL" => self.make_collection(&path),
            "MOVE" => self.rename(request, &path),
            "PROPFIND" => self.tell(request, &path),
            "PROPPATCH" => self.set_property(request, &path),
            _ => Response::new(405, ""),
        }
    }
}

impl Tree {
    fn put(&mut self, path: &str, bytes: Arc<[u8]>) {
        self.numbers += 1;
        self.resources.insert(path.to_owned(), Resource::File { bytes, number: self.numbers, property: None });
    }

    /// Whether there is a collection for what is to be at `path`.
    fn has_place(&self, path: &str) -> bool {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        above.is_empty() || matches!(self.resources.get(above), Some(Resource::Collection))
    }

    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.resources.retain(|other, _| other != path && !other.starts_with(&below));
    }

    fn tag(&self, number: u64) -> String {
        format!("{}\"{number:x}\"", if self.habits.weak_tags { "W/" } else { "" })
    }

    fn get(&self, request: &Request, path: &str) -> Response {
        let (bytes, number) = match self.resources.get(path) {
            None => return Response::new(404, "<html>not found</html>"),
            Some(Resource::Collection) => return Response::new(200, "<html>a page of members</html>"),
            Some(Resource::File { bytes, number, .. }) => (bytes, *number),
        };
        let len = bytes.len() as u64;
        let range = request.range().filter(|_| request.method == "GET" && !self.habits.no_ranges);
        let response = match range {
            None if request.method == "HEAD" => Response::head(len),
            None => Response::new(200, &bytes[..]),
            Some((first, _)) if first >= len => {
                return Response::new(416, "").with("Content-Range", format!("bytes */{len}"));
            }
            Some((first, last)) => {
                let last = last.unwrap_or(u64::MAX).min(len - 1);
                let body = &bytes[first as usize..=last as usize];
                Response::new(206, body).with("Content-Range", format!("bytes {first}-{last}/{len}"))
            }
        };
        let response = response.with("Last-Modified", modified(number));
        if self.habits.no_tags { response } else { response.with("ETag", self.tag(number)) }
    }

    fn store(&mut self, request: &Request, path: &str) -> Response {
        if !self.has_place(path) {
            return Response::new(409, "");
        }
        let before = self.resources.get(path);
        if matches!(before, Some(Resource::Collection)) {
            return Response::new(405, "");
        }
        let status = if before.is_some() { 204 } else { 201 };
        let kept = self.habits.keeps_bytes_max.unwrap_or(usize::MAX).min(request.body.len());
        self.put(path, request.body[..kept].into());
        Response::new(status, "")
    }

    fn delete(&mut self, path: &str) -> Response {
        if !self.resources.contains_key(path) {
            return Response::new(404, "");
        }
        self.remove(path);
        Response::new(204, "")
    }

    fn make_collection(&mut self, path: &str) -> Response {
        if self.resources.contains_key(path) {
            return Response::new(405, "");
        }
        if !self.has_place(path) {
            return Response::new(409, "");
        }
        self.resources.insert(path.to_owned(), Resource::Collection);
        Response::new(201, "")
    }

    fn rename(&mut self, request: &Request, path: &str) -> Response {
        let Some(source) = self.resources.get(path).cloned() else { return Response::new(404, "") };
        let to = request.header("destination").unwrap_or_default();
        let here = format!("http://{}/", request.header("host").unwrap_or_default());
        let Some(to) = to.strip_prefix(&here) else { return Response::new(502, "") };
        let to = decode(path_of(to));
        if !self.has_place(&to) {
            return Response::new(409, "");
        }
        let is_taken = self.resources.contains_key(&to);
        if is_taken && request.header("overwrite") == Some("F") && !self.habits.ignores_overwrite {
            return Response::new(412, "");
        }
        // As the standard says: a collection goes with all that is in it.
        self.remove(&to);
        self.remove(path);
        let source = match source {
            Resource::File { bytes, number, .. } if self.habits.forgets_properties => {
                Resource::File { bytes, number, property: None }
            }
            source => source,
        };
        self.resources.insert(to, source);
        Response::new(if is_taken { 204 } else { 201 }, "")
    }

    fn tell(&self, request: &Request, path: &str) -> Response {
        let Some(resource) = self.resources.get(path) else { return Response::new(404, "") };
        let is_deep = match request.header("depth") {
            Some("0") => false,
            Some("1") => true,
            // As many servers do.
            _ => return Response::new(403, "<html>no</html>"),
        };
        let base = match self.habits.absolute {
            true => format!("http://{}/", request.header("host").unwrap_or_default()),
            false => "/".to_owned(),
        };
        let mut body = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">");
        self.describe(&base, path, resource, &mut body);
        if is_deep && matches!(resource, Resource::Collection) {
            let below = format!("{path}/");
            let members = self.resources.range(below.clone()..).take_while(|(other, _)| other.starts_with(&below));
            for (other, resource) in members.filter(|(other, _)| !other[below.len()..].contains('/')) {
                self.describe(&base, other, resource, &mut body);
            }
            if path == "root" {
                body.push_str(self.habits.more_members);
            }
        }
        body.push_str("</D:multistatus>");
        Response::new(207, body).with("Content-Type", "application/xml")
    }

    fn describe(&self, base: &str, path: &str, resource: &Resource, into: &mut String) {
        let path = encode(path);
        let told = match (resource, self.habits.collections_told_as) {
            (Resource::Collection, Some(told)) => told.to_owned(),
            (Resource::Collection, None) => {
                "<D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop>\
                 <D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
                    .to_owned()
            }
            (Resource::File { bytes, number, property }, _) => {
                let tag = match (self.habits.no_tags, self.habits.no_tags_in_properties) {
                    (true, _) => String::new(),
                    (false, true) => "<D:getetag></D:getetag>".to_owned(),
                    (false, false) => format!("<D:getetag>{}</D:getetag>", self.tag(*number)),
                };
                let len = match self.habits.no_lengths {
                    true => String::new(),
                    false => format!("<D:getcontentlength>{}</D:getcontentlength>", bytes.len()),
                };
                let property = property.as_ref();
                let property = property.map(|text| format!("{}{text}{}", PROPERTY.0, PROPERTY.1)).unwrap_or_default();
                format!(
                    "<D:propstat><D:prop><D:resourcetype/>{len}{tag}<D:getlastmodified>{}</D:getlastmodified>{property}\
                     </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>",
                    modified(*number)
                )
            }
        };
        let slash = if matches!(resource, Resource::Collection) { "/" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(into, "<D:response><D:href>{base}{path}{slash}</D:href>{told}</D:response>");
    }

    fn set_property(&mut self, request: &Request, path: &str) -> Response {
        let is_refused = self.habits.refuses_properties;
        let Some(Resource::File { property, .. }) = self.resources.get_mut(path) else { return Response::new(404, "") };
        let body = String::from_utf8_lossy(&request.body);
        let text = body.split_once(PROPERTY.0).and_then(|(_, rest)| Some(rest.split_once(PROPERTY.1)?.0));
        let Some(text) = text else { return Response::new(400, "") };
        if !is_refused {
            *property = Some(text.to_owned());
        }
        let status = if is_refused { "403 Forbidden" } else { "200 OK" };
        let body = format!(
            "<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>/{}</D:href><D:propstat><D:prop>\
             <metadata xmlns=\"urn:adit:objects\"/></D:prop><D:status>HTTP/1.1 {status}</D:status></D:propstat></D:response>\
             </D:multistatus>",
            encode(path)
        );
        Response::new(207, body)
    }
}
