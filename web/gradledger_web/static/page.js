// What every page does: theme, copy buttons, relative times, regions that renew themselves.

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
const LIVE_SECONDS = 15;
const EVERY_MS = 5000;

function showTheme(name) {
  const button = document.getElementById("theme");
  button.querySelector("[data-theme-name]").textContent = THEMES[name];
  button.setAttribute("aria-label", `Theme: ${THEMES[name]}`);
}

function chooseTheme() {
  const names = Object.keys(THEMES);
  const now = localStorage.getItem("theme") ?? "auto";
  const next = names[(names.indexOf(now) + 1) % names.length];
  if (next === "auto") {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("theme", next);
    document.documentElement.dataset.theme = next;
  }
  showTheme(next);
}

// The clipboard API needs a secure context; a dashboard on a cluster's plain HTTP has none.
async function writeClipboard(code) {
  if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent);
  getSelection().selectAllChildren(code);
  if (!document.execCommand("copy")) throw new Error("not allowed to copy");
}

async function copy(button) {
  const word = button.querySelector("span");
  try {
    await writeClipboard(button.parentElement.querySelector("code"));
    word.textContent = "Copied";
  } catch {
    word.textContent = "Press Ctrl+C";
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
  }
  setTimeout(() => (word.textContent = "Copy"), 2000);
}

function ago(seconds) {
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "long" });
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]])
    if (seconds >= size) return words.format(-Math.floor(seconds / size), unit);
  return seconds < 2 ? "just now" : words.format(-Math.floor(seconds), "second");
}

function tick(root = document) {
  const now = Date.now() / 1000;
  for (const time of root.querySelectorAll("[data-ago]")) {
    const text = ago(Math.max(now - Number(time.dataset.ago), 0));
    if (time.textContent !== text) time.textContent = text;
  }
  for (const seen of root.querySelectorAll("[data-seen]")) {
    const live = !("ended" in seen.dataset) && now - Number(seen.dataset.seen) < LIVE_SECONDS;
    seen.classList.toggle("is-live", live);
  }
}

// What a person opened and ticked stays so in the fresh region.
function keep(from, to) {
  for (const details of from.querySelectorAll("details[open][id]"))
    to.querySelector(`#${CSS.escape(details.id)}`)?.setAttribute("open", "");
  for (const box of from.querySelectorAll("input[type=checkbox]:checked")) {
    const same = to.querySelector(`input[name="${box.name}"][value="${CSS.escape(box.value)}"]`);
    if (same) same.checked = true;
  }
}

const drawn = new Map(); // region id -> its markup as the server wrote it

// Someone is reading with the keyboard or selecting text here: not under their hands.
function isBusy(region) {
  const selection = getSelection();
  const writing = region.contains(document.activeElement) && document.activeElement.type !== "checkbox";
  return writing || (!selection.isCollapsed && selection.containsNode(region, true));
}

function replace(region, fresh) {
  if (drawn.get(region.id) === fresh.outerHTML) return;
  if (isBusy(region)) return;
  drawn.set(region.id, fresh.outerHTML);
  keep(region, fresh);
  tick(fresh);
  const held = region.contains(document.activeElement) ? document.activeElement.value : null;
  region.replaceWith(fresh);
  if (held) fresh.querySelector(`input[value="${CSS.escape(held)}"]`)?.focus();
}

// Fetches this page again and renews its live regions: the server stays the only one who renders.
export async function renew() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected) return location.reload(); // logged out meanwhile
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.title = page.title;
  for (const region of document.querySelectorAll("[data-live][id]")) {
    const fresh = page.getElementById(region.id);
    if (fresh) replace(region, document.adoptNode(fresh));
  }
}

async function renewWhileVisible() {
  if (!document.hidden) await renew().catch(() => {}); // the service is restarting: try again later
  setTimeout(renewWhileVisible, EVERY_MS);
}

for (const region of document.querySelectorAll("[data-live][id]"))
  drawn.set(region.id, region.outerHTML);
showTheme(localStorage.getItem("theme") ?? "auto");
document.getElementById("theme").addEventListener("click", chooseTheme);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("change", (event) => {
  if ("submit" in event.target.dataset) event.target.form.requestSubmit();
});
tick();
setInterval(tick, 1000);
if (document.querySelector('[data-live="every"]')) setTimeout(renewWhileVisible, EVERY_MS);
