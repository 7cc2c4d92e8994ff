//! One process for one host: metadata, DNS and scheduler over one snapshot.
