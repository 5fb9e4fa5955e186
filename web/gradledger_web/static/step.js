// The step page: draws its bar chart once.

import { draw, plotly, specOf } from "./charts.js";
import { all } from "./page.js";

await plotly;
for (const plot of all(".plot")) await draw(plot, specOf(plot));
