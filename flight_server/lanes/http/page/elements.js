// Elements and tables. Only text is ever put on the page: names, peers and owners are other people's.

export const $ = (id) => document.getElementById(id);

export function element(tag, content, kind) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (Array.isArray(content)) made.append(...content);
  else if (content !== undefined && content !== null) made.textContent = content;
  return made;
}

// Text that has not changed is left alone, so that a selection and a screen reader's place stay.
export function write(place, text, kind) {
  if (place.textContent !== String(text)) place.textContent = text;
  if (kind !== undefined && place.className !== kind) place.className = kind;
}

// The children of a place are made once for each key and then kept, so a button keeps its focus while numbers change.
export function keyed(place, entries, key, make, update) {
  const kept = (place.kept ??= new Map()),
    times = new Map();
  const keys = entries.map((entry) => {
    // two streams of one peer look the same
    const name = key(entry),
      n = times.get(name) ?? 0;
    times.set(name, n + 1);
    return `${name} #${n}`;
  });
  const wanted = new Set(keys);
  for (const [each, child] of kept)
    if (!wanted.has(each)) {
      child.remove();
      kept.delete(each);
    }
  entries.forEach((entry, i) => {
    let child = kept.get(keys[i]);
    if (!child) kept.set(keys[i], (child = make(entry)));
    if (place.children[i] !== child) place.insertBefore(child, place.children[i] ?? null);
    update(child, entry);
  });
}

export function meter(label) {
  const fill = element("div", undefined, "fill");
  const track = element("div", [fill], "track");
  track.setAttribute("role", "meter");
  track.setAttribute("aria-label", label);
  track.setAttribute("aria-valuemin", "0");
  track.setAttribute("aria-valuemax", "100");
  // worst: the share that decides the colour, if it is not that which is filled.
  track.show = (part, text, worst = part) => {
    const filled = Math.min(1, Math.max(0, part));
    fill.style.width = `${100 * filled}%`;
    fill.className = `fill ${worst >= 0.95 ? "bad" : worst >= 0.9 ? "warn" : ""}`;
    track.setAttribute("aria-valuenow", String(Math.round(100 * filled)));
    track.setAttribute("aria-valuetext", text);
  };
  return track;
}

// A column: {title, of: row => text, number, name, key, minor, kind: row => class}, or a control in place of text. In a
// narrow window a row becomes a card, whose cells say their columns' titles. Folded it shows the first cell and those of
// the columns that are a key, unfolded all but the minor ones.
const kind = (column) =>
  [column.number ? "number" : column.name ? "name" : "", column.key ? "key" : "", column.minor ? "minor" : ""]
    .filter(Boolean)
    .join(" ");

function folding(line) {
  const button = element("button", "more");
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const all = line.classList.toggle("unfolded");
    write(button, all ? "less" : "more");
    button.setAttribute("aria-expanded", String(all));
  });
  const cell = element("td", [button], "fold");
  cell.setAttribute("role", "cell");
  return cell;
}

export function table(id, columns, rows, {key, more = 0, none = null} = {}) {
  const place = $(id);
  const part = $(`${id}-part`);
  part.hidden = !rows.length && none === null;
  if (part.hidden) return;
  if (!place.body) {
    const heads = columns.map((column) => {
      const head = element("th", column.title, kind(column));
      head.scope = "col";
      head.setAttribute("role", "columnheader");
      return head;
    });
    place.body = element("tbody");
    place.table = element("table", [element("thead", [element("tr", heads)]), place.body]);
    // Said outright, because browsers forget a table's roles when its rows are shown as cards.
    place.table.setAttribute("role", "table");
    place.table.setAttribute("aria-label", part.querySelector("h2").firstChild.textContent.trim());
    place.note = element("p", "", "note");
    place.replaceChildren(place.table, place.note);
    place.make = () => {
      const line = element(
        "tr",
        columns.map((column) => {
          const cell = element("td", undefined, kind(column));
          cell.dataset.title = column.title;
          cell.setAttribute("role", "cell");
          return cell;
        }),
      );
      if (columns.some((column, i) => i && !column.key && !column.minor)) line.append(folding(line));
      line.setAttribute("role", "row");
      return line;
    };
  }
  keyed(place.body, rows, key, place.make, (line, row) =>
    columns.forEach((column, i) => {
      const cell = line.cells[i];
      if (column.control) {
        if (!cell.firstChild) cell.append(column.control(row));
        cell.firstChild.entry = row;
        return;
      }
      write(cell, column.of(row));
      const wanted = `${kind(column)} ${column.kind?.(row) ?? ""}`.trim();
      if (cell.className !== wanted) cell.className = wanted;
    }),
  );
  place.table.hidden = !rows.length;
  write(place.note, rows.length ? (more > 0 ? `and ${more.toLocaleString("en")} more` : "") : none);
  place.note.hidden = !place.note.textContent;
}
