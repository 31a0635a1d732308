// The page's first screen: the tiles and the charts, from the server's answers. A part that the answers do not have (a
// principal sees only its own datasets) is not shown.

import {chart} from "./chart.js";
import {$, element, keyed, meter, write} from "./elements.js";
import {bytes, count, duration, percent, rate, several, share} from "./words.js";

function rates(history, name) {
  const values = history[name],
    ages = history.age_seconds;
  return values.map((value, i) =>
    i && ages[i - 1] > ages[i] ? Math.max(0, (value - values[i - 1]) / (ages[i - 1] - ages[i])) : 0,
  );
}

function pooled(title, pool) {
  if (!pool) return [];
  const limit = pool.limit_bytes;
  const text = limit ? `of ${bytes(limit)} · ${percent(pool.used_bytes, limit)}` : "no limit";
  // The accounts are parts of the memory: one that is full stops its streams, whatever the others have left.
  const [account, fullest] = Object.entries(pool.accounts ?? {})
    .map(([name, each]) => [name, share(each.used_bytes, each.limit_bytes)])
    .reduce((most, each) => (each[1] > most[1] ? each : most), ["", 0]);
  const below = pool.waiting
    ? `${several(pool.waiting, "stream waits", "streams wait")} for room`
    : fullest >= 0.9
      ? `${account}: ${percent(fullest, 1)} full`
      : `peak ${bytes(pool.peak_bytes)}`;
  return [
    {
      title,
      value: bytes(pool.used_bytes),
      text,
      below,
      part: limit ? share(pool.used_bytes, limit) : null,
      worst: Math.max(fullest, share(pool.used_bytes, limit)),
    },
  ];
}

export function tiles(now, why) {
  const longest = why.waits[0];
  const shown = [...pooled("Memory", now.memory), ...pooled("Disk", now.disk)];
  for (const [name, quota] of Object.entries(now.quotas ?? {})) {
    if (quota === null) continue;
    const words = name === "bytes" ? bytes : count;
    const {limit, used} = typeof quota === "object" ? quota : {limit: quota};
    const tile = {title: `Quota: ${name}`, below: ""};
    shown.push(
      used === undefined
        ? {...tile, value: words(limit), text: "at most"}
        : {...tile, value: words(used), text: `of ${words(limit)} · ${percent(used, limit)}`, part: share(used, limit)},
    );
  }
  const own = now.servers?.[0];
  if (own) {
    const spilled = own.spilled_bytes_per_second,
      back = own.bytes_read_back_per_second;
    shown.push({
      title: "Written",
      value: rate(own.bytes_in_per_second),
      text: "by producers",
      below: spilled ? `${rate(spilled)} to disk` : "",
    });
    shown.push({
      title: "Read",
      value: rate(own.bytes_out_per_second),
      text: "by readers",
      below: back ? `${rate(back)} from disk` : "",
    });
  }
  shown.push({
    title: "Waiting",
    value: count(why.count),
    text: why.count === 1 ? "stream" : "streams",
    below: longest ? `longest ${duration(longest.seconds)}` : "",
  });
  const all = Object.values(now.datasets ?? {});
  const readers = all.reduce((sum, each) => sum + each.readers, 0);
  shown.push({
    title: "Datasets",
    value: count(own?.datasets ?? now.count),
    text: several(readers, "reader"),
    below: "",
  });
  keyed(
    $("tiles"),
    shown,
    (tile) => tile.title,
    (tile) => {
      const made = element(
        "section",
        [element("h2", tile.title), element("p", [element("b")]), element("p", "", "text"), element("p", "", "below")],
        "card tile",
      );
      if (tile.part !== undefined && tile.part !== null) made.insertBefore(meter(tile.title), made.lastChild);
      return made;
    },
    (made, tile) => {
      write(made.querySelector("b"), tile.value);
      write(made.querySelector(".text"), tile.text);
      write(made.querySelector(".below"), tile.below);
      made.querySelector(".track")?.show(tile.part, `${tile.value} ${tile.text}`, tile.worst);
    },
  );
}

const charts = {};

export function pictures(now, history) {
  $("charts").hidden = !history;
  if (!history) return;
  charts.traffic ??= chart($("traffic"), "Throughput", rate);
  charts.usage ??= chart($("usage"), "Memory and disk in use", bytes);
  const ages = history.age_seconds;
  charts.traffic(ages, [
    {name: "written", kind: "in", values: rates(history, "bytes_in"), filled: true},
    {name: "read", kind: "out", values: rates(history, "bytes_out"), filled: true},
    {name: "to disk", kind: "spilled", values: rates(history, "spilled_bytes")},
    {name: "from disk", kind: "back", values: rates(history, "bytes_read_back")},
  ]);
  const limit = now.memory?.limit_bytes;
  charts.usage(
    ages,
    [
      {name: "memory", kind: "in", values: history.memory_used_bytes, filled: true},
      {name: "disk", kind: "spilled", values: history.disk_used_bytes},
    ],
    limit ? [{kind: "in", value: limit}] : [],
  );
}
