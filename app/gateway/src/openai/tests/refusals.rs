//! The table of errors: escrow-details 9.

use super::*;

#[tokio::test]
async fn each_failure_of_the_sessions_has_its_row() {
    let retry_after_ms = 2500;
    let cases = [
        (Failure::ContextLengthExceeded, 400, "context_length_exceeded", Some("messages"), None),
        (Failure::BodyRefused, 400, "invalid_request_error", Some("messages"), None),
        (Failure::InsufficientBalance { asked: 1162, left: 90 }, 402, "insufficient_quota", None, None),
        (Failure::QueueFull { retry_after_ms }, 429, "rate_limit_exceeded", None, Some("3")),
        (Failure::NoAvailableHost { retry_after_ms }, 503, "no_available_host", None, Some("3")),
        (Failure::EscrowExhausted { retry_after_ms: 0 }, 503, "escrow_exhausted", None, Some("1")),
        (Failure::EscrowEnding { retry_after_ms }, 503, "escrow_exhausted", None, Some("3")),
        (Failure::SelfSuspect { retry_after_ms: u64::MAX }, 503, "gateway_self_suspect", None, Some("3600")),
        (Failure::DeadlineExceeded, 504, "deadline_exceeded", None, None),
        (Failure::Storage { retry_after_ms }, 503, "storage_unavailable", None, Some("3")),
        (Failure::Internal, 500, "internal_error", None, None),
    ];
    let server = Server::start(Vec::new()).await;
    for (failure, status, code, param, retry) in cases {
        server.script(vec![dispatched(), failed(failure)]);
        for body in [HI, HI_STREAM] {
            let got = server.chat(body).await;
            assert_eq!(got.error(), (status, code.into(), param.map(str::to_owned)), "{failure:?}");
            assert_eq!(got.header("retry-after"), retry, "{failure:?}");
            assert_eq!(got.header("content-type"), Some("application/json"));
        }
    }
}

#[tokio::test]
async fn each_kind_of_a_hosts_failure_is_a_502_with_its_name() {
    let server = Server::start(Vec::new()).await;
    // By number, as the runner lists them.
    let names = [
        "worker-death",
        "stream-reset",
        "malformed-bundle",
        "stale-epoch",
        "cache-miss",
        "deadline-exceeded",
        "heartbeat-lost",
        "cancelled",
        "prefix-mismatch",
        "internal",
    ];
    for (number, name) in (1..).zip(names) {
        let kind = FailureKind::try_from(number).unwrap();
        server.script(vec![dispatched(), failed(Failure::Host(kind))]);
        assert_eq!(server.chat(HI).await.error(), (502, name.into(), None));
    }
}

#[tokio::test]
async fn what_is_no_request_is_refused_by_field() {
    let server = Server::start(hello()).await;
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let chat = |fields: &str| {
        format!(r#"{{"model":"ref-llama","messages":[{{"role":"user","content":"Hi"}}],{fields}}}"#)
    };
    let message = |fields: &str| format!(r#"{{"model":"ref-llama","messages":[{fields}]}}"#);
    let bad = "invalid_request_error";
    let not = "unsupported_parameter";
    let cases: Vec<(String, &str, Option<&str>)> = vec![
        (" ".into(), bad, None),
        ("{".into(), bad, None),
        ("[]".into(), bad, None),
        ("\"x\"".into(), bad, None),
        (HI.to_owned() + "x", bad, None),
        (HI.replace("Hi", r"\ud800"), bad, None),
        (HI.replace("Hi", "\u{1}"), bad, None),
        (deep, bad, None),
        ("{}".into(), bad, Some("model")),
        (r#"{"model":7}"#.into(), bad, Some("model")),
        (r#"{"model":""}"#.into(), bad, Some("model")),
        (r#"{"model":"ref-llama"}"#.into(), bad, Some("messages")),
        (r#"{"model":"ref-llama","messages":[]}"#.into(), bad, Some("messages")),
        (r#"{"model":"ref-llama","messages":"Hi"}"#.into(), bad, Some("messages")),
        (message("7"), bad, Some("messages[0]")),
        (message(r#"{"content":"Hi"}"#), bad, Some("messages[0].role")),
        (message(r#"{"role":"robot","content":"Hi"}"#), bad, Some("messages[0].role")),
        (message(r#"{"role":"tool","content":"Hi"}"#), not, Some("messages[0].role")),
        (message(r#"{"role":"user"}"#), bad, Some("messages[0].content")),
        (message(r#"{"role":"user","content":null}"#), bad, Some("messages[0].content")),
        (message(r#"{"role":"user","content":"Hi","bogus":1}"#), not, Some("messages[0].bogus")),
        (
            message(r#"{"role":"user","content":[{"type":"text","text":"a","x":1}]}"#),
            not,
            Some("messages[0].content[0].x"),
        ),
        (message(r#"{"role":"user","content":[]}"#), bad, Some("messages[0].content")),
        (message(r#"{"role":"user","content":[{"type":"text"}]}"#), bad, Some("messages[0].content[0]")),
        (
            message(r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}"#),
            not,
            Some("messages[0].content[1]"),
        ),
        (
            message(r#"{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]}"#),
            not,
            Some("messages[0].tool_calls"),
        ),
        (chat(r#""max_tokens":0"#), bad, Some("max_tokens")),
        (chat(r#""max_tokens":-1"#), bad, Some("max_tokens")),
        (chat(r#""max_tokens":1.5"#), bad, Some("max_tokens")),
        (chat(r#""max_tokens":4294967296"#), bad, Some("max_tokens")),
        (chat(r#""max_completion_tokens":"7""#), bad, Some("max_completion_tokens")),
        (chat(r#""temperature":2.1"#), bad, Some("temperature")),
        (chat(r#""temperature":"hot""#), bad, Some("temperature")),
        (chat(r#""top_p":1.1"#), bad, Some("top_p")),
        (chat(r#""temperature":1,"top_p":0.9"#), not, Some("top_p")),
        (chat(r#""seed":1.5"#), bad, Some("seed")),
        (chat(r#""seed":18446744073709551616"#), bad, Some("seed")),
        (chat(r#""stream":"yes""#), bad, Some("stream")),
        (chat(r#""stream_options":{"include_usage":true}"#), bad, Some("stream_options")),
        (chat(r#""stream":true,"stream_options":7"#), bad, Some("stream_options")),
        (
            chat(r#""stream":true,"stream_options":{"include_usage":1}"#),
            bad,
            Some("stream_options.include_usage"),
        ),
        (chat(r#""stream":true,"stream_options":{"x":1}"#), not, Some("stream_options.x")),
        (chat(r#""stop":7"#), bad, Some("stop")),
        (chat(r#""stop":"""#), bad, Some("stop")),
        (chat(r#""stop":["a",7]"#), bad, Some("stop")),
        (chat(r#""stop":["a","b","c","d","e"]"#), bad, Some("stop")),
        (chat(&format!(r#""stop":"{}""#, "a".repeat(257))), bad, Some("stop")),
        (chat(r#""n":2"#), not, Some("n")),
        (chat(r#""tools":[]"#), not, Some("tools")),
        (chat(r#""tools":[{"type":"function"}]"#), not, Some("tools")),
        (chat(r#""tool_choice":"auto""#), not, Some("tool_choice")),
        (chat(r#""functions":[]"#), not, Some("functions")),
        (chat(r#""response_format":{"type":"json_object"}"#), not, Some("response_format")),
        (chat(r#""response_format":7"#), not, Some("response_format")),
        (chat(r#""logit_bias":{"1":2}"#), not, Some("logit_bias")),
        (chat(r#""logprobs":true"#), not, Some("logprobs")),
        (chat(r#""presence_penalty":0.5"#), not, Some("presence_penalty")),
        (chat(r#""guided_json":{}"#), not, Some("guided_json")),
        (chat(r#""guided_regex":"a""#), not, Some("guided_regex")),
        (chat(r#""top_k":5"#), not, Some("top_k")),
        (chat(r#""modalities":["audio"]"#), not, Some("modalities")),
        (chat(r#""prompt":"Hi""#), not, Some("prompt")),
    ];
    for (body, code, param) in cases {
        assert_eq!(server.chat(&body).await.error(), (400, code.into(), param.map(str::to_owned)), "{body}");
    }
    let text = |fields: &str| format!(r#"{{"model":"ref-llama",{fields}}}"#);
    for (body, code, param) in [
        (text(r#""prompt":"""#), bad, "prompt"),
        (text(r#""prompt":7"#), bad, "prompt"),
        (text(r#""prompt":[1,2]"#), not, "prompt"),
        (text(r#""prompt":["a","b"]"#), not, "prompt"),
        (text(r#""prompt":"a","best_of":2"#), not, "best_of"),
        (text(r#""prompt":"a","echo":true"#), not, "echo"),
        (text(r#""prompt":"a","suffix":"b""#), not, "suffix"),
        (text(r#""prompt":"a","messages":[]"#), not, "messages"),
    ] {
        let got = server.send("POST", TEXT, &[], &body).await;
        assert_eq!(got.error(), (400, code.into(), Some(param.into())), "{body}");
    }
    assert_eq!(server.submissions(), [], "nothing was spent");
}

#[tokio::test]
async fn bytes_that_are_no_utf_8_are_refused() {
    let server = Server::start(hello()).await;
    let mut bytes = request("POST", CHAT, &[], HI);
    let at = bytes.len() - 6;
    bytes[at] = 0xff;
    assert_eq!(Got::read(&server.raw(&bytes).await).error(), (400, "invalid_request_error".into(), None));
}

#[tokio::test]
async fn a_value_that_changes_nothing_is_no_reason_to_refuse() {
    let server = Server::start(hello()).await;
    for fields in [
        r#""n":1,"top_p":1,"temperature":1,"seed":3"#,
        r#""top_p":0.5,"temperature":0"#,
        r#""presence_penalty":0,"frequency_penalty":0.0,"logit_bias":{},"logprobs":false"#,
        r#""tools":null,"tool_choice":null,"response_format":{"type":"text"},"modalities":["text"]"#,
        r#""user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","stop":[]"#,
        r#""stop":null"#,
        r#""stream":true,"stream_options":{"include_usage":false,"include_obfuscation":false}"#,
    ] {
        let body = HI.replace(r#""messages""#, &format!(r#"{fields},"messages""#));
        let got = server.chat(&body).await;
        assert_eq!(got.status, 200, "{fields}: {}", got.text());
    }
}

#[tokio::test]
async fn what_cannot_fit_the_context_is_refused_before_anything_is_spent() {
    let server = Server::start(hello()).await;
    let long = |bytes: usize, fields: &str| {
        HI.replace("Hi", &"a".repeat(bytes)).replace(r#""messages""#, &format!(r#"{fields}"messages""#))
    };
    let exceeded = |param: &str| (400, "context_length_exceeded".to_owned(), Some(param.to_owned()));
    // A token of ref-llama stands for one byte, and the context is 512.
    assert_eq!(server.chat(&long(512, "")).await.error(), exceeded("messages"));
    assert_eq!(server.chat(&long(500, r#""max_tokens":13,"#)).await.error(), exceeded("max_tokens"));
    assert_eq!(
        server.chat(&long(500, r#""max_completion_tokens":13,"#)).await.error(),
        exceeded("max_completion_tokens")
    );
    assert_eq!(server.submissions(), []);
    assert_eq!(server.chat(&long(500, r#""max_tokens":12,"#)).await.status, 200);
    // Nobody knows how many bytes a token of the other has: only its host can tell.
    let other = long(100_000, "").replace("ref-llama", "org/other");
    assert_eq!(server.chat(&other).await.status, 200);
    let submissions = server.submissions();
    assert_eq!((submissions[0].input_limit, submissions[0].output_limit), (512, 12));
    assert_eq!((submissions[1].input_limit, submissions[1].output_limit), (2048, 1024));
}

fn keyed() -> ApiConfig {
    let only_other = Some(["org/other".to_owned()].into());
    let keys = vec![
        KeyConfig::new("free", "sk-free"),
        KeyConfig { models: only_other, ..KeyConfig::new("narrow", "sk-narrow") },
        KeyConfig { token_budget: Some(1000), ..KeyConfig::new("poor", "sk-poor") },
        KeyConfig { requests_per_minute: Some(1), ..KeyConfig::new("slow", "sk-slow") },
    ];
    ApiConfig { keys, ..ApiConfig::default() }
}

async fn chat_as(server: &Server, key: &str, body: &str) -> Got {
    server.send("POST", CHAT, &[("Authorization", &format!("Bearer {key}"))], body).await
}

#[tokio::test]
async fn keys_are_asked_for_once_there_are_any() {
    let server = Server::with(hello(), keyed()).await;
    for got in [server.chat(HI).await, server.get("/v1/models").await, server.get("/v1/models/x").await] {
        assert_eq!(got.error(), (401, "authentication_error".into(), None));
        assert_eq!(got.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(chat_as(&server, "sk-wrong", HI).await.error().0, 401);
    assert_eq!(chat_as(&server, "sk-free", HI).await.status, 200);
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.get(open).await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn a_key_reaches_its_own_models_only() {
    let server = Server::with(hello(), keyed()).await;
    let forbidden = (403, "permission_error".to_owned(), Some("model".to_owned()));
    assert_eq!(chat_as(&server, "sk-narrow", HI).await.error(), forbidden);
    let other = HI.replace("ref-llama", "org/other");
    assert_eq!(chat_as(&server, "sk-narrow", &other).await.status, 200);
    let as_narrow = [("authorization", "Bearer sk-narrow")];
    let list = server.send("GET", "/v1/models", &as_narrow, "").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    assert_eq!(server.send("GET", "/v1/models/ref-llama", &as_narrow, "").await.error(), forbidden);
    let unknown = (404, "model_not_found".to_owned(), Some("model".to_owned()));
    assert_eq!(chat_as(&server, "sk-free", &HI.replace("ref-llama", "gpt-9")).await.error(), unknown);
}

#[tokio::test]
async fn a_key_spends_its_budget_by_what_its_requests_take() {
    // "Hi" is 2 tokens of a byte vocabulary; of the answer at most 512 − 2 fit.
    let server = Server::with(hello(), keyed()).await;
    let quota = (402, "insufficient_quota".to_owned(), None);
    assert_eq!(chat_as(&server, "sk-poor", HI).await.status, 200);
    assert_eq!(server.budgets.spent("poor"), Ok(7));
    server.script(vec![dispatched(), failed(Failure::DeadlineExceeded)]);
    assert_eq!(chat_as(&server, "sk-poor", HI).await.status, 504);
    assert_eq!(server.budgets.spent("poor"), Ok(7), "a failure costs nothing");

    server.script(vec![dispatched(), delta("a"), Act::Hang]);
    let mut socket = server.connect().await;
    let request = request("POST", CHAT, &[("authorization", "Bearer sk-poor")], HI_STREAM);
    socket.write_all(&request).await.unwrap();
    socket.read_exact(&mut [0; 64]).await.unwrap();
    assert_eq!(server.budgets.spent("poor"), Ok(7), "held in memory, 2 + 510 of 1,000");
    assert_eq!(chat_as(&server, "sk-poor", HI).await.error(), quota);
    drop(socket);
    server.left(1).await;
    assert_eq!(server.budgets.spent("poor"), Ok(7 + 3), "a client that leaves pays for what was made");
    server.budgets.set_spent("poor", 1000 - 11).unwrap();
    let short = HI.replace(r#""messages""#, r#""max_tokens":9,"messages""#);
    server.script(hello());
    assert_eq!(chat_as(&server, "sk-poor", &short).await.status, 200);
    server.budgets.set_spent("poor", 1000 - 10).unwrap();
    assert_eq!(chat_as(&server, "sk-poor", &short).await.error(), quota);
}

#[tokio::test]
async fn a_key_that_asks_too_often_is_told_when_to_come_back() {
    let server = Server::with(hello(), keyed()).await;
    assert_eq!(chat_as(&server, "sk-slow", HI).await.status, 200);
    let got = chat_as(&server, "sk-slow", HI).await;
    assert_eq!(got.error(), (429, "rate_limit_exceeded".into(), None));
    let seconds: u64 = got.header("retry-after").unwrap().parse().unwrap();
    assert!((55..=61).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn paths_and_methods_that_are_none_are_said_to_be() {
    let server = Server::start(hello()).await;
    assert_eq!(server.get("/v1/embeddings").await.error(), (404, "not_found".into(), None));
    assert_eq!(server.get("/").await.error().0, 404);
    let got = server.get(CHAT).await;
    assert_eq!((got.error().0, got.header("allow")), (405, Some("POST")));
    let got = server.send("DELETE", "/v1/models/ref-llama", &[], "").await;
    assert_eq!((got.error().0, got.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(server.send("POST", "/healthz", &[], "{}").await.error().1, "method_not_allowed");
}

#[tokio::test]
async fn an_error_says_no_more_of_the_request_than_is_needed_to_know_it() {
    let server = Server::start(hello()).await;
    let long = "x".repeat(1 << 20);
    let field = server.chat(&HI.replace(r#""messages""#, &format!(r#""{long}":1,"messages""#))).await;
    let model = server.chat(&HI.replace("ref-llama", &long[..256])).await;
    let path = server.get(&format!("/{}", &long[..9000])).await;
    for (got, status) in [(field, 400), (model, 404), (path, 404)] {
        assert!(got.status == status && got.body.len() < 600, "{}", got.text());
    }
}

#[tokio::test]
async fn a_body_that_no_longer_fits_the_host_is_refused_here() {
    let server = Server::start(hello()).await;
    let fields = r#""messages":[{"role":"user","content":""}]"#;
    let room = (3 << 20) - r#"{"model":"org/other",}"#.len() - fields.len();
    let body = format!(
        r#"{{"model":"org/other",{}}}"#,
        fields.replace(r#""""#, &format!("\"{}\"", "a".repeat(room)))
    );
    assert_eq!(body.len(), 3 << 20);
    // The name of the model goes and its 20 bytes with it; the limit of tokens comes and takes 18.
    assert_eq!(server.chat(&body).await.status, 200);
    let sampled = body.replace(&"a".repeat(40), "").replacen("\"messages", "\"temperature\":1,\"messages", 1);
    let sampled = sampled.replacen(
        "\"content\":\"",
        &format!("\"content\":\"{}", "a".repeat(body.len() - sampled.len())),
        1,
    );
    assert_eq!(server.chat(&sampled).await.error(), (413, "request_too_large".into(), None));
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_sends_much() {
    let server = Server::with(hello(), keyed()).await;
    let much = HI.replace("Hi", &"a".repeat(12 << 20));
    for (path, status) in [(CHAT, 401), ("/v1/embeddings", 404)] {
        let mut socket = server.connect().await;
        // Neither writing nor reading fails: the connection is not reset while the client still sends.
        socket.write_all(&request("POST", path, &[], &much)).await.unwrap();
        let mut out = Vec::new();
        timeout(LONG, socket.read_to_end(&mut out)).await.unwrap().unwrap();
        assert_eq!(Got::read(&out).status, status);
    }
}

#[tokio::test]
async fn only_json_is_read() {
    let server = Server::start(hello()).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
        let got = server.send("POST", CHAT, &[("Content-Type", kind)], HI).await;
        assert_eq!(got.error(), (400, "invalid_request_error".into(), Some("Content-Type".into())));
    }
    let kind = [("Content-Type", "Application/JSON; charset=utf-8")];
    assert_eq!(server.send("POST", CHAT, &kind, HI).await.status, 200);
    let got = server.send("POST", CHAT, &[("Content-Encoding", "gzip")], HI).await;
    assert_eq!(got.error().2.as_deref(), Some("Content-Encoding"));
}

#[tokio::test]
async fn a_prompt_is_counted_as_its_host_counts_it_before_anything_is_spent() {
    let server = Server::start(vec![dispatched(), delta("a"), finished(FinishReason::Length, 511, 1)]).await;
    let many = |count: usize, content: &str| {
        let message = format!(r#"{{"role":"user","content":"{content}"}}"#);
        format!(r#"{{"model":"ref-llama","max_tokens":1,"messages":[{}]}}"#, vec![message; count].join(","))
    };
    // 256 bytes and 255 line ends leave one of 512 tokens; 257 messages are 513.
    assert_eq!(server.chat(&many(256, "x")).await.status, 200);
    for count in [257, 300] {
        let got = server.chat(&many(count, "x")).await;
        assert_eq!(got.error(), (400, "context_length_exceeded".into(), Some("messages".into())), "{count}");
    }
    for count in [1, 3] {
        let got = server.chat(&many(count, "")).await;
        assert_eq!(got.error(), (400, "invalid_request_error".into(), Some("messages".into())));
    }
    assert_eq!(server.submissions().len(), 1);
    assert_eq!(server.submissions()[0].input_limit, 512);
}

#[tokio::test]
async fn a_field_that_stands_twice_and_a_limit_that_does_not_count_are_looked_at_too() {
    let server = Server::start(hello()).await;
    let with = |fields: &str| HI.replace(r#""messages""#, &format!(r#"{fields},"messages""#));
    for (fields, param) in [
        (r#""seed":1,"seed":1"#, "seed"),
        (r#""model":"ref-llama""#, "model"),
        (r#""max_completion_tokens":5,"max_tokens":0"#, "max_tokens"),
        (r#""max_completion_tokens":5,"max_tokens":"many""#, "max_tokens"),
        (r#""max_completion_tokens":-1,"max_tokens":5"#, "max_completion_tokens"),
    ] {
        let got = server.chat(&with(fields)).await;
        assert_eq!(got.error(), (400, "invalid_request_error".into(), Some(param.into())), "{fields}");
    }
    assert_eq!(server.submissions(), []);
}

#[tokio::test]
async fn a_head_that_can_be_read_in_two_ways_is_not_answered() {
    let server = Server::start(hello()).await;
    let json = "content-type: application/json\r\nconnection: close\r\n";
    let length = format!("content-length: {}\r\n", HI.len());
    let chunks = format!("{:x}\r\n{HI}\r\n0\r\n\r\n", HI.len());
    let one = |lines: &str, body: &str| format!("POST {CHAT} HTTP/1.1\r\n{lines}{json}\r\n{body}");
    let cases = [
        (one(&length, HI), 400),
        (one(&format!("host: x\r\nhost: y\r\n{length}"), HI), 400),
        (one("host: x\r\ntransfer-encoding: gzip, chunked\r\n", &chunks), 501),
        (one("host: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", &chunks), 501),
        (one("host: x\r\ntransfer-encoding: Chunked\r\n", &chunks), 200),
        (one(&length, HI).replace("HTTP/1.1", "HTTP/1.0"), 200),
        (format!("GET /healthz HTTP/1.1\r\n{json}\r\n"), 400),
    ];
    for (bytes, status) in cases {
        assert_eq!(Got::read(&server.raw(bytes.as_bytes()).await).status, status, "{bytes}");
    }
    for (second, status) in [("k-2", 400), ("k-1", 200)] {
        let keys = [("idempotency-key", "k-1"), ("idempotency-key", second)];
        assert_eq!(server.send("POST", CHAT, &keys, HI).await.status, status, "{second}");
    }
}
