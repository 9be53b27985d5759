//! A node starts, stops, crashes and goes on.

use cosmrs::proto::cosmos::base::tendermint::v1beta1 as base;
use cosmrs::proto::cosmos::base::tendermint::v1beta1::service_client::ServiceClient;
use holdfast_proto::cosmos::base::tendermint::v1beta1::{GetBlockByHeightRequest, GetBlockByHeightResponse};
use tonic::Code;

use crate::chain::{Chain, DENOM, FUNDS, Node, address, committed};
use crate::client::{Client, FEE, Wallet, block_on, coin};
use crate::process::{SHORT, command, holdfast, run, until};

const BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";

/// A transfer as cosmrs builds it.
fn transfer(from: &Wallet, to: u8, amount: u128) -> cosmrs::Any {
    use cosmrs::tx::Msg;
    let (from_address, to_address) = (from.id.clone(), address(to));
    cosmrs::bank::MsgSend { from_address, to_address, amount: vec![coin(amount, DENOM)] }
        .to_any()
        .expect("cosmrs packs it")
}

/// Reads every block from 1 to `last`: each follows the one before it, and its header holds the app hash that the node
/// gave for the height before, where `known` has one. Returns how many transactions they hold.
async fn walk(client: &Client, last: i64, known: &[(i64, String)]) -> usize {
    let mut before: Option<Vec<u8>> = None;
    let mut txs = 0;
    for height in 1..=last {
        let request = GetBlockByHeightRequest { height };
        let answer: GetBlockByHeightResponse =
            client.call(BLOCK, &request).await.expect("the block is there");
        let block = answer.block.expect("a block");
        let header = block.header.expect("a header");
        assert_eq!(header.height, height);
        assert_eq!(header.last_block_id.map(|id| id.hash), before, "block {height} follows another block");
        if let Some((_, hash)) = known.iter().find(|(known, _)| *known == height - 1) {
            assert_eq!(&hex::encode_upper(&header.app_hash), hash, "app hash in the header of {height}");
        }
        txs += block.data.expect("data").txs.len();
        before = Some(answer.block_id.expect("an id").hash);
    }
    txs
}

#[test]
fn a_stopped_node_goes_on_at_the_next_height_with_the_same_app_hash() {
    let chain = Chain::new("stop-1", &[1]);
    let node = chain.start("0.2");
    let hash = block_on(async {
        let client = Client::connect(&node.addr).await;
        let mut sender = Wallet::open(&client, chain.id, 1).await;
        let message = transfer(&sender, 2, 1_234);
        sender.send(message).await.txhash
    });
    let stopped = node.stop("TERM");
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.err);
    let first = committed(&stopped.err);
    let (last, app_hash) = first.last().cloned().expect("blocks");
    assert!(stopped.out.contains(&format!("SIGTERM: stopped after height {last}")), "{}", stopped.out);
    assert_ne!(first[0].1, app_hash, "the transfer changed the state");

    let node = chain.start("0.2");
    node.reach(last + 2);
    assert_eq!(node.committed()[0].0, last + 1, "no height is left out or made twice");
    block_on(async {
        let client = Client::connect(&node.addr).await;
        assert_eq!(walk(&client, last + 2, &first).await, 1);
        // The first block after the restart stands on the state of the last one before it.
        let request = GetBlockByHeightRequest { height: last + 1 };
        let answer: GetBlockByHeightResponse = client.call(BLOCK, &request).await.expect("a block");
        let header = answer.block.and_then(|block| block.header).expect("a header");
        assert_eq!(hex::encode_upper(header.app_hash), app_hash);
        assert_eq!(client.executed(&hash).await.code, 0);
        assert_eq!(client.balance(&address(2)).await, 1_234);
        assert_eq!(client.balance(&address(1)).await, FUNDS - FEE - 1_234);
        assert_eq!(client.account(&address(1)).await.expect("an account").sequence, 1);
    });
    let stopped = node.stop("INT");
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.err);
    assert!(stopped.out.contains("SIGINT: stopped after height"), "{}", stopped.out);
}

/// Sends transfers one after the other until the node is gone; how many it accepted.
async fn send_until_gone(node: &mut Node, chain_id: &str, kill_after: usize) -> usize {
    let client = Client::connect(&node.addr).await;
    let mut sender = Wallet::open(&client, chain_id, 1).await;
    for sent in 0.. {
        let draft = sender.draft(vec![transfer(&sender, 2, 1)]);
        if sent == kill_after {
            node.running.signal("KILL");
            return sent;
        }
        let response = client.broadcast(draft.sign(&sender.key)).await;
        assert_eq!(response.code, 0, "{}", response.raw_log);
        sender.account.sequence += 1;
    }
    unreachable!("the loop has no other end")
}

#[test]
fn a_killed_node_goes_on_without_a_gap_and_without_losing_a_committed_transaction() {
    let chain = Chain::new("kill-1", &[1]);
    let mut known: Vec<(i64, String)> = Vec::new();
    let mut accepted = 0;
    for kill_after in [40, 75, 20] {
        let mut node = chain.start("0.05");
        let last = known.last().map_or(0, |block| block.0);
        node.reach(last + 1);
        accepted += block_on(send_until_gone(&mut node, chain.id, kill_after));
        let killed = node.running.wait(SHORT);
        assert_eq!(killed.status.code(), None, "it ended by the signal");
        let blocks = committed(&killed.err);
        // A block that was stored, but not committed or not logged when the node died, is executed again.
        assert!(last == 0 || (last + 1..=last + 2).contains(&blocks[0].0), "{last} then {}", blocks[0].0);
        known.extend(blocks);
    }
    let node = chain.start("0.1");
    let (last, _) = known.last().cloned().expect("blocks");
    node.reach(last + 3);
    known.extend(node.committed());
    block_on(async {
        let client = Client::connect(&node.addr).await;
        let mut sender = Wallet::open(&client, chain.id, 1).await;
        let executed = walk(&client, last + 3, &known).await;
        assert_eq!(sender.account.sequence, executed as u64, "each block's transactions count once");
        assert!(executed > 0 && executed <= accepted, "{executed} of {accepted}");
        assert_eq!(client.balance(&address(2)).await, executed as u128);
        assert_eq!(sender.balance().await, FUNDS - executed as u128 * (FEE + 1));
        let message = transfer(&sender, 2, 1);
        assert_eq!(sender.send(message).await.code, 0);
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}

#[test]
fn a_port_or_a_folder_in_use_is_a_clear_error_and_leaves_the_first_node_alone() {
    let chain = Chain::new("first-1", &[1]);
    let other = Chain::new("second-1", &[1]);
    let mut node = chain.start("0.2");
    let start = |home: &str, addr: &str| {
        let args = ["start", "--home", home, "--grpc-listen", addr, "--log-level", "error"];
        run(&mut command(&args), SHORT)
    };
    start(&other.home(), &node.addr).refused(1, &[&node.addr, "in use", "--grpc-listen", "cli error 81"]);
    start(&chain.home(), "127.0.0.1:0").refused(1, &["another process", "--home", "data"]);
    assert!(node.running.runs());
    let height = node.height();
    node.reach(height + 2);
    assert_eq!(node.stop("TERM").status.code(), Some(0));
    // The folder is free again, and the refused node left the other one usable.
    let node = other.start("0.2");
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}

#[test]
fn start_and_init_refuse_what_cannot_be_and_say_what_to_do() {
    let chain = Chain::new("bad-1", &[1]);
    let empty = tempfile::tempdir().expect("a folder");
    let nowhere = empty.path().join("none").to_str().expect("UTF-8").to_owned();
    let home = chain.home();
    holdfast(&["start", "--home", &nowhere]).refused(1, &["holdfastd init", "(cli error 23)"]);
    holdfast(&["init", "again", "--home", &home, "--chain-id", "bad-1"])
        .refused(1, &["--force", "(cli error 22)"]);
    holdfast(&["init", "x", "--home", &nowhere, "--chain-id", "a"]).refused(2, &["--chain-id", "3 to 50"]);
    holdfast(&["start", "--home", &home, "--block-seconds", "0"])
        .refused(2, &["--block-seconds", "(cli error 12)"]);
    holdfast(&["start", "--home", &home, "--grpc-listen", "here"])
        .refused(2, &["--grpc-listen", "(cli error 12)"]);
    holdfast(&["start", "--home", &home, "--minimum-gas-prices", "1uatom"])
        .refused(1, &["minimum-gas-prices", "uhold", "(cli error 26)"]);
    holdfast(&["start", "--home", &home, "--port", "1"])
        .refused(2, &["--port", "--grpc-listen", "(cli error 13)"]);

    let genesis = chain.path().join("config/genesis.json");
    let good = std::fs::read_to_string(&genesis).expect("there");
    for (from, to, field) in [
        ("\"epoch_length\":\"25\"", "\"epoch_length\":\"0\"", "epoch_length"),
        ("\"epoch_length\":\"25\"", "\"epoch_lenght\":\"25\"", "epoch_lenght"),
        ("\"chain_id\":\"bad-1\"", "\"chain_id\":\"b\"", "chain_id"),
        ("\"max_gas\":\"-1\"", "\"max_gas\":\"-2\"", "max_gas"),
        ("\"denom\":\"uhold\"", "\"denom\":\"7\"", "denom"),
    ] {
        assert!(good.contains(from), "{from} is not in the file");
        std::fs::write(&genesis, good.replacen(from, to, 1)).expect("writable");
        holdfast(&["genesis", "validate", "--home", &home]).refused(1, &[field, "(cli error 27)"]);
        let started =
            holdfast(&["start", "--home", &home, "--grpc-listen", "127.0.0.1:0", "--log-level", "error"]);
        started.refused(1, &[field]);
    }
    // Nothing of all that has left a trace.
    std::fs::write(&genesis, good).expect("writable");
    let node = chain.start("0.2");
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}

#[test]
fn blocks_and_node_info_are_read_by_cosmrs() {
    let chain = Chain::new("info-1", &[1]);
    let node = chain.start("0.2");
    node.reach(2);
    block_on(async {
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://{}", node.addr)).expect("an address");
        let mut service = ServiceClient::new(channel.connect().await.expect("the node listens"));
        let info = service.get_node_info(base::GetNodeInfoRequest {}).await.expect("an answer").into_inner();
        let node_info = info.default_node_info.expect("the node");
        assert_eq!((node_info.network.as_str(), node_info.moniker.as_str()), ("info-1", "a-node"));
        assert!(node_info.version.starts_with("0.38."), "{}", node_info.version);
        assert_eq!(info.application_version.expect("the program").app_name, "holdfastd");
        let latest =
            service.get_latest_block(base::GetLatestBlockRequest {}).await.expect("an answer").into_inner();
        let header = latest.sdk_block.and_then(|block| block.header).expect("a header");
        assert!(header.height >= 2 && header.chain_id == "info-1");
        let mut block =
            async |height| service.get_block_by_height(base::GetBlockByHeightRequest { height }).await;
        let first = block(1).await.expect("an answer").into_inner();
        assert_eq!(first.block.and_then(|block| block.header).expect("a header").height, 1);
        assert_eq!(block(1_000_000).await.expect_err("not reached").code(), Code::OutOfRange);
        assert_eq!(block(-1).await.expect_err("no height").code(), Code::InvalidArgument);
    });
}

#[test]
fn a_node_that_nobody_reads_makes_blocks_and_stops_in_order() {
    let chain = Chain::with_executors("pipe-2", &[1, 9], &[(9, 100)]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let addr = free.expect("a free port").to_string();
    let (reader, out) = std::io::pipe().expect("a pipe");
    let err = out.try_clone().expect("a second end");
    drop(reader);
    let words = ["start", "--home", &chain.home(), "--grpc-listen", &addr, "--block-seconds", "0.2"];
    let mut child = command(&words).stdout(out).stderr(err).spawn().expect("it starts");
    until(SHORT, "the third block", || {
        assert!(child.try_wait().expect("can be waited for").is_none(), "it ended");
        let status = run(&mut command(&["status", "--grpc-addr", &addr]), SHORT);
        let known = status.status.success().then(|| status.json())?;
        let height = known["sync_info"]["latest_block_height"].as_str()?.parse::<i64>().ok()?;
        (height >= 3).then_some(())
    });
    let stop = format!("kill -TERM {}", child.id());
    assert!(std::process::Command::new("sh").args(["-c", &stop]).status().expect("sh is there").success());
    assert!(child.wait().expect("can be waited for").success());
}
