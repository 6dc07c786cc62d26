// Markdown inside a paragraph, to DOM nodes. Time is linear in the text, also for hostile text.

import { el } from "./dom.js";

const PLAIN = /(?:(?!https?:\/\/)[^\\`<!\[*_~\n])+/y;
const LABEL = /!?\[((?:[^\[\]\\\n]|\\.|\[[^\[\]\n]{0,500}\]){0,1000})\]/y;
const TARGET = /\(\s*(?:<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()]{0,500}\)){0,2000}))(?:\s+(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?\s*\)/y;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/y;
const ANGLE = /<(https?:\/\/[^\s<>]+)>/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/;
const MAX_DEPTH = 8;
// Of emphasis; what exceeds them is text, so that nobody can make the page nest thousands of elements.
const MAX_RUN = 6, MAX_OPEN = 16;

const at = (pattern, text, position) => {
  pattern.lastIndex = position;
  return pattern.exec(text);
};

/** A link, if its address is one of the web; else null. Anything else (javascript:, data:) never becomes an address. */
function link(children, address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: url.href }, children);
}

/** An address in running text ends before punctuation, and before a bracket that it does not open. */
function trimmed(address) {
  let open = 0;
  for (let i = 0; i < address.length; i++) {
    if (address[i] === "(") open++;
    else if (address[i] === ")" && --open < 0) return address.slice(0, i).replace(/[.,;:!?'*_~]{1,50}$/, "");
  }
  return address.replace(/[.,;:!?'*_~]{1,50}$/, "");
}

/** A run of * _ or ~, which opens or closes emphasis by what stands around it (CommonMark's flanking rules). */
function delimiter(text, start, end) {
  const before = start ? text[start - 1] : " ", after = end < text.length ? text[end] : " ";
  const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || SPACE.test(before) || PUNCTUATION.test(before));
  const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || SPACE.test(after) || PUNCTUATION.test(after));
  const inWord = text[start] === "_";
  return {
    mark: text[start],
    left: end - start,
    opens: left && (!inWord || !right || PUNCTUATION.test(before)),
    closes: right && (!inWord || !left || PUNCTUATION.test(after)),
  };
}

/** Cut the text into nodes, strings and delimiter runs. */
function pieces(text, depth) {
  const out = [];
  const unclosed = new Set(); // lengths of backtick runs that have no partner further on
  let i = 0;
  while (i < text.length) {
    const c = text[i];
    let match;
    if (c === "\\" && i + 1 < text.length && (text[i + 1] === "\n" || PUNCTUATION.test(text[i + 1]))) {
      out.push(text[i + 1] === "\n" ? el("br") : text[i + 1]);
      i += 2;
    } else if (c === "\n") {
      out.push(el("br"));
      i++;
    } else if (c === "`") {
      const run = /`+/y;
      const marks = at(run, text, i)[0];
      let close = -1;
      if (!unclosed.has(marks.length)) {
        const next = new RegExp(`(?<!\`)${marks}(?!\`)`, "g");
        next.lastIndex = i + marks.length;
        close = next.exec(text)?.index ?? -1;
        if (close < 0) unclosed.add(marks.length);
      }
      if (close < 0) {
        out.push(marks);
        i += marks.length;
      } else {
        const code = text.slice(i + marks.length, close).replaceAll("\n", " ");
        out.push(el("code", {}, /^ .* $/.test(code) && code.trim() ? code.slice(1, -1) : code));
        i = close + marks.length;
      }
    } else if (c === "<" && (match = at(ANGLE, text, i))) {
      out.push(link([match[1]], match[1]) ?? match[0]);
      i += match[0].length;
    } else if ((c === "[" || (c === "!" && text[i + 1] === "[")) && depth < MAX_DEPTH && (match = at(LABEL, text, i))) {
      const target = at(TARGET, text, i + match[0].length);
      // Pictures are not fetched: the page asks nobody but its server. Their text leads to them.
      const made = target && link(inline(match[1] || "picture", depth + 1), target[1] ?? target[2]);
      if (made) out.push(made);
      else out.push(c);
      i += made ? match[0].length + target[0].length : 1;
    } else if (c === "*" || c === "_" || c === "~") {
      let end = i;
      while (text[end] === c) end++;
      out.push(end - i > MAX_RUN ? text.slice(i, end) : delimiter(text, i, end));
      i = end;
    } else if (c === "h" && !/\w/.test(text[i - 1] ?? "") && (match = at(BARE, text, i))) {
      const address = trimmed(match[0]);
      out.push(link([address], address) ?? address);
      i += address.length;
    } else {
      match = at(PLAIN, text, i);
      out.push(match ? match[0] : c);
      i += match ? match[0].length : 1;
    }
  }
  return out;
}

const isRun = (piece) => typeof piece === "object" && !(piece instanceof Node);

/** Find partners for the runs, innermost first, and wrap what is between them. */
function emphasise(parts) {
  const out = []; // nodes, strings, and runs that may still be opened
  const openers = { "*": [], _: [], "~": [] }; // places in `out`
  for (const part of parts) {
    out.push(part);
    if (!isRun(part)) continue;
    const places = openers[part.mark];
    while (part.closes && part.left && places.length) {
      const place = places.at(-1), opener = out[place];
      const width = part.mark === "~" ? 2 : Math.min(2, part.left, opener.left);
      if (part.mark === "~" && (part.left < 2 || opener.left < 2)) break;
      const inner = out.splice(place + 1, out.length - place - 2).map(plain);
      for (const others of Object.values(openers)) while (others.length && others.at(-1) > place) others.pop();
      opener.left -= width;
      part.left -= width;
      out.splice(place + 1, 0, el(part.mark === "~" ? "del" : width === 2 ? "strong" : "em", {}, inner));
      if (!opener.left) places.pop();
    }
    if (part.opens && part.left && places.length < MAX_OPEN) places.push(out.length - 1);
  }
  return out.map(plain);
}

const plain = (piece) => (isRun(piece) ? piece.mark.repeat(piece.left) : piece);

/** Render text; returns nodes and strings, to be appended. */
export const inline = (text, depth = 0) => emphasise(pieces(text, depth));
