"use strict";
// The page of one node: what it is, what it holds, and a place to ask. Data only ever becomes text, never markup.

const ROWS_SHOWN = 1000;
const ROWS_ASKED = 20000;
const REFRESH_MS = 2000;
const find = (id) => document.getElementById(id);

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const grouped = (value) => (Number.isFinite(value) ? value.toLocaleString("en").replaceAll(",", "\u202f") : "");
const known = (value, show = grouped) => (value === undefined || value === null || value < 0 ? "?" : show(value));

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let step = 0;
  while (value >= 1000 && step < units.length - 1) [value, step] = [value / 1000, step + 1];
  return `${step && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}

/** A table from columns [{name, cell(row) → text or element, number}]. */
function tableOf(columns, rows) {
  const table = make("table");
  const head = table.createTHead().insertRow();
  for (const column of columns) head.append(make("th", column.name, column.number ? "number" : ""));
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const column of columns) {
      const value = column.cell(row);
      const cell = make("td", undefined, column.number ? "number" : column.className || "");
      if (value === null) [cell.textContent, cell.className] = ["null", `${cell.className} null`];
      else cell.append(value);
      line.append(cell);
    }
  }
  return table;
}

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

const role = (name) => make("span", name, `role ${name}`);

function showStatus(status) {
  find("node").textContent = [status.cluster, status.node, status.software].filter(Boolean).join(" · ");
  document.title = `Headrace ${status.node || ""}`;
  find("ready").textContent = status.ready ? "ready" : "not ready";
  find("ready").className = `badge ${status.ready ? "good" : "bad"}`;
  find("reasons").hidden = !status.reasons || !status.reasons.length;
  find("reasons").replaceChildren(...(status.reasons || []).map((reason) => make("li", reason)));
  const groups = [
    { name: "group", cell: (group) => group.group },
    { name: "role", cell: (group) => role(group.role) },
    { name: "leader", cell: (group) => group.leader || "" },
    { name: "version", cell: (group) => known(group.version), number: true },
    { name: "lag", cell: (group) => known(group.lag_records), number: true },
    { name: "lag s", cell: (group) => known(group.lag_seconds, (value) => value.toFixed(1)), number: true },
    { name: "segments", cell: (group) => known(group.segments), number: true },
    { name: "sealed", cell: (group) => known(group.segment_bytes, bytes), number: true },
    { name: "live rows", cell: (group) => known(group.live_rows), number: true },
  ];
  find("groups").replaceChildren(tableOf(groups, status.groups || []));
  const members = [
    { name: "node", cell: (member) => member.node },
    { name: "group", cell: (member) => member.group },
    { name: "role", cell: (member) => role(member.online ? member.role : "offline") },
    { name: "version", cell: (member) => known(member.version), number: true },
    { name: "heard", cell: (member) => known(member.silent_ms, (value) => `${(value / 1000).toFixed(1)} s ago`), number: true },
  ];
  find("members").replaceChildren(tableOf(members, status.members || []));
  showQueries(status.queries || {});
}

function showQueries(queries) {
  const list = make("dl");
  const add = (name, value) => list.append(make("dt", name), make("dd", value));
  add("running", `${grouped(queries.running)} of ${grouped(queries.queries_max)}`);
  add("answered", grouped(queries.succeeded));
  add("failed", `${grouped(queries.failed)}, ${grouped(queries.timed_out)} of them out of time`);
  add("refused, all places taken", grouped(queries.refused_busy));
  add("segment files read", grouped(queries.files_scanned));
  find("queries").replaceChildren(list);
}

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

let tablesShown = "";

function showTables(tables) {
  const asText = JSON.stringify(tables);
  if (!tables.length || asText === tablesShown) return;
  tablesShown = asText;
  const items = tables.map((table) => {
    const item = make("div", undefined, "table");
    const name = make("button", `${table.database}.${table.table}`, "link");
    name.type = "button";
    name.addEventListener("click", () => {
      find("sql").value = `SELECT * FROM ${quoted(table.database)}.${quoted(table.table)}\nORDER BY time DESC LIMIT 100`;
      ask();
    });
    const columns = [...table.tags.map((tag) => `${tag} (tag)`), "time", ...table.fields.map((field) => `${field.name} ${field.type}`)];
    item.append(name, make("div", columns.join(", "), "columns"));
    return item;
  });
  find("tables").replaceChildren(...items);
  if (!find("sql").value) find("sql").value = `SELECT count(*) FROM ${quoted(tables[0].database)}.${quoted(tables[0].table)}`;
}

function cellText(value) {
  if (value === null) return null;
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "string" ? value.replace(/(T\d\d:\d\d:\d\d)\.0+Z$/, "$1Z") : String(value);
}

function showRows(rows) {
  find("result").hidden = !rows.length;
  if (!rows.length) return;
  const sample = rows.slice(0, ROWS_SHOWN);
  const columns = Object.keys(rows[0]).map((name) => ({
    name,
    number: sample.every((row) => row[name] === null || typeof row[name] === "number"),
    className: sample.some((row) => typeof row[name] === "string" && row[name].includes("\n")) ? "text" : "",
    cell: (row) => cellText(row[name]),
  }));
  find("result").replaceChildren(tableOf(columns, sample));
}

function showProblem(error) {
  const place = find("problem");
  place.hidden = !error;
  if (!error) return;
  place.replaceChildren(make("b", error.message), error.action ? `\n${error.action}` : "");
}

let running = null;

async function ask() {
  if (running) running.abort();
  const mine = (running = new AbortController());
  [find("run").disabled, find("stop").hidden] = [true, false];
  find("outcome").textContent = "running …";
  showProblem(null);
  const started = performance.now();
  try {
    const response = await fetch("/api/v1/query", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ sql: find("sql").value, limit: ROWS_ASKED + 1 }),
      signal: mine.signal,
    });
    const answer = await response.json();
    if (!response.ok) throw answer.error || { message: `HTTP ${response.status}` };
    const took = performance.now() - started;
    const more = answer.length > ROWS_ASKED;
    const rows = more ? answer.slice(0, ROWS_ASKED) : answer;
    const shown = rows.length > ROWS_SHOWN ? `, the first ${grouped(ROWS_SHOWN)} are shown` : "";
    find("outcome").textContent = `${more ? "more than " : ""}${grouped(rows.length)} ${rows.length === 1 ? "row" : "rows"}${shown} · ${Math.round(took)} ms`;
    showRows(rows);
    drawChart(find("chart"), rows);
  } catch (error) {
    if (mine !== running) return;
    find("outcome").textContent = "";
    [find("result").hidden, find("chart").hidden] = [true, true];
    showProblem(error.name === "AbortError" ? { message: "Stopped." } : error);
  } finally {
    if (mine === running) {
      running = null;
      [find("run").disabled, find("stop").hidden] = [false, true];
    }
  }
}

async function refresh() {
  try {
    const [status, tables] = await Promise.all([fetched("/api/v1/status"), fetched("/api/v1/tables")]);
    showStatus(status);
    showTables(tables);
  } catch (error) {
    find("ready").textContent = "no answer";
    find("ready").className = "badge bad";
  }
  setTimeout(refresh, document.hidden ? 5 * REFRESH_MS : REFRESH_MS);
}

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
find("stop").addEventListener("click", () => running && running.abort());
find("sql").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
const asked = new URLSearchParams(location.search).get("q");
if (asked) {
  find("sql").value = asked;
  ask();
}
refresh();
