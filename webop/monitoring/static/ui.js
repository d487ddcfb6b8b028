// Polls and shows status.json. It changes rows in place, so that readers, keyboard focus and screen
// readers keep their position. It sets text only: nothing is parsed as HTML.

const PERIOD = 1000;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const find = (id) => document.getElementById(id);

let report = null;
let lost = "";

const formatTime = (seconds) => {
  if (seconds === null) return "";
  if (seconds < 1) return seconds < 0.001 && seconds > 0 ? "< 1 ms" : `${Math.round(seconds * 1000)} ms`;
  const [size, unit] = UNITS.find(([size]) => seconds >= size);
  const shown = seconds / size;
  return `${shown < 10 && size > 1 ? Math.floor(shown * 10) / 10 : Math.floor(shown)} ${unit}`;
};
const sum = (counts) => counts.reduce((a, b) => a + b, 0);
// A total, and the part of the last five minutes.
const count = (total, recent) => (recent ? `${total} (+${recent})` : plain(total));
const list = (counts, recent = {}, skipped = []) => Object.entries(counts)
  .filter(([name, total]) => total && !skipped.includes(name))
  .map(([name, total]) => `${count(total, recent[name])} ${WORDS[name] ?? name.replaceAll("_", " ")}`).join(", ");
// The states of objects in the metrics, in the words of the glossary.
const WORDS = { held: "waiting for indexes", waiting: "waiting for a slot", working: "in a worker", resting: "to be retried" };
const describeState = (row) => {
  if (row.running) return `handler ${row.running} runs`;
  if (row.retry_in !== null) return `retry in ${formatTime(row.retry_in)}`;
  return WORDS[row.state] ?? (row.failures.length ? "to be retried" : row.state);
};

// The bucket of a quantile of the reviews: "half within 5 ms".
const describeQuantiles = (counts, first = 0.5) =>
  (sum(counts) ? `${first === 0.5 ? "half " + findQuantile(counts, 0.5) + ", " : ""}99 % ${findQuantile(counts, 0.99)}` : "");
const findQuantile = (counts, share) => {
  let left = share * sum(counts);
  const index = counts.findIndex((count) => (left -= count) <= 0);
  const bound = report.bounds[index];
  return bound === undefined ? `over ${formatTime(report.bounds.at(-1))}` : `within ${formatTime(bound)}`;
};
const drawHistogram = (cell, { counts, recent_counts: recent }) => {
  const [bars, text] = cell.children.length ? cell.children : [make("div"), make("span")];
  if (!cell.children.length) {
    bars.className = "histogram";
    bars.ariaHidden = "true";
    bars.append(...counts.map(() => make("i")));
    cell.append(bars, text);
  }
  const most = Math.max(1, ...counts);
  counts.forEach((count, index) => {
    bars.children[index].style.height = count ? `${Math.max(8, (100 * count) / most)}%` : "0";
  });
  const [newest, all] = [recent, counts].map((each) => describeQuantiles(each));
  setText(text, newest && newest !== all ? `${all}; last 5 min: ${newest}` : all);
};
// A line for a shell, and a button that copies it; the old way to copy works at all addresses.
const drawCommand = (cell, { kubectl }) => {
  if (!cell.children.length) {
    const [code, button] = [make("code"), make("button")];
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", () => {
      getSelection().selectAllChildren(code);
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    cell.append(code, button);
  }
  setText(cell.firstChild, kubectl);
  cell.lastChild.ariaLabel = `Copy ${kubectl}`;
};

const serious = ({ denied, ...others }) => sum(Object.values(others));
const plain = (value) => (value ? String(value) : "");

// For each table: the key of a row, whether it fails, the text if it is empty, the columns.
// For each column: its title, its text, and its class, or the function that draws the cell.
const TABLES = {
  objects: {
    key: (row) => `${row.resource} ${row.namespace} ${row.name}`,
    fails: (row) => row.failures.length > 0,
    empty: "No objects in progress.",
    sorted: true, // the operator's order would change all the time
    columns: [
      ["Object", (row) => row.name],
      ["Namespace", (row) => plain(row.namespace)],
      ["Kind", (row) => row.resource, "kind"],
      ["State", describeState],
      ["For", (row) => formatTime(row.since), "number"],
      ["Failed", (row) => plain(Math.max(0, ...row.failures.map((each) => each.attempts))), "number bad"],
      ["Last error", (row) => row.failures.map((each) => `${each.handler || "webop itself"}: ${each.error}`).join(", "), "bad"],
      ["Command", drawCommand, "drawn command"],
    ],
  },
  failed: {
    key: (row) => `${row.resource} ${row.namespace} ${row.name} ${row.handler}`,
    fails: () => true,
    empty: "No handler has failed for good.",
    columns: [
      ["Object", (row) => row.name],
      ["Namespace", (row) => plain(row.namespace)],
      ["Kind", (row) => row.resource, "kind"],
      ["Handler", (row) => row.handler],
      ["Error", (row) => row.error, "bad"],
      ["When", (row) => `${formatTime(row.age)} ago`, "number"],
      ["Command", drawCommand, "drawn command"],
    ],
  },
  handlers: {
    key: (row) => `${row.type} ${row.id}`,
    fails: (row) => row.calls.failure || row.calls.retry || row.last_error,
    empty: "No handlers.",
    columns: [
      ["Handler", (row) => row.id],
      ["Type", (row) => row.type],
      ["Kinds", (row) => row.resources.join("; ")],
      ["Succeeded", (row) => count(row.calls.success ?? 0, row.recent.success) || "0", "number"],
      ["Retried", (row) => count(row.calls.retry, row.recent.retry), "number warn"],
      ["Failed for good", (row) => count(row.calls.failure, row.recent.failure), "number bad"],
      ["Other", (row) => list(row.calls, row.recent, ["success", "retry", "failure"])],
      ["Mean time", (row) => (sum(Object.values(row.calls)) ? formatTime(row.seconds / sum(Object.values(row.calls))) : ""), "number"],
      ["Last error", (row) => (row.last_error ? `${row.last_error.type}, ${formatTime(row.last_error.age)} ago` : ""), "bad"],
    ],
  },
  webhooks: {
    key: (row) => row.id,
    fails: (row) => serious(row.rejections) > 0,
    empty: "No webhooks.",
    columns: [
      ["Webhook", (row) => row.id],
      ["Reviews", (row) => count(sum(row.counts), sum(row.recent_counts)) || "0", "number"],
      ["In flight", (row) => String(row.in_flight), "number"],
      ["Denied", (row) => count(row.rejections.denied, row.recent_rejections.denied), "number"],
      ["Errors", (row) => list(row.rejections, row.recent_rejections, ["denied"]), "bad"],
      ["Latency", drawHistogram, "drawn"],
    ],
  },
  kinds: {
    key: (row) => row.resource,
    fails: (row) => row.watches.listing || row.watches.reconnecting,
    empty: "No watched kinds.",
    columns: [
      ["Kind", (row) => row.resource, "kind"],
      ["Watch", (row) => Object.entries(row.watches).map(([state, count]) => (count > 1 ? `${state} (${count})` : state)).join(", ")],
      ["Age", (row) => formatTime(row.age), "number"],
      ["Restarts", (row) => list(row.restarts)],
      ["Objects", (row) => list(row.objects)],
      ["Longest", (row) => Object.entries(row.oldest).filter(([, age]) => age >= 1).map(([state, age]) => `${WORDS[state]} ${formatTime(age)}`).join(", ")],
      ["Command", drawCommand, "drawn command"],
    ],
  },
};

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};
const make = (name, role, className = "") => {
  const node = document.createElement(name);
  if (role) node.setAttribute("role", role); // on phones, CSS changes the display of tables
  node.className = className;
  return node;
};

const makeTable = (columns) => {
  const table = make("table", "table");
  const head = make("thead", "rowgroup");
  const row = make("tr", "row");
  for (const [title, , kind = ""] of columns) {
    const cell = make("th", "columnheader", kind.startsWith("number") ? "number" : "");
    cell.scope = "col";
    cell.textContent = title;
    row.append(cell);
  }
  head.append(row);
  table.append(head, make("tbody", "rowgroup"));
  return table;
};
const makeRow = (columns) => {
  const row = make("tr", "row");
  columns.forEach(([title, , kind = ""], index) => {
    const cell = index ? make("td", "cell", kind) : make("th", "rowheader");
    if (index) cell.dataset.title = title;
    else cell.scope = "row";
    row.append(cell);
  });
  return row;
};

const showTable = (name, { key, fails, empty, sorted, columns }) => {
  const { items, left_out: leftOut } = report[name];
  const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = items.filter((row) => {
    const texts = columns.map(([, text, kind]) => (kind?.startsWith("drawn") ? "" : text(row))).join(" ").toLowerCase();
    return (!find("failing").checked || fails(row)) && words.every((word) => texts.includes(word));
  });
  if (sorted) chosen.sort((a, b) => fails(b) - fails(a) || (key(a) < key(b) ? -1 : 1));
  const place = find(name);
  if (!place.children.length) place.append(make("p", "", "empty"), makeTable(columns));
  const [notice, table] = place.children;
  setText(notice, items.length ? "Nothing matches the filter." : empty);
  notice.hidden = chosen.length > 0;
  table.hidden = !chosen.length;
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  chosen.forEach((item, index) => {
    const row = known.get(key(item)) ?? makeRow(columns);
    known.delete(key(item));
    row.dataset.key = key(item);
    columns.forEach(([, show, kind], place) => {
      const cell = row.cells[place];
      if (kind?.startsWith("drawn")) show(cell, item);
      else setText(cell, show(item));
      cell.classList.toggle("blank", !cell.textContent);
    });
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
  known.forEach((row) => row.remove());
  const total = items.length + leftOut;
  const count = chosen.length === total ? `${total}` : `${chosen.length} of ${total}`;
  const rest = leftOut ? `; the report has only ${items.length}` : "";
  setText(find(`${name}-title`).querySelector(".count"), count + rest);
};

const showFacts = () => {
  const now = Date.parse(report.time);
  const left = (Date.parse(report.certificate_expires) - now) / 1000;
  const { name, pod, namespace, cluster, since } = report.operator;
  const describePool = ({ id, size, busy, queued }) =>
    `${id} ${busy}${size === null ? "" : ` of ${size}`}${queued ? `, ${queued} calls wait` : ""}`;
  const facts = {
    Operator: name,
    Pod: pod,
    Namespace: namespace,
    Cluster: cluster,
    Running: `for ${formatTime((now - Date.parse(since)) / 1000)}, since ${new Date(since).toLocaleString()}`,
    Role: report.role || "no handlers for objects",
    "Shards without an owner": report.shards?.unowned,
    "Event loop late": describeQuantiles(report.loop_lag.recent_counts, 0.99),
    "Busy threads": report.threads.map(describePool).join("; "),
    "Certificate expires": report.certificate_expires && (left > 0 ? `in ${formatTime(left)}` : "expired"),
  };
  const shown = Object.entries(facts).filter(([, text]) => text);
  const place = find("facts");
  while (place.children.length > shown.length) place.lastChild.remove();
  shown.forEach(([title, text], index) => {
    if (!place.children[index]) {
      const fact = make("div");
      fact.append(make("dt"), make("dd"));
      place.append(fact);
    }
    setText(place.children[index].firstChild, title);
    setText(place.children[index].lastChild, text);
  });
  for (const [name, texts] of [["obstacles", report.not_ready], ["missing", report.missing_kinds]]) {
    const list = find(name);
    list.hidden = !texts.length;
    if (list.dataset.texts === String(texts)) continue;
    list.dataset.texts = texts;
    list.replaceChildren(...texts.map((text) => {
      const item = make("li");
      item.textContent = text;
      return item;
    }));
  }
};

const show = () => {
  const state = find("state");
  const isReady = report && !report.not_ready.length;
  setText(state, lost ? "Not connected" : isReady ? "Ready" : "Not ready"); // screen readers announce changes
  state.className = `pill ${lost ? "bad" : isReady ? "good" : ""}`;
  if (!report) return;
  const time = new Date(report.time).toLocaleTimeString();
  setText(find("updated"), lost ? `Last update: ${time}` : `Updated: ${time}`);
  setText(find("version"), report.version);
  showFacts();
  for (const [name, table] of Object.entries(TABLES)) showTable(name, table);
};

const update = async () => {
  try {
    const response = await fetch("status.json", { signal: AbortSignal.timeout(20 * PERIOD) });
    if (!response.ok) throw new Error(response.statusText);
    report = await response.json();
    lost = "";
  } catch (error) {
    lost = String(error);
  }
  show();
};

for (const id of ["filter", "failing"]) find(id).addEventListener("input", () => report && show());
for (;;) {
  if (!document.hidden) await update();
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, PERIOD);
    if (document.hidden) document.addEventListener("visibilitychange", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
