// The list of runs: filters it while one types, counts the selected runs and enables the comparison of 2 to 8.

import { all, one, refresh } from "./page.js";

const MOST = 8;

/** @param {HTMLElement} form */
function showSelection(form) {
  const number = all("[name=run]:checked", form).length;
  const bar = one(".picked", form);
  one("[role=status]", bar).textContent = `${number} selected`;
  const button = /** @type {HTMLButtonElement} */ (one(".primary", bar));
  button.disabled = number < 2 || number > MOST;
  button.textContent = number > MOST ? `Compare at most ${MOST}` : number < 2 ? "Select another" : `Compare ${number}`;
}

const form = document.getElementById("compare");
if (form?.querySelector(".picked")) {
  form.addEventListener("change", () => showSelection(form));
  form.addEventListener("reset", () => setTimeout(showSelection, 0, form)); // after the boxes are cleared
  showSelection(form);
}

// ------------------------------------------------------------------ type-ahead

const TYPING_MS = 200; // after the last key

const filters = /** @type {HTMLFormElement | null} */ (document.querySelector("form.filters"));
let typing = 0;

/** Forms of the selected runs return to the list that is shown. */
function updateTargets() {
  for (const button of all("button[formaction]", form ?? undefined).map((each) => /** @type {HTMLButtonElement} */ (each)))
    button.formAction = new URL(button.formAction).pathname + location.search;
}

/** The address of the list that the form selects, without fields that are empty. */
function filtered() {
  const fields = [...new FormData(/** @type {HTMLFormElement} */ (filters))].filter(([, value]) => value !== "");
  const query = new URLSearchParams(fields.map(([name, value]) => [name, String(value)]));
  return query.size ? `/?${query}` : "/";
}

filters?.addEventListener("input", (event) => {
  if (!(event.target instanceof HTMLInputElement) || event.target.type !== "search") return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    history.replaceState(null, "", filtered());
    updateTargets();
    refresh().catch(() => {}); // the service restarts: the list is refreshed at the next interval
  }, TYPING_MS);
});
