// SPDX-License-Identifier: Apache-2.0
/** A small line of the last minute; the number beside it says what matters. */

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 60;
const HEIGHT = 20;

/** Return the picture of some values, the newest at the right. */
export function sparkLine(values) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => {
    const x = WIDTH - values.length + 1 + at;
    return `${x} ${(HEIGHT - 1 - (value / most) * (HEIGHT - 2)).toFixed(2)}`;
  });
  path.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  svg.append(path);
  return svg;
}
