//! Between wire and domain: strict decoding, coins, pages.

use holdfast_proto::cosmos::base::query::v1beta1::{PageRequest, PageResponse};
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::{Message, Name, decode_strict};
use holdfast_store::{KvRead, Order, StoreError, successor};

use crate::{Address, BlockContext, Coin, CoinError, ModuleError, QueryError, sdk};

/// What a query handler gets: a read-only store and the block it stands at.
#[derive(Clone, Copy)]
pub struct QueryContext<'a> {
    /// Committed block; its epoch, phase and params are those in force at that height.
    pub block: &'a BlockContext,
    /// State after that block.
    pub store: &'a dyn KvRead,
}

impl QueryContext<'_> {
    /// Parses the address in request field `field`.
    pub fn address(&self, field: &str, text: &str) -> Result<Address, QueryError> {
        Address::parse(text, &self.block.hrp).map_err(|e| QueryError::invalid(format!("{field}: {e}")))
    }
}

/// Decodes a message strictly; errors are `sdk` 34.
pub fn decode_msg<M: Message + Name + Default>(value: &[u8]) -> Result<M, ModuleError> {
    decode_strict(value).map_err(|e| ModuleError::sdk(sdk::UNPACK_ANY, format!("{}: {e}", M::full_name())))
}

impl TryFrom<&PbCoin> for Coin {
    type Error = CoinError;
    fn try_from(coin: &PbCoin) -> Result<Self, CoinError> {
        Self::parse(&coin.denom, &coin.amount)
    }
}

impl From<&Coin> for PbCoin {
    fn from(coin: &Coin) -> Self {
        Self { denom: coin.denom.clone(), amount: coin.amount.to_string() }
    }
}

/// Rows of a page when the request names no limit, as in the SDK.
pub const PAGE_LIMIT_DEFAULT: u64 = 100;
/// Most rows of one page.
pub const PAGE_LIMIT_MAX: u64 = 1000;
/// Most rows an offset may skip, and most rows `count_total` counts.
pub const PAGE_SCAN_MAX: u64 = 10_000;

/// What a page request asks for, within the limits.
#[derive(Debug, Clone, Copy)]
pub struct Paging<'a> {
    /// Where to go on, inclusive; empty: at the beginning.
    pub key: &'a [u8],
    /// Rows to skip.
    pub offset: u64,
    /// Most rows.
    pub limit: u64,
    /// Whether all rows are counted.
    pub count_total: bool,
    /// Last row first.
    pub reverse: bool,
}

impl<'a> Paging<'a> {
    /// Reads a request with the SDK's meaning of what is left out. `InvalidArgument` for key and offset together, and for
    /// more than [`PAGE_LIMIT_MAX`] rows.
    pub fn of(request: Option<&'a PageRequest>) -> Result<Self, QueryError> {
        let (key, offset, limit) =
            request.map_or((&[][..], 0, 0), |page| (&page.key, page.offset, page.limit));
        if !key.is_empty() && offset > 0 {
            return Err(QueryError::invalid("pagination: give key or offset, not both"));
        }
        if limit > PAGE_LIMIT_MAX {
            return Err(QueryError::invalid(format!("pagination.limit: at most {PAGE_LIMIT_MAX}")));
        }
        let count_total = key.is_empty() && (limit == 0 || request.is_some_and(|page| page.count_total));
        let reverse = request.is_some_and(|page| page.reverse);
        let limit = if limit == 0 { PAGE_LIMIT_DEFAULT } else { limit };
        Ok(Self { key, offset, limit, count_total, reverse })
    }
}

/// One page of the rows below `prefix`. `decode` turns a row (key after the prefix, value) into an item, or
/// `None` to filter it out. Page keys are raw key tails. Limits: [`PAGE_LIMIT_MAX`], [`PAGE_SCAN_MAX`]; a
/// filtered page scans at most [`PAGE_SCAN_MAX`] rows and then ends early with a `next_key`.
pub fn paginate<T>(
    store: &dyn KvRead,
    prefix: &[u8],
    request: Option<&PageRequest>,
    mut decode: impl FnMut(&[u8], &[u8]) -> Result<Option<T>, StoreError>,
) -> Result<(Vec<T>, PageResponse), QueryError> {
    let page = Paging::of(request)?;
    if page.offset > PAGE_SCAN_MAX {
        return Err(QueryError::invalid(format!("pagination.offset: at most {PAGE_SCAN_MAX}; page by key")));
    }
    let mut from = prefix.to_vec();
    let mut to = successor(prefix);
    if !page.key.is_empty() {
        let mut at = prefix.to_vec();
        at.extend_from_slice(page.key);
        if page.reverse {
            // Inclusive: the page key itself is the first row.
            at.push(0);
            to = Some(at);
        } else {
            from = at;
        }
    }
    let order = if page.reverse { Order::Descending } else { Order::Ascending };
    let (mut items, mut next_key, mut total, mut scanned) = (Vec::new(), Vec::new(), 0_u64, 0_u64);
    for row in store.scan(&from, to.as_deref(), order) {
        let (key, value) = row?;
        let tail = key.strip_prefix(prefix).unwrap_or_default();
        let taken = u64::try_from(items.len()).unwrap_or(u64::MAX);
        scanned = scanned.saturating_add(1);
        if taken >= page.limit || scanned > PAGE_SCAN_MAX.saturating_mul(2) {
            if next_key.is_empty() {
                next_key = tail.to_vec();
            }
            if !page.count_total || scanned > PAGE_SCAN_MAX {
                break;
            }
        }
        let Some(item) = decode(tail, &value)? else { continue };
        total = total.saturating_add(1);
        if total > page.offset && taken < page.limit {
            items.push(item);
        }
    }
    let total = if page.count_total { total } else { 0 };
    Ok((items, PageResponse { next_key, total }))
}
