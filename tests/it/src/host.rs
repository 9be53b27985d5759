//! An executor as a process: it serves what the chain gave it, and the chain hears of each inference once.

use std::time::Duration;

use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::inference::v1::InferenceStatus;
use holdfast_runner::FailureKind;
use holdfast_runner::backends::reference::oracle::Oracle;
use holdfast_runner::backends::reference::{DEFAULT_SEED, decode, encode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::chain::{Chain, FUNDS, MODELS, Node, address};
use crate::client::{Client, Wallet, any, block_on};
use crate::process::{Running, SHORT, command, run, until};

const REQUESTER: u8 = 1;
const EXECUTOR: u8 = 9;
const PROMPT: &str = "The chain pays for what was";
/// Fee of a report.
const FEE: u128 = 700;

/// What the model says, by the model without KV.
fn expected(count: usize) -> String {
    decode(&Oracle::new(DEFAULT_SEED).generate(&encode(PROMPT), count))
}

fn body(max_tokens: u32) -> String {
    json!({ "prompt": PROMPT, "max_tokens": max_tokens }).to_string()
}

/// A chain with one executor, and the keys of both sides in its keyring.
fn chain(id: &'static str) -> Chain {
    let chain = Chain::with_executors(id, &[REQUESTER, EXECUTOR], &[(EXECUTOR, 100)]);
    // Machines that run tests are slow.
    chain.edit_genesis(|genesis| {
        genesis["app_state"]["inference"]["params"]["validation"]["expiration_blocks"] = "900".into();
    });
    let keyring = chain.path().join("keyring-test");
    std::fs::create_dir_all(&keyring).expect("writable");
    for (name, number) in [("requester", REQUESTER), ("executor", EXECUTOR)] {
        let file = json!({
            "name": name,
            "type": "local",
            "address": hex::encode(address(number).to_bytes()),
            "secret_key": hex::encode([number; 32]),
        });
        std::fs::write(keyring.join(format!("{name}.json")), file.to_string()).expect("writable");
    }
    chain
}

/// A process that says where it listens in its first line, as JSON.
struct Listening {
    running: Running,
    first: Value,
}

impl Listening {
    #[track_caller]
    fn start(args: &[&str]) -> Self {
        let mut running = Running::start(&mut command(&[args, &["--output", "json"]].concat()));
        let first = until(SHORT, "the process listens", || {
            let out = running.out();
            assert!(running.runs(), "{args:?} ended: {}", running.err());
            let line = out.split_once('\n')?.0.to_owned();
            Some(serde_json::from_str(&line).expect("JSON"))
        });
        Self { running, first }
    }

    fn addr(&self) -> &str {
        self.first["address"].as_str().expect("an address")
    }
}

struct Rig<'a> {
    chain: &'a Chain,
    node: &'a Node,
    client: Client,
    requester: Wallet,
}

impl<'a> Rig<'a> {
    async fn new(chain: &'a Chain, node: &'a Node) -> Self {
        let client = Client::connect(&node.addr).await;
        let requester = Wallet::open(&client, chain.id, REQUESTER).await;
        Self { chain, node, client, requester }
    }

    fn host(&self, more: &[&str]) -> Listening {
        let (home, fees) = (self.chain.home(), format!("{FEE}uhold"));
        let args = ["host", "--home", &home, "--from", "executor", "--grpc-addr", &self.node.addr];
        let args = [&args[..], &["--listen", "127.0.0.1:0", "--fees", &fees], more].concat();
        Listening::start(&args)
    }

    async fn start(&mut self, id: &str, body: &str, max_tokens: u64) {
        let start = inference::MsgStartInference {
            signer: self.requester.id.to_string(),
            requested_by: self.requester.id.to_string(),
            inference_id: id.into(),
            model: MODELS[0].into(),
            assigned_to: address(EXECUTOR).to_string(),
            prompt_hash: Sha256::digest(body).to_vec(),
            prompt_tokens: encode(PROMPT).len() as u64,
            max_tokens,
        };
        let sent = self.requester.send(any(&start)).await;
        assert_eq!(sent.code, 0, "{}", sent.raw_log);
    }

    fn infer(&self, host: &Listening, id: &str, body: &str, more: &[&str]) -> Running {
        let home = self.chain.home();
        let args = ["infer", "--home", &home, "--from", "requester", "--host", host.addr()];
        Running::start(&mut command(&[&args[..], &["--inference-id", id, "--body", body], more].concat()))
    }

    async fn inference(&self, id: &str) -> inference::Inference {
        let request = inference::QueryInferenceRequest { inference_id: id.into() };
        let path = "/holdfast.inference.v1.Query/Inference";
        let answer: inference::QueryInferenceResponse =
            self.client.call(path, &request).await.expect("the chain knows it");
        answer.inference.expect("an inference")
    }

    /// The inference once it is over.
    async fn ended(&self, id: &str) -> inference::Inference {
        for _ in 0..3_000 {
            let inference = self.inference(id).await;
            if inference.status() != InferenceStatus::Started {
                return inference;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{id} is not over");
    }

    /// Transactions of the executor so far: reports are its only ones.
    async fn reports(&self) -> u64 {
        self.client.account(&address(EXECUTOR)).await.map_or(0, |account| account.sequence)
    }
}

#[test]
fn an_executor_serves_a_started_inference_over_worker_processes_and_is_paid_by_its_counts() {
    let chain = chain("host-1");
    let node = chain.start("0.2");
    block_on(async {
        let mut rig = Rig::new(&chain, &node).await;
        let host = rig.host(&["--workers", "2"]);
        assert_eq!(host.first["executor"], address(EXECUTOR).to_string());
        assert_eq!(host.first["workers"].as_array().map(Vec::len), Some(2));

        rig.start("job-1", &body(12), 90).await;
        let answer = rig.infer(&host, "job-1", &body(12), &["--output", "json"]).wait(SHORT).json();
        assert_eq!(answer["text"], expected(12));
        let count = |name: &str| answer[name].as_u64().expect("a count");
        let prompt = encode(PROMPT).len() as u64;
        assert_eq!((count("prompt_tokens"), count("completion_tokens")), (prompt, 12));
        assert_eq!(answer["finish_reason"], "length");

        let ended = rig.ended("job-1").await;
        assert_eq!(ended.status(), InferenceStatus::Finished);
        assert_eq!(ended.executed_by, address(EXECUTOR).to_string());
        assert_eq!((ended.reported_prompt_tokens, ended.completion_tokens), (prompt, 12));
        assert_eq!(ended.response_hash, Sha256::digest(expected(12)).to_vec());
        let price: u128 = ended.token_price.expect("a price").amount.parse().expect("a number");
        let balance = rig.client.balance(&address(EXECUTOR)).await;
        assert_eq!(balance, FUNDS - FEE + u128::from(prompt + 12) * price);

        // The same again for the same requester; nothing for another body, and nothing more for the chain.
        assert!(rig.infer(&host, "job-1", &body(12), &[]).wait(SHORT).ok().contains(&expected(12)));
        let other = rig.infer(&host, "job-1", &body(13), &[]).wait(SHORT);
        other.refused(1, &["PermissionDenied", "(cli error 42)"]);
        let never = rig.infer(&host, "job-2", &body(12), &[]).wait(SHORT);
        never.refused(1, &["job-2", "NotFound", "(cli error 42)"]);
        assert_eq!(rig.reports().await, 1);

        // One host has the ledger.
        let home = chain.home();
        let second = ["host", "--home", &home, "--from", "executor", "--grpc-addr", &node.addr];
        run(&mut command(&second), SHORT).refused(1, &["--ledger", "in use", "(cli error 95)"]);

        host.running.signal("TERM");
        let stopped = host.running.wait(SHORT);
        assert_eq!(stopped.status.code(), Some(0), "{}", stopped.err);
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}

#[test]
fn a_killed_host_reports_the_failure_once_and_a_withdrawn_inference_is_not_reported() {
    let chain = chain("host-2");
    let node = chain.start("0.2");
    block_on(async {
        let mut rig = Rig::new(&chain, &node).await;
        // Two sessions come to a stop at their fourth step.
        let worker = Listening::start(&[
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--fault",
            "stall@3",
            "--fault",
            "stall@3",
        ]);
        let url = format!("http://{}", worker.addr());
        let host = rig.host(&["--worker-url", &url]);
        let three = expected(3);

        rig.start("job-1", &body(12), 90).await;
        let infer = rig.infer(&host, "job-1", &body(12), &[]);
        until(SHORT, "three tokens", || (infer.out() == three).then_some(()));
        host.running.signal("KILL");
        let broken = infer.wait(SHORT);
        assert_eq!((broken.status.code(), broken.out.trim_end()), (Some(1), three.trim_end()));
        host.running.wait(SHORT);
        assert_eq!(rig.reports().await, 0);

        let host = rig.host(&["--worker-url", &url]);
        assert_eq!(host.first["generation"], 2);
        let ended = rig.ended("job-1").await;
        assert_eq!(ended.status(), InferenceStatus::Failed);
        assert_eq!(ended.failure_kind, FailureKind::WorkerDeath.number());
        rig.infer(&host, "job-1", &body(12), &[]).wait(SHORT).refused(1, &["worker-death", "(cli error 94)"]);

        rig.start("job-2", &body(12), 90).await;
        let infer = rig.infer(&host, "job-2", &body(12), &[]);
        until(SHORT, "three tokens", || (infer.out() == three).then_some(()));
        let requested_by = rig.requester.id.to_string();
        let cancel = inference::MsgCancelInference { requested_by, inference_id: "job-2".into() };
        assert_eq!(rig.requester.send(any(&cancel)).await.code, 0);
        let cancelled = infer.wait(SHORT);
        assert_eq!(cancelled.status.code(), Some(1), "{}", cancelled.out);
        assert!(cancelled.err.contains("cancelled"), "{}", cancelled.err);
        assert_eq!(rig.inference("job-2").await.status(), InferenceStatus::Cancelled);

        // The worker has let go of both, and the third one completes.
        rig.start("job-3", &body(12), 90).await;
        assert!(rig.infer(&host, "job-3", &body(12), &[]).wait(SHORT).ok().contains(&expected(12)));
        assert_eq!(rig.ended("job-3").await.status(), InferenceStatus::Finished);
        let height = node.height();
        node.reach(height + 3);
        assert_eq!(rig.reports().await, 2, "a failure and a finish");
        host.running.signal("TERM");
        assert_eq!(host.running.wait(SHORT).status.code(), Some(0));
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));
}
