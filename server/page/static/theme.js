// Light or dark before anything is drawn; without a choice, as the system has it. No module, so that it comes first.
"use strict";
try {
  const theme = JSON.parse(localStorage.getItem("ggfw.settings") || "{}").theme;
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is forbidden or holds something else: the system's choice it is.
}
