// Markdown to DOM nodes. Text becomes text nodes and nothing else, so markup in an answer is shown, never run.

const el = (name, ...children) => {
  const node = document.createElement(name);
  node.append(...children);
  return node;
};

const INLINE = /(`+)([^]*?[^`])\1(?!`)|\*\*(?=\S)([^]*?\S)\*\*|\*(?=[^\s*])([^*\n]*[^\s*])\*|\[([^\]\n]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?])/g;

function link(text, address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const a = el("a", text);
  a.href = url.href;
  a.target = "_blank";
  a.rel = "noopener noreferrer";
  return a;
}

function inline(text) {
  const out = [];
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    let node;
    if (m[2] !== undefined) node = el("code", m[2]);
    else if (m[3] !== undefined) node = el("strong", ...inline(m[3]));
    else if (m[4] !== undefined) node = el("em", ...inline(m[4]));
    else if (m[5] !== undefined) node = link(m[5], m[6]);
    else node = link(m[7], m[7]);
    if (!node) continue; // stays as it was written
    out.push(text.slice(at, m.index), node);
    at = m.index + m[0].length;
  }
  out.push(text.slice(at));
  return out;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const RULE = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

/** Render Markdown; returns a DocumentFragment. An unclosed fence is code to the end, as while it streams. */
export function render(text) {
  const root = document.createDocumentFragment();
  const lines = text.split("\n");
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const p = el("p");
    paragraph.forEach((line, i) => p.append(...(i ? [el("br")] : []), ...inline(line)));
    root.append(p);
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^\s*(```+|~~~+)/);
    if (fence) {
      flush();
      const body = [];
      while (++i < lines.length && !lines[i].trim().startsWith(fence[1])) body.push(lines[i]);
      root.append(el("pre", el("code", body.join("\n"))));
      continue;
    }
    const heading = line.match(/^(#{1,4})\s+(.*)$/);
    const item = line.match(ITEM);
    if (heading) {
      flush();
      root.append(el(`h${heading[1].length}`, ...inline(heading[2])));
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      root.append(el("hr"));
    } else if (line.startsWith(">")) {
      flush();
      const body = [];
      for (; i < lines.length && lines[i].startsWith(">"); i++) body.push(lines[i].replace(/^>\s?/, ""));
      i--;
      const quote = el("blockquote");
      quote.append(render(body.join("\n")));
      root.append(quote);
    } else if (item) {
      flush();
      const ordered = /\d/.test(item[2]);
      const list = el(ordered ? "ol" : "ul");
      if (ordered) list.start = parseInt(item[2], 10);
      for (let m; i < lines.length && (m = lines[i].match(ITEM)); i++) {
        const li = el("li", ...inline(m[3]));
        while (i + 1 < lines.length && /^\s{2,}\S/.test(lines[i + 1]) && !ITEM.test(lines[i + 1])) {
          li.append(el("br"), ...inline(lines[++i].trim()));
        }
        list.append(li);
      }
      i--;
      root.append(list);
    } else if (line.includes("|") && i + 1 < lines.length && RULE.test(lines[i + 1]) && lines[i + 1].includes("-")) {
      flush();
      const table = el("table", el("tr", ...cells(line).map((cell) => el("th", ...inline(cell)))));
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) {
        table.append(el("tr", ...cells(lines[i]).map((cell) => el("td", ...inline(cell)))));
      }
      i--;
      root.append(table);
    } else if (line.trim()) {
      paragraph.push(line);
    } else {
      flush();
    }
  }
  flush();
  return root;
}
