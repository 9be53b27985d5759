//! A shard in this process: checks, step order, and a model behind them.
