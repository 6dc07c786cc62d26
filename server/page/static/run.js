// One answer under way: what is asked for, and how its chunks become a message. No DOM in here.

import * as api from "./api.js";
import { path } from "./conversation.js";

/** Settings that go into a request as numbers. */
export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];

/** What a user's message says, with its files in front. */
export function contentOf(node) {
  const files = (node.files ?? []).map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length + 1)));
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}\n\n`;
  });
  return files.join("") + node.content;
}

function messageOf(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.callId, name: node.name, content: node.content };
  if (node.role === "user") return { role: "user", content: contentOf(node) };
  return {
    role: "assistant",
    content: node.content,
    ...(node.reasoning ? { reasoning_content: node.reasoning } : {}),
    ...(node.calls?.length ? { tool_calls: node.calls.map(({ id, name, arguments: given }) =>
      ({ id, type: "function", function: { name, arguments: given } })) } : {}),
  };
}

const says = (node) => node.role !== "assistant" || node.content || node.calls?.length;

/** The request that asks for the answer `node`. */
export function request(conversation, node, settings, model) {
  const messages = [];
  for (const one of path(conversation, node.parent)) {
    if (!says(one)) continue; // an answer that failed
    const message = messageOf(one), before = messages.at(-1);
    // Many templates want the roles to alternate.
    if (before && message.role === "user" && before.role === "user") before.content += `\n\n${message.content}`;
    else messages.push(message);
  }
  if (settings.system?.trim()) messages.unshift({ role: "system", content: settings.system });
  const body = { messages };
  if (model) body.model = model;
  for (const name of NUMBERS) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.thinking === "on" || settings.thinking === "off") body.enable_thinking = settings.thinking === "on";
  const tools = settings.tools?.trim() ? JSON.parse(settings.tools) : [];
  if (tools.length) body.tools = tools;
  // Skills are loaded by a call; without tools of one's own, "none" switches off just these.
  else if (settings.skills === "off") body.tool_choice = "none";
  return body;
}

/**
 * An answer that comes in.
 *
 * `stage` is "waiting", "reading" (the prompt), "writing"; `progress` is {done, total, left}: tokens of the prompt, and
 * seconds that the rest will take; `speed` is in tokens per second.
 */
export class Run {
  /** @param {Function} changed called after each chunk */
  constructor(node, changed) {
    Object.assign(this, { node, changed, stage: "waiting", progress: null, speed: 0, began: performance.now() });
    this.controller = new AbortController();
    this.stopped = false;
  }

  stop() {
    this.stopped = true;
    this.controller.abort();
  }

  /** Ask for what `make()` gives, and fill the message until the answer has ended, one way or another. Never throws. */
  async go(make, key) {
    try {
      for await (const chunk of api.answer(make(), key, this.controller.signal)) {
        this.take(chunk);
        this.changed();
      }
    } catch (error) {
      if (this.stopped) this.node.finish = "stopped";
      else this.fail(error);
    }
    if (this.node.reasoning && this.node.thought === undefined) this.thinkingEnds();
  }

  fail(error) {
    this.node.error = error.message;
    this.status = error.status;
  }

  thinkingEnds() {
    this.node.thought = (performance.now() - (this.thinking ?? performance.now())) / 1000;
  }

  take(chunk) {
    const { node } = this;
    const choice = chunk.choices?.[0], delta = choice?.delta ?? {};
    if (typeof chunk.model === "string") node.model = chunk.model;
    if (delta.reasoning_content) {
      this.thinking ??= performance.now();
      node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
    }
    if ((delta.content || delta.tool_calls) && node.reasoning && node.thought === undefined) this.thinkingEnds();
    if (delta.content) node.content += delta.content;
    for (const piece of delta.tool_calls ?? []) this.takeCall(piece);
    for (const index of delta.withdrawn_tool_calls ?? []) delete node.calls?.[index]; // it was none: it is in the text
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.stage = "writing";
    if (choice?.finish_reason) {
      node.finish = choice.finish_reason;
      if (node.calls) node.calls = node.calls.filter(Boolean);
    }
    if (chunk.prompt_progress) this.takeProgress(chunk.prompt_progress);
    if (chunk.timings) this.takeTimings(chunk.timings);
    if (chunk.usage) {
      Object.assign(node.figures ??= {}, {
        prompt: chunk.usage.prompt_tokens,
        written: chunk.usage.completion_tokens,
        cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      });
    }
  }

  takeCall(piece) {
    const calls = (this.node.calls ??= []);
    const call = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }

  takeProgress({ total, cache, processed, time_ms: ms }) {
    if (this.stage === "writing") return;
    this.stage = "reading";
    const fresh = processed - cache;
    this.progress = { done: processed, total, left: fresh > 0 ? ((total - processed) * ms) / fresh / 1000 : null };
  }

  takeTimings(t) {
    this.speed = t.predicted_per_second;
    this.node.figures = {
      ...this.node.figures,
      prompt: t.cache_n + t.prompt_n,
      cached: t.cache_n,
      promptMs: t.prompt_ms,
      written: t.predicted_n,
      speed: t.predicted_per_second,
    };
  }
}
