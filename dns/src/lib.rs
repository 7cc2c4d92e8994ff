//! The DNS service: names of the cluster, everything else forwarded.
