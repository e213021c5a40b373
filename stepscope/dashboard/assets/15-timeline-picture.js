// What does a time line's canvas show, and what does it tell under the pointer? The half that changes nothing.
"use strict";
(() => {
  const { element, formatNs, formatShare, paint } = window.stepscope;
  const AXIS = 40;
  const LABEL = 54;

  /** Draws `this.detail` over `this.overview` for `this.view`; 20-timeline.js moves the view and fetches both. */
  window.stepscope.TimelinePicture = class {
    get labelWidth() {
      return LABEL;
    }

    plotWidth() {
      return Math.max(1, Math.round((this.host.clientWidth - LABEL) * devicePixelRatio));
    }

    isFine() {
      const { detail, view } = this;
      return Math.abs(detail.start_ns - view.start) <= 1 && Math.abs(detail.end_ns - view.end) <= 1;
    }

    timeAt(event) {
      const x = event.clientX - this.canvas.getBoundingClientRect().left - LABEL;
      return this.view.start + (x / (this.host.clientWidth - LABEL)) * (this.view.end - this.view.start);
    }

    draw() {
      const width = this.host.clientWidth;
      if (!this.view || !this.overview || !width) return;
      const ratio = devicePixelRatio;
      const ranks = this.shownRanks();
      this.row = ranks.length <= 16 ? 30 : ranks.length <= 32 ? 20 : 12;
      const height = AXIS + ranks.length * this.row;
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const context = this.canvas.getContext("2d");
      const colours = paint.readColours(this.overview.headings);
      const view = { ...this.view, left: Math.round(LABEL * ratio), width: this.plotWidth(), ratio };
      this.drawAxis(context, view, colours);
      ranks.forEach((rank, place) => this.drawRank(context, view, colours, rank, place));
      this.drawSteps(context, view, colours);
      this.status.className = "";
      const note = this.isFine() ? "" : " · refining…";
      this.status.textContent =
        `${formatNs(this.view.start)} to ${formatNs(this.view.end)} of ${formatNs(this.window)}${note}`;
    }

    drawAxis(context, view, colours) {
      const { ratio } = view;
      const step = paint.tickStep(view.end - view.start, Math.max(2, view.width / (110 * ratio)));
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textBaseline = "alphabetic";
      context.textAlign = "center";
      const right = view.left + view.width;
      for (let time = Math.ceil(view.start / step) * step; time <= view.end; time += step) {
        const x = Math.round(paint.position(time, view));
        context.fillStyle = colours.line;
        context.fillRect(x, 14 * ratio, ratio, this.canvas.height);
        context.fillStyle = colours.soft;
        if (x > view.left + 14 * ratio && x < right - 26 * ratio) context.fillText(formatNs(time), x, 11 * ratio);
      }
    }

    drawRank(context, view, colours, rank, place) {
      const { ratio } = view;
      const top = Math.round((AXIS + place * this.row) * ratio);
      const height = Math.round((this.row - (this.row > 14 ? 6 : 2)) * ratio);
      context.fillStyle = colours.track;
      context.fillRect(view.left, top, view.width, height);
      const clip = (from, to, answer) => {
        const x0 = Math.round(Math.max(paint.position(from, view), view.left));
        const x1 = Math.round(Math.min(paint.position(to, view), view.left + view.width));
        if (x1 <= x0) return;
        context.save();
        context.beginPath();
        context.rect(x0, top, x1 - x0, height);
        context.clip();
        paint.paintRow(context, answer.ranks[place], answer, view, top, height, colours, this.words);
        context.restore();
      };
      // The sharp tile where it reaches, the overview beside it until the next one is there.
      clip(view.start, this.detail.start_ns, this.overview);
      clip(this.detail.start_ns, this.detail.end_ns, this.detail);
      clip(this.detail.end_ns, view.end, this.overview);
      context.fillStyle = colours.soft;
      context.font = `${Math.min(12, this.row - 2) * ratio}px system-ui, sans-serif`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(this.row > 14 ? `rank ${rank}` : `${rank}`, view.left - 10 * ratio, top + height / 2);
    }

    drawSteps(context, view, colours) {
      const { ratio } = view;
      const right = view.left + view.width;
      this.overview.ranks.forEach((tile, place) => {
        let labelled = -Infinity;
        const top = Math.round((AXIS + place * this.row - 2) * ratio);
        for (const [time, index] of tile.steps) {
          const x = Math.round(paint.position(time, view));
          if (x < view.left || x > right) continue;
          context.fillStyle = colours.text;
          context.fillRect(x - Math.floor(ratio / 2), top, Math.max(1, Math.round(1.5 * ratio)), this.row * ratio);
          if (place === 0 && x - labelled > 52 * ratio) {
            context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
            context.textAlign = "left";
            context.textBaseline = "alphabetic";
            context.fillText(`step ${index}`, x + 3 * ratio, (AXIS - 10) * ratio);
            context.fillRect(x - Math.floor(ratio / 2), (AXIS - 20) * ratio, Math.max(1, Math.round(1.5 * ratio)), 20 * ratio);
            labelled = x;
          }
        }
      });
    }

    explain(event) {
      const box = this.canvas.getBoundingClientRect();
      const place = Math.floor((event.clientY - box.top - AXIS) / this.row);
      const time = this.timeAt(event);
      const rank = this.shownRanks()[place];
      const found = rank === undefined || time < this.view.start ? null : this.lookUp(place, time);
      this.tip.hidden = !found;
      if (!found) return;
      this.tip.replaceChildren(
        element("strong", "", `Rank ${rank}${this.stepAt(place, time)}`),
        ...found.rows.map((row) => this.tipRow(row)),
        element("div", "ss-note", found.when),
      );
      const x = event.clientX - box.left;
      const flips = x > box.width - 260;
      this.tip.style.left = flips ? "" : `${x + 16}px`;
      this.tip.style.right = flips ? `${box.width - x + 16}px` : "";
      this.tip.style.top = `${this.canvas.offsetTop + AXIS + (place + 1) * this.row}px`;
    }

    tipRow([name, text]) {
      const row = element("div", "ss-tip-row");
      const [words, pattern] = this.words[name];
      row.append(element("span", `ss-swatch ss-h-${name} ss-p-${pattern}`), element("span", "", words), element("span", "", text));
      return row;
    }

    lookUp(place, time) {
      const inside = time >= this.detail.start_ns && time <= this.detail.end_ns;
      const answer = inside ? this.detail : this.overview;
      const tile = answer.ranks[place];
      if (tile.slices) {
        const slice = tile.slices.find(([start, end]) => time >= start && time < end);
        if (!slice) return null;
        return { rows: [[answer.headings[slice[2]], formatNs(slice[1] - slice[0])]], when: `at ${formatNs(time)}` };
      }
      const span = (answer.end_ns - answer.start_ns) / answer.width;
      const column = Math.min(answer.width - 1, Math.floor((time - answer.start_ns) / span));
      const rows = Object.entries(tile.shares)
        .map(([code, shares]) => [answer.headings[code], shares[column] / answer.share_unit])
        .filter((row) => row[1] > 0)
        .sort((a, b) => b[1] - a[1])
        .slice(0, 5)
        .map(([name, share]) => [name, formatShare(share)]);
      return rows.length ? { rows, when: `of ${formatNs(span)} at ${formatNs(time)}` } : null;
    }

    stepAt(place, time) {
      const before = this.overview.ranks[place].steps.filter(([start]) => start <= time);
      return before.length ? `, step ${before[before.length - 1][1]}` : "";
    }
  };
})();
