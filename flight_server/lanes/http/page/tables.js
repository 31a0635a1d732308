// The page's tables, each drawn from the server's answers; one whose part the answers do not have is not shown.

import {$, element, keyed, meter, table, write} from "./elements.js";
import {bytes, count, duration, keeps, rate, several, share, waits} from "./words.js";

const MAX_ROWS = 100,
  FEW_ROWS = 25,
  MAX_WAITS = 25;

const first = (rows, most = MAX_ROWS) => rows.slice(0, most);

const late = (seconds, deadline) =>
  deadline === null ? "" : seconds >= deadline / 2 ? "bad" : seconds >= deadline / 4 ? "warn" : "";

export function waiting(why) {
  table(
    "waits",
    [
      {title: "waits", of: (wait) => waits(wait.waiting_for)},
      {
        title: "for",
        of: (wait) => (wait.seconds < 10 ? `${wait.seconds.toFixed(1)} s` : duration(wait.seconds)),
        number: true,
        kind: (wait) => late(wait.seconds, wait.deadline_seconds),
        key: true,
      },
      {
        title: "at most",
        of: (wait) => (wait.deadline_seconds === null ? wait.ends : duration(wait.deadline_seconds)),
        number: true,
      },
      {title: "dataset", of: (wait) => wait.dataset ?? "", name: true, key: true},
      {title: "partition", of: (wait) => wait.partition ?? "", number: true},
      {title: "producer", of: (wait) => wait.producer ?? "", number: true},
      {title: "peer", of: (wait) => wait.peer ?? "", name: true},
    ],
    first(why.waits, MAX_WAITS),
    {
      key: (wait) => [wait.waiting_for, wait.dataset, wait.partition, wait.producer, wait.peer].join(" "),
      more: why.count - first(why.waits, MAX_WAITS).length,
      none: "No stream waits.",
    },
  );
}

function state(dataset) {
  if (dataset.failed) return "failed";
  if (dataset.sealed) return "sealed";
  const states = Object.entries(dataset.partition_states)
    .map(([name, n]) => `${count(n)} ${name}`)
    .join(", ");
  return states || "open";
}

// Of a dataset over several servers, this server's part of the whole.
const part = (shown, row, size) => shown(row[size]) + (row.whole ? ` of ${shown(row.whole[size])}` : "");

// all: whether to show as many as the server sent. opener: makes the button that opens a dataset's rows.
export function datasets(now, all, opener) {
  const rows = Object.entries(now.datasets ?? {}).map(([name, dataset]) => ({name, ...dataset}));
  const shown = first(rows, all ? rows.length : FEW_ROWS);
  $("more").hidden = rows.length <= FEW_ROWS;
  write($("more"), all ? "Show fewer" : `Show ${count(rows.length)}`);
  $("more").setAttribute("aria-expanded", String(all));
  write(
    $("listed"),
    now.count > shown.length
      ? `${shown.length} of ${count(now.count)}: failed, then awaited, then largest`
      : "failed, then awaited, then largest first",
  );
  table(
    "datasets",
    [
      {title: "name", control: opener, name: true},
      {title: "kind", of: (row) => (row.durable ? `${row.kind}, durable` : row.kind)},
      {title: "state", of: state, kind: (row) => (row.failed ? "bad" : row.sealed ? "" : "open"), key: true},
      {title: "partitions", of: (row) => count(row.partition_count), number: true, minor: true},
      {title: "rows", of: (row) => part(count, row, "rows"), number: true, key: true},
      {title: "bytes", of: (row) => part(bytes, row, "bytes"), number: true, minor: true},
      {title: "in RAM", of: (row) => bytes(row.resident_bytes), number: true},
      {title: "on disk", of: (row) => bytes(row.disk_bytes), number: true},
      {title: "readers", of: (row) => count(row.readers), number: true},
      {
        title: "servers",
        of: (row) => (row.whole ? `this and ${count(row.server_count - 1)} more` : count(row.server_count)),
        number: true,
        minor: true,
      },
      {
        title: "lease",
        of: (row) => (row.lease_left_seconds === null ? "none" : duration(row.lease_left_seconds)),
        number: true,
      },
    ],
    shown,
    {
      key: (row) => row.name,
      more: now.count - shown.length,
      none: $("filter").value ? "No name contains that." : "There are no datasets.",
    },
  );
}

// The columns and the first rows of one dataset; before its answer has come, {dataset, note}.
export function sample({dataset, failure, note, partition, rows = [], columns = [], column_count}) {
  write($("dataset-name"), dataset);
  write($("failure"), failure ?? "");
  write($("rows-note"), note ?? `The first ${several(rows.length, "row")} of partition ${partition}.`);
  for (const place of [$("rows"), $("columns")]) place.body = null; // its columns are other ones
  table(
    "rows",
    columns.slice(0, rows[0]?.length).map(({name}, i) => ({
      title: name,
      of: (row) => row.values[i] ?? "null",
      kind: (row) => (row.values[i] === null ? "null" : ""),
      key: i < 3,
    })),
    rows.map((values, number) => ({values, number})),
    {key: (row) => row.number},
  );
  table(
    "columns",
    [
      {title: "column", of: (column) => column.name, name: true},
      {title: "type", of: (column) => column.type, name: true, key: true},
      {title: "nulls", of: (column) => (column.nullable ? "allowed" : "none"), key: true},
    ],
    columns,
    {key: (column) => column.name, more: column_count - columns.length},
  );
}

export function readers(now) {
  const rows = first(now.slowest_readers ?? []);
  table(
    "readers",
    [
      {title: "dataset", of: (row) => row.dataset, name: true},
      {title: "partition", of: (row) => count(row.partition), number: true},
      {title: "peer", of: (row) => row.peer ?? "unknown", name: true},
      {title: "next frame", of: (row) => count(row.position), number: true},
      {title: "lag", of: (row) => bytes(row.lag_bytes), number: true, key: true},
    ],
    rows,
    {key: (row) => `${row.dataset} ${row.partition} ${row.peer}`},
  );
}

export function changelogs(now, release) {
  const logs = Object.entries(now.datasets ?? {})
    .filter(([, dataset]) => dataset.changelog)
    .map(([name, dataset]) => ({name, generation: dataset.generation, ...dataset.changelog}));
  table(
    "changelogs",
    [
      {title: "name", of: (log) => log.name, name: true},
      {title: "keeps", of: (log) => keeps(log.keep)},
      {title: "delay", of: (log) => `${log.delay_seconds} s`, number: true},
      {title: "since", of: (log) => count(log.since), number: true},
      {title: "upper", of: (log) => count(log.upper), number: true},
      {title: "rows", of: (log) => count(log.rows), number: true, key: true},
      {title: "runs", of: (log) => count(log.runs), number: true},
      {title: "in RAM", of: (log) => bytes(log.bytes), number: true},
      {title: "on disk", of: (log) => bytes(log.disk_bytes), number: true},
      {title: "debt, rows", of: (log) => count(log.debt_rows), number: true},
      {title: "holds", of: (log) => count(log.hold_count), number: true},
      {title: "followers", of: (log) => count(log.followers), number: true},
      {title: "old rows", of: (log) => count(log.garbage_rows), number: true},
      {title: "compaction waits for", of: (log) => log.waits_for ?? "", name: true},
    ],
    first(logs),
    {key: (log) => log.name, more: logs.length - first(logs).length},
  );
  const holds = logs.flatMap((log) => log.holds.map((hold) => ({...hold, name: log.name, generation: log.generation})));
  holds.sort((one, other) => one.version - other.version);
  table(
    "holds",
    [
      {title: "changelog", of: (hold) => hold.name, name: true},
      {title: "held by", of: (hold) => hold.owner ?? "unknown", name: true, key: true},
      {title: "hold", of: (hold) => hold.hold, name: true},
      {title: "version", of: (hold) => count(hold.version), number: true},
      {title: "held for", of: (hold) => duration(hold.held_seconds), number: true},
      {title: "lease", of: (hold) => duration(hold.lease_left_seconds), number: true},
      {title: "", control: release},
    ],
    first(holds),
    {key: (hold) => `${hold.name} ${hold.generation} ${hold.hold}`, more: holds.length - first(holds).length},
  );
}

export function leftovers(now) {
  const writes = now.staged?.writes ?? [],
    ended = now.ended?.generations ?? [];
  table(
    "staged",
    [
      {title: "for", of: (row) => row.dataset, name: true},
      {title: "generation", of: (row) => row.generation},
      {title: "mode", of: (row) => row.mode, key: true},
      {title: "rows", of: (row) => count(row.rows), number: true, key: true},
      {title: "bytes", of: (row) => bytes(row.bytes), number: true},
      {title: "lease", of: (row) => duration(row.lease_left_seconds), number: true},
    ],
    writes,
    {key: (row) => row.generation, more: (now.staged?.count ?? 0) - writes.length},
  );
  table(
    "ended",
    [
      {title: "dataset", of: (row) => row.dataset, name: true},
      {title: "generation", of: (row) => row.generation},
      {title: "readers", of: (row) => count(row.readers), number: true},
      {title: "in RAM", of: (row) => bytes(row.resident_bytes), number: true},
      {title: "on disk", of: (row) => bytes(row.disk_bytes), number: true},
    ],
    ended,
    {key: (row) => row.generation, more: (now.ended?.count ?? 0) - ended.length},
  );
}

export function servers(now) {
  const rows = (now.servers?.length ?? 0) > 1 ? now.servers : [];
  const used = (each, part) =>
    each.gone ? "–" : `${bytes(each[`${part}_used_bytes`])} of ${bytes(each[`${part}_limit_bytes`])}`;
  table(
    "servers",
    [
      {title: "server", of: (each) => each.location, name: true},
      {title: "start", of: (each) => each.start ?? "–"},
      {
        title: "state",
        of: (each) => (each.gone ? `gone: ${each.gone}` : each.draining ? "draining" : "serving"),
        kind: (each) => (each.gone ? "bad" : each.draining ? "warn" : ""),
        key: true,
      },
      {title: "written", of: (each) => rate(each.bytes_in_per_second), number: true},
      {title: "read", of: (each) => rate(each.bytes_out_per_second), number: true},
      {title: "memory", of: (each) => used(each, "memory"), number: true},
      {title: "disk", of: (each) => used(each, "disk"), number: true},
      {title: "datasets", of: (each) => count(each.datasets), number: true},
      {title: "page", control: link},
    ],
    rows,
    {key: (each) => each.location},
  );
}

function link(each) {
  const made = element("a", each.http ? "open" : "");
  if (each.http?.match(/^https?:/)) made.href = each.http;
  return made;
}

export function accounts(now) {
  const rows = Object.entries(now.memory?.accounts ?? {});
  $("pools-part").hidden = !rows.length;
  keyed(
    $("pools"),
    rows,
    ([name]) => name,
    ([name]) => element("div", [element("span", name), meter(name), element("span")], "pool"),
    (made, [, pool]) => {
      const limit = pool.limit_bytes;
      const text =
        `${bytes(pool.used_bytes)} of ${limit ? bytes(limit) : "what there is"}` +
        (pool.waiting
          ? `, ${several(pool.waiting, "stream waits", "streams wait")}`
          : `, peak ${bytes(pool.peak_bytes)}`);
      made.children[1].show(share(pool.used_bytes, limit), text);
      write(made.lastChild, text);
    },
  );
}

export function totals(now) {
  const rows =
    now.bytes_in === undefined
      ? []
      : [
          ["written by producers", now.bytes_in, now.frames_in, now.puts],
          ["read by readers", now.bytes_out, now.frames_out, now.gets],
          ["moved to disk", now.spilled_bytes, now.spilled_frames, null],
          ["read back from disk", now.bytes_read_back, now.frames_read_back, null],
          ["pulled from sources", null, null, now.pulls],
          ["pulls that failed", null, null, now.pulls_failed],
          ["readers ended as too slow", null, null, now.readers_ended_as_too_slow],
        ];
  table(
    "totals",
    [
      {title: "", of: (row) => row[0]},
      {title: "bytes", of: (row) => (row[1] === null ? "" : bytes(row[1])), number: true, key: true},
      {title: "frames", of: (row) => (row[2] === null ? "" : count(row[2])), number: true, key: true},
      {title: "streams", of: (row) => (row[3] === null ? "" : count(row[3])), number: true, key: true},
    ],
    rows,
    {key: (row) => row[0]},
  );
}
