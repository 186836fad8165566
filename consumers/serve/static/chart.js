"use strict";
// A line chart of query rows, as SVG: one time column, the chosen columns of numbers, a line for each series.

const COLOURS = ["#0b7fa5", "#d0632b", "#3f9a5f", "#a4559c", "#b58900", "#5b6ee1", "#c2405f", "#4f8f8b", "#8a6d3b", "#7a7f87", "#2c6e49", "#9d4edd"];
const CHOICES_MAX = 40;

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

/** Round moments within [from, to], `count` of them at most. */
function timeTicks(from, to, count) {
  const step = 1000 * (TIME_STEPS.find((seconds) => (to - from) / (1000 * seconds) <= count) || Math.ceil((to - from) / (1000 * count)));
  const found = [];
  for (let moment = Math.ceil(from / step) * step; moment <= to; moment += step) found.push(moment);
  return found.length > 1 ? found : [from, to];
}

function shortTime(moment, span) {
  const text = new Date(moment).toISOString();
  if (span > 3 * 86400e3) return text.slice(5, 10);
  if (span > 86400e3) return text.slice(5, 16).replace("T", " ");
  return span > 600e3 ? text.slice(11, 16) : text.slice(11, 19);
}

/** Draws rows into `place`, with a choice of columns; hides it when there is nothing to draw. */
function drawChart(place, rows) {
  const { time, numbers, texts } = columnsOf(rows);
  const keys = keyColumns(rows, texts);
  const drawable = time && numbers.length && rows.length > 1;
  // Drawn once before it is shown: rows of one moment have no lines, whatever is chosen.
  place.hidden = !drawable || !linesOf(rows, time, keys, numbers);
  place.replaceChildren();
  if (place.hidden) return;
  const frame = document.createElement("div");
  const choice = choiceOf(numbers, chosenColumns(rows, numbers, keys), draw);
  place.append(...(numbers.length > 1 ? [choice.element] : []), frame);
  let drawnWidth = 0;
  function draw() {
    const width = Math.max(240, place.clientWidth || 900);
    drawnWidth = width;
    const found = linesOf(rows, time, keys, choice.columns());
    if (found) frame.replaceChildren(...picture(found, width));
    else frame.replaceChildren(Object.assign(document.createElement("p"), { className: "dim", textContent: "Choose a column." }));
  }
  draw();
  if (place.observer) place.observer.disconnect();
  // Drawn again at another width, and never scaled: scaled text is too small on a telephone.
  place.observer = new ResizeObserver(() => Math.abs(place.clientWidth - drawnWidth) > 1 && place.clientWidth && draw());
  place.observer.observe(place);
}

/** Boxes to choose columns by: {element, columns() → names}. */
function choiceOf(numbers, chosen, onChange) {
  const element = document.createElement("fieldset");
  element.className = "choice";
  element.append(Object.assign(document.createElement("legend"), { textContent: "Columns of the chart" }));
  const boxes = numbers.slice(0, CHOICES_MAX).map((name) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: name, checked: chosen.includes(name) });
    box.addEventListener("change", onChange);
    label.append(box, name);
    element.append(label);
    return box;
  });
  return { element, columns: () => boxes.filter((box) => box.checked).map((box) => box.value) };
}

/** The legend and the picture of some lines. */
function picture(found, width) {
  const height = width < 500 ? 240 : 280;
  const narrow = width < 500;
  const edge = { left: narrow ? 46 : 58, right: 12, top: 8, bottom: 26 };
  const points = found.lines.flatMap((line) => line.points);
  const range = (index) => points.reduce(([low, high], point) => [Math.min(low, point[index]), Math.max(high, point[index])], [Infinity, -Infinity]);
  const [from, to] = range(0);
  let [low, high] = range(1);
  if (low === high) [low, high] = [low - 1, high + 1];
  const x = (moment) => edge.left + ((moment - from) / (to - from)) * (width - edge.left - edge.right);
  const y = (value) => height - edge.bottom - ((value - low) / (high - low)) * (height - edge.top - edge.bottom);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Chart over ${found.time}` });
  for (const value of ticks(low, high, 5)) {
    drawing.append(svg("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value) }));
    drawing.append(svg("text", { x: edge.left - 8, y: y(value) + 4, "text-anchor": "end" }, shortNumber(value, 4)));
  }
  for (const moment of timeTicks(from, to, Math.max(2, Math.floor(width / 95)))) {
    const place = Math.min(Math.max(x(moment), edge.left + 16), width - edge.right - 24);
    drawing.append(svg("text", { x: place, y: height - 6, "text-anchor": "middle" }, shortTime(moment, to - from)));
  }
  found.lines.forEach((line, number) => {
    const path = line.points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    drawing.append(svg("path", { d: path, fill: "none", stroke: COLOURS[number], "stroke-width": 1.7, "stroke-linejoin": "round" }));
  });
  const legend = legendOf(found);
  followPointer(drawing, found, legend, { width, height, edge, from, to, x });
  return [legend.element, drawing];
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
  const rest = found.hidden ? `and ${found.hidden} more lines` : "";
  note.textContent = rest;
  element.append(note);
  return { element, values, note, rest };
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
    legend.note.textContent = legend.rest;
  });
}
