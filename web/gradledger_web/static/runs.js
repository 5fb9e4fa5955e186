// The list of runs: counts the selected runs and enables the comparison of 2 to 8.

import { all, one } from "./page.js";

const MOST = 8;

/** @param {HTMLElement} form */
function showSelection(form) {
  const number = all("[name=run]:checked", form).length;
  const bar = one(".picked", form);
  bar.hidden = number === 0;
  one("[data-count]", bar).textContent = String(number);
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
