// What an operator must know first: {level: "bad" | "warn" | "note", text}, worst first. A server with notes only is
// healthy.

import {bytes, count, duration, percent, several, share, waits} from "./words.js";

const FULL = 0.95,
  FILLING = 0.8;
// A wait of these lasts for moments while the server is well.
const SHORT_SECONDS = {budget: 1, disk: 5};
const PATIENCE_SECONDS = {...SHORT_SECONDS, reader: 5};
const LONG_SECONDS = 60,
  NAMED = 3;

function pools(now) {
  const listed = [
    ["memory", now.memory],
    ["disk", now.disk],
  ].filter(([, pool]) => pool);
  for (const [name, account] of Object.entries(now.memory?.accounts ?? {}))
    listed.push([`memory account ${name}`, account]);
  return listed.flatMap(([name, pool]) => {
    const part = share(pool.used_bytes, pool.limit_bytes);
    const text =
      `${name} is ${percent(pool.used_bytes, pool.limit_bytes)} full` +
      ` (${bytes(pool.used_bytes)} of ${bytes(pool.limit_bytes)})`;
    if (pool.waiting)
      return [
        {
          level: part >= FULL ? "bad" : "warn",
          text: `${text}: ${several(pool.waiting, "stream waits", "streams wait")} for room`,
        },
      ];
    if (part >= FULL) return [{level: name === "disk" ? "bad" : "warn", text}];
    return part >= FILLING && name === "disk" ? [{level: "warn", text}] : [];
  });
}

const isEnding = (wait) => wait.deadline_seconds !== null && wait.seconds >= Math.max(5, wait.deadline_seconds / 2);

function stuck(why) {
  const found = [];
  const pressed = why.waits.some((each) => each.waiting_for === "budget");
  for (const what of new Set(why.waits.map((each) => each.waiting_for))) {
    const all = why.waits.filter((each) => each.waiting_for === what);
    const patience = PATIENCE_SECONDS[what] ?? LONG_SECONDS;
    const late = all.filter((each) => each.seconds >= patience || isEnding(each));
    if (!late.length) continue;
    const worst = late[0],
      deadline = worst.deadline_seconds;
    const where = worst.dataset ? ` (${worst.dataset})` : "";
    const of = deadline === null ? "" : ` of at most ${duration(deadline)}`;
    const ending = isEnding(worst);
    const level =
      what in SHORT_SECONDS ? (ending ? "bad" : "warn") : ending || (what === "reader" && pressed) ? "warn" : "note";
    const who = several(late.length, "stream waits", "streams wait");
    const longest = late.length > 1 ? "the longest for" : "for";
    found.push({level, text: `${who} ${waits(what)}, ${longest} ${duration(worst.seconds)}${of}${where}`});
  }
  return found;
}

function ofDatasets(now) {
  const failed = Object.entries(now.datasets ?? {}).filter(([, dataset]) => dataset.failed);
  const found = failed
    .slice(0, NAMED)
    .map(([name, dataset]) => ({level: "warn", text: `dataset ${name} has failed: ${dataset.failure}`}));
  const others = failed.slice(NAMED).map(([name]) => name);
  if (others.length) {
    const names = others.slice(0, NAMED).join(", ") + (others.length > NAMED ? ", …" : "");
    found.push({level: "warn", text: `${several(others.length, "more dataset")} failed: ${names}`});
  }
  for (const [name, dataset] of Object.entries(now.datasets ?? {})) {
    const log = dataset.changelog;
    if (log?.damage) found.push({level: "bad", text: `changelog ${name} is damaged: ${log.damage}`});
    if (log?.not_emitting) found.push({level: "warn", text: `changelog ${name} emits nothing: ${log.not_emitting}`});
    if (log?.held_back?.seconds >= LONG_SECONDS && log.garbage_rows) {
      const kept = `${several(log.garbage_rows, "old row")} for ${log.waits_for}`;
      const text = `changelog ${name} keeps up to ${kept}, for ${duration(log.held_back.seconds)}`;
      found.push({level: "warn", text});
    }
  }
  return found.length > 5
    ? [...found.slice(0, 5), {level: found[5].level, text: `and ${count(found.length - 5)} more such datasets`}]
    : found;
}

function recently(history, name) {
  const values = history?.[name] ?? [];
  return values.length ? values.at(-1) - values[0] : 0;
}

export function problems(now, why, history) {
  const found = [];
  const say = (level, text) => found.push({level, text});
  if (now.draining)
    say("warn", "the server is draining: it takes no new streams, and ends when the running ones have ended");
  if (why.disk_trouble) say("bad", `disk: ${why.disk_trouble}`);
  for (const each of now.servers ?? []) {
    if (each.gone) say("bad", `server ${each.location} is gone: ${each.gone}`);
    else if (each.draining && each !== now.servers[0]) say("warn", `server ${each.location} is draining`);
  }
  found.push(...pools(now), ...stuck(why), ...ofDatasets(now));
  const slow = recently(history, "readers_ended_as_too_slow");
  if (slow) say("warn", `${several(slow, "reader was", "readers were")} ended as too slow in the last minutes`);
  for (const each of why.quarantine ?? [])
    say("warn", `dataset ${each.dataset} is in quarantine: ${each.reason}`);
  for (const path of now.damaged_records ?? []) say("warn", `damaged records were replaced, see ${path}`);
  if (now.foreign_files?.length) {
    const files = several(now.foreign_files.length, "file");
    say("note", `not the server's, in its data directory: ${files}, one is ${now.foreign_files[0]}`);
  }
  for (const [name, times] of Object.entries(now.task_failures ?? {})) {
    say("warn", `the server's own task '${name}' failed ${several(times, "time")} since the start; its log says why`);
  }
  if (now.certificates_trouble) say("bad", `certificates: ${now.certificates_trouble}`);
  if (now.token_file_trouble) say("bad", `token file: ${now.token_file_trouble}`);
  const levels = ["bad", "warn", "note"];
  return found.sort((one, other) => levels.indexOf(one.level) - levels.indexOf(other.level));
}
