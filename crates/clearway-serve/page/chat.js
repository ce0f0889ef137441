// The conversation.
const $ = (id) => document.getElementById(id);
const messages = [];
let running = null;

function headers() {
  const key = $("key").value;
  return key ? { "content-type": "application/json", authorization: `Bearer ${key}` } : { "content-type": "application/json" };
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function buttons() {
  const busy = running !== null;
  $("send").disabled = busy;
  $("stop").disabled = !busy;
  $("again").disabled = busy || !messages.some((message) => message.role === "assistant");
  $("clear").disabled = busy || messages.length === 0;
}

function show(message) {
  const article = element("article", "", { class: message.role });
  const who = message.role === "user" ? "You" : "Model";
  article.append(element("div", who, { class: "who" }), element("div", "", { class: "body" }));
  $("log").append(article);
  fill(article, message);
  return article;
}

function fill(article, message) {
  const body = article.querySelector(".body");
  const wasOpen = body.querySelector("details.thought")?.open;
  body.replaceChildren();
  if (message.thoughts) {
    const details = element("details", "", { class: "thought" });
    details.open = wasOpen ?? !message.content;
    details.append(element("summary", "Thoughts"), markdown(message.thoughts));
    body.append(details);
  }
  body.append(markdown(message.content));
  const log = $("log");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 200) log.scrollTop = log.scrollHeight;
}

function request() {
  const system = $("system").value.trim();
  const said = messages.map(({ role, content }) => ({ role, content }));
  const body = {
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    const value = $(name).value;
    if (value !== "") body[name] = Number(value);
  }
  return JSON.stringify(body);
}

// Calls `each` with the data of every event.
async function events(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const data = part.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      each(event);
    }
  }
}

async function answer() {
  problem("");
  const body = request();
  const message = { role: "assistant", content: "", thoughts: "" };
  const article = show(message);
  article.classList.add("busy");
  running = new AbortController();
  buttons();
  const started = performance.now();
  let first = null;
  let drawn = false;
  const draw = () => {
    if (drawn) return;
    drawn = true;
    requestAnimationFrame(() => { drawn = false; fill(article, message); });
  };
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal: running.signal });
    if (!response.ok) {
      const said = await response.json().catch(() => null);
      throw new Error(said?.error?.message ?? `the server answered ${response.status}`);
    }
    await events(response, (event) => {
      const delta = event.choices[0]?.delta;
      if (delta?.content || delta?.reasoning_content) first ??= performance.now();
      message.content += delta?.content ?? "";
      message.thoughts += delta?.reasoning_content ?? "";
      if (event.usage) {
        const { prompt_tokens: read, completion_tokens: written, prompt_tokens_details: details } = event.usage;
        const seconds = (performance.now() - (first ?? started)) / 1000;
        const speed = written > 1 && seconds > 0 ? `, ${((written - 1) / seconds).toFixed(1)} tokens/s` : "";
        $("usage").textContent = `${read} read (${details.cached_tokens} cached), ${written} written${speed}`;
      }
      draw();
    });
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message);
  } finally {
    running = null;
    article.classList.remove("busy");
    if (message.content || message.thoughts) {
      messages.push(message);
      fill(article, message);
    } else {
      article.remove();
    }
    buttons();
    $("input").focus();
  }
}

function send() {
  const text = $("input").value.trim();
  if (!text || running) return;
  $("input").value = "";
  const message = { role: "user", content: text };
  messages.push(message);
  show(message);
  answer();
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
$("stop").addEventListener("click", () => running?.abort());
$("again").addEventListener("click", () => {
  if (running || messages.at(-1)?.role !== "assistant") return;
  messages.pop();
  $("log").lastElementChild.remove();
  answer();
});
$("clear").addEventListener("click", () => {
  messages.length = 0;
  $("log").replaceChildren();
  $("usage").textContent = "";
  problem("");
  buttons();
  $("input").focus();
});
