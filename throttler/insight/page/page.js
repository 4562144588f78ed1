"use strict";

const POLL = 2000, TIMEOUT = 5000; // milliseconds
const byId = (id) => document.getElementById(id);

const charts = {
  outcome: new Chart(byId("chart-outcome"), { allowed: "c0", denied: "c1", "no verdict": "c2" }),
  source: new Chart(byId("chart-source"), {
    primary: "c0", replica: "c4", leased: "c3", on_credit: "c8", local_deny: "c6", local: "c7", listed: "c5", unknown: "c1", fallback: "c2",
  }),
  exposure: new Chart(byId("chart-exposure"), { bounded: "c6", unbounded: "c2" }),
};
const policies = new Map(); // by name: the history and the row's parts

let last = null; // the latest report
let answered = 0; // when it came, by performance.now
let failure = ""; // why there is no newer one
let restarted = null; // when the last restart was seen
let several = false; // processes answer in turns
let order = { by: "policy", down: false };

// visible shows control codes and marks that change the direction of text as their code points.
function visible(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

const percent = (part) => `${number(100 * part)} %`;
const time = (t) => new Date(t).toLocaleString();

function nanos(n) {
  const size = Math.abs(n);
  if (size < 1e6) return `${number(n / 1e3)} µs`;
  return size < 1e9 ? `${number(n / 1e6)} ms` : seconds(n / 1e9);
}

function seconds(s) {
  if (Math.abs(s) < 120) return `${number(s)} s`;
  return s < 7200 ? `${number(s / 60)} min` : `${number(s / 3600)} h`;
}

// rows replaces the rows of a table; each cell is a text, an element, or [class, text].
function rows(section, all) {
  section.hidden = all.length === 0;
  section.querySelector("tbody").replaceChildren(...all.map((cells) => {
    const row = make("tr");
    for (const cell of cells) {
      if (cell instanceof Node) row.append(make("td"));
      else row.append(Array.isArray(cell) ? make("td", cell[0], cell[1]) : make("td", "", cell));
      if (cell instanceof Node) row.lastChild.append(cell);
    }
    return row;
  }));
}

function facts(section, all) {
  section.querySelector("dl").replaceChildren(...all.flatMap(([name, value]) => {
    const fact = make("div");
    fact.append(make("dt", "", name), make("dd", "", typeof value === "number" ? number(value) : value));
    return [fact];
  }));
}

// counts sums what a policy has decided.
function counts(p) {
  const c = { allowed: p.allowed, denied: p.denied, "no verdict": p.errors, cost: p.exposure };
  for (const d of p.decisions) {
    c[d.source] = (c[d.source] ?? 0) + d.count;
    if (d.allowed && d.guarantee !== "exact") c[d.guarantee] = (c[d.guarantee] ?? 0) + d.count;
  }
  return c;
}

// ratesSince are counts a second since an earlier report of the same process.
function ratesSince(before, after, over) {
  const rates = {};
  for (const [name, n] of Object.entries(after)) rates[name] = Math.max(0, n - (before?.[name] ?? 0)) / over;
  return rates;
}

function take(report) {
  const at = Date.parse(report.time);
  const same = last && last.started === report.started;
  const over = same ? (at - Date.parse(last.time)) / 1000 : 0;
  if (last && !same) {
    several ||= Date.parse(report.started) < Date.parse(last.started);
    restarted = report.started;
    if (!several) for (const chart of Object.values(charts)) chart.add(at, null);
    policies.clear();
  }
  const sum = {};
  report.totals = new Map();
  for (const p of report.policies) {
    const its = policies.get(p.policy) ?? { history: new History(), line: canvas("decisions of the last minutes") };
    policies.set(p.policy, its);
    const total = counts(p);
    report.totals.set(p.policy, total);
    its.stats = p;
    its.rates = over > 0 ? ratesSince(last.totals.get(p.policy), total, over) : null;
    if (its.rates) {
      its.history.add(at, its.rates);
      its.history.draw(its.line, ["allowed", "denied"], ["c0", "c1"], its.history.max(["allowed", "denied"]) || 1);
      for (const [name, n] of Object.entries(its.rates)) sum[name] = (sum[name] ?? 0) + n;
    }
  }
  if (over > 0) for (const chart of Object.values(charts)) chart.add(at, sum);
  const now = { allowed: "allowed", denied: "denied", errors: "no verdict", exposure: "cost" };
  for (const [id, name] of Object.entries(now)) byId(`now-${id}`).textContent = over > 0 ? number(sum[name] ?? 0) : "–";
  last = report;
  show(at);
}

function show(at) {
  byId("started").textContent = time(last.started);
  showPolicies();
  rows(byId("denied"), (last.top_denied ?? []).map((k) => [["key", visible(k.key)], ["n", number(k.denied)], ["n", number(k.over)]]));
  rows(byId("near"), (last.near_limits ?? []).map((k) => [
    ["key", visible(k.key)], visible(k.policy), k.limit, ["n", number(k.remaining)], ["n", seconds(Math.max(0, Date.parse(k.reset_at) - at) / 1000)],
  ]));
  showNodes(at);
  showLease();
  showMigration();
  const shadow = last.shadow, seen = Object.values(shadow).some((n) => n > 0);
  byId("shadow").hidden = !seen;
  facts(byId("shadow"), [["would allow", shadow.allowed], ["would deny", shadow.denied], ["failed", shadow.failed], ["dropped", shadow.dropped]]);
  const registry = last.registry;
  byId("registry").hidden = !registry;
  if (registry) {
    byId("registry").textContent = `Policies of ${visible(registry.version ?? "a file")}, ${registry.digest.slice(0, 12)}, loaded ${time(registry.loaded)}`;
  }
}

function showPolicies() {
  const rate = (its, name) => its.rates?.[name] ?? -1;
  const value = {
    policy: (its) => its.stats.policy, share: (its) => its.stats.denial_share,
    allowed: (its) => its.stats.allowed, denied: (its) => its.stats.denied, errors: (its) => its.stats.errors, exposure: (its) => its.stats.exposure,
    allowedRate: (its) => rate(its, "allowed"), deniedRate: (its) => rate(its, "denied"), errorRate: (its) => rate(its, "no verdict"),
  }[order.by];
  const sorted = [...policies.values()].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    return (x < y ? -1 : x > y ? 1 : 0) * (order.down ? -1 : 1) || (a.stats.policy < b.stats.policy ? -1 : 1);
  });
  const shown = (its, name) => ["n", its.rates ? number(its.rates[name] ?? 0) : "–"];
  rows(byId("policies"), sorted.map((its) => {
    const p = its.stats;
    return [
      visible(p.policy), (p.limits ?? []).join(" "), shown(its, "allowed"), shown(its, "denied"), shown(its, "no verdict"), ["n", percent(p.denial_share)],
      its.line, ["n", number(p.allowed)], ["n", number(p.denied)], ["n", number(p.errors)], [p.exposure > 0 ? "n warn" : "n", number(p.exposure)],
    ];
  }));
  byId("policies").hidden = false;
  for (const button of document.querySelectorAll("[data-sort]")) {
    const cell = button.closest("th");
    if (button.dataset.sort !== order.by) cell.removeAttribute("aria-sort");
    else cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
  }
}

function health(n) {
  if (n.breaker === "open") return ["bad", "breaker open"];
  if (n.breaker !== "closed") return ["warn", `breaker ${n.breaker}`];
  if (n.role === "replica" && !n.readable) return ["warn", "not fit to read"];
  return ["good", "ok"];
}

function showNodes(at) {
  rows(byId("nodes"), (last.nodes ?? []).map((n) => {
    const beat = n.last_heartbeat;
    return [
      visible(n.group), visible(n.node), n.role, health(n), ["n", n.latency_nanos ? nanos(n.latency_nanos) : "–"],
      ["n", beat ? `${seconds(Math.max(0, at - Date.parse(beat)) / 1000)} ago` : "–"], ["n", n.rtt_nanos ? nanos(n.rtt_nanos) : "–"],
      ["n", n.rtt_nanos ? nanos(n.ahead_nanos) : "–"], ["n", n.role === "replica" ? nanos(n.age_nanos) : "–"],
    ];
  }));
  const r = last.router;
  byId("router").hidden = !r;
  if (r) {
    byId("nodes").hidden = false;
    byId("router").textContent = `Keys that changed their group: ${number(r.handovers)} handovers, ${number(r.redirected)} redirects, ` +
      `${number(r.bounded)} decisions without the counts of an unreachable group.`;
  }
}

function showLease() {
  const l = last.lease;
  byId("lease").hidden = !l;
  if (!l) return;
  const local = l.leased + l.denied + (l.on_credit || 0), calls = l.forwarded + l.fetches + (l.flushes || 0);
  facts(byId("lease"), [
    ["without a call", local + calls ? percent(local / (local + calls)) : "–"], ["admitted from a lease", l.leased], ["denied by the local view", l.denied],
    ["forwarded", l.forwarded], ["batches fetched", l.fetches], ["cost leased, unspent", l.stranded], ["cost returned", l.returned],
    ["cost lost", l.lost], ["keys in the local view", l.keys],
    ...(l.on_credit ? [["admitted on credit", l.on_credit], ["charges sent", l.flushes || 0], ["cost owed", l.debt || 0],
      ["most above Max", l.overshoot || 0], ["cost never charged", l.lost_charges || 0]] : []),
  ]);
}

function showMigration() {
  const { dual: d, flag: f } = last;
  byId("migration").hidden = !d && !f;
  byId("flag").hidden = byId("percent").hidden = !f;
  if (f) {
    byId("flag").textContent = `${visible(f.name)}: ${number(f.percent)} % (${visible(f.reason)}), version ${f.version}` +
      (f.stale ? ", stale" : "") + (f.error ? `, ${visible(f.error)}` : "");
    byId("flag").className = f.stale || f.error ? "bad" : "";
    byId("percent").value = f.percent;
  }
  if (!d) return facts(byId("migration"), []);
  const s = d.shadow, shadows = Object.values(s).some((n) => n > 0);
  facts(byId("migration"), [
    ["decided by the old side", d.old], ["decided by the new side", d.new], ["handovers", d.handovers], ["redirects", d.redirected],
    ["decided without one side", d.bounded], ...(!shadows ? [] : [["shadow: agreed", s.agreed], ["shadow: would deny", s.denied], ["shadow: would allow", s.allowed],
    ["shadow: other remaining", s.remaining], ["shadow: failed", s.failed], ["shadow: dropped", s.dropped]]),
  ]);
}

function showState() {
  const state = byId("state"), age = (performance.now() - answered) / 1000;
  const stale = last && (failure || age > (POLL + TIMEOUT) / 1000);
  document.body.classList.toggle("stale", Boolean(stale));
  state.dataset.state = stale || failure ? "stale" : last ? "live" : "waiting";
  state.textContent = !last ? failure || "no answer yet" : stale ? `stale for ${number(Math.round(age))} s` : "live";

  const notices = [];
  if (failure) notices.push(["bad", last ? `No answer since ${time(last.time)}: ${failure}. What is below is of then.` : `No answer: ${failure}.`]);
  if (several) notices.push(["bad", "Several processes answer here in turns, so there are no rates: open the address of one of them."]);
  else if (restarted) notices.push(["warn", `The process restarted at ${time(restarted)}: its counts began again.`]);
  for (const [name, its] of policies) {
    const all = its.rates ? its.rates.allowed + its.rates.denied : 0;
    if (!all || !its.rates.fallback) continue;
    const share = percent(its.rates.fallback / all);
    notices.push(["bad", `Outage: ${share} of the decisions under policy ${visible(name)} are made without the backend.`]);
  }
  for (const n of last?.nodes ?? []) {
    if (n.role === "primary" && n.breaker !== "closed") notices.push(["bad", `The primary of group ${visible(n.group)}, ${visible(n.node)}: breaker ${n.breaker}.`]);
  }
  if (last?.registry?.refused) notices.push(["bad", `The file of policies is rejected, and those before it stay in force: ${visible(last.registry.refused)}`]);
  const texts = notices.map(([, text]) => text).join("\n");
  if (byId("notices").dataset.texts === texts) return; // what is announced again would be read out again
  byId("notices").dataset.texts = texts;
  byId("notices").replaceChildren(...notices.map(([kind, text]) => make("p", `notice ${kind}`, text)));
}

async function poll() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    take(await answer.json());
    answered = performance.now();
    failure = "";
  } catch (e) {
    failure = e.name === "TimeoutError" ? `none within ${TIMEOUT / 1000} s` : visible(e.message);
  }
  showState();
  setTimeout(poll, POLL);
}

for (const button of document.querySelectorAll("[data-sort]")) {
  button.addEventListener("click", () => {
    const by = button.dataset.sort;
    order = { by, down: order.by === by ? !order.down : by !== "policy" };
    if (last) showPolicies();
  });
}
byId("host").textContent = location.host;
setInterval(showState, 1000);
poll();
