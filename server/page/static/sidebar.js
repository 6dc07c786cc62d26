// The list of conversations: search, open, delete.

import { isEmpty, titleOf } from "./conversation.js";
import { byId, el, icon, iconButton } from "./dom.js";
import * as store from "./store.js";

const holds = (conversation, words) => {
  const text = [conversation.title, ...Object.values(conversation.nodes).map((node) => node.content)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
};

function entry(conversation, current, running, { open, remove }) {
  const title = titleOf(conversation);
  return el("li", { class: "entry", "aria-current": conversation === current ? "true" : null },
    el("button", { type: "button", class: "title", title, click: () => open(conversation) },
      conversation.pinned && icon("pin"), el("span", {}, title), running && el("span", { class: "dot", role: "img", "aria-label": "answering" })),
    iconButton("bin", `Delete ${title}`, () => remove(conversation), { class: "icon-button remove" }));
}

/** Draw the list; `running(conversation)` says whether an answer comes in there. */
export function draw(current, running, actions) {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = store.sorted().filter((one) => (one === current || !isEmpty(one)) && holds(one, words));
  byId("conversations").replaceChildren(...shown.map((one) => entry(one, current, running(one), actions)));
  byId("nothing-found").hidden = shown.length > 0;
}

const narrow = matchMedia("(max-width: 50rem)");

/** Open or close the drawer in which the list is on a narrow screen. */
export function toggle(open) {
  const side = byId("side");
  const now = narrow.matches && (open ?? !side.classList.contains("open"));
  side.classList.toggle("open", now);
  byId("scrim").hidden = !now;
  byId("menu").setAttribute("aria-expanded", String(now));
  side.inert = narrow.matches && !now;
  if (now) byId("new").focus();
}

export function start() {
  byId("menu").addEventListener("click", () => toggle());
  byId("scrim").addEventListener("click", () => toggle(false));
  narrow.addEventListener("change", () => toggle(false));
  toggle(false);
}
