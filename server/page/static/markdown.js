// Markdown to DOM nodes. Text becomes text nodes and nothing else: markup in an answer is shown, never run.

import { copyButton, el } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const BREAK = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|\s*$)/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MAX_DEPTH = 12;

const blank = (line) => line === undefined || !line.trim();
const begins = (line) => FENCE.test(line) || HEADING.test(line) || BREAK.test(line) || QUOTE.test(line) || ITEM.test(line);

function fence(lines, i) {
  const [, indent, marks, info] = lines[i].match(FENCE);
  const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`);
  const strip = new RegExp(`^ {0,${indent.length}}`);
  const body = [];
  let end = i + 1;
  while (end < lines.length && !close.test(lines[end])) body.push(lines[end++].replace(strip, ""));
  const code = body.join("\n"), language = info.trim().split(/\s/)[0].slice(0, 40);
  const make = () => el("figure", { class: "code" },
    el("figcaption", {}, el("span", {}, language || "text"), copyButton(() => code, "Copy the code")),
    el("pre", { tabindex: "0" }, el("code", {}, highlight(code, language))));
  return { end: Math.min(lines.length, end + 1), make };
}

function quote(lines, i, depth) {
  const body = [];
  let end = i;
  while (end < lines.length && QUOTE.test(lines[end])) body.push(lines[end++].replace(QUOTE, ""));
  return { end, make: () => el("blockquote", {}, nodes(body, depth + 1)) };
}

function list(lines, i, depth) {
  const first = lines[i].match(ITEM);
  const ordered = /\d/.test(first[2]), kind = first[2].at(-1);
  const items = [];
  let end = i, loose = false;
  while (end < lines.length) {
    const item = lines[end].match(ITEM);
    if (!item || item[2].at(-1) !== kind || BREAK.test(lines[end])) break;
    const width = item[1].length + item[2].length + (item[3]?.length ?? 1);
    const inside = Math.min(width, item[1].length + 2); // models often indent by less than Markdown asks for
    const body = [lines[end++].slice(width)];
    for (; end < lines.length; end++) {
      const line = lines[end];
      if (blank(line)) {
        // A blank line goes on with the item only if what follows is indented as the item is.
        if (blank(lines[end + 1]) || lines[end + 1].search(/\S/) < inside) break;
        body.push("");
      } else if (line.search(/\S/) >= inside) {
        body.push(line.slice(Math.min(width, line.search(/\S/))));
      } else if (begins(line) || blank(lines[end - 1])) {
        break;
      } else {
        body.push(line);
      }
    }
    items.push(body);
    if (blank(lines[end]) && !blank(lines[end + 1]) && ITEM.test(lines[end + 1])) {
      loose = true;
      end++;
    }
  }
  const make = () => {
    const start = ordered ? parseInt(first[2], 10) : 1;
    return el(ordered ? "ol" : "ul", { start: start === 1 ? null : start, class: loose ? "loose" : null },
      items.map((body) => entry(body, depth)));
  };
  return { end, make };
}

function entry(body, depth) {
  const task = body[0].match(/^\[([ xX])\] +/);
  if (task) body = [body[0].slice(task[0].length), ...body.slice(1)];
  const children = nodes(body, depth + 1);
  // An item of one paragraph needs none around it.
  const single = children.filter((child) => child.nodeName === "P").length === 1;
  const flat = children.flatMap((child) => (single && child.nodeName === "P" ? [...child.childNodes] : [child]));
  if (!task) return el("li", {}, flat);
  const box = el("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
  return el("li", { class: "task" }, box, " ", flat);
}

const cells = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, i) {
  const sides = cells(lines[i + 1]).map((rule) =>
    rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : null);
  const row = (line, name) => {
    const given = cells(line);
    return el("tr", {}, sides.map((side, n) => el(name, { class: side }, inline(given[n] ?? ""))));
  };
  let end = i + 2;
  while (end < lines.length && !blank(lines[end]) && lines[end].includes("|")) end++;
  const make = () => el("div", { class: "table", tabindex: "0" }, el("table", {},
    el("thead", {}, row(lines[i], "th")),
    el("tbody", {}, lines.slice(i + 2, end).map((line) => row(line, "td")))));
  return { end, make };
}

const isTable = (lines, i) => lines[i].includes("|") && i + 1 < lines.length && TABLE_RULE.test(lines[i + 1])
  && lines[i + 1].includes("-") && cells(lines[i]).length === cells(lines[i + 1]).length;

function paragraph(lines, i) {
  let end = i + 1;
  while (end < lines.length && !blank(lines[end]) && !begins(lines[end]) && !isTable(lines, end)) end++;
  const text = lines.slice(i, end).map((line) => line.trim()).join("\n");
  return { end, make: () => el("p", {}, inline(text)) };
}

function block(lines, i, depth) {
  const line = lines[i];
  if (FENCE.test(line)) return fence(lines, i);
  const heading = line.match(HEADING);
  if (heading) {
    // The page's own headings stand above those of an answer.
    const level = Math.min(6, heading[1].length + 2);
    return { end: i + 1, make: () => el(`h${level}`, {}, inline(heading[2] ?? "")) };
  }
  if (BREAK.test(line)) return { end: i + 1, make: () => el("hr") };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, i, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, i, depth);
  if (isTable(lines, i)) return table(lines, i);
  return paragraph(lines, i);
}

/** The blocks of a text in order: {source, make}. An unclosed fence is code to the end, as while it streams. */
function blocks(lines, depth) {
  const out = [];
  for (let i = 0; i < lines.length; ) {
    if (blank(lines[i])) {
      i++;
      continue;
    }
    const { end, make } = block(lines, i, depth);
    out.push({ source: lines.slice(i, end).join("\n"), make });
    i = end;
  }
  return out;
}

const nodes = (lines, depth) => blocks(lines, depth).map(({ make }) => make());
const linesOf = (text) => text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n");

/** Render Markdown; returns a list of elements. */
export const render = (text) => nodes(linesOf(text), 0);

/** An element that shows a growing text: blocks that have not changed keep their nodes, and with them a selection. */
export class Growing {
  constructor(element) {
    this.element = element;
    this.shown = []; // sources of the element's children
  }

  show(text) {
    const wanted = blocks(linesOf(text), 0);
    let same = 0;
    while (same < wanted.length && wanted[same].source === this.shown[same]) same++;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const { make } of wanted.slice(same)) this.element.append(make());
    this.shown = wanted.map(({ source }) => source);
  }
}
