// A line chart in SVG over the last minutes. `chart(place)` makes it; `show` draws it anew.

import {element, write} from "./elements.js";
import {duration} from "./words.js";

const HEIGHT = 170,
  LEFT = 66,
  RIGHT = 10,
  TOP = 10,
  BOTTOM = 22,
  MIN_SPAN_SECONDS = 60,
  SPAN_SECONDS = 300;

function svg(tag, attributes, kind, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (kind) made.setAttribute("class", kind);
  if (text !== undefined) made.textContent = text;
  return made;
}

// 1, 2 or 5 of a unit of 1024s, so that at most four lines are drawn.
function step(highest) {
  let unit = 1;
  while (unit * 1024 <= highest) unit *= 1024;
  for (const n of [0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1024]) if (highest <= 4 * n * unit) return n * unit;
  return 1024 * unit;
}

export function chart(place, label, words) {
  const legend = element("ul", undefined, "legend");
  const picture = svg("svg", {height: HEIGHT, role: "img"}, "chart");
  const moment = element("li", "", "moment");
  place.replaceChildren(legend, picture);
  let drawn = null,
    pointed = null;

  // ages: seconds before now, oldest first. series: {name, kind, values}. limits: {name, value} as dashed lines.
  function show(ages, series, limits = []) {
    drawn = [ages, series, limits];
    draw();
  }

  function draw() {
    if (!drawn) return;
    const [ages, series, limits] = drawn;
    const width = Math.max(240, place.clientWidth);
    const span = Math.min(SPAN_SECONDS, Math.max(MIN_SPAN_SECONDS, ages[0] ?? 0));
    const highest = Math.max(1024, ...series.flatMap((each) => each.values), ...limits.map((each) => each.value));
    const rise = step(highest),
      top = Math.ceil(highest / rise) * rise;
    const x = (age) => LEFT + (width - LEFT - RIGHT) * (1 - age / span);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [];
    for (let value = 0; value <= top; value += rise) {
      parts.push(svg("line", {x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)}, "grid"));
      parts.push(
        svg("text", {x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, "tick", words(value).replace(".0 ", " ")),
      );
    }
    const minutes = span > 150 ? 60 : 30;
    for (let age = 0; age <= span; age += minutes) {
      const anchor = age === 0 ? "end" : age + minutes > span && x(age) < LEFT + 20 ? "start" : "middle";
      const text = age === 0 ? "now" : span > 150 ? `−${age / 60} min` : `−${age} s`;
      parts.push(svg("text", {x: x(age), y: HEIGHT - 6, "text-anchor": anchor}, "tick", text));
    }
    for (const each of limits) {
      parts.push(
        svg("line", {x1: LEFT, x2: width - RIGHT, y1: y(each.value), y2: y(each.value)}, `limit ${each.kind}`),
      );
    }
    for (const each of series) {
      const points = each.values
        .map((value, i) => [ages[i], value])
        .filter(([age]) => age <= span)
        .map(([age, value]) => `${x(age).toFixed(1)},${y(value).toFixed(1)}`);
      if (!points.length) continue;
      if (each.filled) {
        const first = points[0].split(",")[0],
          last = points.at(-1).split(",")[0];
        parts.push(
          svg("polygon", {points: `${first},${y(0)} ${points.join(" ")} ${last},${y(0)}`}, `area ${each.kind}`),
        );
      }
      parts.push(svg("polyline", {points: points.join(" ")}, `line ${each.kind}`));
    }
    let at = ages.length - 1;
    if (pointed !== null) {
      const age = span * (1 - (pointed - LEFT) / (width - LEFT - RIGHT));
      at = ages.reduce((best, each, i) => (Math.abs(each - age) < Math.abs(ages[best] - age) ? i : best), at);
      parts.push(svg("line", {x1: x(ages[at]), x2: x(ages[at]), y1: TOP, y2: HEIGHT - BOTTOM}, "cursor"));
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("width", width);
    picture.replaceChildren(...parts);
    const shown = series.map((each) => [each, words(each.values[at] ?? 0)]);
    if (legend.children.length !== shown.length + 1) {
      legend.replaceChildren(
        ...shown.map(([each]) =>
          element("li", [element("span", "", `swatch ${each.kind}`), element("span", each.name), element("b")]),
        ),
        moment,
      );
    }
    shown.forEach(([each, text], i) => write(legend.children[i].lastChild, text));
    write(moment, pointed === null ? "" : `${duration(ages[at])} ago`);
    picture.setAttribute(
      "aria-label",
      `${label}, last ${duration(span)}: ${series
        .map((each) => `${each.name} ${words(each.values.at(-1) ?? 0)}, at most ${words(Math.max(0, ...each.values))}`)
        .join("; ")}`,
    );
  }

  picture.addEventListener("pointermove", (event) => {
    pointed = event.clientX - picture.getBoundingClientRect().left;
    draw();
  });
  picture.addEventListener("pointerleave", () => {
    pointed = null;
    draw();
  });
  new ResizeObserver(draw).observe(place);
  return show;
}
