//! The op suite: cases as data, tolerances in one table, and a runner for any device.
