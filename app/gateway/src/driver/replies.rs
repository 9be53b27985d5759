//! What the HTTP API keeps in the journal: what keys have spent, and replies by idempotency key.

use holdfast_store::{Order, StoreError};

use super::journal::{Journal, JournalError, KEYS, MARKS, REPLIES, TRIED};
use crate::openai::{self, KeyBudgets, ReplyId, ReplyMark, ReplyStore, StoredReply};

fn store_error(error: JournalError) -> openai::StoreError {
    openai::StoreError(error.to_string())
}

impl KeyBudgets for Journal {
    fn spent(&self, key: &str) -> std::result::Result<u64, openai::StoreError> {
        let db = self.db().map_err(store_error)?;
        Ok(KEYS.get(&*db, &key.to_owned()).map_err(|e| store_error(e.into()))?.unwrap_or(0))
    }

    fn set_spent(&self, key: &str, tokens: u64) -> std::result::Result<(), openai::StoreError> {
        self.step(false, |store| Ok(KEYS.set(store, &key.to_owned(), &tokens)?)).map_err(store_error)
    }
}

impl ReplyStore for Journal {
    fn marks(&self) -> std::result::Result<Vec<(ReplyId, ReplyMark)>, openai::StoreError> {
        let db = self.db().map_err(store_error)?;
        let rows = MARKS.iter(&*db, Order::Ascending).collect::<std::result::Result<_, _>>();
        rows.map_err(|e: StoreError| store_error(e.into()))
    }

    fn get(&self, id: &ReplyId) -> std::result::Result<Option<StoredReply>, openai::StoreError> {
        let db = self.db().map_err(store_error)?;
        REPLIES.get(&*db, id).map_err(|e| store_error(e.into()))
    }

    fn ready(&self) -> std::result::Result<(), openai::StoreError> {
        self.step(false, |store| Ok(TRIED.set(store, &0)?)).map_err(store_error)
    }

    fn put(&self, id: &ReplyId, reply: &StoredReply) -> std::result::Result<(), openai::StoreError> {
        let put = self.step(false, |store| {
            MARKS.set(store, id, &reply.mark)?;
            Ok(REPLIES.set(store, id, reply)?)
        });
        put.map_err(store_error)
    }

    fn remove(&self, id: &ReplyId) -> std::result::Result<(), openai::StoreError> {
        let removed = self.step(false, |store| {
            MARKS.remove(store, id)?;
            Ok(REPLIES.remove(store, id)?)
        });
        removed.map_err(store_error)
    }
}
