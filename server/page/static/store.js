// Conversations and settings, kept in this browser only.

const KEY = "ggfw.conversations", SETTINGS = "ggfw.settings";

function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or forbidden: the page goes on without
  }
}

export const conversations = read(KEY, []);
export const settings = read(SETTINGS, {});

export const saveSettings = () => write(SETTINGS, settings);

/** Keep the conversations; the oldest go when the browser's room is used up. */
export function save() {
  while (!write(KEY, conversations) && conversations.length > 1) conversations.pop();
}

/** Begin a conversation; it comes first in the list. */
export function begin() {
  const made = { id: crypto.randomUUID?.() ?? String(Math.random()), title: "", messages: [] };
  conversations.unshift(made);
  return made;
}

export function remove(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  save();
}
