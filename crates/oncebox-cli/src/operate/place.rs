//! The place of a message in the form that people write: `LANE/POSITION`.

use oncebox::store::Place;

/// Parses `3/17`: position 17 of lane 3.
pub(crate) fn parse_place(text: &str) -> Result<Place, String> {
    let invalid = || format!("invalid place {text:?}: write LANE/POSITION, for example 3/17");
    let (lane, pos) = text.split_once('/').ok_or_else(invalid)?;
    let place =
        Place { lane: lane.parse().map_err(|_| invalid())?, pos: pos.parse().map_err(|_| invalid())? };
    if place.pos < 1 { Err(invalid()) } else { Ok(place) }
}

/// Formats a place as `3/17`.
pub(crate) fn place_text(place: Place) -> String {
    format!("{}/{}", place.lane, place.pos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_lane_and_a_position() {
        assert_eq!(parse_place("3/17"), Ok(Place { lane: 3, pos: 17 }));
        assert_eq!(place_text(Place { lane: 3, pos: 17 }), "3/17");
        for wrong in ["", "3", "3/", "/17", "3/0", "3/-1", "70000/1", "3/17/1", "a/b"] {
            assert!(parse_place(wrong).is_err(), "{wrong}");
        }
    }
}
