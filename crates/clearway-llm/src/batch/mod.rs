//! Many sequences at once on one device.
//!
//! | module | what it does |
//! |---|---|
//! | [`runner`] | what is asked of a device: slots, blocks, rows of prompts, decode steps |
//! | [`device`] | a device that does it |

pub mod device;
pub mod runner;
