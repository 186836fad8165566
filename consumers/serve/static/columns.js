"use strict";
// What rows show: the text of a cell, and which columns a chart draws. Plain functions, without a page.

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;
const LINES_MAX = 12;
const COLUMNS_DRAWN = 3;

/** The rows of a JSON answer. A whole number beyond 2^53 stays text: as a number it would be another one. */
function parsedRows(text) {
  return JSON.parse(text, (_key, value, context) => {
    const inexact = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
    return inexact && context && /^-?\d+$/.test(context.source) ? context.source : value;
  });
}

/** A number with at most `digits` significant digits, whole numbers in full. */
function shortNumber(value, digits = 6) {
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-4) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

/** What a cell shows: {text, full}, where `full` is the whole value if the text is shorter; null stays null. */
function cellOf(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") {
    const text = shortNumber(value);
    return { text, full: text === String(value) ? "" : String(value) };
  }
  if (typeof value === "object") return { text: JSON.stringify(value), full: "" };
  if (typeof value !== "string" || !TIME.test(value)) return { text: String(value), full: "" };
  const text = value.replace("T", " ").replace(/\.?0*Z$/, "");
  return { text, full: text === value ? "" : value };
}

/** The columns of rows by what they hold: {time, numbers, texts}. */
function columnsOf(rows) {
  const found = { time: undefined, numbers: [], texts: [] };
  for (const column of rows.length ? Object.keys(rows[0]) : []) {
    const kinds = new Set();
    for (const row of rows) {
      const value = row[column];
      if (value !== null) kinds.add(typeof value === "string" && TIME.test(value) ? "time" : typeof value);
      if (kinds.size > 1) break;
    }
    const [kind] = kinds;
    if (kinds.size > 1) continue;
    if (kind === "time" && !found.time) found.time = column;
    else if (kind === "number") found.numbers.push(column);
    else if (kind === "string") found.texts.push(column);
  }
  return found;
}

/** The text columns that distinguish the lines: none that is constant, and one alone if it is enough. */
function keyColumns(rows, texts) {
  const distinct = (columns) => new Set(rows.map((row) => JSON.stringify(columns.map((column) => row[column])))).size;
  const varying = texts.filter((column) => distinct([column]) > 1);
  const all = distinct(varying);
  const enough = varying.find((column) => distinct([column]) === all);
  return enough === undefined ? varying : [enough];
}

/** The columns that a chart draws before anybody has chosen: few, and those first that change. */
function chosenColumns(rows, numbers, keys) {
  const changes = (column) => rows.some((row) => row[column] !== null && row[column] !== rows[0][column]);
  const range = (column) => Math.max(...rows.map((row) => Math.abs(row[column] ?? 0)));
  const varying = numbers.filter(changes);
  const first = varying[0] ?? numbers[0];
  if (first === undefined) return [];
  // With a line for each series a second column doubles them. Without series, columns of a similar size share an axis.
  if (keys.length) return [first];
  const size = range(first) || 1;
  const alike = varying.filter((column) => range(column) / size < 20 && size / (range(column) || 1) < 20);
  return alike.length ? alike.slice(0, COLUMNS_DRAWN) : [first];
}

/** The lines of some columns: {time, lines: [{name, points: [[ms, value]]}], hidden}, null when there is nothing to draw. */
function linesOf(rows, time, keys, columns) {
  const lines = new Map();
  for (const row of rows) {
    if (row[time] === null) continue;
    const group = keys.map((column) => row[column] ?? "–").join(" · ");
    const moment = Date.parse(row[time].slice(0, 23).replace(/Z?$/, "Z"));
    for (const column of columns) {
      const name = !keys.length ? column : columns.length > 1 ? `${group} · ${column}` : group;
      if (row[column] === null) continue;
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push([moment, row[column]]);
    }
  }
  const all = [...lines].map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]) }));
  all.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const drawn = all.slice(0, LINES_MAX);
  const moments = new Set(drawn.flatMap((line) => line.points.map((point) => point[0])));
  return moments.size < 2 ? null : { time, lines: drawn, hidden: all.length - drawn.length };
}
