// Elements without markup: strings given here become text and nothing else.

/**
 * Make an element.
 * @param {string} name
 * @param {Object} [attributes] null, undefined and false are left out, true is an empty value, a function listens to
 *   the event of that name.
 * @param {...(Node|string|null|false|Array)} children
 */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  // One by one: there may be more children than a call may have arguments.
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  again: "M19 12a7 7 0 1 1-2-5M19 4v4h-4",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  up: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  attach: "M19 11l-7.5 7.5a4 4 0 0 1-6-6L13 5a2.8 2.8 0 0 1 4 4l-7.5 7.5a1.3 1.3 0 0 1-2-2L14 8",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  gear: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  bin: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  cross: "M6 6l12 12M18 6L6 18",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  tool: "M14 6a4 4 0 0 1 5-1l-3 3 1 2 2 1 2-3a4 4 0 0 1-6 5l-7 7-3-3 7-7a4 4 0 0 1 2-4",
};

/** One of our line drawings; hidden from screen readers, so its button needs a label. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon and is called `label`. */
export const iconButton = (name, label, click, attributes = {}) =>
  el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, click, ...attributes },
    icon(name));

/** Put text on the clipboard; resolves to whether that worked. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers offer the clipboard only to pages over https or from this machine.
    const box = el("textarea", { class: "unseen", "aria-hidden": "true" });
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

/** A button that copies what `text()` gives, and says so for a moment. */
export function copyButton(text, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    const done = await copy(text());
    button.replaceChildren(icon(done ? "check" : "cross"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1200);
  });
  return button;
}
