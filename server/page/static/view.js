// Messages as DOM nodes.

import { render } from "/ui/markdown.js";

const node = (name, className, ...children) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
};

export function button(label, title, action) {
  const made = node("button", "", label);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", action);
  return made;
}

function reasoning(message, streaming) {
  const details = node("details", "", node("summary", "", streaming && !message.content ? "Thinking…" : "Reasoning"));
  details.append(node("div", "text", message.reasoning));
  return details;
}

function call(made) {
  return node("div", "call", `${made.name} ${made.arguments}`);
}

/** What a message says, newly drawn into its element. */
export function draw(element, message, { streaming = false, tools = [] } = {}) {
  const wasOpen = element.querySelector("details")?.open;
  element.className = `message ${message.role}`;
  element.replaceChildren();
  if (message.reasoning) {
    const details = reasoning(message, streaming);
    details.open = wasOpen ?? false;
    element.append(details);
  }
  const body = node("div", "body");
  if (message.role === "user") body.textContent = message.content;
  else body.append(render(message.content));
  if (message.content || message.role === "user") element.append(body);
  for (const made of message.calls ?? []) element.append(call(made));
  if (message.error) element.append(node("p", "error", message.error));
  if (!streaming) element.append(node("div", "tools", ...tools, ...(message.note ? [message.note] : [])));
}

export const message = () => node("article", "message");

export const empty = () => node("p", "empty", "Ask something. Enter sends, Shift+Enter makes a new line, Esc stops.");

/** One conversation in the list. */
export function entry(conversation, current, open, remove) {
  const title = button(conversation.title || "New conversation", "Open", open);
  title.className = "title";
  const cross = button("×", "Delete this conversation", remove);
  cross.className = "remove";
  cross.setAttribute("aria-label", `Delete ${conversation.title || "conversation"}`);
  const made = node("div", "entry", title, cross);
  if (current) made.setAttribute("aria-current", "true");
  return made;
}
