//! Answers, whole and streamed, byte by byte.

use super::*;

const CHUNK: &str =
    r#"data: {"id":"chatcmpl-7-41","object":"chat.completion.chunk","model":"ref-llama","choices":"#;

fn chunk(delta: &str, reason: &str, tail: &str) -> String {
    let choice =
        format!(r#"[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}]{tail}}}"#);
    format!("{CHUNK}{choice}\n\n")
}

#[tokio::test]
async fn a_conversation_is_answered_as_openai_answers_it() {
    let server = Server::start(hello()).await;
    let got = server.chat(HI).await;
    assert_eq!(got.status, 200);
    assert_eq!(got.header("content-type"), Some("application/json"));
    assert_eq!(got.header("x-holdfast-escrow"), Some("7"));
    assert_eq!(got.header("x-holdfast-nonce"), Some("41"));
    let executor = Address([9; 20]).to_bech32(&holdfast_types::Hrp::default());
    assert_eq!(got.header("x-holdfast-executor"), Some(executor.as_str()));
    assert!(got.header("x-request-id").is_some());
    assert_eq!(
        got.frames(),
        concat!(
            r#"{"id":"chatcmpl-7-41","object":"chat.completion","model":"ref-llama","choices":[{"index":0,"#,
            r#""message":{"role":"assistant","content":"Hello","refusal":null},"logprobs":null,"finish_reason":"stop"}],"#,
            r#""usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#
        )
    );
    let created = got.json()["created"].as_u64().unwrap();
    assert!(created.abs_diff(reply::unix_ms() / 1000) < 60);
}

#[tokio::test]
async fn a_text_is_answered_as_openai_answers_it() {
    let server = Server::start(vec![dispatched(), delta("x"), finished(FinishReason::Length, 3, 1)]).await;
    let got = server.send("POST", TEXT, &[], r#"{"model":"ref-llama","prompt":"ab"}"#).await;
    assert_eq!(
        got.frames(),
        concat!(
            r#"{"id":"cmpl-7-41","object":"text_completion","model":"ref-llama","choices":[{"index":0,"text":"x","#,
            r#""logprobs":null,"finish_reason":"length"}],"#,
            r#""usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#
        )
    );
}

#[tokio::test]
async fn a_stream_is_framed_as_openai_frames_it() {
    let server = Server::start(hello()).await;
    let got = server.chat(HI_STREAM).await;
    assert_eq!((got.status, got.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    assert_eq!(got.header("x-holdfast-nonce"), Some("41"));
    let wanted = [
        chunk(r#"{"role":"assistant","content":""}"#, "null", ""),
        chunk(r#"{"content":"Hel"}"#, "null", ""),
        chunk(r#"{"content":"lo"}"#, "null", ""),
        chunk("{}", r#""stop""#, ""),
        "data: [DONE]\n\n".into(),
    ];
    assert_eq!(got.frames(), wanted.concat());
}

#[tokio::test]
async fn usage_comes_in_a_chunk_of_its_own_when_it_is_asked_for() {
    let server = Server::start(vec![dispatched(), delta("x"), finished(FinishReason::Length, 3, 1)]).await;
    let body =
        HI_STREAM.replace(r#""stream":true"#, r#""stream":true,"stream_options":{"include_usage":true}"#);
    let got = server.chat(&body).await;
    let none = r#","usage":null"#;
    let wanted = [
        chunk(r#"{"role":"assistant","content":""}"#, "null", none),
        chunk(r#"{"content":"x"}"#, "null", none),
        chunk("{}", r#""length""#, none),
        format!("{CHUNK}[],{}\n\n", r#""usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#),
        "data: [DONE]\n\n".into(),
    ];
    assert_eq!(got.frames(), wanted.concat());
}

#[tokio::test]
async fn a_streamed_text_has_no_opening_frame() {
    let server = Server::start(vec![dispatched(), delta("x"), finished(FinishReason::Stop, 3, 1)]).await;
    let got = server.send("POST", TEXT, &[], r#"{"model":"ref-llama","prompt":"ab","stream":true}"#).await;
    let frame = |text: &str, reason: &str| {
        format!(
            r#"data: {{"id":"cmpl-7-41","object":"text_completion","model":"ref-llama","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{reason}}}]}}"#
        ) + "\n\n"
    };
    assert_eq!(got.frames(), frame("x", "null") + &frame("", r#""stop""#) + "data: [DONE]\n\n");
}

#[tokio::test]
async fn the_last_dispatch_before_the_first_text_names_the_answer() {
    let first = Act::Send(Event::Dispatched(Dispatch { nonce: 40, ..DISPATCH }));
    let late = Act::Send(Event::Dispatched(Dispatch { nonce: 42, ..DISPATCH }));
    let done = finished(FinishReason::Stop, 1, 1);
    let server = Server::start(vec![first, dispatched(), delta("x"), late, done]).await;
    for body in [HI, HI_STREAM] {
        let got = server.chat(body).await;
        assert_eq!(got.header("x-holdfast-nonce"), Some("41"));
        assert!(got.text().contains("chatcmpl-7-41") && !got.text().contains("chatcmpl-7-42"));
    }
}

#[tokio::test]
async fn an_answer_without_text_ends_well() {
    let server = Server::start(vec![dispatched(), finished(FinishReason::Stop, 1, 0)]).await;
    assert_eq!(server.chat(HI).await.json()["choices"][0]["message"]["content"], "");
    let got = server.chat(HI_STREAM).await;
    let wanted = chunk(r#"{"role":"assistant","content":""}"#, "null", "") + &chunk("{}", r#""stop""#, "");
    assert_eq!(got.frames(), wanted + "data: [DONE]\n\n");
}

#[tokio::test]
async fn text_is_sent_as_the_characters_that_the_host_made_of_its_tokens() {
    // The host holds half a character back: its delta is empty. Quotes and line breaks stay inside one line of JSON.
    let acts =
        vec![dispatched(), delta(""), delta("é\n\""), delta("\u{1F600}"), finished(FinishReason::Stop, 1, 3)];
    let server = Server::start(acts).await;
    assert_eq!(server.chat(HI).await.json()["choices"][0]["message"]["content"], "é\n\"\u{1F600}");
    let got = server.chat(HI_STREAM).await;
    assert!(got.text().contains(r#"{"content":"é\n\""}"#), "{}", got.text());
    assert_eq!(got.text().matches("data: ").count(), 5, "an empty delta is no frame");
    assert!(got.text().lines().all(|line| line.is_empty() || line.starts_with("data: ")));
}

#[tokio::test]
async fn a_stop_text_that_a_host_lets_through_ends_the_answer_with_its_counts() {
    let cancelled = finished(FinishReason::Length, 5, 3);
    let acts = vec![dispatched(), delta("one E"), delta("ND"), Act::Enough, delta("late"), cancelled];
    let server = Server::start(acts).await;
    let body =
        |extra: &str| HI.replace(r#""messages""#, &format!(r#"{extra}"stop":["END","\n"],"messages""#));
    let got = server.chat(&body("")).await.json();
    assert_eq!(got["choices"][0]["message"]["content"], "one ");
    assert_eq!(got["choices"][0]["finish_reason"], "stop");
    assert_eq!(got["usage"]["total_tokens"], 8);
    let got = server.chat(&body(r#""stream":true,"#)).await;
    let wanted = [
        chunk(r#"{"role":"assistant","content":""}"#, "null", ""),
        chunk(r#"{"content":"one "}"#, "null", ""),
        chunk("{}", r#""stop""#, ""),
        "data: [DONE]\n\n".into(),
    ];
    assert_eq!(got.frames(), wanted.concat());
}

#[tokio::test]
async fn a_stop_text_ends_the_answer_also_when_nobody_counts() {
    // The channel closes, or the driver takes more than two seconds: then the bound of the prompt stands for its count.
    for acts in [vec![dispatched(), delta("aXb")], vec![dispatched(), delta("aXb"), Act::Hang]] {
        let server = Server::start(acts).await;
        let got = server.chat(&HI.replace(r#""messages""#, r#""stop":"X","messages""#)).await.json();
        assert_eq!(got["choices"][0]["message"]["content"], "a");
        assert_eq!(
            got["usage"],
            serde_json::json!({"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3})
        );
    }
}

#[tokio::test]
async fn text_that_only_begins_like_a_stop_text_is_sent_in_the_end() {
    let server = Server::start(vec![dispatched(), delta("a EN"), finished(FinishReason::Length, 1, 1)]).await;
    let got = server.chat(&HI.replace(r#""messages""#, r#""stop":"END","messages""#)).await.json();
    assert_eq!(got["choices"][0]["message"]["content"], "a EN");
    assert_eq!(got["choices"][0]["finish_reason"], "length");
}

fn quick() -> ApiConfig {
    let keep_alive = Duration::from_millis(30);
    let limits = Limits { keep_alive, first_text_time: Duration::from_millis(60), ..Limits::default() };
    ApiConfig { limits, ..ApiConfig::default() }
}

#[tokio::test]
async fn comments_fill_a_stream_in_which_nothing_comes() {
    let acts =
        vec![dispatched(), delta("a"), Act::Sleep(200), delta("b"), finished(FinishReason::Stop, 1, 2)];
    let server = Server::with(acts, quick()).await;
    let got = server.chat(HI_STREAM).await;
    let comments = got.text().matches(": wait\n\n").count();
    assert!((2..=7).contains(&comments), "{comments} comments");
    let without = got.text().replace(": wait\n\n", "");
    assert!(without.starts_with("data: ") && without.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_stream_whose_first_text_is_late_begins_without_it_and_tells_a_failure_inside() {
    let acts = vec![dispatched(), Act::Sleep(200), delta("a"), finished(FinishReason::Stop, 1, 1)];
    let server = Server::with(acts, quick()).await;
    let got = server.chat(HI_STREAM).await;
    assert_eq!(
        (got.status, got.header("x-holdfast-nonce")),
        (200, None),
        "the dispatch may not be the last one"
    );
    assert!(got.text().starts_with(": wait\n\n") && got.text().contains("chatcmpl-7-41"));
    server.script(vec![dispatched(), Act::Sleep(200), failed(Failure::DeadlineExceeded)]);
    let got = server.chat(HI_STREAM).await;
    assert_eq!(got.status, 200);
    let last = got.text().trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.starts_with(r#"data: {"error":{"#) && last.contains("deadline_exceeded"), "{last}");
    assert!(!got.text().contains("[DONE]"));
}

#[tokio::test]
async fn a_failure_after_the_first_text_ends_the_stream_without_reason_and_done() {
    let host = Failure::Host(FailureKind::PrefixMismatch);
    let server = Server::start(vec![dispatched(), delta("a"), failed(host)]).await;
    let got = server.chat(HI_STREAM).await;
    let wanted = [
        chunk(r#"{"role":"assistant","content":""}"#, "null", ""),
        chunk(r#"{"content":"a"}"#, "null", ""),
        concat!(
            r#"data: {"error":{"message":"the hosts failed: prefix-mismatch","type":"server_error","param":null,"#,
            r#""code":"prefix-mismatch"}}"#,
            "\n\n"
        )
        .into(),
    ];
    assert_eq!((got.status, got.frames()), (200, wanted.concat()));
    assert_eq!(server.chat(HI).await.error(), (502, "prefix-mismatch".into(), None));
}

#[tokio::test]
async fn a_host_that_breaks_off_or_says_too_much_is_a_failure() {
    let reset = (502, "stream-reset".to_owned(), None);
    let internal = (502, "internal".to_owned(), None);
    let one_token_less = HI.replace(r#""messages""#, r#""max_tokens":1,"messages""#);
    let server = Server::start(Vec::new()).await;
    for (acts, body, wanted) in [
        (vec![], HI, &reset),
        (vec![dispatched(), delta("a")], HI, &reset),
        (vec![dispatched(), delta("a"), delta("b")], one_token_less.as_str(), &internal),
        (vec![delta("a")], HI, &internal),
        (vec![finished(FinishReason::Stop, 1, 1)], HI, &internal),
    ] {
        server.script(acts);
        assert_eq!(server.chat(body).await.error(), *wanted);
    }
}

#[tokio::test]
async fn the_sessions_learn_that_a_client_left_wherever_it_was() {
    let server = Server::start(Vec::new()).await;
    let cases = [
        (vec![Act::Hang], HI, 0),
        (vec![dispatched(), Act::Hang], HI_STREAM, 0),
        (vec![dispatched(), delta("a"), Act::Hang], HI, 0),
        (vec![dispatched(), delta("a"), Act::Hang], HI_STREAM, 1),
    ];
    for (i, (acts, body, wait_for_bytes)) in cases.into_iter().enumerate() {
        server.script(acts);
        let mut socket = server.connect().await;
        socket.write_all(&request("POST", CHAT, &[], body)).await.unwrap();
        if wait_for_bytes > 0 {
            socket.read_exact(&mut [0; 64]).await.unwrap();
        } else {
            while server.submissions().len() <= i {
                sleep(Duration::from_millis(2)).await;
            }
        }
        drop(socket);
        server.left(i + 1).await;
    }
}

#[tokio::test]
async fn a_driver_that_never_ends_is_given_up() {
    let server = Server::start(vec![Act::Hang]).await;
    let answer = Sessions::submit(&server.fake, submission());
    let ring = keys::Keyring::new(Vec::new(), server.budgets.clone(), std::time::Instant::now()).unwrap();
    let charge = ring.charge(None, 0).unwrap();
    let mut run = run::Run::new(answer, Vec::new(), charge, (1, 1), Duration::from_millis(20));
    assert_eq!(run.step().await, run::Step::Failed(Failure::DeadlineExceeded));
    assert_eq!(run.step().await, run::Step::Failed(Failure::DeadlineExceeded));
}

fn submission() -> Submission {
    Submission {
        model: "ref-llama".into(),
        body: bytes::Bytes::new(),
        input_limit: 1,
        output_limit: 1,
        deadline_ms: 1,
        request_id: "r".into(),
        traceparent: String::new(),
    }
}
