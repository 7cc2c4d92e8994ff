//! What is true across crates, over real sockets.
