//! What lies in a volume's file, as pure functions between bytes and values: no I/O, no panic on any input.
