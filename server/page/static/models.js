// The model picker and the meter that shows how much of its context is used.

import * as api from "./api.js";
import { byId } from "./dom.js";
import { settings } from "./store.js";

let known = [];

const size = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`);

const positions = (n) => (n >= 1024 ? `${Math.round(n / 1024)}k` : String(n));

/** Name, quant (where the name does not say it), size, context, and whether it has to be loaded first. */
function describe(model) {
  const named = model.quant && model.id.toLowerCase().includes(model.quant.toLowerCase());
  const facts = [named ? null : model.quant, model.bytes ? size(model.bytes) : null,
    model.context ? `${positions(model.context)} context` : null,
    model.state === "loading" ? "loading" : model.loaded ? null : "not loaded"].filter(Boolean);
  return [model.id, ...facts].join(" · ");
}

/** Ask the server for its models and fill the picker. */
export async function refresh(key, wanted) {
  known = await api.models(key);
  const picker = byId("model"), before = wanted || picker.value;
  picker.replaceChildren(...known.map((model) => new Option(describe(model), model.id)));
  choose(before);
}

/** Pick a model if it is there; else the last one used, else the server's default. */
export function choose(id) {
  const pick = [id, settings.model].find((one) => known.some((model) => model.id === one)) ?? known[0]?.id;
  if (pick !== undefined) byId("model").value = pick;
  explain();
}

/** The picker cuts what is too long; all of it is its tooltip. */
export function explain() {
  byId("model").title = byId("model").selectedOptions[0]?.text ?? "";
}

export const chosen = () => byId("model").value;
export const chosenModel = () => known.find((model) => model.id === chosen());

/** Show how many tokens of the model's context a conversation takes. */
export function drawMeter(tokens) {
  const limit = chosenModel()?.context;
  byId("context").hidden = !tokens || !limit;
  if (!tokens || !limit) return;
  const meter = byId("context-meter"), share = Math.min(1, tokens / limit);
  meter.querySelector(".used").setAttribute("width", String(Math.max(3, 64 * share)));
  meter.classList.toggle("full", share > 0.8);
  meter.setAttribute("aria-valuemax", String(limit));
  meter.setAttribute("aria-valuenow", String(Math.min(tokens, limit)));
  byId("context-text").textContent = `${tokens.toLocaleString()} / ${limit.toLocaleString()}`;
  byId("context").title = `${tokens.toLocaleString()} of ${limit.toLocaleString()} tokens of the context are used`;
}
