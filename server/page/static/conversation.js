// A conversation is a tree: an edited question or another answer is a branch beside the old one. No DOM in here.
//
// {id, title, created, updated, pinned, model, settings, next, nodes, leaf}; nodes are kept by id ("0", "1", ... in the
// order of creation), each with the id of its parent (null at the root); `leaf` is where the branch on display ends.

const TEXT_FIELDS = ["content", "reasoning", "error", "finish", "model", "name", "callId"];
const ROLES = new Set(["user", "assistant", "tool"]);

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12)); // randomUUID is missing outside secure contexts
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function create() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, pinned: false, model: null, settings: null, next: 0,
    nodes: {}, leaf: null };
}

/** The messages on display, first to last, or those up to `leaf`. */
export function path(conversation, leaf = conversation.leaf) {
  const out = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) out.push(node);
  return out.reverse();
}

export const isEmpty = (conversation) => conversation.next === 0;

/** Add a message below `parent` (an id or null) and show the branch it ends. */
export function add(conversation, parent, fields) {
  const node = { id: String(conversation.next++), parent, content: "", ...fields };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  return node;
}

/** Remove a message that nothing follows. */
export function drop(conversation, node) {
  delete conversation.nodes[node.id];
  if (conversation.leaf === node.id) select(conversation, node.parent);
}

const childrenOf = (conversation, id) => Object.values(conversation.nodes).filter((node) => node.parent === id);

/** The versions of a message, oldest first, itself among them. */
export const versions = (conversation, node) => childrenOf(conversation, node.parent);

/** Show the branch through the message `id`, to its newest end; null: the newest of all. */
export function select(conversation, id) {
  let end = id;
  for (let below = childrenOf(conversation, end); below.length; below = childrenOf(conversation, end)) {
    end = below.at(-1).id;
  }
  conversation.leaf = end;
}

export const titleOf = (conversation) => conversation.title || "New conversation";

const object = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : null);
const text = (value) => (typeof value === "string" ? value : undefined);
/** The entries of an object that are text. */
export const texts = (value) => Object.fromEntries(Object.entries(value).filter(([, one]) => typeof one === "string"));
const number = (value) => (Number.isFinite(value) ? value : undefined);

function checkedNode(id, raw, known) {
  if (!object(raw) || !ROLES.has(raw.role) || !(raw.parent === null || known.has(raw.parent))) return null;
  const node = { id, parent: raw.parent, role: raw.role };
  for (const field of TEXT_FIELDS) if (text(raw[field]) !== undefined) node[field] = raw[field];
  node.content ??= "";
  if (Array.isArray(raw.calls)) {
    node.calls = raw.calls.filter(object).map((call) =>
      ({ id: text(call.id) ?? "", name: text(call.name) ?? "", arguments: text(call.arguments) ?? "" }));
  }
  if (Array.isArray(raw.files)) {
    node.files = raw.files.filter(object).map((file) => ({ name: text(file.name) ?? "", text: text(file.text) ?? "" }));
  }
  if (object(raw.figures)) {
    node.figures = Object.fromEntries(Object.entries(raw.figures).filter(([, value]) => number(value) !== undefined));
  }
  if (number(raw.thought) !== undefined) node.thought = raw.thought;
  return node;
}

/** A conversation made of what was stored or imported; null if it is none. Takes known fields of the right types. */
export function checked(raw) {
  if (!object(raw) || !text(raw.id) || !object(raw.nodes)) return null;
  const made = create();
  made.id = raw.id;
  made.title = (text(raw.title) ?? "").slice(0, 200);
  made.created = number(raw.created) ?? made.created;
  made.updated = number(raw.updated) ?? made.updated;
  made.pinned = raw.pinned === true;
  made.model = text(raw.model) ?? null;
  made.settings = object(raw.settings) && texts(raw.settings);
  const ids = Object.keys(raw.nodes).filter((id) => /^\d{1,9}$/.test(id)).sort((a, b) => a - b);
  const known = new Set();
  for (const id of ids) {
    const node = checkedNode(id, raw.nodes[id], known); // parents are older, so there are no circles
    if (!node) continue;
    known.add(id);
    made.nodes[id] = node;
    made.next = Number(id) + 1;
  }
  if (known.has(raw.leaf)) made.leaf = raw.leaf;
  else select(made, null);
  return made;
}
