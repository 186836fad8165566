"use strict";
// The queries that were run in this browser, newest first. They stay in the browser and are sent nowhere.

const HISTORY_KEY = "headrace.history";
const HISTORY_MAX = 50;
const HISTORY_TEXT_MAX = 20000;

/** The queries kept: [{sql, at}]; empty where the browser keeps nothing. */
function historyEntries() {
  try {
    const kept = JSON.parse(localStorage.getItem(HISTORY_KEY) || "[]");
    return Array.isArray(kept) ? kept.filter((entry) => entry && typeof entry.sql === "string") : [];
  } catch {
    return [];
  }
}

/** The entries after one more query: a repeated one moves to the front. */
function withQuery(entries, sql, at) {
  return [{ sql, at }, ...entries.filter((entry) => entry.sql !== sql)].slice(0, HISTORY_MAX);
}

function keepHistory(entries) {
  // A private window, or a full store: the page works without a history.
  try {
    if (entries.length) localStorage.setItem(HISTORY_KEY, JSON.stringify(entries));
    else localStorage.removeItem(HISTORY_KEY);
  } catch {
    return;
  }
}

function rememberQuery(sql) {
  if (sql.trim() && sql.length <= HISTORY_TEXT_MAX) keepHistory(withQuery(historyEntries(), sql, Date.now()));
}

/** Shows the queries in `place`; a click calls `onChoice(sql)`. */
function showHistory(place, onChoice) {
  const entries = historyEntries();
  const items = entries.map((entry) => {
    const item = document.createElement("button");
    item.type = "button";
    item.className = "past";
    item.title = entry.sql;
    const when = document.createElement("span");
    when.className = "dim";
    when.textContent = new Date(entry.at || 0).toISOString().slice(0, 16).replace("T", " ");
    const text = document.createElement("code");
    text.textContent = entry.sql.replace(/\s+/g, " ").trim();
    item.append(when, text);
    item.addEventListener("click", () => onChoice(entry.sql));
    return item;
  });
  const note = document.createElement("p");
  note.className = "dim";
  note.textContent = entries.length ? "Kept in this browser only. " : "No query was run in this browser yet.";
  if (entries.length) {
    const clear = document.createElement("button");
    clear.type = "button";
    clear.className = "link";
    clear.textContent = "Clear";
    clear.addEventListener("click", () => {
      keepHistory([]);
      showHistory(place, onChoice);
    });
    note.append(clear);
  }
  place.replaceChildren(...items, note);
}
