//! Where a message sits, as people write it: `LANE/POSITION`.

use oncebox::store::Place;

/// `3/17` is position 17 of lane 3.
pub(crate) fn parse_place(text: &str) -> Result<Place, String> {
    let wrong = || format!("{text:?} is no place: write LANE/POSITION, as in 3/17");
    let (lane, pos) = text.split_once('/').ok_or_else(wrong)?;
    let place = Place { lane: lane.parse().map_err(|_| wrong())?, pos: pos.parse().map_err(|_| wrong())? };
    if place.pos < 1 { Err(wrong()) } else { Ok(place) }
}

/// The same the other way round.
pub(crate) fn shown(place: Place) -> String {
    format!("{}/{}", place.lane, place.pos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_lane_and_a_position() {
        assert_eq!(parse_place("3/17"), Ok(Place { lane: 3, pos: 17 }));
        assert_eq!(shown(Place { lane: 3, pos: 17 }), "3/17");
        for wrong in ["", "3", "3/", "/17", "3/0", "3/-1", "70000/1", "3/17/1", "a/b"] {
            assert!(parse_place(wrong).is_err(), "{wrong}");
        }
    }
}
