// The list of runs: how many are ticked, and when they can be compared.

const MOST = 8;
const form = document.getElementById("compare");
const picked = form?.querySelector(".picked");

function count() {
  const number = form.querySelectorAll("[name=run]:checked").length;
  picked.hidden = number === 0;
  picked.querySelector("[data-count]").textContent = number;
  const button = picked.querySelector(".primary");
  button.disabled = number < 2 || number > MOST;
  button.textContent = number > MOST ? `Compare at most ${MOST}` : number < 2 ? "Select another" : `Compare ${number}`;
}

if (picked) {
  form.addEventListener("change", count);
  form.addEventListener("reset", () => setTimeout(count));
  count();
}
