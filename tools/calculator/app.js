// The page: its form is a question, its address holds the question, the worker answers it. Knows no figure of its own.
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const form = $("form");
const FIELDS = { method: "tune.method", length: "data.length", batch: "train.batch", epochs: "train.epochs", rows: "data.rows" };
const KEPT = [...Object.keys(FIELDS), "tokens", "goal", "by", "region"];
const FIRST = { from: "model", model: "Qwen/Qwen2.5-7B-Instruct", method: "qlora", length: 2048, batch: 16, epochs: 3, rows: 20000, tokens: 400, goal: "money", budget: "", currency: "USD", by: "", region: "" };
const GIB = 2 ** 30;

let language = "en";
let choices;
let chosen = { card: "", gpus: 1 };
let everything = false;
let table;
let page;

// ---- words

const word = (key, fields = {}) => WORDS[language][key].replace(/\{(\w+)\}/g, (_, name) => fields[name]);

function speak() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = `${word("title")} · Stoker`;
  for (const one of document.querySelectorAll("[data-word]")) one.textContent = word(one.dataset.word);
  for (const one of document.querySelectorAll("[data-hint]")) one.placeholder = word(one.dataset.hint);
  $("language").textContent = word("other");
  document.querySelector("[data-docs]").href = language === "zh" ? "../zh/" : "../";
}

function duration(seconds) {
  for (const [unit, size, least] of [["day", 86400, 2], ["hour", 3600, 1], ["minute", 60, 1], ["second", 1, 0]]) {
    if (seconds >= least * size) return word(unit, { n: short(seconds / size) });
  }
  return "";
}

const short = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1).replace(/\.0$/, "") : String(Number(value.toPrecision(2))));
const gib = (bytes) => short(bytes / GIB);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ---- the question, the form, the address

function recipe() {
  return choices.recipes.find((one) => one.name === form.recipe.value);
}

function question() {
  const from = form.from.value;
  const asked = { goal: form.goal.value, keys: {} };
  if (from === "recipe") asked.recipe = form.recipe.value;
  if (from === "model") asked.model = form.model.value.trim();
  if (from === "config") asked.config = form.config.value;
  const stated = from === "recipe" ? recipe().keys : {};
  const given = Object.fromEntries(Object.entries(FIELDS).map(([field, key]) => [key, typed(form[field])]));
  const tokens = Math.round(Number(form.rows.value) * Number(form.tokens.value));
  // A recipe's own count is kept until one of its two factors changes: their product is rounded.
  const same = from === "recipe" && given["data.rows"] === stated["data.rows"] && form.tokens.value === perRow(stated);
  given["data.tokens"] = same ? stated["data.tokens"] : tokens || null;
  for (const [key, value] of Object.entries(given)) {
    if (value !== null && value !== stated[key]) asked.keys[key] = value;
  }
  if (form.budget.value) asked.budget = form.budget.value + form.currency.value;
  if (form.by.value) asked.by = `${form.by.value}h`;
  if (form.region.value) asked.region = form.region.value;
  return asked;
}

const typed = (field) => (field.value === "" ? null : field.type === "number" ? Number(field.value) : field.value);
const perRow = (keys) => (keys["data.rows"] ? String(Math.round(keys["data.tokens"] / keys["data.rows"])) : "");

function fillRecipe() {
  const { keys, card } = recipe();
  for (const [field, key] of Object.entries(FIELDS)) form[field].value = keys[key] ?? "";
  form.tokens.value = perRow(keys);
  chosen = { card, gpus: 1 };
}

function show(from) {
  for (const one of document.querySelectorAll("[data-from]")) one.hidden = one.dataset.from !== from;
}

function address() {
  const kept = new URLSearchParams({ lang: language, from: form.from.value });
  kept.set(form.from.value, form[form.from.value].value);
  for (const field of KEPT) if (form[field].value) kept.set(field, form[field].value);
  if (form.budget.value) kept.set("budget", form.budget.value + form.currency.value);
  if (chosen.card) kept.set("card", chosen.gpus > 1 ? `${chosen.gpus}x${chosen.card}` : chosen.card);
  return `#${kept}`;
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const wanted = given.get("lang") || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
  language = wanted in WORDS ? wanted : "en";
  for (const [field, value] of Object.entries(FIRST)) form[field].value = value;
  form.currency.value = language === "zh" ? "CNY" : "USD";
  const from = ["model", "recipe", "config"].find((one) => given.has(one)) || "model";
  form.from.value = from;
  if (given.has(from)) form[from].value = given.get(from);
  if (from === "recipe" && !recipe()) form.recipe.selectedIndex = 0;
  if (from === "recipe") fillRecipe();
  for (const field of KEPT) if (given.has(field)) form[field].value = given.get(field);
  const budget = /^([\d.]+)([A-Z]{3})$/.exec(given.get("budget") || "");
  if (budget) [, form.budget.value, form.currency.value] = budget;
  const card = /^(?:(\d+)x)?(.+)$/.exec(given.get("card") || "");
  if (card) chosen = { card: card[2], gpus: Number(card[1] || 1) };
  show(from);
}

// ---- asking

const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let asked = 0;
let state = "loading";

worker.onmessage = ({ data }) => {
  if (data.number) {
    const [done, failed] = waiting.get(data.number);
    waiting.delete(data.number);
    data.failed ? failed(new Error(data.failed)) : done(JSON.parse(data.answer));
    return;
  }
  state = { python: "loading_stoker", ready: "computing", failed: "failed" }[data.state];
  if (!$("status").hidden) $("status").textContent = word(state, { reason: data.error });
};

function ask(one) {
  asked += 1;
  worker.postMessage({ number: asked, question: one, language });
  return new Promise((done, failed) => waiting.set(asked, [done, failed]));
}
window.stoker = { ask, address, answers: 0 };

let latest = 0;
let busy = false;

/** Answers what the form asks now; while one answer is computed, only the newest question waits. */
async function update() {
  const turn = (latest += 1);
  if (busy) return;
  busy = true;
  $("status").hidden = false;
  $("status").textContent = word(state, { reason: "" });
  $("results").setAttribute("aria-busy", "true");
  try {
    await answered();
  } catch (error) {
    refuse([{ message: error.message, hint: "", code: "" }]);
  }
  busy = false;
  window.stoker.answers += 1;
  if (turn !== latest) return update();
  $("status").hidden = true;
  $("results").removeAttribute("aria-busy");
}

async function answered() {
  history.replaceState(null, "", address());
  const one = question();
  if (!(one.recipe || one.model || one.config)) return refuse([{ message: word("nothing"), hint: "", code: "" }]);
  const found = await ask(one);
  if (found.errors) return refuse(found.errors);
  table = { ...found, ...JSON.parse(found.json), text: found.json };
  const rows = table.rows;
  // Expected to fit, and if it does not, a smaller way surely does: as `stoker plan` calls it.
  for (const row of rows) if (row.sure && row.fits === "tight") row.fits = "likely";
  const first = rows.find((row) => row.card === chosen.card && row.devices === chosen.gpus) || rows.find((row) => row.card === table.answer.card && row.devices === table.answer.devices) || rows[0];
  refuse([]);
  $("shown").hidden = false;
  await choose(first.card, first.devices);
}

async function choose(card, gpus) {
  chosen = { card, gpus };
  showTable();
  history.replaceState(null, "", address());
  const found = await ask({ ...question(), card, gpus });
  $("one").hidden = Boolean(found.errors);
  const plan = found.errors ? undefined : JSON.parse(found.json);
  page = plan && { ...found, plan, text: found.json };
  $("command").textContent = (page || table).command;
  if (page) showCard();
}

function refuse(errors) {
  $("errors").replaceChildren(
    ...errors.map((one) =>
      element("p", {}, element("strong", {}, `${one.message} ${one.code && `[${one.code}]`}`), one.hint && element("span", {}, `${word("hint")}: ${one.hint}`)),
    ),
  );
  if (errors.length) $("shown").hidden = true;
}

// ---- the table

const money = (cost) => (cost ? `${short(cost.amount)} ${cost.currency}` : word("no_price"));
const fitsMark = { yes: "✓", likely: "≈", tight: "?", no: "✗" };

function showTable() {
  $("sentences").replaceChildren(...table.sentences.map((line) => element("p", {}, line)));
  const shown = everything ? table.rows : table.shortlist.map((place) => table.rows[place]);
  const largest = Math.max(...shown.map((row) => Math.max(row.available_bytes || 0, row.memory_bytes || 0)));
  const head = ["card", "fits", "time", "cost", "memory"].map((key) => element("th", { scope: "col", class: key }, word(key)));
  const focused = $("cards").contains(document.activeElement);
  $("cards").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...shown.map((row) => tableRow(row, largest))));
  if (focused) $("cards").querySelector("[aria-pressed=true]")?.focus({ preventScroll: true }); // its row was made anew
  $("more").textContent = everything ? word("fewer_rows") : word("all_rows", { count: table.rows.length });
  showPlot();
}

function tableRow(row, largest) {
  const now = row.card === chosen.card && row.devices === chosen.gpus;
  const name = element("button", { type: "button", class: "card", "aria-pressed": now }, `${row.devices} × ${row.card}`);
  name.addEventListener("click", () => choose(row.card, row.devices).then(() => $("one").scrollIntoView({ block: "nearest" })));
  const mark = row.frontier ? [element("span", { class: "star", title: word("frontier_row") }, "★")] : [];
  const able = row.fits !== "no";
  return element(
    "tr",
    { class: `${row.fits}${now ? " now" : ""}`, title: row.why },
    element("th", { scope: "row" }, name, ...mark),
    element("td", { class: "fits" }, fitsMark[row.fits], element("span", {}, ` ${word(`fits_${row.fits}`)}`)),
    element("td", {}, able ? duration(row.stay_seconds) : ""),
    element("td", {}, able ? money(row.cost) : ""),
    element("td", { class: "memory" }, ...(row.memory_bytes ? [smallBar(row, largest)] : [row.why])),
  );
}

function smallBar(row, largest) {
  const scale = 100 / largest;
  const made = drawn("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "there", width: row.available_bytes * scale, height: 8 }),
    drawn("rect", { class: "used", width: row.memory_bytes * scale, height: 8 }),
    drawn("rect", { class: "edge", x: row.available_bytes * scale - 0.6, width: 0.6, height: 8 }));
  return element("span", { class: "small" }, made, `${gib(row.memory_bytes)} / ${gib(row.available_bytes)}`);
}

// ---- time against money

function showPlot() {
  const { currency } = table.terms;
  const paid = table.rows.filter((row) => row.fits !== "no" && row.cost && row.cost.amount > 0 && row.cost.currency === currency);
  const points = paid.map((row) => ({ row, x: row.stay_seconds / 3600, y: row.cost.amount }));
  if (!points.length) return $("plot").replaceChildren();
  const [wide, high, left, bottom] = [640, 340, 58, 44];
  const x = axis(points.map((one) => one.x), left, wide - 16);
  const y = axis(points.map((one) => one.y), high - bottom, 14);
  const line = points.filter((one) => one.row.frontier).sort((one, other) => one.x - other.x);
  const marks = [
    ...x.ticks.map((tick) => drawn("g", {}, drawn("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: 14, y2: high - bottom }), drawn("text", { x: x.at(tick), y: high - bottom + 17, "text-anchor": "middle" }, short(tick)))),
    ...y.ticks.map((tick) => drawn("g", {}, drawn("line", { class: "grid", x1: left, x2: wide - 16, y1: y.at(tick), y2: y.at(tick) }), drawn("text", { x: left - 7, y: y.at(tick) + 4, "text-anchor": "end" }, short(tick)))),
    drawn("text", { x: (left + wide) / 2, y: high - 6, "text-anchor": "middle", class: "axis" }, word("axis_hours")),
    drawn("text", { x: 14, y: (high - bottom) / 2, "text-anchor": "middle", class: "axis", transform: `rotate(-90 14 ${(high - bottom) / 2})` }, word("axis_money", { currency })),
    drawn("polyline", { class: "frontier", points: line.map((one) => `${x.at(one.x)},${y.at(one.y)}`).join(" ") }),
    ...points.sort((one, other) => one.row.frontier - other.row.frontier).map((one) => point(one, x, y)),
    ...labels(line, x, y, wide),
  ];
  $("plot").replaceChildren(drawn("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": word("frontier") }, ...marks));
}

function point({ row, x: hours, y: amount }, x, y) {
  const now = row.card === chosen.card && row.devices === chosen.gpus;
  const name = `${row.devices} × ${row.card}: ${duration(row.stay_seconds)}, ${money(row.cost)}`;
  const made = drawn("circle", { cx: x.at(hours), cy: y.at(amount), r: now ? 7 : row.frontier ? 5 : 3.5, class: `${row.fits}${row.frontier ? " best" : ""}${now ? " now" : ""}` }, drawn("title", {}, name));
  made.addEventListener("click", () => choose(row.card, row.devices));
  return made;
}

/** Names beside the points of the frontier, where there is room for them. */
function labels(line, x, y, wide) {
  const taken = [];
  return line.flatMap(({ row, x: hours, y: amount }) => {
    const [px, py] = [x.at(hours), y.at(amount)];
    if (taken.some(([ox, oy]) => Math.abs(ox - px) < 130 && Math.abs(oy - py) < 15)) return [];
    taken.push([px, py]);
    const end = px > wide - 150;
    return [drawn("text", { x: px + (end ? -9 : 9), y: py - 6, "text-anchor": end ? "end" : "start", class: "name" }, `${row.devices} × ${row.card}`)];
  });
}

function axis(values, from, to) {
  const low = Math.log10(Math.min(...values)) - 0.08;
  const high = Math.log10(Math.max(...values)) + 0.08;
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const step of high - low > 3 ? [1] : [1, 2, 5]) {
      const tick = step * 10 ** power;
      if (Math.log10(tick) >= low && Math.log10(tick) <= high) ticks.push(tick);
    }
  }
  return { ticks, at: (value) => Math.round(10 * (from + ((Math.log10(value) - low) / (high - low)) * (to - from))) / 10 };
}

// ---- one card

function showCard() {
  $("h-one").textContent = page.title;
  showBar();
  $("figures").replaceChildren(...page.figures.flatMap(([label, value]) => [element("dt", {}, label), element("dd", {}, value)]));
  $("ways").replaceChildren(...[...page.changes, ...page.remarks].map((line) => element("p", {}, line)));
  $("arithmetic").replaceChildren(...page.arithmetic.flatMap(([title, lines]) => [element("h3", {}, title), element("pre", {}, lines.join("\n"))]));
  $("reasons").replaceChildren(...page.reasons.map((line) => element("li", {}, line)));
}

function showBar() {
  const { peak_device_bytes: used, available_bytes: there, device_bytes_range: [low, high] } = page.plan.memory;
  const most = Math.max(there, high, used) * 1.02;
  const part = (bytes) => (100 * bytes) / most;
  let at = 0;
  const blocks = page.memory.map(([name, bytes], place) => {
    const block = drawn("rect", { x: part(at), width: part(bytes), y: 6, height: 22, class: `part-${place}` }, drawn("title", {}, `${name}: ${gib(bytes)} GiB`));
    at += bytes;
    return block;
  });
  const bar = drawn("svg", { viewBox: "0 0 100 34", preserveAspectRatio: "none", role: "img", "aria-label": `${gib(used)} / ${gib(there)} GiB` },
    drawn("rect", { class: "there", width: part(there), y: 6, height: 22 }), ...blocks,
    drawn("rect", { class: "range", x: part(low), width: part(high - low), y: 30, height: 2 }),
    drawn("rect", { class: `limit ${page.plan.fits}`, x: part(there) - 0.25, width: 0.5, y: 1, height: 32 }));
  const legend = page.memory.map(([name, bytes], place) => element("li", {}, element("i", { class: `part-${place}` }), `${name} ${gib(bytes)}`));
  const note = `${word("limit", { gib: gib(there) })}; ${word("range", { low: gib(low), high: gib(high) })}`;
  $("bar").replaceChildren(bar, element("ul", { class: "legend" }, ...legend), element("p", { class: "note" }, note));
}

// ---- taking it along

async function copy(kind) {
  const current = page || table;
  const files = Object.entries(current.files);
  const texts = {
    link: () => location.href,
    run: () => (files.length === 1 ? files[0][1] : files.map(([name, text]) => `# ${word("save_as", { name })}\n${text}`).join("\n")),
    command: () => current.command,
    json: () => current.text,
  };
  const text = texts[kind]();
  try {
    await navigator.clipboard.writeText(text);
    $("copied").replaceChildren(word("copied"));
  } catch {
    // Without leave to write the clipboard, as on a page that was not served by https.
    const area = element("textarea", { readonly: "", rows: 6 });
    area.value = text;
    $("copied").replaceChildren(word("copy_failed"), area);
    area.select();
  }
}

// ---- start

let pause;
form.addEventListener("input", ({ target }) => {
  if (target.name === "from") show(target.value);
  if (target.name === "recipe" || (target.name === "from" && target.value === "recipe")) fillRecipe();
  clearTimeout(pause);
  pause = setTimeout(update, 250);
});
form.addEventListener("submit", (event) => event.preventDefault());
$("more").addEventListener("click", () => {
  everything = !everything;
  showTable();
});
$("language").addEventListener("click", () => {
  language = language === "en" ? "zh" : "en";
  speak();
  update();
});
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
window.addEventListener("hashchange", () => {
  readAddress();
  speak();
  update();
});

speak();
choices = await (await fetch("choices.json")).json();
$("models").append(...choices.models.map((one) => element("option", { value: one.name }, `${short(one.parameters / 1e9)} B`)));
form.recipe.append(...choices.recipes.map((one) => element("option", {}, one.name)));
readAddress();
speak();
update();
