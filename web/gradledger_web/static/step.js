// The step page: draws its bar chart once.

import { draw, specOf } from "./charts.js";
import { all } from "./page.js";

for (const plot of all(".plot")) await draw(plot, specOf(plot));
