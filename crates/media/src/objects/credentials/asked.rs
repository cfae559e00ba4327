//! Sources of credentials that were asked and had none, and why.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use reqsign_aws_v4::Credential;
use reqsign_core::{Context, Error, ProvideCredential, Result};

use super::elsewhere::Services;
use crate::objects::transport::Trouble;

/// Longest part of what others say in a message, in bytes.
const WORDS_LEN_MAX: usize = 200;

/// What is said where no source has any credentials.
pub const NONE_SET_UP: &str =
    "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or log in";
/// The same where somebody may have some, and could not be asked.
const NOBODY_ANSWERS: &str = "whoever has the credentials does not answer; check the network, or try again later";

/// Why a store has no credentials, as its sources said it last; none if they had some. The library's chain keeps errors to itself.
pub type Why = Arc<Mutex<Option<Lacking>>>;

/// That there are no credentials.
#[derive(Clone, Debug)]
pub struct Lacking {
    /// What the sources say, and what can be done.
    text: String,
    /// What kept a source from being asked. It may have some another time.
    trouble: Option<Trouble>,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Lacking {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.trouble.as_ref()?)
    }
}

/// What went wrong at sources that were asked and had none.
#[derive(Default)]
pub struct Asked {
    failures: Vec<String>,
    trouble: Option<Trouble>,
}

impl Asked {
    /// What a source has. One that is not set up has nothing to tell.
    pub async fn of(
        &mut self,
        name: &str,
        source: impl ProvideCredential<Credential = Credential>,
        context: &Context,
    ) -> Option<Credential> {
        let seen = Arc::default();
        let services = Services { context: context.clone(), trouble: Arc::clone(&seen) };
        let context = context.clone().with_http_send(services);
        match source.provide_credential(&context).await {
            // Variables that are set to nothing are not set.
            Ok(found) => found.filter(|found| !found.access_key_id.is_empty() && !found.secret_access_key.is_empty()),
            Err(e) => {
                let e = match seen.lock().take().filter(|_| e.is_retryable() && Trouble::behind(&e).is_none()) {
                    Some(trouble) => e.with_source(trouble),
                    None => e,
                };
                self.failures.push(format!("{name}: {}", words(&e)));
                if self.trouble.is_none() {
                    self.trouble = trouble_of(&e);
                }
                None
            }
        }
    }

    /// The same of a source that may be set up wrong.
    pub async fn of_set_up(
        &mut self,
        name: &str,
        source: Result<Option<impl ProvideCredential<Credential = Credential>>>,
        context: &Context,
    ) -> Option<Credential> {
        match source {
            Ok(source) => self.of(name, source?, context).await,
            Err(e) => {
                self.failed(format!("{name}: {}", words(&e)));
                None
            }
        }
    }

    /// Notes what is wrong with what is set up.
    pub fn failed(&mut self, why: String) {
        self.failures.push(why);
    }

    /// How many have failed.
    pub fn failures(&self) -> usize {
        self.failures.len()
    }

    /// Takes what was in the way of a source for a sign that there is none.
    pub fn forget_trouble(&mut self) {
        self.trouble = None;
    }

    /// All of it.
    pub fn lacking(self) -> Lacking {
        let summary = if self.trouble.is_some() { NOBODY_ANSWERS } else { NONE_SET_UP };
        let text = match self.failures.as_slice() {
            [] => summary.to_owned(),
            failures => format!("{summary} ({})", failures.join("; ")),
        };
        Lacking { text, trouble: self.trouble }
    }
}

/// What keeps a source from answering, and may not do so another time.
pub fn trouble_of(e: &Error) -> Option<Trouble> {
    match Trouble::behind(e) {
        Some(trouble) => Some(trouble.clone()),
        None => e.is_retryable().then(|| Trouble::Broken("it wants to be asked later".to_owned())),
    }
}

/// What a source says, and what was wrong with the network: the library does not say the latter by itself.
pub fn words(e: &Error) -> String {
    let text = cleaned(&e.to_string());
    Trouble::behind(e).map_or_else(|| text.clone(), |trouble| format!("{text}: {}", cleaned(&trouble.to_string())))
}

/// What somebody else says, for a message: a line of it, and nothing that a terminal would obey.
pub fn cleaned(text: &str) -> String {
    let is_hidden = |c: char| {
        let turns =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        turns || c.is_control()
    };
    let mut end = text.len().min(8 * WORDS_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut line = text[..end].replace(is_hidden, " ").split_whitespace().collect::<Vec<_>>().join(" ");
    end = line.len().min(WORDS_LEN_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_a_short_line() {
        assert_eq!(cleaned(" \u{1b}[31mred\r\n\u{202e}\tline\u{0}\n"), "[31mred line");
        assert_eq!(cleaned(&"é".repeat(5000)), "é".repeat(WORDS_LEN_MAX / 2));
        assert_eq!(cleaned(&format!("a{}", "é".repeat(500))).len(), WORDS_LEN_MAX - 1);
        assert_eq!(cleaned(""), "");
    }
}
