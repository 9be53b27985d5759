// Uses a gateway with OpenAI's JavaScript client, unmodified, as an application does.
//
//   BASE_URL=http://127.0.0.1:8080/v1 API_KEY=sk-... node client.js [CHECK...]
//
// Checks, variables and output as in ../openai-python/client.py.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const { BASE_URL, API_KEY = "none", POOR_KEY, RATED_KEY, KEYED } = process.env;
const client = (apiKey, more) => new OpenAI({ baseURL: BASE_URL, apiKey, timeout: 120_000, maxRetries: 0, ...more });
const api = client(API_KEY);
const messages = [{ role: "user", content: "Say hello to Ada." }];
const LIMIT = 24;
let MODEL = process.env.MODEL;

const ask = (more) => ({ model: MODEL, messages, max_tokens: LIMIT, temperature: 0, ...more });
const chat = (more, options, of = api) => of.chat.completions.create(ask(more), options);
const all = async (stream) => {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
};
const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

/** The call is refused with this class of error and these fields. */
async function refused(kind, status, code, call, param = null) {
  const error = await call().then(
    () => assert.fail(`not refused: ${code}`),
    (error) => error,
  );
  assert.deepEqual([error.constructor, error.status, error.code, error.param], [kind, status, code, param], error.message);
  assert.ok(error.requestID, "no x-request-id");
  return error;
}

const checks = {
  async models() {
    const models = await all(api.models.list());
    assert.ok(models.some((model) => model.id === MODEL && model.owned_by === "holdfast"));
    assert.equal((await api.models.retrieve(MODEL)).id, MODEL);
    await refused(OpenAI.NotFoundError, 404, "model_not_found", () => api.models.retrieve("no/such"), "model");
  },
  async chat() {
    const { data, response, request_id } = await chat({}, { headers: { "x-request-id": "js-1" } }).withResponse();
    const [escrow, nonce] = ["escrow", "nonce"].map((name) => response.headers.get(`x-holdfast-${name}`));
    assert.equal(data.id, `chatcmpl-${escrow}-${nonce}`);
    assert.ok(response.headers.get("x-holdfast-executor"));
    assert.equal(request_id, "js-1");
    assert.ok(data.choices[0].message.content && ["stop", "length"].includes(data.choices[0].finish_reason));
    const { prompt_tokens, completion_tokens, total_tokens } = data.usage;
    assert.ok(prompt_tokens > 0 && completion_tokens > 0 && completion_tokens <= LIMIT);
    assert.equal(total_tokens, prompt_tokens + completion_tokens);
  },
  async stream() {
    const whole = (await chat()).choices[0];
    const chunks = await all(chat({ stream: true }));
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.equal(chunks.at(-1).choices[0].finish_reason, whole.finish_reason);
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.choices[0].finish_reason === null));
    assert.equal(textOf(chunks), whole.message.content);
  },
  async include_usage() {
    const chunks = await all(chat({ stream: true, stream_options: { include_usage: true } }));
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
    assert.deepEqual(chunks.at(-1).usage, (await chat()).usage);
  },
  async parsed_stream() {
    const stream = api.chat.completions.stream(ask());
    let text = "";
    stream.on("content", (piece) => (text += piece));
    assert.equal(await stream.finalContent(), (await chat()).choices[0].message.content);
    assert.equal(text, await stream.finalContent());
  },
  async text() {
    const plain = { model: MODEL, prompt: "Once upon", max_tokens: LIMIT, temperature: 0 };
    const whole = await api.completions.create(plain);
    assert.ok(whole.id.startsWith("cmpl-") && whole.choices[0].text);
    const chunks = await all(api.completions.create({ ...plain, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
  },
  async max_tokens() {
    const answer = await chat({ max_tokens: 1 });
    assert.deepEqual([answer.choices[0].finish_reason, answer.usage.completion_tokens], ["length", 1]);
  },
  async stop() {
    const whole = (await chat()).choices[0].message.content;
    const stop = whole.slice(whole.length >> 1, (whole.length >> 1) + 2);
    const cut = (await chat({ stop: [stop, "\0 never"] })).choices[0];
    assert.deepEqual([cut.message.content, cut.finish_reason], [whole.slice(0, whole.indexOf(stop)), "stop"]);
  },
  async seed() {
    const [first, again] = await Promise.all([0, 0].map(() => chat({ temperature: 1, seed: 7 })));
    assert.equal(first.choices[0].message.content, again.choices[0].message.content);
  },
  async cancel() {
    const stream = await chat({ stream: true, max_tokens: 200 });
    for await (const chunk of stream) {
      assert.ok(chunk.choices);
      stream.controller.abort();
      break;
    }
    const abort = new AbortController();
    const aborted = chat({}, { signal: abort.signal });
    setTimeout(() => abort.abort(), 10);
    await aborted.then(() => undefined, (error) => assert.equal(error.constructor, OpenAI.APIUserAbortError));
    assert.ok((await chat({ max_tokens: 1 })).choices, "the next request runs");
  },
  async refusals() {
    const [bad, not] = ["invalid_request_error", "unsupported_parameter"];
    const tool = { type: "function", function: { name: "f", parameters: { type: "object", properties: {} } } };
    for (const [param, code, more] of [
      ["temperature", bad, { temperature: 3 }],
      ["max_tokens", bad, { max_tokens: 0 }],
      ["stop", bad, { stop: ["a", "a", "a", "a", "a"] }],
      ["messages", bad, { messages: [] }],
      ["messages[0].role", bad, { messages: [{ role: "robot", content: "x" }] }],
      ["tools", not, { tools: [tool] }],
      ["n", not, { n: 2 }],
      ["response_format", not, { response_format: { type: "json_object" } }],
      ["guided_json", not, { guided_json: {} }],
    ]) {
      await refused(OpenAI.BadRequestError, 400, code, () => chat(more), param);
    }
    await refused(OpenAI.NotFoundError, 404, "model_not_found", () => chat({ model: "no/such" }), "model");
    const long = [{ role: "user", content: "a".repeat(3 << 20) }];
    await refused(OpenAI.APIError, 413, "request_too_large", () => chat({ messages: long }));
  },
  async wrong_key() {
    const call = () => chat({}, {}, client("sk-wrong"));
    await refused(OpenAI.AuthenticationError, 401, "authentication_error", call);
  },
  async quota() {
    const long = { messages: [{ role: "user", content: "a".repeat(300) }], max_tokens: 100 };
    await refused(OpenAI.APIError, 402, "insufficient_quota", () => chat(long, {}, client(POOR_KEY)));
  },
  async rate() {
    const call = () => chat({ max_tokens: 1 }, {}, client(RATED_KEY));
    await call();
    const error = await refused(OpenAI.RateLimitError, 429, "rate_limit_exceeded", call);
    assert.ok(Number(error.headers.get("retry-after")) > 0);
  },
  async idempotency() {
    const options = { headers: { "Idempotency-Key": `js-${randomUUID()}` } };
    const first = await chat({ temperature: 1 }, options).asResponse();
    const again = await chat({ temperature: 1 }, options).asResponse();
    assert.equal(await again.text(), await first.text());
    assert.equal(again.headers.get("idempotent-replayed"), "true");
    const call = () => chat({ max_tokens: 1 }, options, client(API_KEY, { maxRetries: 5 }));
    await refused(OpenAI.ConflictError, 409, "idempotency_conflict", call);
  },
};

const needs = { wrong_key: KEYED, quota: POOR_KEY, rate: RATED_KEY };
MODEL ??= (await api.models.list()).data[0].id;
const [passed, failed, left_out] = [[], [], []];
const named = process.argv.slice(2);
for (const name of named.length > 0 ? named : Object.keys(checks)) {
  if (name in needs && needs[name] === undefined) {
    left_out.push(name);
    continue;
  }
  try {
    await checks[name]();
    passed.push(name);
    console.log(`ok ${name}`);
  } catch (error) {
    failed.push(name);
    console.log(`FAILED ${name}`);
    console.error(error);
  }
}
console.log(JSON.stringify({ client: `openai-js ${VERSION}`, passed, failed, left_out }));
process.exitCode = failed.length > 0 ? 1 : 0;
