// One message on the page. It is updated in place while an answer comes in.

import { versions } from "./conversation.js";
import { copyButton, el, iconButton } from "./dom.js";
import { Growing } from "./markdown.js";

const count = (n, one) => `${n.toLocaleString()} ${one}${n === 1 ? "" : "s"}`;
const seconds = (s) => (s < 60 ? `${s.toFixed(s < 10 ? 1 : 0)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`);

/** What an answer has cost, in one line. */
export function figuresOf(node, run) {
  const figures = node.figures ?? {};
  const speed = run ? run.speed : figures.speed;
  const out = [];
  if (figures.written) out.push(count(figures.written, "token"));
  if (speed) out.push(`${speed.toFixed(1)} tokens/s`);
  if (!run && figures.promptMs >= 100) out.push(`prompt ${seconds(figures.promptMs / 1000)}`);
  if (!run && figures.cached) out.push(`${figures.cached.toLocaleString()} of ${count(figures.prompt ?? figures.cached, "prompt token")} cached`);
  return out.join(" · ");
}

/** What a server says, begun like a sentence; a word that is a field's name (top_p, messages[0]) stays. */
const sentence = (text) => (/^[a-z]{3,} /.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

const ENDS = {
  length: "The answer was cut off: the limit of tokens, or the end of the context, was reached.",
  stopped: "Stopped.",
};

/** How far the run is before it writes: a sentence, and the share that is done (null: unknown). */
function waiting(run, loading) {
  if (run.stage === "reading" && run.progress) {
    const { done, total, left } = run.progress;
    const speed = left > 0 && total > done ? ` · ${((total - done) / left).toFixed(0)} tokens/s` : "";
    const rest = left > 1 ? `${speed} · about ${seconds(left)} left` : speed;
    return [`Reading the prompt: ${done.toLocaleString()} of ${count(total, "token")}${rest}`, done / total];
  }
  return [loading ? "Loading the model…" : "Waiting for the model…", null];
}

export class MessageView {
  /**
   * @param {Object} node the message
   * @param {Object} conversation it belongs to
   * @param {Object} actions {edit(node, text), again(node), show(node), results(node, texts)}
   */
  constructor(node, conversation, actions) {
    Object.assign(this, { node, conversation, actions });
    const name = { user: "You", assistant: "Answer", tool: "Result of a tool" }[node.role];
    this.reasoning = el("div", { class: "thoughts" });
    this.summary = el("summary");
    this.details = el("details", { class: "reasoning", hidden: true }, this.summary, this.reasoning);
    this.body = el("div", { class: "body" });
    this.calls = el("div", { class: "calls" });
    this.bar = el("progress", { "aria-label": "Prompt that has been read" });
    this.stage = el("span");
    this.progress = el("div", { class: "progress", hidden: true }, this.stage, this.bar);
    this.error = el("p", { class: "error", role: "alert", hidden: true });
    this.ended = el("p", { class: "ended", hidden: true });
    this.foot = el("footer");
    const parts = node.role === "assistant"
      ? [this.details, this.body, this.calls, this.progress, this.error, this.ended, this.foot] : [this.body, this.foot];
    this.element = el("article", { class: `message ${node.role}`, "aria-label": name }, ...parts);
    this.growing = new Growing(this.body);
  }

  /** Draw what the message says now; `run` is there while it comes in. */
  update({ run = null, busy = false, loading = false } = {}) {
    const { node } = this;
    this.element.setAttribute("aria-busy", String(Boolean(run)));
    if (node.role === "user") this.drawQuestion();
    else if (node.role === "tool") this.drawResult();
    else this.drawAnswer(run, busy, loading);
    this.drawFoot(run, busy);
  }

  drawQuestion() {
    const files = (this.node.files ?? []).map((file) => el("details", { class: "file" },
      el("summary", {}, file.name), el("pre", { tabindex: "0" }, file.text)));
    this.body.replaceChildren(...files, el("div", { class: "said" }, this.node.content));
  }

  drawResult() {
    this.body.replaceChildren(el("details", { class: "file" },
      el("summary", {}, `Result of ${this.node.name || "a tool"}`), el("pre", { tabindex: "0" }, this.node.content)));
  }

  drawAnswer(run, busy, loading) {
    const { node } = this;
    this.details.hidden = !node.reasoning;
    if (node.reasoning && this.reasoning.textContent !== node.reasoning) this.reasoning.textContent = node.reasoning;
    const took = node.thought < 0.5 ? "a moment" : seconds(node.thought ?? 0);
    this.summary.textContent = node.thought !== undefined ? `Thought for ${took}` : run ? "Thinking…" : "Thoughts";
    this.growing.show(node.content);
    this.drawCalls(Boolean(run), busy);
    this.progress.hidden = !run || run.stage === "writing";
    if (run && run.stage !== "writing") {
      const [text, share] = waiting(run, loading);
      this.stage.textContent = text;
      if (share === null) this.bar.removeAttribute("value");
      else this.bar.value = share;
    }
    this.error.hidden = !node.error;
    this.error.textContent = sentence(node.error ?? "");
    const end = run ? undefined : ENDS[node.finish];
    this.ended.hidden = !end;
    this.ended.textContent = end ?? "";
  }

  drawCalls(running, busy) {
    const calls = (this.node.calls ?? []).filter(Boolean);
    const key = JSON.stringify([calls, running, busy]);
    if (key === this.drawnCalls) return; // a result that is being typed stays
    this.drawnCalls = key;
    const answered = Object.values(this.conversation.nodes).some((n) => n.parent === this.node.id);
    const wanted = calls.length > 0 && !running && !busy && !answered;
    const boxes = calls.map((call) =>
      el("textarea", { rows: "2", "aria-label": `Result of ${call.name}`, placeholder: "What the tool gave" }));
    const send = () => this.actions.results(this.node, boxes.map((box) => box.value));
    this.calls.replaceChildren(
      ...calls.map((call, n) => el("section", { class: "call", "aria-label": "Tool call" },
        el("div", { class: "call-name" }, "Calls ", el("code", {}, call.name)),
        call.arguments && el("pre", { tabindex: "0" }, indented(call.arguments)), wanted && boxes[n])),
      ...(wanted ? [el("button", { type: "button", class: "primary", click: send },
        calls.length === 1 ? "Send the result" : "Send the results")] : []),
    );
  }

  drawFoot(run, busy) {
    const { node, actions } = this;
    if (run) {
      this.foot.replaceChildren(el("span", { class: "figures" }, figuresOf(node, run)));
      return;
    }
    const all = versions(this.conversation, node), at = all.indexOf(node);
    const off = { disabled: busy };
    const step = (by, name, label) =>
      iconButton(name, label, () => actions.show(all[at + by]), { disabled: busy || !all[at + by] });
    this.foot.replaceChildren(
      ...(all.length > 1 ? [step(-1, "left", "Earlier version"),
        el("span", { class: "version" }, `${at + 1} / ${all.length}`), step(1, "right", "Later version")] : []),
      ...(node.content ? [copyButton(() => node.content, "Copy this message")] : []),
      ...(node.role === "user" ? [iconButton("edit", "Edit this message", () => this.edit(), off)] : []),
      ...(node.role === "assistant" ? [iconButton("again", "Answer again", () => actions.again(node), off)] : []),
      ...(node.role === "assistant" ? [el("span", { class: "figures" }, figuresOf(node))] : []),
    );
  }

  /** Put a box in the place of the text; sending it makes a branch. */
  edit() {
    const rows = String(Math.min(12, this.node.content.split("\n").length + 1));
    const box = el("textarea", { "aria-label": "Edit your message", rows });
    box.value = this.node.content;
    const leave = () => {
      this.element.classList.remove("editing");
      this.update();
    };
    const send = () => (box.value.trim() ? this.actions.edit(this.node, box.value.trim()) : leave());
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        leave();
      }
    });
    this.element.classList.add("editing");
    this.body.replaceChildren(box);
    this.foot.replaceChildren(el("button", { type: "button", click: leave }, "Cancel"),
      el("button", { type: "button", class: "primary", click: send }, "Send"));
    box.focus();
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not complete yet, or never valid
  }
}
