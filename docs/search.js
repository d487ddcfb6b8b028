// What users type, as the search of the theme needs it: without words that say nothing, and with the
// words of these pages. The theme puts a wildcard behind each word, so "a" would find every word
// that begins with it. Tested by tools/site/searching.py.
(() => {
  const EMPTY = new Set(
    ("a about after all an and any are as at be before by can could do does for from get gets has have how i if " +
      "in into is it its make me my need no not of on one or our run should so some that the their them then " +
      "there they this to up use using want was we what when where which while who why will with without would you " +
      "your").split(" "),
  );
  const SYNONYMS = {
    alert: "alerts",
    cache: "indexes",
    cleanup: "deletion",
    cron: "timers",
    crontab: "timers",
    default: "field",
    defaults: "field",
    downtime: "rollouts",
    every: "timers",
    exception: "errors",
    finalizer: "deletion",
    ha: "leadership",
    hang: "troubleshooting",
    hangs: "troubleshooting",
    hpa: "shards",
    immutable: "admission",
    interval: "timers",
    invalid: "admission",
    mock: "FakeClient",
    periodic: "timers",
    permissions: "RBAC",
    reject: "admission",
    scale: "shards",
    schedule: "timers",
    share: "memos",
    terminating: "deletion",
    validate: "admission",
    validation: "admission",
  };

  const rewrite = (query) => {
    if (query.includes('"')) return query; // a phrase is meant as it is
    const words = query.trim().split(/\s+/).filter((word) => word);
    const telling = words.filter((word) => !EMPTY.has(word.toLowerCase()));
    if (!telling.length) return query;
    // A name of code: the titles of its reference have "webop", too.
    if (telling.length === 1 && /^[\w@]+(\.\w+)+$/.test(telling[0])) {
      const parts = telling[0].split(/[@.]/).filter((part) => part && part !== "on" && part !== "webop");
      return parts.map((part) => `${part}^2`).join(" ") + " webop^1";
    }
    // The wildcard finds plurals of "default", but not "default" for "defaults".
    const stems = telling.map((word) => (/^[A-Za-z]{3,}[a-rt-z]s$/.test(word) ? word.slice(0, -1) : word));
    const others = telling.map((word) => SYNONYMS[word.toLowerCase()]).filter((word) => word);
    return [...stems, ...others].join(" ");
  };

  // The page asks the worker by messages; those of the type 2 are queries.
  const { postMessage } = Worker.prototype;
  Worker.prototype.postMessage = function (message, ...rest) {
    const isQuery = message && message.type === 2 && typeof message.data === "string";
    postMessage.call(this, isQuery ? { ...message, data: rewrite(message.data) } : message, ...rest);
  };
})();
