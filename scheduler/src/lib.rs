//! The scheduler: places containers on specific hosts and says why.
