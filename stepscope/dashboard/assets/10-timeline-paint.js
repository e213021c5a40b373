// How is a tile painted? Exact slices as they are; a column of shares split by time, so that area is time.
"use strict";
window.stepscope.paint = (() => {
  const LABELLED_WIDTH = 64;
  const TEXTURED_WIDTH = 9;

  /** Colours as the theme gives them now. */
  function readColours(headings) {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
      heading: headings.map((name) => read(`--heading-${name}`)),
      ink: headings.map((name) => read(`--ink-${name}`)),
      track: read("--ss-track"),
      text: read("--ss-text"),
      soft: read("--ss-text-soft"),
      line: read("--ss-line"),
      dark: document.documentElement.getAttribute("data-mantine-color-scheme") === "dark",
    };
  }

  /** One rank's row. `view` = {start, end, left, width, ratio} with left and width in device pixels. */
  function paintRow(context, tile, answer, view, top, height, colours, words) {
    if (tile.slices) paintSlices(context, tile.slices, answer, view, top, height, colours, words);
    else paintShares(context, tile.shares, answer, view, top, height, colours);
  }

  function position(time, view) {
    return view.left + ((time - view.start) / (view.end - view.start)) * view.width;
  }

  function paintSlices(context, slices, answer, view, top, height, colours, words) {
    const right = view.left + view.width;
    for (const [start, end, code] of slices) {
      const from = Math.max(position(start, view), view.left);
      const to = Math.min(position(end, view), right);
      if (to <= from) continue;
      context.fillStyle = colours.heading[code];
      // A little too wide on purpose: the next slice paints over it, so no background shines through at the seam.
      context.fillRect(from, top, Math.min(Math.ceil(to), right) - from, height);
      if (to - from > TEXTURED_WIDTH * view.ratio) texture(context, from, to, top, height, code, colours, words, answer);
      if (to - from > LABELLED_WIDTH * view.ratio) label(context, from, to, top, height, code, colours, words, answer, view);
    }
  }

  function texture(context, from, to, top, height, code, colours, words, answer) {
    const kind = words[answer.headings[code]][1];
    if (kind === "solid") return;
    context.save();
    context.beginPath();
    context.rect(from, top, to - from, height);
    context.clip();
    context.strokeStyle = context.fillStyle = colours.dark ? "rgba(36,36,36,.34)" : "rgba(255,255,255,.34)";
    context.lineWidth = 2;
    if (kind === "hatch") {
      context.beginPath();
      for (let x = from - height; x < to; x += 10) {
        context.moveTo(x, top + height);
        context.lineTo(x + height, top);
      }
      context.stroke();
    } else {
      for (let x = from + 3; x < to; x += 7) for (let y = top + 3; y < top + height; y += 7) context.fillRect(x, y, 2, 2);
    }
    context.restore();
  }

  function label(context, from, to, top, height, code, colours, words, answer, view) {
    const size = Math.min(11 * view.ratio, height * 0.62);
    context.font = `600 ${size}px system-ui, sans-serif`;
    const text = words[answer.headings[code]][0];
    const width = context.measureText(text).width;
    if (width + 14 * view.ratio > to - from) return;
    const x = (from + to - width) / 2;
    context.fillStyle = colours.heading[code];
    context.fillRect(x - 4 * view.ratio, top + 1, width + 8 * view.ratio, height - 2);
    context.fillStyle = colours.ink[code];
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText(text, x, top + height / 2);
  }

  function paintShares(context, shares, answer, view, top, height, colours) {
    const codes = Object.keys(shares).map(Number).sort((a, b) => a - b);
    const span = (answer.end_ns - answer.start_ns) / answer.width;
    const first = Math.max(0, Math.floor((view.start - answer.start_ns) / span));
    const last = Math.min(answer.width, Math.ceil((view.end - answer.start_ns) / span));
    for (let column = first; column < last; column += 1) {
      const start = answer.start_ns + column * span;
      const from = Math.max(Math.round(position(start, view)), view.left);
      const to = Math.min(Math.round(position(start + span, view)), view.left + view.width);
      if (to <= from) continue;
      let total = 0;
      for (const code of codes) total += shares[code][column];
      const bottom = top + (Math.min(total, answer.share_unit) / answer.share_unit) * height;
      let y = top;
      for (const code of codes) {
        const share = shares[code][column];
        if (!share) continue;
        context.fillStyle = colours.heading[code];
        context.fillRect(from, y, to - from, bottom - y); // down to the end: what follows paints over it, without a seam
        y += (share / answer.share_unit) * height;
      }
    }
  }

  /** Round distances between ticks: 1, 2 or 5 times a power of ten, about `wanted` of them. */
  function tickStep(span, wanted) {
    const rough = span / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  }

  return { readColours, paintRow, position, tickStep };
})();
