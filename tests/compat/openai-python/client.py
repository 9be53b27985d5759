"""Uses a gateway with OpenAI's Python client, unmodified, as an application does.

    BASE_URL=http://127.0.0.1:8080/v1 API_KEY=sk-... python client.py [CHECK...]

Runs every check, or those named. Prints a line for each and, last, JSON of what passed and what was left out; the exit
code is 1 when one failed. Beside BASE_URL and API_KEY (any text when the gateway is open):

    MODEL      model to ask; default: the first that is listed
    POOR_KEY   API key with a budget of at most 500 tokens: 402
    RATED_KEY  API key of one request a minute: 429
    KEYED      set when the gateway has API keys: a wrong one is 401
"""

import asyncio
import json
import os
import sys
import traceback
import uuid

import openai

BASE_URL = os.environ["BASE_URL"]
API_KEY = os.environ.get("API_KEY", "none")
HI = [{"role": "user", "content": "Say hello to Ada."}]
LIMIT = 24


def client(key=API_KEY, **more):
    return openai.OpenAI(base_url=BASE_URL, api_key=key, timeout=120, **more)


API = client(max_retries=0)


def model():
    return os.environ.get("MODEL") or API.models.list().data[0].id


def chat(api=API, **more):
    more = {"model": MODEL, "messages": HI, "max_tokens": LIMIT, "temperature": 0, **more}
    return api.chat.completions.create(**more)


def text_of(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def refused(kind, status, code, call, param=None):
    """The call raises this exception, with these fields."""
    try:
        call()
    except openai.APIStatusError as error:
        got = (type(error), error.status_code, error.code, error.param)
        assert got == (kind, status, code, param), f"{got} instead of {(kind, status, code, param)}"
        assert error.request_id, "no x-request-id"
        return error
    raise AssertionError(f"not refused: {code}")


def check_models():
    models = API.models.list().data
    assert MODEL in [m.id for m in models], models
    assert all(m.object == "model" and m.owned_by == "holdfast" and m.created > 0 for m in models)
    assert API.models.retrieve(MODEL).id == MODEL
    refused(openai.NotFoundError, 404, "model_not_found", lambda: API.models.retrieve("no/such"), "model")


def check_chat():
    raw = API.chat.completions.with_raw_response.create(
        model=MODEL, messages=HI, max_tokens=LIMIT, extra_headers={"x-request-id": "py-1"}
    )
    answer = raw.parse()
    escrow, nonce = raw.headers["x-holdfast-escrow"], raw.headers["x-holdfast-nonce"]
    assert answer.id == f"chatcmpl-{escrow}-{nonce}", answer.id
    assert raw.headers["x-holdfast-executor"] and raw.headers["x-request-id"] == "py-1"
    assert answer.object == "chat.completion" and answer.model == MODEL
    choice, usage = answer.choices[0], answer.usage
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= LIMIT
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_stream():
    whole = chat().choices[0]
    chunks = list(chat(stream=True))
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].id.startswith("chatcmpl-")
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]
    assert text_of(chunks) == whole.message.content
    assert all(chunk.usage is None for chunk in chunks)


def check_include_usage():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage == chat().usage


def check_parsed_stream():
    with API.chat.completions.stream(model=MODEL, messages=HI, max_tokens=LIMIT, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot
    assert "content.delta" in kinds and "content.done" in kinds, kinds
    assert final.choices[0].message.content == chat().choices[0].message.content


def check_text():
    ask = {"model": MODEL, "prompt": "Once upon", "max_tokens": LIMIT, "temperature": 0}
    whole = API.completions.create(**ask)
    assert whole.id.startswith("cmpl-") and whole.object == "text_completion" and whole.choices[0].text
    stream = API.completions.create(**ask, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def check_max_tokens():
    answer = chat(max_tokens=1)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 1
    assert chat(max_tokens=None, max_completion_tokens=1).usage.completion_tokens == 1


def check_stop():
    whole = chat().choices[0].message.content
    stop = whole[len(whole) // 2 :][:2]
    at = whole.index(stop)
    cut = chat(stop=[stop, "\0 never"])
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == (whole[:at], "stop")
    assert cut.usage.completion_tokens > 0
    chunks = list(chat(stop=stop, stream=True))
    assert text_of(chunks) == whole[:at] and chunks[-1].choices[0].finish_reason == "stop"


def check_seed():
    first, again = (chat(temperature=1, seed=7).choices[0].message.content for _ in range(2))
    assert first == again
    assert chat(temperature=1).choices[0].message is not None, "without a seed it runs too"


def check_cancel():
    stream = chat(stream=True, max_tokens=200)
    assert next(iter(stream)).choices
    stream.close()
    assert chat(max_tokens=1).choices, "the next request runs"


def check_async():
    async def run():
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as api:
            ask = {"model": MODEL, "messages": HI, "max_tokens": LIMIT, "temperature": 0}

            async def stream():
                out = ""
                async for chunk in await api.chat.completions.create(**ask, stream=True):
                    out += chunk.choices[0].delta.content or ""
                return out

            texts = await asyncio.gather(*(stream() for _ in range(8)))
            assert len(set(texts)) == 1 and texts[0]
            task = asyncio.create_task(api.chat.completions.create(**ask))
            await asyncio.sleep(0.01)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            assert (await api.chat.completions.create(**ask)).choices[0].message.content == texts[0]

    asyncio.run(run())


def check_refusals():
    bad, not_ = "invalid_request_error", "unsupported_parameter"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    kind = openai.BadRequestError
    for param, code, more in [
        ("temperature", bad, {"temperature": 3}),
        ("max_tokens", bad, {"max_tokens": 0}),
        ("stop", bad, {"stop": ["a"] * 5}),
        ("messages", bad, {"messages": []}),
        ("messages[0].role", bad, {"messages": [{"role": "robot", "content": "x"}]}),
        ("tools", not_, {"tools": [tool]}),
        ("n", not_, {"n": 2}),
        ("response_format", not_, {"response_format": {"type": "json_object"}}),
        ("logit_bias", not_, {"logit_bias": {"1": 1}}),
        ("guided_json", not_, {"extra_body": {"guided_json": {}}}),
    ]:
        refused(kind, 400, code, lambda more=more: chat(**more), param)
    refused(openai.NotFoundError, 404, "model_not_found", lambda: chat(model="no/such"), "model")
    refused(kind, 400, "context_length_exceeded", lambda: chat(max_tokens=2**31), "max_tokens")
    long = [{"role": "user", "content": "a" * (3 << 20)}]
    refused(openai.APIStatusError, 413, "request_too_large", lambda: chat(messages=long))


def check_wrong_key():
    api = client("sk-wrong", max_retries=0)
    refused(openai.AuthenticationError, 401, "authentication_error", lambda: chat(api))


def check_quota():
    api = client(os.environ["POOR_KEY"], max_retries=0)
    long = [{"role": "user", "content": "a" * 300}]
    refused(openai.APIStatusError, 402, "insufficient_quota", lambda: chat(api, messages=long, max_tokens=100))


def check_rate():
    api = client(os.environ["RATED_KEY"], max_retries=0)
    chat(api, max_tokens=1)
    error = refused(openai.RateLimitError, 429, "rate_limit_exceeded", lambda: chat(api, max_tokens=1))
    assert int(error.response.headers["retry-after"]) > 0


def check_idempotency():
    headers = {"Idempotency-Key": f"py-{uuid.uuid4()}"}
    ask = {"model": MODEL, "messages": HI, "max_tokens": LIMIT, "temperature": 1, "extra_headers": headers}
    first, again = (API.chat.completions.with_raw_response.create(**ask) for _ in range(2))
    assert first.text == again.text and again.headers["idempotent-replayed"] == "true"
    patient = client(max_retries=5)
    conflict = lambda: chat(patient, max_tokens=1, extra_headers=headers)
    refused(openai.ConflictError, 409, "idempotency_conflict", conflict)
    ask["extra_headers"] = {"Idempotency-Key": f"py-{uuid.uuid4()}"}
    first, again = ([c.model_dump() for c in API.chat.completions.create(**ask, stream=True)] for _ in range(2))
    assert first == again


NEEDS = {"check_wrong_key": "KEYED", "check_quota": "POOR_KEY", "check_rate": "RATED_KEY"}
MODEL = model()


def main():
    checks = {name[6:]: call for name, call in globals().items() if name.startswith("check_")}
    named = sys.argv[1:] or list(checks)
    passed, failed, left_out = [], [], []
    for name in named:
        call = checks[name]
        if NEEDS.get(call.__name__, "BASE_URL") not in os.environ:
            left_out.append(name)
            continue
        try:
            call()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            print(f"FAILED {name}", flush=True)
        else:
            passed.append(name)
            print(f"ok {name}", flush=True)
    print(json.dumps({"client": f"openai-python {openai.__version__}", "passed": passed, "failed": failed, "left_out": left_out}))
    return 1 if failed else 0


sys.exit(main())
