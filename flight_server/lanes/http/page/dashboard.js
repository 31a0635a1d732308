// Asks the server every two seconds while the page is seen, and draws its answers.

import {$, element, keyed, write} from "./elements.js";
import {pictures, tiles} from "./glance.js";
import {problems} from "./problems.js";
import {several} from "./words.js";
import * as tables from "./tables.js";

const REFRESH_MS = 2000,
  PATIENCE_MS = 15000,
  MAX_DATASETS = 300;
const LOGGED_IN = "flight-server: logged in"; // says only that there is a cookie, which no script can see
let timer = null,
  paused = false,
  all = false,
  wholeServer = true,
  asking = 0,
  opened = null, // the button of the dataset whose rows are shown
  answered = null;

async function fetched(path, {posted, optional = false} = {}) {
  const options = {signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store"};
  if (posted !== undefined) {
    Object.assign(options, {
      method: "POST",
      headers: {"content-type": "application/json"},
      body: JSON.stringify(posted),
    });
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) throw Object.assign(new Error("log in to see this server"), {login: true});
  if (optional && (answer.status === 403 || answer.status === 404)) return null;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.message);
  return body;
}

function show(now, why, history) {
  const found = problems(now, why, history);
  const worst = found[0]?.level;
  const words = now.draining
    ? "draining"
    : worst === "bad"
      ? "in trouble"
      : worst === "warn"
        ? "needs attention"
        : "healthy";
  write($("state"), words, worst === "bad" ? "bad" : worst === "warn" ? "warn" : "good");
  const own = now.servers?.[0]?.location ?? "";
  write($("where"), [own, now.principal].filter(Boolean).join(" · "));
  write(
    $("moment"),
    `${several(now.servers?.[0]?.datasets ?? now.count, "dataset")} · ${new Date().toLocaleTimeString()}`,
  );
  document.title = `${worst === "bad" ? "✖ " : worst === "warn" ? "▲ " : ""}flight-server ${own}`.trim();
  keyed(
    $("problems"),
    found.map((each, i) => ({...each, i})),
    (each) => each.i,
    () => element("li"),
    (made, each) => write(made, each.text, each.level),
  );
  $("problems").hidden = !found.length;
  tiles(now, why);
  pictures(now, history);
  tables.waiting(why);
  tables.datasets(now, all, opening);
  tables.servers(now);
  tables.readers(now);
  tables.changelogs(now, releasing);
  tables.leftovers(now);
  tables.accounts(now);
  tables.totals(now);
}

function releasing() {
  const button = element("button", "release");
  button.type = "button";
  button.addEventListener("click", async () => {
    const {name: dataset, generation, hold, owner, version} = button.entry;
    if (!confirm(`End the hold of ${owner ?? hold}? If it still reads version ${version}, it may fail.`)) return;
    button.disabled = true;
    try {
      await fetched("v1/hold", {posted: {dataset, generation, hold, release: true}});
    } catch (error) {
      alert(error.message);
    }
    button.disabled = false;
    refresh();
  });
  return button;
}

function opening({name}) {
  const button = element("button", name, "opens");
  button.type = "button";
  button.addEventListener("click", () => open(button));
  return button;
}

async function open(button) {
  const {name: dataset, generation} = button.entry;
  opened = button;
  $("dataset-part").hidden = false;
  tables.sample({dataset, note: "asking …"});
  $("dataset-name").focus();
  const answer = await fetched(`v1/rows?${new URLSearchParams({dataset, generation})}`).catch((error) => ({
    dataset,
    note: error.message,
  }));
  if (opened === button) tables.sample(answer);
}

function close() {
  $("dataset-part").hidden = true;
  opened?.focus();
  opened = null;
}

function logIn(wanted) {
  $("login").hidden = !wanted;
  $("pause").hidden = wanted;
  $("logout").hidden = wanted || !localStorage.getItem(LOGGED_IN);
  if (wanted) {
    localStorage.removeItem(LOGGED_IN);
    $("main").hidden = true;
    close(); // another principal may log in
    write($("state"), "log in", "");
    write($("moment"), "");
    write($("where"), "");
  }
}

async function refresh() {
  clearTimeout(timer);
  const mine = (asking += 1);
  if (document.hidden || paused) return;
  try {
    const part = new URLSearchParams({limit: MAX_DATASETS, order: "attention", contains: $("filter").value});
    const [now, why, history] = await Promise.all([
      fetched(`v1/statistics?${part}`),
      fetched("v1/why?limit=200"),
      wholeServer ? fetched("v1/history", {optional: true}) : null,
    ]);
    if (mine !== asking) return;
    wholeServer = history !== null; // a principal of some names is not given it, and is not refused it every time
    logIn(false);
    $("main").hidden = false;
    $("main").className = "";
    show(now, why, history);
    answered = Date.now();
  } catch (error) {
    if (mine !== asking) return;
    if (error.login) {
      logIn(true);
      $("token").focus();
      return;
    }
    write($("state"), "no answer", "bad");
    const since = answered ? `what is shown is from ${new Date(answered).toLocaleTimeString()} · ` : "";
    const reason = error.name === "TimeoutError" ? "it has not answered in time" : error.message;
    write($("moment"), `${since}${reason}`);
    document.title = "✖ flight-server: no answer";
    $("main").className = "stale";
  }
  timer = setTimeout(refresh, REFRESH_MS);
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  write($("refused"), "");
  const token = $("token").value;
  $("token").value = "";
  try {
    await fetched("login", {posted: {token}});
    localStorage.setItem(LOGGED_IN, "yes");
    wholeServer = true;
    refresh();
  } catch (error) {
    write($("refused"), error.login ? "This is no token of this server." : error.message);
    $("token").focus();
  }
});
$("logout").addEventListener("click", async () => {
  await fetched("logout", {posted: {}}).catch(() => null);
  localStorage.removeItem(LOGGED_IN);
  refresh();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  write($("pause"), paused ? "Resume" : "Pause");
  $("pause").setAttribute("aria-pressed", String(paused));
  refresh();
});
$("filter").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(refresh, 200);
});
$("more").addEventListener("click", () => {
  all = !all;
  refresh();
});
$("close").addEventListener("click", close);
document.addEventListener("visibilitychange", refresh);
// A phone shows what matters first, and the other cards folded.
if (matchMedia("(max-width: 42rem)").matches)
  for (const each of document.querySelectorAll("main > details:not(#waits-part, #datasets-part)")) each.open = false;
refresh();
