// Each name for itself.
fn look(node: u32, place: Place, len: u32) {
    tell(node, over_name(search.start, place, len));
}
