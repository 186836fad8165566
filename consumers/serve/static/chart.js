"use strict";
// A line chart of query rows, as SVG: one time column, one or more columns of numbers, a line for each combination of the text columns.

const LINES_MAX = 12;
const COLOURS = ["#0b7fa5", "#d0632b", "#3f9a5f", "#a4559c", "#b58900", "#5b6ee1", "#c2405f", "#4f8f8b", "#8a6d3b", "#7a7f87", "#2c6e49", "#9d4edd"];
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

/** What of these rows can be drawn: {time, lines: [{name, points: [[ms, value]]}], hidden}, or null. */
function linesOf(rows) {
  if (rows.length < 2) return null;
  const columns = Object.keys(rows[0]);
  const has = (column, test) => rows.some((row) => row[column] !== null) && rows.every((row) => row[column] === null || test(row[column]));
  const time = columns.find((column) => has(column, (value) => typeof value === "string" && TIME.test(value)));
  const numbers = columns.filter((column) => has(column, (value) => typeof value === "number"));
  const texts = columns.filter((column) => column !== time && has(column, (value) => typeof value === "string"));
  if (!time || !numbers.length) return null;
  const lines = new Map();
  for (const row of rows) {
    const group = texts.map((column) => row[column] ?? "–").join(" · ");
    const moment = Date.parse(row[time].slice(0, 23) + "Z");
    for (const number of numbers) {
      const name = !texts.length ? number : numbers.length > 1 ? `${group} · ${number}` : group;
      if (row[number] === null) continue;
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push([moment, row[number]]);
    }
  }
  const all = [...lines].map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]) }));
  all.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const drawn = all.slice(0, LINES_MAX);
  const moments = new Set(drawn.flatMap((line) => line.points.map((point) => point[0])));
  return moments.size < 2 ? null : { time, lines: drawn, hidden: all.length - drawn.length };
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Round values that cover [low, high], about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Math.abs(value) < step / 1e6 ? 0 : value);
  return found;
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000, 31536000];

/** Round moments within [from, to], eight of them at most. */
function timeTicks(from, to) {
  const step = 1000 * (TIME_STEPS.find((seconds) => (to - from) / (1000 * seconds) <= 8) || Math.ceil((to - from) / 8000));
  const found = [];
  for (let moment = Math.ceil(from / step) * step; moment <= to; moment += step) found.push(moment);
  return found.length > 1 ? found : [from, to];
}

function shortNumber(value) {
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}

function shortTime(moment, span) {
  const text = new Date(moment).toISOString();
  if (span > 3 * 86400e3) return text.slice(5, 10);
  if (span > 86400e3) return text.slice(5, 16).replace("T", " ");
  return span > 600e3 ? text.slice(11, 16) : text.slice(11, 19);
}

/** Draws into `place`; hides it when there is nothing to draw. */
function drawChart(place, rows) {
  const found = linesOf(rows);
  place.replaceChildren();
  place.hidden = !found;
  if (!found) return;
  const width = Math.max(480, place.clientWidth || 900);
  const height = 280;
  const edge = { left: 58, right: 12, top: 8, bottom: 24 };
  const points = found.lines.flatMap((line) => line.points);
  const range = (index) => points.reduce(([low, high], point) => [Math.min(low, point[index]), Math.max(high, point[index])], [Infinity, -Infinity]);
  const [from, to] = range(0);
  let [low, high] = range(1);
  if (low === high) [low, high] = [low - 1, high + 1];
  const x = (moment) => edge.left + ((moment - from) / (to - from)) * (width - edge.left - edge.right);
  const y = (value) => height - edge.bottom - ((value - low) / (high - low)) * (height - edge.top - edge.bottom);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Chart over ${found.time}` });
  for (const value of ticks(low, high, 5)) {
    picture.append(svg("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value) }));
    picture.append(svg("text", { x: edge.left - 8, y: y(value) + 4, "text-anchor": "end" }, shortNumber(value)));
  }
  for (const moment of timeTicks(from, to)) {
    const place = Math.min(Math.max(x(moment), edge.left + 14), width - edge.right - 20);
    picture.append(svg("text", { x: place, y: height - 6, "text-anchor": "middle" }, shortTime(moment, to - from)));
  }
  found.lines.forEach((line, number) => {
    const path = line.points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    picture.append(svg("path", { d: path, fill: "none", stroke: COLOURS[number], "stroke-width": 1.7, "stroke-linejoin": "round" }));
  });
  const legend = legendOf(found);
  followPointer(picture, found, legend, { width, height, edge, from, to, x });
  place.append(legend.element, picture);
}

function legendOf(found) {
  const element = document.createElement("div");
  element.className = "legend";
  const values = found.lines.map((line, number) => {
    const entry = document.createElement("span");
    const mark = document.createElement("i");
    mark.style.background = COLOURS[number];
    const value = document.createElement("b");
    entry.append(mark, `${line.name} `, value);
    element.append(entry);
    return value;
  });
  const note = document.createElement("span");
  note.className = "dim";
  const standing = found.hidden ? `and ${found.hidden} more lines` : "";
  note.textContent = standing;
  element.append(note);
  return { element, values, note, standing };
}

function nearest(points, moment) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < moment) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - moment) <= Math.abs(points[high][0] - moment) ? points[low] : points[high];
}

/** Shows the values under the pointer in the legend. */
function followPointer(picture, found, legend, frame) {
  const cursor = svg("line", { class: "cursor", y1: frame.edge.top, y2: frame.height - frame.edge.bottom, visibility: "hidden" });
  picture.append(cursor);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const along = ((event.clientX - box.left) / box.width) * frame.width;
    const share = (along - frame.edge.left) / (frame.width - frame.edge.left - frame.edge.right);
    const moment = frame.from + Math.min(1, Math.max(0, share)) * (frame.to - frame.from);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, frame.x(moment));
    cursor.setAttribute("visibility", "visible");
    found.lines.forEach((line, number) => (legend.values[number].textContent = shortNumber(nearest(line.points, moment)[1])));
    legend.note.textContent = new Date(moment).toISOString().slice(0, 19).replace("T", " ");
  });
  picture.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    legend.values.forEach((value) => (value.textContent = ""));
    legend.note.textContent = legend.standing;
  });
}
