// Sets the chosen theme before the first paint; page.js lets the user choose.
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
