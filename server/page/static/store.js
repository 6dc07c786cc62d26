// What this browser keeps: conversations, one entry each, and settings. Nothing goes anywhere else.

import { checked, isEmpty, texts } from "./conversation.js";

const PREFIX = "ggfw.conversation.", SETTINGS = "ggfw.settings", LAST = "ggfw.last";

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

/** Whether it was kept: storage may be full or forbidden. */
function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

function stored() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  } catch {
    return [];
  }
}

export const settings = texts(read(SETTINGS) ?? {});
export const saveSettings = () => write(SETTINGS, settings);

/** All conversations by id. */
export const conversations = new Map(
  stored().map((key) => checked(read(key))).filter(Boolean).map((conversation) => [conversation.id, conversation]),
);

/** Pinned ones first, then the newest. */
export const sorted = () =>
  [...conversations.values()].sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.updated - a.updated);

/** Keep a conversation; false if the browser has no room for it. Empty ones are not kept. */
export function save(conversation) {
  conversations.set(conversation.id, conversation);
  return isEmpty(conversation) || write(PREFIX + conversation.id, conversation);
}

export function remove(conversation) {
  conversations.delete(conversation.id);
  try {
    localStorage.removeItem(PREFIX + conversation.id);
  } catch {
    // Storage is forbidden, so nothing was kept either.
  }
}

export const last = () => conversations.get(read(LAST));
export const rememberLast = (conversation) => write(LAST, conversation.id);

/** Call `changed(id)` when another tab of this browser has saved or removed a conversation. */
export function onOthers(changed) {
  addEventListener("storage", ({ key, newValue }) => {
    if (!key?.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length);
    const conversation = newValue === null ? null : checked(read(key));
    if (conversation) conversations.set(id, conversation);
    else conversations.delete(id);
    changed(id);
  });
}

/** Take conversations from a file's JSON: one of them, or {conversations: [...]}. Gives those that were taken. */
export function take(data) {
  const list = Array.isArray(data?.conversations) ? data.conversations : [data];
  const taken = list.map(checked).filter(Boolean);
  taken.forEach(save);
  return taken;
}
