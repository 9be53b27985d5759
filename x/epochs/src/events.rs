//! Events `holdfast.epochs.v1.*`.

use holdfast_types::Event;
use holdfast_types::traits::EpochInfo;

pub(crate) fn started(info: &EpochInfo) -> Event {
    Event::new("holdfast.epochs.v1.EventEpochStarted")
        .with("epoch", info.epoch)
        .with("start_height", info.start_height)
        .with("length", info.length)
        .with("poc_length", info.poc_length)
}

pub(crate) fn ended(info: &EpochInfo, end_height: i64) -> Event {
    Event::new("holdfast.epochs.v1.EventEpochEnded").with("epoch", info.epoch).with("end_height", end_height)
}
