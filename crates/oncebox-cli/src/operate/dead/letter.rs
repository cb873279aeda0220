//! A dead letter in JSON.

use oncebox::store::DeadLetter;
use serde::Serialize;

use crate::operate::bytes::{BodyField, KeyField};
use crate::operate::place::place_text;
use crate::times::rfc3339;

#[derive(Debug, Serialize)]
pub(super) struct LetterField<'a> {
    handler: &'a str,
    place: String,
    lane: u16,
    position: i64,
    kind: &'a str,
    #[serde(flatten)]
    key: KeyField,
    received_at: String,
    died_at: String,
    error: &'a str,
    attempt_count: u32,
    attempts: Vec<AttemptField<'a>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    body: Option<BodyField>,
}

#[derive(Debug, Serialize)]
struct AttemptField<'a> {
    attempt: u32,
    at: String,
    error: &'a str,
}

impl<'a> LetterField<'a> {
    /// Without its body.
    pub(super) fn new(letter: &'a DeadLetter) -> Self {
        let attempts = letter.attempts.iter().map(|failed| AttemptField {
            attempt: failed.attempt,
            at: rfc3339(failed.at),
            error: &failed.error,
        });
        Self {
            handler: &letter.handler,
            place: place_text(letter.place),
            lane: letter.place.lane,
            position: letter.place.pos,
            kind: &letter.kind,
            key: KeyField::new(letter.key.as_ref()),
            received_at: rfc3339(letter.received_at),
            died_at: rfc3339(letter.died_at),
            error: &letter.error,
            attempt_count: letter.attempt_count(),
            attempts: attempts.collect(),
            body: None,
        }
    }

    /// With its body.
    pub(super) fn whole(letter: &'a DeadLetter) -> Self {
        Self { body: Some(BodyField::new(&letter.body)), ..Self::new(letter) }
    }
}
