// The step page: one picture, drawn once.

import { draw } from "./charts.js";

for (const plot of document.querySelectorAll(".plot")) await draw(plot);
