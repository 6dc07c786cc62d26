// The settings dialog. Values hold for all conversations, or for one that has its own.

import { byId } from "./dom.js";
import { NUMBERS } from "./run.js";
import { saveSettings, settings } from "./store.js";

/** What a conversation may have for itself. */
const OWN = ["system", "thinking", "skills", "tools", ...NUMBERS];
const form = () => byId("settings").querySelector("form");

/** What holds for a conversation. */
export const effective = (conversation) => ({ ...settings, ...conversation.settings });

/** Why the tools cannot be used; "" if they can. */
function toolsProblem(text) {
  if (!text.trim()) return "";
  try {
    const list = JSON.parse(text);
    if (!Array.isArray(list)) return "Tools must be a list in OpenAI's form: [{\"type\": \"function\", ...}].";
    return list.every((tool) => typeof tool?.function?.name === "string") ? "" : "Each tool needs a function with a name.";
  } catch (error) {
    return `Tools must be JSON: ${error.message}.`;
  }
}

export function open(conversation) {
  const values = effective(conversation), { elements } = form();
  for (const name of [...OWN, "key"]) elements[name].value = values[name] ?? elements[name].dataset.default ?? "";
  elements.own.checked = conversation.settings !== null;
  elements.tools.setCustomValidity("");
  if (!byId("settings").open) byId("settings").showModal();
}

/** Ask for the API key, because the server wants one. */
export function askForKey(conversation) {
  open(conversation);
  form().elements.key.focus();
}

function take(conversation) {
  const { elements } = form();
  const values = Object.fromEntries(OWN.map((name) => [name, elements[name].value]));
  if (elements.own.checked) {
    conversation.settings = values;
  } else {
    conversation.settings = null;
    Object.assign(settings, values);
  }
  settings.key = elements.key.value.trim();
  return saveSettings();
}

export function drawSkills(found) {
  byId("skill-box").hidden = !found.length;
  byId("skill-list").replaceChildren(...found.map(({ name, description }) => {
    const item = document.createElement("li");
    item.textContent = description ? `${name}: ${description}` : name;
    return item;
  }));
}

/** @param {Function} current gives the conversation on display; @param {Function} saved called with whether it was kept */
export function start(current, saved) {
  form().elements.tools.addEventListener("input", ({ target }) => target.setCustomValidity(toolsProblem(target.value)));
  // The browser has checked the fields when a form is submitted; closing in another way keeps nothing.
  form().addEventListener("submit", () => saved(take(current())));
  byId("settings-cancel").addEventListener("click", () => byId("settings").close());
}
