// The page: which conversation is on display, what the buttons do, and how answers come in.

import * as api from "./api.js";
import * as compose from "./compose.js";
import { add, create, drop, isEmpty, path, select, titleOf } from "./conversation.js";
import { byId, el, icon } from "./dom.js";
import { MessageView } from "./message.js";
import * as models from "./models.js";
import * as options from "./settings.js";
import { Run, request } from "./run.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";

const { settings } = store;
/** Milliseconds between two saves of an answer that comes in. */
const SAVE_EVERY = 1500;

let current = store.last() ?? store.sorted()[0] ?? create();
const runs = new Map(); // id of a conversation -> the Run that answers there
let views = new Map(); // id of a message -> its MessageView, of those on display

// -- drawing --------------------------------------------------------------------------------------------------------

const box = byId("messages");
let follows = true; // whether the view stays at the end while text comes in

const toEnd = () => { box.scrollTop = box.scrollHeight; };

function drawMessages() {
  const run = runs.get(current.id), nodes = path(current);
  views = new Map(nodes.map((node) => {
    const view = new MessageView(node, current, actions);
    view.update(state(node, run));
    return [node.id, view];
  }));
  box.replaceChildren(...(nodes.length ? [...views.values()].map((view) => view.element) : [greeting()]));
  compose.busy(Boolean(run));
  drawMeter();
  toEnd();
}

const state = (node, run) =>
  ({ run: run?.node === node ? run : null, busy: Boolean(run), loading: models.chosenModel()?.loaded === false });

function greeting() {
  return el("div", { class: "empty" }, el("p", { class: "hello" }, "What would you like to know?"),
    el("p", {}, "Enter sends, Shift+Enter makes a new line. Text files can be dropped here."));
}

function drawMeter() {
  const figures = path(current).findLast((node) => node.figures)?.figures;
  models.drawMeter(figures ? (figures.prompt ?? 0) + (figures.written ?? 0) : 0);
}

function drawList() {
  sidebar.draw(current, (one) => runs.has(one.id), { open, remove });
  byId("title").value = current.title;
  byId("pin").textContent = current.pinned ? "Unpin" : "Pin";
  document.title = isEmpty(current) ? "ggfw" : `${titleOf(current)} – ggfw`;
}

function draw() {
  drawList();
  drawMessages();
}

/** Tell screen readers what others see anyway. */
const announce = (text) => { byId("announcement").textContent = text; };
/** Show a sentence above the box. */
const say = (text) => { byId("status").textContent = text; };

/** Show a sentence for a while, with something to do about it. */
function toast(text, label, action) {
  const bar = byId("toast");
  const click = () => {
    bar.hidden = true;
    action();
  };
  bar.replaceChildren(el("span", {}, text), el("button", { type: "button", click }, label));
  bar.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { bar.hidden = true; }, 8000);
}

// -- conversations --------------------------------------------------------------------------------------------------

function save(conversation) {
  if (!store.save(conversation)) say("This browser has no room left: export or delete conversations, or they are lost.");
}

function open(conversation) {
  current = conversation;
  store.rememberLast(current);
  models.choose(current.model);
  sidebar.toggle(false);
  say("");
  draw();
  byId("input").focus();
}

function begin() {
  if (!isEmpty(current)) current = create();
  store.conversations.set(current.id, current);
  open(current);
}

function remove(conversation) {
  runs.get(conversation.id)?.stop();
  store.remove(conversation);
  if (conversation === current) open(store.sorted()[0] ?? create());
  else drawList();
  if (!isEmpty(conversation)) {
    toast(`“${titleOf(conversation)}” was deleted.`, "Undo", () => { save(conversation); open(conversation); });
  }
}

// -- asking ---------------------------------------------------------------------------------------------------------

/** Ask for an answer below the message `parent`. */
async function ask(conversation, parent) {
  if (runs.has(conversation.id)) return;
  const node = add(conversation, parent, { role: "assistant" });
  const chosen = options.effective(conversation);
  conversation.model = models.chosen() || conversation.model;
  let due = false, saved = performance.now();
  const run = new Run(node, () => {
    if (!due) requestAnimationFrame(show);
    due = true;
    if (performance.now() - saved > SAVE_EVERY) {
      saved = performance.now();
      if (store.conversations.has(conversation.id)) save(conversation);
    }
  });
  const show = () => {
    due = false;
    if (conversation !== current || runs.get(conversation.id) !== run) return;
    views.get(node.id)?.update(state(node, run));
    drawMeter();
    if (follows) toEnd();
  };
  runs.set(conversation.id, run);
  follows = true;
  if (conversation === current) draw();
  say("");
  announce("The model is answering.");
  await run.go(() => request(conversation, node, chosen, models.chosen()), settings.key);
  ended(conversation, run);
}

function ended(conversation, run) {
  const { node } = run;
  runs.delete(conversation.id);
  if (!node.content && !node.reasoning && !node.error && !node.calls?.length && run.stopped) drop(conversation, node);
  if (store.conversations.has(conversation.id)) save(conversation); // it may have been deleted meanwhile
  if (conversation === current) {
    const view = views.get(node.id);
    if (!view || !conversation.nodes[node.id]) drawMessages();
    for (const [id, one] of views) one.update(state(conversation.nodes[id], null));
    compose.busy(false);
    drawMeter();
    if (follows) toEnd();
    announce(node.error ? "" : run.stopped ? "Stopped." : "The answer is complete.");
  }
  drawList();
  if (run.status === 401) options.askForKey(conversation);
  loadedMaybe();
}

/** A model that was loaded for an answer is to be shown as loaded. */
function loadedMaybe() {
  if (models.chosenModel()?.loaded === false) models.refresh(settings.key, models.chosen()).then(drawMeter, () => {});
}

function send() {
  if (runs.has(current.id)) return;
  const written = compose.take();
  if (!written) return;
  const node = add(current, current.leaf, { role: "user", content: written.content });
  if (written.files.length) node.files = written.files;
  current.title ||= (written.content || written.files[0].name).replace(/\s+/g, " ").slice(0, 60);
  save(current);
  store.rememberLast(current);
  ask(current, node.id);
}

const actions = {
  edit(node, text) {
    if (runs.has(current.id)) return;
    const made = add(current, node.parent, { role: "user", content: text, ...(node.files ? { files: node.files } : {}) });
    ask(current, made.id);
  },
  again: (node) => ask(current, node.parent),
  show(node) {
    if (!node || runs.has(current.id)) return;
    select(current, node.id);
    save(current);
    drawMessages();
    views.get(node.id)?.element.scrollIntoView({ block: "nearest" });
  },
  results(node, texts) {
    if (runs.has(current.id)) return;
    let parent = node.id;
    node.calls.forEach((call, n) => {
      parent = add(current, parent, { role: "tool", content: texts[n], name: call.name, callId: call.id }).id;
    });
    ask(current, parent);
  },
};

const stop = () => runs.get(current.id)?.stop();

// -- the rest -------------------------------------------------------------------------------------------------------

function download(name, data) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function importFile({ target }) {
  try {
    const taken = store.take(JSON.parse(await target.files[0].text()));
    if (!taken.length) throw new Error("it holds no conversation");
    open(taken[0]);
  } catch (error) {
    say(`The file cannot be imported: ${error.message}.`);
  }
  target.value = "";
}

function switchTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark"
    || (!settings.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  settings.theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = settings.theme;
  store.saveSettings();
}

async function connect() {
  try {
    await models.refresh(settings.key, current.model);
    say("");
  } catch (error) {
    say(`The models cannot be listed: ${error.message}`);
    if (error.status === 401) options.askForKey(current);
    return;
  }
  drawMeter();
  options.drawSkills(await api.skills(settings.key).catch(() => []));
}

function keys(event) {
  const key = event.key.toLowerCase(), ctrl = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !event.defaultPrevented && !byId("settings").open) {
    if (byId("side").classList.contains("open")) sidebar.toggle(false);
    else stop();
  } else if (ctrl && event.shiftKey && key === "o") {
    event.preventDefault();
    begin();
  } else if (ctrl && !event.shiftKey && key === "k") {
    event.preventDefault();
    sidebar.toggle(true);
    byId("search").focus();
  } else if (ctrl && key === ",") {
    event.preventDefault();
    options.open(current);
  } else if (event.key === "ArrowUp" && event.target === byId("input") && compose.isEmpty() && !runs.has(current.id)) {
    const mine = path(current).findLast((node) => node.role === "user");
    if (mine) {
      event.preventDefault();
      views.get(mine.id).edit();
    }
  }
}

const ICONS = {
  menu: "menu", theme: "theme", "open-settings": "gear", more: "more", attach: "attach", send: "up", stop: "stop",
  "to-end": "down",
};
for (const [id, name] of Object.entries(ICONS)) byId(id).append(icon(name));
byId("new").prepend(icon("plus"));

const click = (id, action) => byId(id).addEventListener("click", action);
click("new", begin);
click("stop", stop);
click("theme", switchTheme);
click("open-settings", () => options.open(current));
click("to-end", toEnd);
for (const [id, action] of Object.entries({
  pin: () => { current.pinned = !current.pinned; save(current); drawList(); },
  export: () => download("conversation.json", current),
  "export-all": () => download("conversations.json", { conversations: store.sorted().filter((one) => !isEmpty(one)) }),
  import: () => byId("import-file").click(),
  delete: () => remove(current),
})) click(id, () => { byId("actions").hidePopover(); action(); });
byId("import-file").addEventListener("change", importFile);
byId("search").addEventListener("input", drawList);
byId("title").addEventListener("change", ({ target }) => {
  current.title = target.value.trim();
  save(current);
  drawList();
});
byId("title").addEventListener("keydown", ({ key, target }) => { if (key === "Enter") target.blur(); });
byId("model").addEventListener("change", () => {
  settings.model = current.model = models.chosen();
  models.explain();
  store.saveSettings();
  save(current);
  drawMeter();
});
box.addEventListener("scroll", () => {
  follows = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  byId("to-end").hidden = follows;
}, { passive: true });
document.addEventListener("keydown", keys);
addEventListener("pagehide", () => {
  for (const id of runs.keys()) if (store.conversations.has(id)) save(store.conversations.get(id));
});
store.onOthers((id) => {
  if (runs.has(id)) return; // what comes in here is newer
  if (id !== current.id) {
    drawList();
    return;
  }
  current = store.conversations.get(id) ?? store.sorted()[0] ?? create();
  draw();
});
compose.start(send, say);
sidebar.start();
options.start(() => current, (kept) => {
  save(current);
  if (kept) connect();
  else say("The settings hold until the page is closed: this browser does not let them be kept.");
});

store.conversations.set(current.id, current);
models.choose(current.model);
draw();
connect();
byId("input").focus();
