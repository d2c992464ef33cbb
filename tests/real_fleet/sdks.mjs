// The JavaScript SDKs at a base URL: openai, ai-sdk, @anthropic-ai/sdk. One line a check.
//
//   NODE_PATH=… node sdks.mjs http://127.0.0.1:8080 tiny
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, model] = process.argv.slice(2);
const require = createRequire(process.env.SDK_DIR ? process.env.SDK_DIR + "/package.json" : import.meta.url);
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const ask = [{ role: "user", content: "hi" }];
const checks = [];

const { default: OpenAI } = await load("openai");
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
checks.push(["openai npm: unary", async () => {
  const answer = await openai.chat.completions.create({ model, messages: ask, max_tokens: 8 });
  if (!answer.usage.completion_tokens) throw new Error("no usage");
}]);
checks.push(["openai npm: stream", async () => {
  let last;
  for await (const chunk of await openai.chat.completions.create({ model, messages: ask, max_tokens: 8, stream: true })) last = chunk;
  if (!last.choices[0].finish_reason || !last.system_fingerprint) throw new Error(JSON.stringify(last));
}]);
checks.push(["openai npm: models", async () => {
  const first = (await openai.models.list()).data[0];
  if (!first.root) throw new Error(JSON.stringify(first));
}]);
checks.push(["openai npm: responses", async () => {
  const made = await openai.responses.create({ model, input: "hi", max_output_tokens: 8 });
  if ((await openai.responses.retrieve(made.id)).id !== made.id) throw new Error("another id");
}]);

const { generateText, streamText } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const provider = createOpenAICompatible({ name: "gateway", baseURL: url + "/v1" });
checks.push(["ai-sdk: generateText", async () => {
  await generateText({ model: provider(model), prompt: "hi", maxOutputTokens: 8, maxRetries: 0 });
}]);
checks.push(["ai-sdk: streamText", async () => {
  let count = 0;
  for await (const _ of streamText({ model: provider(model), prompt: "hi", maxOutputTokens: 8, maxRetries: 0 }).textStream) count += 1;
  if (!count) throw new Error("no text");
}]);

const { default: Anthropic } = await load("@anthropic-ai/sdk");
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
checks.push(["anthropic npm: messages", async () => {
  await anthropic.messages.create({ model, max_tokens: 8, messages: ask });
}]);
checks.push(["anthropic npm: stream", async () => {
  const final = await anthropic.messages.stream({ model, max_tokens: 8, messages: ask }).finalMessage();
  if (!final.stop_reason) throw new Error("no stop reason");
}]);

let failed = 0;
for (const [name, check] of checks) {
  try {
    await check();
    console.log(`SDK ${name}\tok\t`);
  } catch (error) {
    failed += 1;
    console.log(`SDK ${name}\tFAIL\t${String(error).split("\n")[0].slice(0, 200)}`);
  }
}
process.exit(failed ? 1 : 0);
