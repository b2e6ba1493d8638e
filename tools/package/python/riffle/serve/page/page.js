"use strict";
// Asks for /state every second, and shows it. Nothing on the page comes from a request's text.

const at = (id) => document.getElementById(id);
const count = (n) => Math.round(n).toLocaleString("en");
const seconds = (s) => (s === null ? "" : s < 100 ? s.toFixed(1) + " s" : count(s) + " s");
const percent = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(1) + "%" : "-");
const bytes = (n) => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : (n / 2 ** 20).toFixed(1) + " MiB";

// Figures of the last seconds, for speeds: [time in s, tokens decoded, tokens read].
const WINDOW_SECONDS = 10;
let history = [];

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function list(id, rows) {
  at(id).replaceChildren(...rows.filter(([, value]) => value !== "" && value !== undefined).map(
    ([name, value]) => {
      const row = element("div");
      row.append(element("dt", name), element("dd", value));
      return row;
    }));
}

function rate(index) {
  const first = history[0], last = history[history.length - 1];
  const time = last[0] - first[0];
  return time > 0 ? (last[index] - first[index]) / time : 0;
}

function showSpeed(state) {
  const s = state.stats, t = state.totals, now = performance.now() / 1000;
  history.push([now, s.decode_tokens, s.prefill_tokens]);
  history = history.filter(([time]) => time >= now - WINDOW_SECONDS);
  list("speed", [
    ["answer tokens/s", rate(1).toFixed(1)],
    ["prompt tokens/s", rate(2).toFixed(0)],
    ["answering", s.n_decoding + " of " + state.max_seqs],
    ["waiting", s.n_waiting + s.n_prefilling],
    ["KV read", percent(s.kv_tokens_read, s.kv_tokens_total)],
    ["prompt tokens not read twice", percent(t.cached_tokens || 0, t.prompt_tokens || 0)],
    ["pool hits", s.pool_lookups ? percent(s.pool_hits, s.pool_lookups) : ""],
    ["KV in host memory", bytes(s.host_kv_bytes)],
    ["prompts saved on disk", s.prefix_cache_saved],
    ["requests", count(t.requests || 0)],
    ["answer tokens", count(t.answer_tokens || 0)],
  ]);
}

function requestRow(r) {
  const ended = !["checking", "waiting", "reading", "answering"].includes(r.state);
  const row = element("tr", undefined, ended ? "ended" : "");
  const answering = r.first_token === null ? 0 : r.seconds - r.first_token;
  const state = element("td", r.state);
  if (r.state === "reading") {
    const bar = element("progress");
    bar.max = 1;
    bar.value = r.read;
    state.append(" ", bar, " " + (100 * r.read).toFixed(0) + "%");
  }
  row.append(
    element("td", r.number), element("td", r.path), state, element("td", count(r.prompt_tokens)),
    element("td", count(r.cached_tokens)), element("td", count(r.answer_tokens)),
    element("td", answering > 0 ? (r.answer_tokens / answering).toFixed(1) : ""),
    element("td", seconds(r.first_token)), element("td", seconds(r.seconds)));
  return row;
}

function show(state) {
  const m = state.model, p = state.plan;
  at("key").hidden = true;
  at("figures").hidden = false;
  at("model").className = "";
  at("model").textContent = m.name + ", " + count(state.context_length) + " tokens of context";
  const notice = [state.notice, state.stats.prefix_cache_notice].filter((text) => text).join("\n");
  at("notice").hidden = !notice;
  at("notice").textContent = notice;
  showSpeed(state);
  at("requests").replaceChildren(...state.requests.map(requestRow));
  at("none").hidden = state.requests.length > 0;
  at("base").textContent = location.origin + "/v1";
  list("facts", [
    ["architecture", m.architecture], ["file", m.format], ["weights", m.weight_type],
    ["parameters", count(m.n_params)], ["bytes of weights", bytes(m.weight_bytes)],
    ["layers", m.n_layers], ["trained length", count(m.n_ctx_train)],
    ["chat template", m.chat_template_name || "none"],
    ["answers at once", state.max_seqs], ["answers that may wait", state.max_waiting],
    ["process", state.process], ["running for", seconds(state.uptime)],
  ]);
  list("plan", Object.entries(p).filter(([name, value]) => !name.includes("/") && value !== 0 &&
    value !== false).map(([name, value]) =>
    [name.replaceAll("_", " "), typeof value === "number" && value >= 2 ** 20 ? bytes(value) :
      String(value)]));
}

async function ask() {
  const key = sessionStorage.getItem("key");
  const headers = key ? { Authorization: "Bearer " + key } : {};
  try {
    const answer = await fetch("state", { headers });
    if (answer.status === 401) {
      at("key").hidden = false;
      at("model").textContent = key ? "the key is wrong" : "this server asks for its key";
    } else {
      show(await answer.json());
    }
  } catch (error) {
    at("model").className = "lost";
    at("model").textContent = "no answer from the server";
  }
}

at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", event.target.querySelector("input").value);
  ask();
});
async function repeat() {
  if (!document.hidden) await ask();
  setTimeout(repeat, 1000);
}
repeat();
