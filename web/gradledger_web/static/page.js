// Every page: theme, copy buttons, relative times, and regions that are refreshed from the server.

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
const LOST_SECONDS = 120; // a run without an end whose last record is older is lost, as in progress.py
const LIVE_SECONDS = 15; // a run whose last record is younger has a live dot
const REFRESH_MS = 5000;

// ------------------------------------------------------------------ elements

/**
 * The element that matches a selector. Throws if there is none: templates and scripts belong together.
 * @param {string} selector
 * @param {ParentNode} root
 * @returns {HTMLElement}
 */
export function one(selector, root = document) {
  const element = root.querySelector(selector);
  if (element === null) throw new Error(`no element matches ${selector}`);
  return /** @type {HTMLElement} */ (element);
}

/**
 * @param {string} selector
 * @param {ParentNode} root
 * @returns {HTMLElement[]}
 */
export function all(selector, root = document) {
  return [...root.querySelectorAll(selector)].map((element) => /** @type {HTMLElement} */ (element));
}

/** @param {EventTarget | null} target */
const inputOf = (target) => /** @type {HTMLInputElement} */ (target);

// ------------------------------------------------------------------ theme

/** @param {string} name */
function showTheme(name) {
  const label = THEMES[/** @type {keyof THEMES} */ (name)] ?? THEMES.auto;
  const button = one("#theme");
  one("[data-theme-name]", button).textContent = label;
  button.setAttribute("aria-label", `Theme: ${label}`);
}

function switchTheme() {
  const names = Object.keys(THEMES);
  const current = localStorage.getItem("theme") ?? "auto";
  const next = names[(names.indexOf(current) + 1) % names.length];
  if (next === "auto") {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("theme", next);
    document.documentElement.dataset.theme = next;
  }
  showTheme(next);
}

// ------------------------------------------------------------------ copying

/**
 * The clipboard API needs a secure context. A dashboard behind plain HTTP on a cluster has none.
 * @param {HTMLElement} code
 */
async function writeClipboard(code) {
  if (navigator.clipboard) return await navigator.clipboard.writeText(code.textContent ?? "");
  getSelection()?.selectAllChildren(code);
  if (!document.execCommand("copy")) throw new Error("not allowed to copy");
}

/** @param {HTMLElement} button */
async function copy(button) {
  const label = one("span", button);
  const code = one("code", button.parentElement ?? document);
  try {
    await writeClipboard(code);
    label.textContent = "Copied";
  } catch {
    label.textContent = "Press Ctrl+C";
    getSelection()?.selectAllChildren(code);
  }
  setTimeout(() => (label.textContent = "Copy"), 2000);
}

// ------------------------------------------------------------------ relative times

const UNITS = /** @type {const} */ ([["day", 86400], ["hour", 3600], ["minute", 60]]);

/** @param {number} seconds */
function ago(seconds) {
  const format = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "long" });
  for (const [unit, size] of UNITS) if (seconds >= size) return format.format(-Math.floor(seconds / size), unit);
  return seconds < 2 ? "just now" : format.format(-Math.floor(seconds), "second");
}

/** @param {ParentNode} root */
function updateTimes(root = document) {
  const now = Date.now() / 1000;
  for (const time of all("[data-ago]", root)) {
    const text = ago(Math.max(now - Number(time.dataset.ago), 0));
    if (time.textContent !== text) time.textContent = text;
  }
  for (const seen of all("[data-seen]", root)) {
    const live = !("ended" in seen.dataset) && now - Number(seen.dataset.seen) < LIVE_SECONDS;
    seen.classList.toggle("is-live", live);
    const lost = now - Number(seen.dataset.seen) > LOST_SECONDS;
    for (const label of all("[data-lost]", seen)) {
      label.hidden = !lost; // only a run without an end has one
      seen.classList.toggle("is-lost", lost);
    }
  }
}

// ------------------------------------------------------------------ live regions

/**
 * Opened details stay open and ticked boxes stay ticked.
 * @param {Element} from
 * @param {Element} to
 */
function copyUserState(from, to) {
  for (const details of all("details[open][id]", from))
    to.querySelector(`#${CSS.escape(details.id)}`)?.setAttribute("open", "");
  for (const box of all("input[type=checkbox]:checked", from).map(inputOf)) {
    const same = to.querySelector(`input[name="${box.name}"][value="${CSS.escape(box.value)}"]`);
    if (same) inputOf(same).checked = true;
  }
}

/** @type {Map<string, string>} the HTML of each region, by id, as the server sent it */
const serverHtml = new Map();

/**
 * The user types in the region, or selects text in it.
 * @param {Element} region
 */
function isInUse(region) {
  const selection = getSelection();
  const focused = document.activeElement;
  const types = focused !== null && region.contains(focused) && !focused.matches("[type=checkbox], .copy, a");
  return types || (selection !== null && !selection.isCollapsed && selection.containsNode(region, true));
}

/**
 * @param {Element} region
 * @param {Element} fresh
 */
function replace(region, fresh) {
  if (serverHtml.get(region.id) === fresh.outerHTML) return;
  if (isInUse(region)) return;
  serverHtml.set(region.id, fresh.outerHTML);
  copyUserState(region, fresh);
  updateTimes(fresh);
  const focused = region.contains(document.activeElement) ? inputOf(document.activeElement).value : null;
  const copyButton = all(".copy", region).findIndex((button) => button === document.activeElement);
  const link = region.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
  region.replaceWith(fresh);
  if (link) all("a", fresh).find((each) => each.getAttribute("href") === link)?.focus({ preventScroll: true });
  all(".copy", fresh)[copyButton]?.focus({ preventScroll: true });
  if (focused) inputOf(fresh.querySelector(`input[value="${CSS.escape(focused)}"]`))?.focus();
}

// The browser keeps the scroll position when content above it grows, but not at the top of a page:
// a chart would leave the pointer that is about to drag over it.
/** @type {Element | null} the part of the page under the pointer; a chart replaces what it consists of */
let pointed = null;
document.addEventListener("pointerover", (event) => (pointed = event.target instanceof Element ? event.target.closest("main > *, figure") : null), { passive: true });
document.documentElement.addEventListener("pointerleave", () => (pointed = null));

/**
 * Changes the page, and leaves what is under the pointer where it is.
 * @param {() => void} change
 */
export function keepInPlace(change) {
  const still = pointed;
  const before = still?.getBoundingClientRect().top ?? 0;
  change();
  if (still?.isConnected) scrollBy({ top: still.getBoundingClientRect().top - before, behavior: "instant" });
}

// The answer to a form is at the address of the form, which cannot be fetched, nor reloaded without sending it again.
const canonical = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=canonical]"));
if (canonical && canonical.href !== location.origin + location.pathname) history.replaceState(null, "", canonical.href);

/** Fetches this page again and replaces its live regions: only the server renders HTML. */
export async function refresh() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (response.redirected) return location.reload(); // the session has ended
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  document.title = page.title;
  keepInPlace(() => {
    for (const region of all("[data-live][id]")) {
      const fresh = page.getElementById(region.id);
      if (fresh) replace(region, document.adoptNode(fresh));
    }
  });
}

async function refreshWhileVisible() {
  if (!document.hidden) await refresh().catch(() => {}); // the service restarts: retry at the next interval
  setTimeout(refreshWhileVisible, REFRESH_MS);
}

for (const region of all("[data-live][id]")) serverHtml.set(region.id, region.outerHTML);
showTheme(localStorage.getItem("theme") ?? "auto");
one("#theme").addEventListener("click", switchTheme);
document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (button) copy(/** @type {HTMLElement} */ (button));
});
document.addEventListener("change", (event) => {
  const input = inputOf(event.target);
  if ("submit" in input.dataset) input.form?.requestSubmit();
});
// ------------------------------------------------------------------ keyboard

/** @param {number} by 1 for the next run or finding of a list, -1 for the one before */
function moveFocus(by) {
  const links = all("tr[data-run] th a, #inbox h2 a");
  const current = links.findIndex((link) => link === document.activeElement);
  links[Math.max(0, Math.min(current + by, links.length - 1))]?.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input:not([type=checkbox]), select, textarea, .js-plotly-plot");
  if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && search) {
    event.preventDefault(); // the key itself is not typed
    inputOf(search).focus();
  } else if (event.key === "j") moveFocus(1);
  else if (event.key === "k") moveFocus(-1);
});

updateTimes();
setInterval(updateTimes, 1000);
if (document.querySelector('[data-live="every"]')) setTimeout(refreshWhileVisible, REFRESH_MS);
