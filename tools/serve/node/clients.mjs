// The clients of Node: `openai`, and the AI SDK over `@ai-sdk/openai-compatible`.
//
// usage: node clients.mjs URL MODEL

import assert from "node:assert/strict";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const [url, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "Say hello." }];
const places = {
  type: "object",
  properties: { place: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["place"],
  additionalProperties: false,
};

async function openai() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const asked = { model, messages, max_tokens: 16, temperature: 0, seed: 1 };
  const whole = await client.chat.completions.create(asked);
  let text = "";
  for await (const piece of await client.chat.completions.create({ ...asked, stream: true })) {
    text += piece.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
  const tools = [{ type: "function", function: { name: "weather", parameters: places } }];
  const called = await client.chat.completions.create({
    model, messages, tools, tool_choice: "required", max_tokens: 100, parallel_tool_calls: false,
  });
  const call = called.choices[0].message.tool_calls[0].function;
  assert.equal(call.name, "weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.arguments).place), call.arguments);
  const shape = { type: "json_schema", json_schema: { name: "place", strict: true, schema: places } };
  const shaped = await client.chat.completions.create({ model, messages, response_format: shape, max_tokens: 60 });
  assert.ok(["Paris", "Rome"].includes(JSON.parse(shaped.choices[0].message.content).place));
  const response = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 16 });
  assert.ok(response.output_text.length > 0);
  const vectors = await client.embeddings.create({ model, input: ["a", "b"] });
  assert.equal(vectors.data.length, 2);
  assert.equal(vectors.data[0].embedding.length, vectors.data[1].embedding.length);
  await assert.rejects(client.chat.completions.create({ model, messages: [] }), OpenAI.BadRequestError);
}

async function sdk() {
  const provider = createOpenAICompatible({
    name: "clearway", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true,
  });
  const chat = provider(model);
  const options = { model: chat, prompt: "Say hello.", maxOutputTokens: 32, maxRetries: 0 };
  assert.ok((await generateText(options)).text.length > 0);
  let text = "";
  for await (const piece of streamText(options).textStream) text += piece;
  assert.ok(text.length > 0);
  const { object } = await generateObject({
    ...options, maxOutputTokens: 60, prompt: "Choose a place.", schema: jsonSchema(places),
  });
  assert.ok(["Paris", "Rome"].includes(object.place), JSON.stringify(object));
  const weather = tool({ description: "Weather of a place", inputSchema: jsonSchema(places) });
  const called = await generateText({
    ...options, maxOutputTokens: 100, prompt: "How is the weather?", tools: { weather }, toolChoice: "required",
  });
  assert.equal(called.toolCalls[0].toolName, "weather");
  assert.ok(["Paris", "Rome"].includes(called.toolCalls[0].input.place));
  const { embeddings } = await embedMany({ model: provider.textEmbeddingModel(model), values: ["a", "b"] });
  assert.equal(embeddings.length, 2);
}

for (const one of [openai, sdk]) {
  await one();
  console.log(`${one.name}: good`);
}
