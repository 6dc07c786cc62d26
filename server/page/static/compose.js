// Where messages are written: a box that grows, and text files that go with a message.

import { byId, el, iconButton } from "./dom.js";

/** Bytes a file may have: it becomes part of the prompt. */
const MAX_FILE = 1 << 20;
let files = [];

export function fit() {
  const box = byId("input");
  box.rows = 1;
  box.rows = Math.min(10, Math.max(1, Math.round((box.scrollHeight - 13) / 24)));
}

function drawFiles() {
  byId("files").replaceChildren(...files.map((file) => el("li", {}, el("span", {}, file.name),
    iconButton("cross", `Remove ${file.name}`, () => {
      files = files.filter((other) => other !== file);
      drawFiles();
    }))));
}

async function attach(list, say) {
  for (const file of list) {
    const text = file.size <= MAX_FILE ? await file.text() : null;
    if (text === null) say(`${file.name} is larger than 1 MB.`);
    else if (text.includes("\0") || text.includes("\ufffd")) say(`${file.name} is no text file.`);
    else files.push({ name: file.name, text });
  }
  drawFiles();
}

/** Take what was written: {content, files}, or null if there is nothing. */
export function take() {
  const content = byId("input").value.trim();
  if (!content && !files.length) return null;
  const taken = { content, files };
  byId("input").value = "";
  files = [];
  drawFiles();
  fit();
  return taken;
}

export const isEmpty = () => !byId("input").value && !files.length;

/** Show that an answer comes in: the button stops it. */
export function busy(is) {
  // The focus must not be lost with the button that has it.
  const other = is ? byId("send") : byId("stop");
  const focused = document.activeElement === other;
  byId("send").hidden = is;
  byId("stop").hidden = !is;
  if (focused) byId("input").focus();
}

/** @param {Function} send @param {Function} say shows a sentence */
export function start(send, say) {
  byId("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  const box = byId("input");
  box.addEventListener("input", fit);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  byId("attach").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", async ({ target }) => {
    await attach(target.files, say);
    target.value = "";
    box.focus();
  });
  const main = document.querySelector("main");
  main.addEventListener("dragover", (event) => {
    event.preventDefault();
    main.classList.add("dropping");
  });
  main.addEventListener("dragleave", () => main.classList.remove("dropping"));
  main.addEventListener("drop", (event) => {
    event.preventDefault();
    main.classList.remove("dropping");
    attach(event.dataTransfer.files, say);
  });
}
