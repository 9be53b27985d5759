//! What reaches the sessions.

use holdfast_host::body::{Body, Prompt};

use proptest::prelude::*;

use super::parse::{Endpoint, parse};
use super::*;

/// Fields of a request, right and wrong ones.
fn fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let values = [
        ("temperature", &["0", "0.0", "2", "1e-400", "2.0000001", "null", "-0.0", "\"1\""][..]),
        ("top_p", &["1", "0", "0.5", "null", "2"]),
        ("seed", &["0", "-1", "18446744073709551615", "1.0", "null", "-9223372036854775808"]),
        ("max_tokens", &["1", "0", "300", "null", "4294967295", "1e2"]),
        ("max_completion_tokens", &["2", "null", "[]"]),
        ("stop", &["\"a\"", "[]", "[\"\"]", "[\"a\",\"\\u0000\"]", "null", "{}"]),
        ("n", &["1", "1.0", "2", "null"]),
        ("tools", &["null", "[]", "{}"]),
        ("response_format", &["null", r#"{"type":"text"}"#, r#"{"type":"json_object"}"#, "[]"]),
        ("stream", &["false", "null", "true"]),
        ("user", &["\"u\"", "7"]),
        ("logprobs", &["false", "true"]),
        ("guided_choice", &["null", "[\"a\"]"]),
    ];
    let one = prop::sample::select(values.to_vec())
        .prop_flat_map(|(name, values)| (Just(name), prop::sample::select(values.to_vec())));
    prop::collection::vec(one, 0..6)
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z \\n\\\\\"é\u{1F600}\u{0}]{0,40}".prop_map(|text| serde_json::json!(text).to_string()),
        "[a-z]{0,9}".prop_map(|text| serde_json::json!([{"type": "text", "text": text}]).to_string()),
        Just("null".to_owned()),
        Just("7".to_owned()),
    ]
}

proptest! {
    #[test]
    fn whatever_is_not_refused_here_is_read_by_the_host(fields in fields(), content in content(), chat: bool, seed: u64) {
        let (endpoint, prompt) = if chat {
            (Endpoint::Chat, format!(r#""messages":[{{"role":"user","content":{content}}}]"#))
        } else {
            (Endpoint::Text, format!(r#""prompt":{content}"#))
        };
        let fields: String = fields.iter().map(|(name, value)| format!(r#","{name}":{value}"#)).collect();
        let body = format!(r#"{{"model":"m",{prompt}{fields}}}"#);
        match parse(endpoint, body.as_bytes()) {
            Err(error) => prop_assert_eq!(error.status.as_u16(), 400),
            Ok(asked) => {
                let seed = asked.seed.or_else(|| asked.samples().then_some(seed));
                let sent = asked.host_body(7, seed);
                let read = Body::parse(&sent);
                prop_assert!(read.is_ok(), "{}: {:?}", String::from_utf8_lossy(&sent), read);
                let read = read.unwrap();
                prop_assert_eq!(read.max_tokens, Some(7));
                prop_assert_eq!(read.stop, asked.stop);
            }
        }
    }

    #[test]
    fn no_bytes_are_more_than_a_refusal(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(parse(Endpoint::Chat, &bytes).is_err());
    }
}

async fn submitted(server: &Server, path: &str, body: &str) -> Submission {
    let got = server.send("POST", path, &[], body).await;
    assert_eq!(got.status, 200, "{body}: {}", got.text());
    server.submissions().pop().unwrap()
}

#[tokio::test]
async fn the_host_gets_what_it_reads_and_nothing_else() {
    let server = Server::start(hello()).await;
    let sent = submitted(
        &server,
        CHAT,
        r#"{"model":"ref-llama","stream":true,"user":"u","stop":"x","max_tokens":9,"seed":5,"temperature":0.5,
            "messages":[{"role":"system","content":"Be brief.","name":"n"},
                        {"content":[{"type":"text","text":"a"},{"type":"text","text":"é"}],"role":"user"}]}"#,
    )
    .await;
    assert_eq!(
        std::str::from_utf8(&sent.body).unwrap(),
        concat!(
            r#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"a\né"}],"#,
            r#""max_tokens":9,"stop":["x"],"seed":5,"temperature":0.5}"#
        )
    );
    let read = Body::parse(&sent.body).unwrap();
    assert_eq!((read.max_tokens, read.seed, read.stop), (Some(9), Some(5), vec!["x".to_owned()]));
    // 9 + 4 bytes of content, two messages.
    assert_eq!((sent.input_limit, sent.output_limit), (13 + 2 * 64 + 64, 9));
    assert_eq!((sent.model.as_str(), sent.deadline_ms), ("ref-llama", 600_000));

    let sent = submitted(&server, TEXT, r#"{"model":"ref-llama","prompt":["abc"]}"#).await;
    assert_eq!(&sent.body[..], br#"{"prompt":"abc","max_tokens":509}"#);
    assert_eq!(Body::parse(&sent.body).unwrap().prompt, Prompt::Text("abc".into()));
    assert_eq!((sent.input_limit, sent.output_limit), (3 + 64, 509));
}

#[tokio::test]
async fn a_request_that_samples_without_a_seed_gets_one() {
    let server = Server::start(hello()).await;
    let body = HI.replace(r#""messages""#, r#""temperature":0.7,"messages""#);
    let mut seeds = Vec::new();
    for _ in 0..2 {
        seeds.push(Body::parse(&submitted(&server, CHAT, &body).await.body).unwrap().seed.unwrap());
    }
    assert_ne!(seeds[0], seeds[1]);
    let negative = HI.replace(r#""messages""#, r#""temperature":1,"seed":-1,"messages""#);
    let read = Body::parse(&submitted(&server, CHAT, &negative).await.body).unwrap();
    assert_eq!(read.seed, Some(u64::MAX));
    let greedy = submitted(&server, CHAT, HI).await;
    assert!(!String::from_utf8_lossy(&greedy.body).contains("seed"));
}

#[tokio::test]
async fn the_names_of_a_request_go_both_ways() {
    let server = Server::start(hello()).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let got = server.send("POST", CHAT, &[("X-Request-Id", "job-7"), ("traceparent", trace)], HI).await;
    assert_eq!(got.header("x-request-id"), Some("job-7"));
    let sent = server.submissions().pop().unwrap();
    assert_eq!((sent.request_id.as_str(), sent.traceparent.as_str()), ("job-7", trace));

    let got = server.send("POST", CHAT, &[("X-Request-Id", "a b")], HI).await;
    let sent = server.submissions().pop().unwrap();
    assert_eq!(got.header("x-request-id"), Some(sent.request_id.as_str()));
    assert!(sent.request_id.starts_with("req-") && sent.traceparent.starts_with("00-"));
    assert!(server.get("/nowhere").await.header("x-request-id").is_some(), "errors have one too");
}

#[tokio::test]
async fn models_are_listed_and_found_by_name() {
    let server = Server::start(hello()).await;
    let other = serde_json::json!({
        "id": "org/other", "object": "model", "created": 1_700_000_000, "owned_by": "holdfast", "context_length": 2048
    });
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0], other);
    assert_eq!(list["data"][1]["id"], "ref-llama");
    assert_eq!(server.get("/v1/models/org/other").await.json(), other);
    assert_eq!(server.get("/v1/models/org%2Fother").await.json(), other);
    for id in ["x", "", "%", "%2", "%zz", "org%2fother/"] {
        let got = server.get(&format!("/v1/models/{id}")).await;
        assert_eq!(got.error(), (404, "model_not_found".into(), Some("model".into())), "{id}");
    }
    let got = server.send("HEAD", "/v1/models", &[], "").await;
    assert_eq!((got.status, got.body.len()), (200, 0));
}

#[tokio::test]
async fn health_readiness_and_metrics_are_told() {
    let server = Server::start(hello()).await;
    assert_eq!(server.get("/healthz").await.json()["status"], "ok");
    assert_eq!(server.get("/readyz").await.status, 200);
    *server.fake.ready.lock().unwrap() =
        Readiness { active_escrow: false, self_suspect: true, sign_of_life: false };
    let got = server.get("/readyz").await;
    assert_eq!(got.status, 503);
    assert_eq!(
        got.json()["reasons"],
        serde_json::json!(["no_active_escrow", "self_suspect", "no_sign_of_life"])
    );
    let got = server.get("/metrics").await;
    assert_eq!(
        (got.text(), got.header("content-type")),
        ("holdfast_up 1\n", Some("text/plain; version=0.0.4"))
    );
}

#[tokio::test]
async fn pages_of_other_origins_are_told_nothing_unless_they_are_listed() {
    let page = [("Origin", "https://app.example")];
    let server = Server::start(hello()).await;
    let got = server.send("POST", CHAT, &page, HI).await;
    assert_eq!((got.status, got.header("access-control-allow-origin")), (200, None));
    assert_eq!(server.send("OPTIONS", CHAT, &page, "").await.status, 405);

    let config = ApiConfig { cors_origins: vec!["https://app.example".into()], ..ApiConfig::default() };
    let server = Server::with(hello(), config).await;
    let got = server.send("OPTIONS", CHAT, &page, "").await;
    assert_eq!((got.status, got.header("access-control-allow-origin")), (204, Some("https://app.example")));
    assert_eq!(got.header("access-control-allow-methods"), Some("GET, POST"));
    let got = server.send("POST", CHAT, &page, HI).await;
    assert_eq!(got.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(got.header("vary"), Some("origin"));
    let got = server.send("POST", CHAT, &[("Origin", "https://evil.example")], HI).await;
    assert_eq!(got.header("access-control-allow-origin"), None);
}
