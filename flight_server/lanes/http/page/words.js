// Numbers as people read them. A value that the server does not give is "–".

const missing = (value) => value === null || value === undefined;

export function bytes(n) {
  if (missing(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${unit ? n.toFixed(n < 100 ? 1 : 0) : Math.round(n)} ${units[unit]}`;
}

export const rate = (n) => (missing(n) ? "–" : `${bytes(n)}/s`);

export const count = (n) => (missing(n) ? "–" : n.toLocaleString("en"));

export const several = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

export function duration(seconds) {
  if (missing(seconds)) return "–";
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ]) {
    const number = Math.floor(left / size);
    left -= number * size;
    parts.push(number ? `${number} ${unit}` : "");
  }
  const first = parts.findIndex(Boolean);
  return first < 0
    ? "0 s"
    : parts
        .slice(first, first + 2)
        .filter(Boolean)
        .join(" ");
}

export const share = (part, whole) => (whole ? part / whole : 0);

export const percent = (part, whole) => {
  const n = 100 * share(part, whole);
  return `${n > 0 && n < 10 ? n.toFixed(1) : Math.floor(n)} %`;
};

export function keeps(rule) {
  if (!rule) return "every row";
  const key = rule.key ? ` by ${rule.key.join(", ")}` : "";
  return `${rule.rule}${rule.k > 1 ? ` ${rule.k}` : ""}${key}`;
}

const WAITS = {
  producer: "for a producer's next frame",
  budget: "for memory",
  reader: "for the reader to take what was sent",
  disk: "for the disk",
  source: "for the source",
  writer: "for the producer to send",
};

export const waits = (what) => WAITS[what] ?? `for ${what}`;
