//! What every Berth executable does as a process: command line, log, admin listener, stop.
