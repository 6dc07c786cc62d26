// The page: what the buttons do, and how an answer comes in.

import * as api from "/ui/api.js";
import * as store from "/ui/store.js";
import * as view from "/ui/view.js";

const $ = (id) => document.getElementById(id);
const { conversations, settings } = store;
let current = conversations[0] ?? store.begin();
let running = null; // the AbortController of the answer that comes in
const FIELDS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

// -- drawing --------------------------------------------------------------------------------------------------------

function drawList() {
  $("conversations").replaceChildren(...conversations.map((c) =>
    view.entry(c, c === current, () => open(c), () => {
      if (running) return;
      store.remove(c);
      if (c === current) current = conversations[0] ?? store.begin();
      drawAll();
    })));
}

function toolsOf(message, index) {
  if (running) return [];
  const copy = view.button("Copy", "Copy the text", () => navigator.clipboard?.writeText(message.content));
  if (message.role === "user") return [view.button("Edit", "Edit this message and ask again", () => edit(index)), copy];
  const again = index === current.messages.length - 1
    ? [view.button("Regenerate", "Answer the last message again", () => regenerate())] : [];
  return [copy, ...again];
}

function drawMessages() {
  const elements = current.messages.map((message, i) => {
    const element = view.message();
    view.draw(element, message, { tools: toolsOf(message, i) });
    return element;
  });
  $("messages").replaceChildren(...(elements.length ? elements : [view.empty()]));
  $("messages").scrollTop = $("messages").scrollHeight;
  $("context").textContent = current.tokens ? `${current.tokens.toLocaleString()} tokens` : "";
}

function drawAll() {
  drawList();
  drawMessages();
}

function open(conversation) {
  if (running) return;
  current = conversation;
  $("side").classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
  drawAll();
  $("input").focus();
}

const status = (text) => { $("status").textContent = text; };

// -- asking ---------------------------------------------------------------------------------------------------------

function request() {
  const messages = current.messages.filter((m) => !m.error || m.content).map((m) => ({
    role: m.role, content: m.content, ...(m.reasoning ? { reasoning_content: m.reasoning } : {}),
  }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { messages, ...($("model").value ? { model: $("model").value } : {}) };
  for (const name of FIELDS) if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  return body;
}

function take(answer, chunk) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const made = (answer.calls[piece.index] ??= { name: "", arguments: "" });
    made.name += piece.function?.name ?? "";
    made.arguments += piece.function?.arguments ?? "";
  }
  const progress = chunk.prompt_progress;
  if (progress?.total) status(`Reading ${Math.round((100 * progress.processed) / progress.total)} % of ${progress.total} tokens`);
  const speed = chunk.timings?.predicted_per_second;
  if (speed && (delta.content || delta.reasoning_content)) status(`${speed.toFixed(1)} tokens per second`);
  if (chunk.usage) current.tokens = chunk.usage.total_tokens;
}

async function ask() {
  const body = request();
  const answer = { role: "assistant", content: "", reasoning: "", calls: [] };
  current.messages.push(answer);
  running = new AbortController();
  busy(true);
  drawAll();
  const element = $("messages").lastElementChild;
  let due = false;
  const show = () => {
    due = false;
    const box = $("messages");
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    view.draw(element, answer, { streaming: true });
    if (atEnd) box.scrollTop = box.scrollHeight;
  };
  status("Waiting…");
  const begun = performance.now();
  try {
    for await (const chunk of api.answer(body, settings.key, running.signal)) {
      take(answer, chunk);
      if (!due) {
        due = true;
        requestAnimationFrame(show);
      }
    }
    const note = $("status").textContent;
    if (note.includes("per second")) answer.note = note;
  } catch (error) {
    if (error.name === "AbortError") answer.note = `stopped after ${((performance.now() - begun) / 1000).toFixed(1)} s`;
    else answer.error = error.message;
  } finally {
    running = null;
    busy(false);
    status("");
    if (!answer.content && !answer.reasoning && !answer.error && !answer.calls.length) current.messages.pop();
    store.save();
    drawAll();
    $("input").focus();
  }
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
}

function send() {
  const text = $("input").value.trim();
  if (!text || running) return;
  $("input").value = "";
  fit();
  current.messages.push({ role: "user", content: text });
  current.title ||= text.slice(0, 60);
  store.save();
  ask();
}

function edit(index) {
  if (running) return;
  $("input").value = current.messages[index].content;
  current.messages.length = index;
  store.save();
  drawAll();
  fit();
  $("input").focus();
}

function regenerate() {
  if (running) return;
  if (current.messages.at(-1)?.role === "assistant") current.messages.pop();
  if (current.messages.length) ask();
}

// -- the rest -------------------------------------------------------------------------------------------------------

function fit() {
  const box = $("input");
  box.rows = Math.min(12, box.value.split("\n").length);
}

function exportAll() {
  const file = new Blob([JSON.stringify(current, null, 2)], { type: "application/json" });
  const a = document.createElement("a");
  a.href = URL.createObjectURL(file);
  a.download = "conversation.json";
  a.click();
  URL.revokeObjectURL(a.href);
}

function theme() {
  const dark = settings.theme ? settings.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  settings.theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = settings.theme;
  store.saveSettings();
}

async function models() {
  try {
    const ids = await api.models(settings.key);
    $("model").replaceChildren(...ids.map((id) => new Option(id, id)));
    if (ids.includes(settings.model)) $("model").value = settings.model;
    status("");
  } catch (error) {
    status(`The models cannot be listed: ${error.message}`);
  }
  try {
    const found = await api.skills(settings.key);
    $("skills").textContent = found.length ? `Skills: ${found.map((skill) => skill.name).join(", ")}` : "";
  } catch {
    $("skills").textContent = "";
  }
}

function settingsDialog() {
  const form = $("settings").querySelector("form");
  for (const name of ["system", "key", ...FIELDS]) form.elements[name].value = settings[name] ?? "";
  $("settings").showModal();
}

$("settings").addEventListener("close", () => {
  const form = $("settings").querySelector("form");
  for (const name of ["system", "key", ...FIELDS]) settings[name] = form.elements[name].value;
  store.saveSettings();
  models();
});
$("compose").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("input", fit);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
  if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) { event.preventDefault(); $("new").click(); }
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  if (!running) open(current.messages.length || !conversations.includes(current) ? store.begin() : current);
});
$("menu").addEventListener("click", () => {
  $("menu").setAttribute("aria-expanded", String($("side").classList.toggle("open")));
});
$("export").addEventListener("click", exportAll);
$("open-settings").addEventListener("click", settingsDialog);
$("theme").addEventListener("click", theme);
$("model").addEventListener("change", () => { settings.model = $("model").value; store.saveSettings(); });
if (settings.theme) document.documentElement.dataset.theme = settings.theme;
drawAll();
models();
$("input").focus();
