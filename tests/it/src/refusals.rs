//! Bad transactions: each gets the code of the Cosmos SDK, over the wire, and changes nothing.

use cosmrs::Any;
use cosmrs::proto::cosmos::base::abci::v1beta1::TxResponse;
use cosmrs::proto::cosmos::gov::v1 as gov;
use cosmrs::proto::cosmos::tx::v1beta1::mode_info::{Single, Sum};
use cosmrs::proto::cosmos::tx::v1beta1::{AuthInfo, BroadcastTxRequest, GetTxRequest, TxBody};
use cosmrs::proto::cosmos::upgrade::v1beta1::MsgCancelUpgrade;
use cosmrs::tx::Msg;
use holdfast_proto::holdfast::epochs::v1 as epochs;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_proto::{FieldMask, Message};
use tonic::Code;

use crate::chain::{Chain, DENOM, DEPOSIT, EXPEDITED, FUNDS, Node, address, key, module_address};
use crate::client::{Client, Draft, FEE, Wallet, altered, any, block_on, coin, submit, vote};

/// Order of secp256k1.
const ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xba,
    0xae, 0xdc, 0xe6, 0xaf, 0x48, 0xa0, 0x3b, 0xbf, 0xd2, 0x5e, 0x8c, 0xd0, 0x36, 0x41, 0x41,
];

/// The signature with its s negated: the other one of two that fit, which the SDK refuses.
fn high_s(signature: &mut [u8]) {
    let mut borrow = 0;
    for (byte, order) in signature[32..].iter_mut().zip(ORDER).rev() {
        let difference = i16::from(order) - i16::from(*byte) - borrow;
        borrow = i16::from(difference < 0);
        *byte = difference.rem_euclid(256) as u8;
    }
}

/// What BroadcastTx said.
type Said = (String, u32, String);

struct Scene {
    client: Client,
    sender: Wallet,
}

impl Scene {
    async fn new(node: &Node, chain: &Chain) -> Self {
        let client = Client::connect(&node.addr).await;
        let sender = Wallet::open(&client, chain.id, 1).await;
        Self { client, sender }
    }

    /// A transfer of 1 to account 2.
    fn transfer(&self) -> Any {
        let (from_address, to_address) = (self.sender.id.clone(), address(2));
        let amount = vec![coin(1, DENOM)];
        cosmrs::bank::MsgSend { from_address, to_address, amount }.to_any().expect("cosmrs packs it")
    }

    fn good(&self) -> Draft {
        self.sender.draft(vec![self.transfer()])
    }

    /// The good transaction with one thing changed, signed as it then is.
    fn with(&self, change: impl FnOnce(&mut Draft)) -> Vec<u8> {
        let mut draft = self.good();
        change(&mut draft);
        draft.sign(&self.sender.key)
    }

    /// The good transaction with its body changed; the signature no longer fits, which is looked at last.
    fn with_body(&self, change: impl FnOnce(&mut TxBody)) -> Vec<u8> {
        altered(&self.with(|_| ()), |tx| {
            let mut body = TxBody::decode(tx.body_bytes.as_slice()).expect("a body");
            change(&mut body);
            tx.body_bytes = body.encode_to_vec();
        })
    }

    fn with_auth(&self, change: impl FnOnce(&mut AuthInfo)) -> Vec<u8> {
        altered(&self.with(|_| ()), |tx| {
            let mut auth = AuthInfo::decode(tx.auth_info_bytes.as_slice()).expect("auth info");
            change(&mut auth);
            tx.auth_info_bytes = auth.encode_to_vec();
        })
    }

    async fn said(&self, raw: Vec<u8>) -> Said {
        let response = self.client.broadcast(raw).await;
        (response.codespace, response.code, response.raw_log)
    }
}

#[test]
fn bad_transactions_get_the_codes_of_the_sdk_and_change_nothing() {
    let chain = Chain::new("codes-1", &[1]);
    chain.edit_genesis(|genesis| {
        // Account 4 has less than any fee.
        let balances = genesis["app_state"]["bank"]["balances"].as_array_mut().expect("a list");
        let mut poor = balances[0].clone();
        poor["address"] = address(4).to_string().into();
        poor["coins"][0]["amount"] = "100".into();
        balances.push(poor);
        balances.sort_by_key(|row| {
            let address: cosmrs::AccountId =
                row["address"].as_str().and_then(|a| a.parse().ok()).expect("an address");
            address.to_bytes()
        });
        genesis["app_state"]["bank"]["supply"][0]["amount"] = (FUNDS + 100).to_string().into();
        let accounts = genesis["app_state"]["auth"]["accounts"].as_array_mut().expect("a list");
        let mut poor = accounts[0].clone();
        poor["address"] = address(4).to_string().into();
        poor["account_number"] = "1".into();
        accounts.push(poor);
        accounts.sort_by_key(|row| {
            let address: cosmrs::AccountId =
                row["address"].as_str().and_then(|a| a.parse().ok()).expect("an address");
            address.to_bytes()
        });
        genesis["app_state"]["auth"]["next_account_number"] = "2".into();
    });
    let node = chain.start_with("0.2", &["--minimum-gas-prices", "0.01uhold"]);
    node.reach(2);
    block_on(async {
        let scene = Scene::new(&node, &chain).await;
        let sender = scene.sender.id.to_string();
        let poor = Wallet::open(&scene.client, chain.id, 4).await;
        let from_poor = cosmrs::bank::MsgSend {
            from_address: poor.id.clone(),
            to_address: address(2),
            amount: vec![coin(1, DENOM)],
        };
        let from_poor = poor.draft(vec![from_poor.to_any().expect("cosmrs packs it")]).sign(&poor.key);
        let stranger = address(77).to_string();
        let nobody = cosmrs::bank::MsgSend {
            from_address: address(77),
            to_address: address(2),
            amount: vec![coin(1, DENOM)],
        };
        let from_nobody = scene.with(|d| d.msgs = vec![nobody.to_any().expect("cosmrs packs it")]);
        // A field 1 that names the signer, in a message nobody knows.
        let unknown =
            Any { type_url: "/holdfast.unknown.v1.MsgNothing".into(), value: scene.transfer().value };
        let trailing =
            any(&pb::MsgCancelInference { requested_by: sender.clone(), inference_id: "x".into() });
        let trailing = Any { value: [trailing.value, vec![0x18, 1]].concat(), ..trailing };
        let plus = |more: &[u8]| [scene.with(|_| ()), more.to_vec()].concat();
        let whole = scene.with(|_| ());
        // The first length as two bytes where one would do.
        let longer = {
            let (tag, length, rest) = (whole[0], usize::from(whole[1]), &whole[2..]);
            assert!(tag == 0x0a, "field 1");
            // The body is longer than 127 bytes, so its length has two bytes already; a third one adds nothing.
            assert!(length >= 0x80);
            [&[tag, whole[1], rest[0] | 0x80, 0][..], &rest[1..]].concat()
        };

        let cases: Vec<(&str, Vec<u8>, &str, u32, &str)> = vec![
            ("wrong chain id", scene.with(|d| d.chain_id = "codes-2".into()), "sdk", 4, ""),
            ("wrong account number", scene.with(|d| d.number = 9), "sdk", 4, ""),
            (
                "a later sequence",
                scene.with(|d| d.sequence = 5),
                "sdk",
                32,
                "account sequence mismatch, expected 0, got 5",
            ),
            (
                "a signature with one bit changed",
                altered(&whole, |tx| tx.signatures[0][40] ^= 1),
                "sdk",
                4,
                "",
            ),
            ("a high-s signature", altered(&whole, |tx| high_s(&mut tx.signatures[0])), "sdk", 4, ""),
            ("a short signature", altered(&whole, |tx| tx.signatures[0].truncate(63)), "sdk", 4, ""),
            ("another's key", scene.good().sign_as(&key(5), &scene.sender.key), "sdk", 4, ""),
            (
                "another's public key",
                scene.good().sign(&key(5)),
                "sdk",
                8,
                "pubKey does not match signer address",
            ),
            (
                "no signature",
                altered(&whole, |tx| tx.signatures.clear()),
                "sdk",
                15,
                "no signatures supplied",
            ),
            (
                "two signatures",
                altered(&whole, |tx| tx.signatures.push(vec![1; 64])),
                "sdk",
                4,
                "expected 1, got 2",
            ),
            (
                "eight signatures",
                altered(&whole, |tx| tx.signatures = vec![vec![1; 64]; 8]),
                "sdk",
                14,
                "limit: 7",
            ),
            (
                "too low a fee",
                scene.with(|d| d.fee = vec![coin(4_999, DENOM)]),
                "sdk",
                13,
                "insufficient fees; got: 4999uhold required: 5000uhold",
            ),
            ("no fee", scene.with(|d| d.fee.clear()), "sdk", 13, "got: 0uhold"),
            ("a fee in another coin", scene.with(|d| d.fee = vec![coin(9_000, "uatom")]), "sdk", 10, "uatom"),
            ("a fee beyond the balance", from_poor, "sdk", 5, "100"),
            ("an account that is not there", from_nobody, "sdk", 9, &stranger),
            ("an unknown message type", scene.with(|d| d.msgs = vec![unknown]), "sdk", 6, "MsgNothing"),
            ("an unknown field in a message", scene.with(|d| d.msgs = vec![trailing]), "sdk", 34, ""),
            ("no message", scene.with(|d| d.msgs.clear()), "sdk", 18, "body.messages"),
            (
                "a signer that is no address",
                scene.with(|d| d.msgs = vec![any(&pb::MsgCancelInference::default())]),
                "sdk",
                7,
                "signer",
            ),
            ("a long memo", scene.with(|d| d.memo = "m".repeat(257)), "sdk", 12, "256"),
            ("a height that is over", scene.with(|d| d.timeout = 1), "sdk", 30, "timeout height 1"),
            (
                "too little gas",
                scene.with(|d| {
                    d.gas = 100;
                    d.fee = vec![coin(5_000, DENOM)]
                }),
                "sdk",
                11,
                "gas",
            ),
            (
                "extension options",
                scene.with_body(|b| b.extension_options = vec![scene.transfer()]),
                "sdk",
                31,
                "extension",
            ),
            (
                "another sign mode",
                scene.with_auth(|a| {
                    let mode = a.signer_infos[0].mode_info.as_mut().expect("a mode");
                    mode.sum = Some(Sum::Single(Single { mode: 127 }));
                }),
                "sdk",
                37,
                "SIGN_MODE_LEGACY_AMINO_JSON",
            ),
            ("trailing bytes", plus(&[0]), "sdk", 2, ""),
            ("an unknown field at the end", plus(&[0x22, 1, 7]), "sdk", 2, ""),
            ("a truncated transaction", whole[..whole.len() - 1].to_vec(), "sdk", 2, ""),
            ("an encoding that is not the shortest", longer, "sdk", 2, ""),
            ("no transaction at all", b"hello".to_vec(), "sdk", 2, ""),
            (
                "a transaction above 1 MiB",
                scene.with(|d| d.memo = "m".repeat(1 << 20)),
                "sdk",
                21,
                "tx too large",
            ),
        ];
        for (what, raw, codespace, code, text) in cases {
            let (space, got, log) = scene.said(raw).await;
            assert_eq!((space.as_str(), got), (codespace, code), "{what}: {log}");
            assert!(log.contains(text), "{what}: {text:?} is not in: {log}");
        }
        for (what, request) in [
            ("no bytes", BroadcastTxRequest { tx_bytes: Vec::new(), mode: 2 }),
            ("BLOCK, which went with SDK 0.47", BroadcastTxRequest { tx_bytes: whole.clone(), mode: 1 }),
            ("no mode", BroadcastTxRequest { tx_bytes: whole.clone(), mode: 0 }),
        ] {
            let status = scene.client.tx().broadcast_tx(request).await.expect_err(what);
            assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status}");
        }
        for (hash, code) in [("00".repeat(32), Code::NotFound), ("xyz".into(), Code::InvalidArgument)] {
            let status =
                scene.client.tx().get_tx(GetTxRequest { hash }).await.expect_err("no such transaction");
            assert_eq!(status.code(), code, "{status}");
        }

        // Blocks have passed, and nothing of all that is in one.
        let height = node.height();
        node.reach(height + 2);
        let account = scene.client.account(&scene.sender.id).await.expect("an account");
        assert_eq!((account.sequence, account.pubkey), (0, None));
        assert_eq!(scene.sender.balance().await, FUNDS);
        assert_eq!(poor.balance().await, 100);
        assert_eq!(scene.client.balance(&address(2)).await, 0);

        // The same bytes are taken once, waiting or done.
        let response = scene.client.broadcast(whole.clone()).await;
        assert_eq!(response.code, 0, "{}", response.raw_log);
        let twice = ("sdk".to_owned(), 19, "tx already exists in cache".to_owned());
        assert_eq!(scene.said(whole.clone()).await, twice);
        assert_eq!(scene.client.executed(&response.txhash).await.code, 0);
        assert_eq!(scene.said(whole).await, twice);
        // And the sequence is used up.
        let (_, code, log) = scene.said(scene.with(|d| d.memo = "again".into())).await;
        assert_eq!((code, log.as_str()), (32, "account sequence mismatch, expected 1, got 0"));
        assert_eq!(scene.client.balance(&address(2)).await, 1);
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}

/// Sends all messages at once, each in a transaction of its own; the results in their order.
async fn send_all(wallet: &mut Wallet, messages: impl IntoIterator<Item = Any>) -> Vec<TxResponse> {
    let mut hashes = Vec::new();
    for message in messages {
        let draft = Draft { gas: 2_000_000, ..wallet.draft(vec![message]) };
        let response = wallet.client.broadcast(draft.sign(&wallet.key)).await;
        assert_eq!((response.code, response.raw_log.as_str()), (0, ""));
        wallet.account.sequence += 1;
        hashes.push(response.txhash);
    }
    let mut results = Vec::new();
    for hash in hashes {
        results.push(wallet.client.executed(&hash).await);
    }
    results
}

/// What one may do wrong with the proposals 1 (collects deposits) and 2 (is voted on), without voting power.
fn bad_governance(by: &Wallet) -> Vec<(&'static str, Any, &'static str, u32, &'static str)> {
    let authority = module_address("gov").to_string();
    let good = || submit(by, "A proposal", vec![any(&set_epoch_length(&authority, 50))], DEPOSIT);
    let plain = || submit(by, "A proposal", Vec::new(), DEPOSIT);
    let with = |change: &dyn Fn(&mut gov::MsgSubmitProposal)| {
        let mut message = good();
        change(&mut message);
        any(&message)
    };
    let holding = |message: Any| with(&|m| m.messages = vec![message.clone()]);
    let deposit = |amount: Vec<(u128, &str)>| {
        let amount = amount.into_iter().map(|(amount, denom)| coin(amount, denom).into()).collect();
        any(&gov::MsgDeposit { proposal_id: 1, depositor: by.id.to_string(), amount })
    };
    let parts = |weights: &[(i32, &str)]| {
        let part = |(option, weight): &(i32, &str)| gov::WeightedVoteOption {
            option: *option,
            weight: (*weight).into(),
        };
        let options = weights.iter().map(part).collect();
        let voter = by.id.to_string();
        any(&gov::MsgVoteWeighted { proposal_id: 2, voter, options, metadata: String::new() })
    };
    let unknown = Any { type_url: "/holdfast.unknown.v1.MsgNothing".into(), value: vec![10, 1, 65] };
    let (from_address, to_address) = (by.id.clone(), address(2));
    let own = cosmrs::bank::MsgSend { from_address, to_address, amount: vec![coin(1, DENOM)] };
    let own = own.to_any().expect("cosmrs packs it");
    // The deposits of others are the gov account's to hold, not to spend.
    let spend = cosmrs::bank::MsgSend {
        from_address: module_address("gov"),
        to_address: by.id.clone(),
        amount: vec![coin(1, DENOM)],
    };
    let spend = spend.to_any().expect("cosmrs packs it");
    let inner = |messages| {
        let proposer = authority.clone();
        any(&gov::MsgSubmitProposal { messages, proposer, initial_deposit: Vec::new(), ..plain() })
    };
    let nested = inner(vec![inner(vec![inner(vec![own.clone()])])]);
    let yes = gov::VoteOption::Yes;
    vec![
        ("a vote on nothing", any(&vote(by, 77, yes)), "gov", 2, "77"),
        ("a vote before voting", any(&vote(by, 1, yes)), "gov", 3, "collects deposits"),
        ("a vote without power", any(&vote(by, 2, yes)), "gov", 26, "no voting power"),
        ("no option", any(&vote(by, 2, gov::VoteOption::Unspecified)), "gov", 7, "option"),
        ("nine tenths of a vote", parts(&[(1, "0.5"), (3, "0.4")]), "gov", 7, "add up to 1"),
        ("an option twice", parts(&[(1, "0.5"), (1, "0.5")]), "gov", 7, "twice"),
        ("no title", with(&|m| m.title.clear()), "gov", 5, "title"),
        ("no summary", with(&|m| m.summary.clear()), "gov", 5, "summary"),
        ("a long summary", with(&|m| m.summary = "s".repeat(10_201)), "gov", 22, "10200"),
        ("long metadata", with(&|m| m.metadata = "m".repeat(256)), "gov", 15, "255"),
        ("nothing to decide", any(&plain()), "gov", 11, "metadata"),
        ("an unknown message", holding(unknown), "gov", 10, "messages[0]"),
        ("a bad parameter", holding(any(&set_epoch_length(&authority, 0))), "gov", 12, "epoch_length"),
        (
            "an upgrade to cancel that is not planned",
            holding(any(&MsgCancelUpgrade { authority: authority.clone() })),
            "gov",
            12,
            "no upgrade is planned",
        ),
        ("deposits spent", holding(spend), "gov", 12, "deposits"),
        ("a message of somebody else", holding(own), "gov", 13, "only signer"),
        ("proposals three deep", holding(nested), "gov", 24, "deep"),
        (
            "33 messages",
            with(&|m| m.messages = vec![any(&set_epoch_length(&authority, 50)); 33]),
            "gov",
            25,
            "33 messages, at most 32",
        ),
        (
            "a first deposit below its share",
            with(&|m| m.initial_deposit = vec![coin(DEPOSIT / 2 - 1, DENOM).into()]),
            "gov",
            16,
            "needed: 5000000uhold",
        ),
        ("a small deposit", deposit(vec![(99_999, DENOM)]), "gov", 16, "100000uhold"),
        ("a deposit in another coin", deposit(vec![(1_000_000, "uatom")]), "gov", 23, "uatom"),
        ("coins out of order", deposit(vec![(200_000, DENOM), (1, "uatom")]), "sdk", 10, "amount"),
        ("no coins", deposit(Vec::new()), "sdk", 10, "amount"),
    ]
}

/// New parameters of x/epochs; an epoch of no blocks cannot be.
fn set_epoch_length(authority: &str, epoch_length: i64) -> epochs::MsgUpdateParams {
    epochs::MsgUpdateParams {
        authority: authority.into(),
        params: Some(epochs::Params { epoch_length, poc_length: 0 }),
        update_mask: Some(FieldMask { paths: vec!["epoch_length".into()] }),
    }
}

#[test]
fn governance_refuses_with_codes_of_its_own_and_keeps_its_deposits() {
    let chain = Chain::with_executors("gov-codes-1", &[1, 9], &[(9, 100)]);
    chain.vote_within(600, 1);
    chain.edit_genesis(|genesis| {
        genesis["app_state"]["gov"]["params"]["min_initial_deposit_ratio"] = "0.5".into();
    });
    // Slower than an expedited vote, so that its end falls into the block after its beginning.
    let node = chain.start("2");
    block_on(async {
        let client = Client::connect(&node.addr).await;
        let mut wallet = Wallet::open(&client, chain.id, 1).await;
        let mut voter = Wallet::open(&client, chain.id, 9).await;
        let authority = module_address("gov").to_string();
        let message = || vec![any(&set_epoch_length(&authority, 50))];
        let half = submit(&wallet, "One", message(), DEPOSIT / 2);
        let whole = submit(&wallet, "Two", message(), DEPOSIT);
        for response in send_all(&mut wallet, [any(&half), any(&whole)]).await {
            assert_eq!((response.code, response.raw_log.as_str()), (0, ""));
        }
        let cases = bad_governance(&wallet);
        let messages: Vec<Any> = cases.iter().map(|case| case.1.clone()).collect();
        let results = send_all(&mut wallet, messages).await;
        for ((what, _, codespace, code, text), result) in cases.iter().zip(&results) {
            let log = &result.raw_log;
            assert_eq!((result.codespace.as_str(), result.code), (*codespace, *code), "{what}: {log}");
            assert!(log.contains(text), "{what}: {text:?} is not in: {log}");
        }
        let said = |result: &TxResponse| (result.codespace.clone(), result.code);
        let foreign = gov::MsgCancelProposal { proposal_id: 1, proposer: voter.id.to_string() };
        assert_eq!(said(&voter.send(any(&foreign)).await), ("gov".to_owned(), 18));

        // An expedited proposal, with its only vote in the same block.
        let hurry =
            gov::MsgSubmitProposal { expedited: true, ..submit(&wallet, "Three", message(), EXPEDITED) };
        let (yes, no) = (gov::VoteOption::Yes, gov::VoteOption::No);
        let draft = Draft { gas: 2_000_000, ..wallet.draft(vec![any(&hurry)]) };
        assert_eq!(client.broadcast(draft.sign(&wallet.key)).await.code, 0);
        wallet.account.sequence += 1;
        // Who pays less for a unit of gas comes later in the block.
        let draft = Draft { gas: 4_000_000, ..voter.draft(vec![any(&vote(&voter, 3, yes))]) };
        let voted = voter.send_draft(&draft).await;
        assert_eq!((voted.code, voted.raw_log.as_str()), (0, ""));
        let late = voter.send(any(&vote(&voter, 3, no))).await;
        assert_eq!(late.height, voted.height + 1);
        assert_eq!(said(&late), ("gov".to_owned(), 20), "{}", late.raw_log);
        assert_eq!(client.decided(3).await.status(), gov::ProposalStatus::Passed);
        let proposer = wallet.id.to_string();
        let cancel = gov::MsgCancelProposal { proposal_id: 3, proposer: proposer.clone() };
        let amount = vec![coin(EXPEDITED, DENOM).into()];
        let deposit = gov::MsgDeposit { proposal_id: 3, depositor: proposer, amount };
        let results = send_all(&mut wallet, [any(&cancel), any(&deposit)]).await;
        assert_eq!(results.iter().map(|r| r.code).collect::<Vec<_>>(), [21, 3], "{results:?}");

        // There are the two proposals and the one that passed, and the deposits of the two.
        let all = client.gov().proposals(gov::QueryProposalsRequest::default()).await.expect("an answer");
        let ids: Vec<u64> = all.into_inner().proposals.iter().map(|proposal| proposal.id).collect();
        assert_eq!(ids, [1, 2, 3]);
        assert_eq!(client.balance(&module_address("gov")).await, DEPOSIT / 2 + DEPOSIT);
        let fees = u128::from(wallet.account.sequence) * FEE;
        assert_eq!(wallet.balance().await, FUNDS - fees - DEPOSIT / 2 - DEPOSIT);
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}
