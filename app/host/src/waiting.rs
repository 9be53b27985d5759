//! Calls that wait for the Start of their inference. Anybody may sign one for an inference that never comes, so there are
//! few places, and few for one signer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_types::Address;

/// Calls that wait at a time.
pub(crate) const WAITING_MAX: usize = 64;
/// Of one signer.
pub(crate) const SIGNER_MAX: usize = 8;

/// Who waits for what. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting(Arc<Mutex<BTreeSet<(Address, String)>>>);

/// A place, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    waiting: Waiting,
    key: (Address, String),
}

impl Waiting {
    /// A place for `signer`'s call about `id`.
    ///
    /// # Errors
    /// What to tell the caller.
    pub(crate) fn enter(&self, signer: Address, id: &str) -> Result<Place, String> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (signer, id.to_owned());
        if places.contains(&key) {
            return Err(format!("inference_id {id}: a call of the same signer waits for its Start already"));
        }
        if places.iter().filter(|(other, _)| *other == signer).count() >= SIGNER_MAX {
            return Err(format!(
                "{SIGNER_MAX} calls of this signer wait for a Start; start the inferences first"
            ));
        }
        if places.len() >= WAITING_MAX {
            return Err(format!("{WAITING_MAX} calls wait for the Start of their inference; start it first"));
        }
        places.insert(key.clone());
        Ok(Place { waiting: self.clone(), key })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_gets_eight_of_the_places_and_one_for_an_inference() {
        let waiting = Waiting::default();
        let signer = |number: u8| Address([number; 20]);
        let mut places: Vec<_> =
            (0..SIGNER_MAX).map(|n| waiting.enter(signer(1), &format!("i-{n}")).unwrap()).collect();
        assert!(waiting.enter(signer(1), "i-8").unwrap_err().contains("8 calls of this signer"));
        let other = waiting.enter(signer(2), "i-0").unwrap();
        assert!(waiting.enter(signer(2), "i-0").unwrap_err().contains("the same signer"));
        drop(other);
        places.pop();
        places.push(waiting.enter(signer(1), "i-8").unwrap());
        for number in 2..9 {
            places.extend((0..SIGNER_MAX).map(|n| waiting.enter(signer(number), &format!("i-{n}")).unwrap()));
        }
        assert_eq!(places.len(), WAITING_MAX);
        assert!(waiting.enter(signer(9), "i-0").unwrap_err().contains("64 calls"));
        places.clear();
        waiting.enter(signer(9), "i-0").unwrap();
    }
}
