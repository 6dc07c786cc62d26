// Colours for code: comments, strings, numbers and words of the language; no grammar, and always the same text.

import { el } from "./dom.js";

/** Longer code is shown plain. */
const MAX_LENGTH = 60000;

const listed = (text) => text.trim().split(/\s+/);
const words = (text) => new Set(listed(text));
const C_WORDS = `
    if else for while do switch case default break continue return struct class enum union const static void int
    long short char float double bool unsigned signed auto public private protected virtual override namespace
    using template typename new delete this throw try catch finally true false null nullptr import package
    interface extends implements final abstract var let function async await yield of in typeof instanceof
    export from type func go defer chan map range select fn impl trait pub mut match use mod crate self Self
    where loop as ref dyn unsafe move string number boolean any undefined sizeof typedef extern inline volatile
    val fun object when is guard protocol nil`;
const LANGUAGES = {
  python: words(`
    False None True and as assert async await break class continue def del elif else except finally for from
    global if import in is lambda match case nonlocal not or pass raise return try while with yield self`),
  shell: words(`
    if then else elif fi for while until do done case esac in function return export local set unset source echo
    exit cd true false`),
  c: words(C_WORDS),
  sql: words(`
    select from where and or not insert into values update set delete create table drop alter add primary key
    foreign references join left right inner outer on group by order having limit offset as distinct union all
    null is in like between case when then else end index view begin commit with`),
  lua: words(`
    and break do else elseif end false for function goto if in local nil not or repeat return then true until
    while`),
  data: words("true false null yes no on off"),
};
const COMMENTS = {
  hash: "#[^\\n]*",
  slash: "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)",
  dash: "--[^\\n]*",
  markup: "<!--[^]*?(?:-->|$)",
};
const FAMILIES = {
  python: ["hash", LANGUAGES.python], shell: ["hash", LANGUAGES.shell], data: ["hash", LANGUAGES.data],
  c: ["slash", LANGUAGES.c], sql: ["dash", LANGUAGES.sql], lua: ["dash", LANGUAGES.lua], markup: ["markup", new Set()],
};
const NAMES = {
  python: "python py python3 gdscript ruby rb perl r elixir julia",
  shell: "sh bash zsh shell console fish dockerfile makefile make",
  c: `
    c cpp c++ cc h hpp java js javascript jsx ts typescript tsx go golang rust rs swift kotlin kt scala php cs
    csharp css scss dart zig json5 proto`,
  data: "json yaml yml toml ini conf env", sql: "sql sqlite postgres postgresql mysql", lua: "lua haskell hs ada elm",
  markup: "html xml svg vue markdown md",
};
const FAMILY = new Map(
  Object.entries(NAMES).flatMap(([family, names]) => listed(names).map((name) => [name, family])),
);

const STRING = "\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)|\"(?:[^\"\\\\\\n]|\\\\.)*\"?|'(?:[^'\\\\\\n]|\\\\.)*'|`(?:[^`\\\\]|\\\\.)*`?";
const NUMBER = "\\b(?:0[xX][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b";
const WORD = "[A-Za-z_$][\\w$]*";
const patterns = new Map();

function pattern(comment) {
  if (!patterns.has(comment)) {
    patterns.set(comment, new RegExp(`(${COMMENTS[comment]})|(${STRING})|(${NUMBER})|(${WORD})(?=(\\s*\\()?)`, "g"));
  }
  return patterns.get(comment);
}

/** Pieces of `code`, some of them in spans; joined they are `code` again. */
export function highlight(code, language) {
  const family = FAMILY.get(language.toLowerCase());
  if (!family || code.length > MAX_LENGTH) return [code];
  const [comment, known] = FAMILIES[family];
  const out = [];
  let shown = 0;
  for (const m of code.matchAll(pattern(comment))) {
    let kind = null;
    if (m[1] !== undefined) kind = "comment";
    else if (m[2] !== undefined) kind = "string";
    else if (m[3] !== undefined) kind = "number";
    else if (known.has(family === "sql" ? m[4].toLowerCase() : m[4])) kind = "word";
    else if (m[5] !== undefined) kind = "call";
    if (!kind) continue;
    if (m.index > shown) out.push(code.slice(shown, m.index));
    out.push(el("span", { class: `hl-${kind}` }, m[0]));
    shown = m.index + m[0].length;
  }
  out.push(code.slice(shown));
  return out;
}
