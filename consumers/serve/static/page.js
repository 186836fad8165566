"use strict";
// The page of one node: what it is, what it holds, and a place to ask. Data only ever becomes text, never markup.

const ROWS_SHOWN = 1000;
const ROWS_ASKED = 20000;
const REFRESH_MS = 2000;
const ANY_AGE = "366d";
// Longer addresses are refused by some proxies.
const LINK_MAX = 8000;
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

/** A table from columns [{name, cell(row) → text or element, number, minor}]; minor ones need a wide screen. */
function tableOf(columns, rows) {
  const table = make("table");
  const head = table.createTHead().insertRow();
  const classOf = (column) => [column.number && "number", column.minor && "minor", column.className].filter(Boolean).join(" ");
  for (const column of columns) head.append(make("th", column.name, classOf(column)));
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const column of columns) {
      const value = column.cell(row);
      const cell = make("td", undefined, classOf(column));
      if (value && value.full !== undefined) {
        cell.textContent = value.text;
        if (value.full) cell.title = value.full;
      } else if (value === null) [cell.textContent, cell.className] = ["null", `${cell.className} null`];
      else cell.append(value);
      line.append(cell);
    }
  }
  return table;
}

function ageText(seconds) {
  if (seconds < 600) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
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
  // Beside the reasons: how old an answer of this node would be.
  if (!status.ready && status.data_age_s >= 0) find("reasons").append(make("li", `it has everything up to ${ageText(status.data_age_s)} ago`));
  const groups = [
    { name: "group", cell: (group) => group.group },
    { name: "role", cell: (group) => role(group.role) },
    { name: "leader", cell: (group) => group.leader || "" },
    { name: "version", cell: (group) => known(group.version), number: true },
    { name: "lag", cell: (group) => known(group.lag_records), number: true, minor: true },
    { name: "lag s", cell: (group) => known(group.lag_seconds, (value) => value.toFixed(1)), number: true },
    { name: "segments", cell: (group) => known(group.segments), number: true, minor: true },
    { name: "sealed", cell: (group) => known(group.segment_bytes, bytes), number: true, minor: true },
    { name: "live rows", cell: (group) => known(group.live_rows), number: true, minor: true },
  ];
  find("groups").replaceChildren(tableOf(groups, status.groups || []));
  const members = [
    { name: "node", cell: (member) => member.node },
    { name: "group", cell: (member) => member.group },
    { name: "role", cell: (member) => role(member.role) },
    { name: "version", cell: (member) => known(member.version), number: true },
    { name: "silent", cell: (member) => known(member.silent_ms, (value) => `${(value / 1000).toFixed(1)} s`), number: true },
  ];
  find("members").replaceChildren(tableOf(members, status.members || []));
  const remote = [
    { name: "group", cell: (group) => group.group },
    { name: "members", cell: (group) => group.members.join(", ") },
    { name: "in sync", cell: (group) => group.in_sync.join(", ") || "none" },
    { name: "slots", cell: (group) => known(group.slots), number: true, minor: true },
  ];
  const elsewhere = status.remote_groups || [];
  find("remote-section").hidden = !elsewhere.length;
  find("remote").replaceChildren(tableOf(remote, elsewhere));
  showQueries(status.queries || {});
}

function showQueries(queries) {
  const list = make("dl");
  const add = (name, value) => list.append(make("dt", name), make("dd", value));
  add("running", `${grouped(queries.running)} of ${grouped(queries.queries_max)}`);
  add("answered", grouped(queries.succeeded));
  add("failed", `${grouped(queries.failed)}, ${grouped(queries.timed_out)} of them out of time`);
  add("refused, too many queries", grouped(queries.refused_busy));
  add("segment files read", grouped(queries.files_scanned));
  find("queries").replaceChildren(list);
}

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

let tables = [];

function showTables(found) {
  if (JSON.stringify(found) === JSON.stringify(tables)) return;
  tables = found;
  find("tables-filter").hidden = tables.length < 2;
  filterTables();
  if (!find("sql").value && tables.length) find("sql").value = `SELECT count(*) FROM ${quoted(tables[0].database)}.${quoted(tables[0].table)}`;
}

/** Shows the tables whose name, or one of whose columns, has every word of the filter. */
function filterTables() {
  const words = find("tables-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = tables.filter((table) => {
    const text = [`${table.database}.${table.table}`, ...table.tags, ...table.fields.map((field) => field.name)].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  find("tables-count").textContent = words.length ? `${grouped(shown.length)} of ${grouped(tables.length)}` : tables.length > 1 ? grouped(tables.length) : "";
  const none = make("p", tables.length ? "No table has that name or column." : "Nothing has been written yet.", "dim");
  find("tables").replaceChildren(...(shown.length ? shown.map(tableItem) : [none]));
}

function tableItem(table) {
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
}

function showRows(rows) {
  find("result").hidden = !rows.length;
  if (!rows.length) return;
  const sample = rows.slice(0, ROWS_SHOWN);
  const columns = Object.keys(rows[0]).map((name) => ({
    name,
    number: sample.every((row) => row[name] === null || typeof row[name] === "number"),
    className: sample.some((row) => typeof row[name] === "string" && row[name].includes("\n")) ? "text" : "",
    cell: (row) => cellOf(row[name]),
  }));
  find("result").replaceChildren(tableOf(columns, sample));
  find("result").scrollTop = 0;
}

/** A link to the whole answer as CSV: the node makes it, so it may be larger than what the page shows. */
function offerDownload(sql, within) {
  const link = `/api/v1/query?${new URLSearchParams({ q: sql, format: "csv", ...(within ? { stale: within } : {}) })}`;
  find("download").hidden = link.length > LINK_MAX;
  find("download").href = link;
}

function showProblem(error) {
  const place = find("problem");
  place.hidden = !error;
  if (!error) return;
  place.replaceChildren(make("b", error.message), error.action ? `\n${error.action}` : "");
  // Data that the node does not trust has no older answer either; the action then does not offer one.
  if (error.kind !== "NotReady" || !(error.action || "").includes("--stale")) return;
  const older = make("button", "Answer from what this node has", "quiet");
  older.type = "button";
  older.addEventListener("click", () => ask(ANY_AGE));
  place.append(make("br"), older);
}

/** The age of an answer that is not current. */
function showAge(asOf) {
  find("older").hidden = !asOf;
  if (asOf) find("older").textContent = `Not current: everything up to ${asOf.replace("T", " ")}, ${ageText(Math.max(0, Date.now() - Date.parse(asOf)) / 1000)} ago.`;
}

let running = null;

/** Runs the query; `within` allows a node that does not serve to answer from what it has. */
async function ask(within) {
  if (running) running.abort();
  const mine = (running = new AbortController());
  [find("run").disabled, find("stop").hidden] = [true, false];
  find("outcome").textContent = "running …";
  const sql = find("sql").value;
  showProblem(null);
  showAge(null);
  rememberQuery(sql);
  const started = performance.now();
  try {
    const response = await fetch("/api/v1/query", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ sql, limit: ROWS_ASKED + 1, ...(within ? { stale: within } : {}) }),
      signal: mine.signal,
    });
    const answer = parsedRows(await response.text());
    if (!response.ok) throw answer.error || { message: `HTTP ${response.status}` };
    const took = performance.now() - started;
    const more = answer.length > ROWS_ASKED;
    const rows = more ? answer.slice(0, ROWS_ASKED) : answer;
    const shown = rows.length > ROWS_SHOWN ? `, the first ${grouped(ROWS_SHOWN)} are shown` : "";
    find("outcome").textContent = `${more ? "more than " : ""}${grouped(rows.length)} ${rows.length === 1 ? "row" : "rows"}${shown} · ${Math.round(took)} ms`;
    showAge(response.headers.get("x-headrace-as-of"));
    offerDownload(sql, within);
    showRows(rows);
    drawChart(find("chart"), rows);
  } catch (error) {
    if (mine !== running) return;
    find("outcome").textContent = "";
    for (const id of ["result", "chart", "download"]) find(id).hidden = true;
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
find("tables-filter").addEventListener("input", filterTables);
find("history-open").addEventListener("click", () => {
  const place = find("history");
  place.hidden = !place.hidden;
  find("history-open").setAttribute("aria-expanded", String(!place.hidden));
  if (!place.hidden) showHistory(place, chooseQuery);
});

function chooseQuery(sql) {
  find("sql").value = sql;
  find("history").hidden = true;
  find("history-open").setAttribute("aria-expanded", "false");
  find("sql").focus();
}

const asked = new URLSearchParams(location.search).get("q");
if (asked) {
  find("sql").value = asked;
  ask();
}
refresh();
