// Applies the stored theme before the first paint. page.js lets the user change it.
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
