//! Gas: a decorator that charges each access, so that modules need no second API for it.

use std::cell::Cell;

use crate::{KvIter, KvRead, KvWrite, Order, StoreError};

/// Prices in gas units. [`GasConfig::SDK`] holds the Cosmos SDK's defaults for a persistent store, which
/// fees and clients of that world are calibrated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GasConfig {
    /// A point read.
    pub read_flat: u64,
    /// Each byte of key and value read.
    pub read_byte: u64,
    /// A write.
    pub write_flat: u64,
    /// Each byte of key and value written.
    pub write_byte: u64,
    /// A removal.
    pub delete: u64,
    /// Each row of a scan.
    pub iter_next: u64,
}

impl GasConfig {
    /// The SDK's `KVGasConfig`.
    pub const SDK: Self =
        Self { read_flat: 1000, read_byte: 3, write_flat: 2000, write_byte: 30, delete: 1000, iter_next: 30 };
}

/// Counts gas up to a limit. Shared by the decorators of one transaction through a reference.
#[derive(Debug)]
pub struct GasMeter {
    limit: u64,
    used: Cell<u64>,
}

impl GasMeter {
    /// A meter with `limit` gas units; `u64::MAX` never runs out in practice.
    pub fn new(limit: u64) -> Self {
        Self { limit, used: Cell::new(0) }
    }

    /// Adds `amount`. Past the limit: `OutOfGas`, and the meter reads the limit.
    pub fn consume(&self, amount: u64) -> Result<(), StoreError> {
        let needed = self.used.get().saturating_add(amount);
        if needed > self.limit {
            self.used.set(self.limit);
            return Err(StoreError::OutOfGas { limit: self.limit, needed });
        }
        self.used.set(needed);
        Ok(())
    }

    /// Gas used so far, at most the limit.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Charges `meter` for each access to `inner`.
pub struct MeteredKv<'a> {
    inner: &'a mut dyn KvWrite,
    meter: &'a GasMeter,
    config: GasConfig,
}

impl<'a> MeteredKv<'a> {
    /// Meters `inner` at the prices of `config`.
    pub fn new(inner: &'a mut dyn KvWrite, meter: &'a GasMeter, config: GasConfig) -> Self {
        Self { inner, meter, config }
    }
}

fn bytes(parts: [&[u8]; 2]) -> u64 {
    parts.iter().map(|p| u64::try_from(p.len()).unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
}

impl KvRead for MeteredKv<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.meter.consume(self.config.read_flat)?;
        let value = self.inner.get(key)?;
        let size = bytes([key, value.as_deref().unwrap_or_default()]);
        self.meter.consume(size.saturating_mul(self.config.read_byte))?;
        Ok(value)
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let rows = self.inner.scan(start, end, order);
        Box::new(rows.map(|row| {
            let (key, value) = row?;
            let size = bytes([&key, &value]).saturating_mul(self.config.read_byte);
            self.meter.consume(size.saturating_add(self.config.iter_next))?;
            Ok((key, value))
        }))
    }
}

impl KvWrite for MeteredKv<'_> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let size = bytes([key, value]).saturating_mul(self.config.write_byte);
        self.meter.consume(size.saturating_add(self.config.write_flat))?;
        self.inner.set(key, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.meter.consume(self.config.delete)?;
        self.inner.remove(key)
    }
}
