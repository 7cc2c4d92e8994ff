//! The metadata service: a container asks over HTTP who it is and who the others are.
