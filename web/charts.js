// Small line charts as inline SVG: the last two minutes, the newest value at the right edge.

import { h, svg } from './dom.js';

const W = 300, H = 72; /* SVG coordinates; the chart is stretched to its card */
const WINDOW_MS = 120000;
const GAP_MS = 3500; /* a longer pause between samples breaks the line */

/* A round number, so that the top of the scale changes rarely. */
export function niceTop(value) {
    if (!(value > 0)) return 1;
    const p = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 3, 4, 5, 6, 8, 10].map(k => k * p).find(top => top >= value * 0.999);
}

/* series: [{ name, kind }]; kind 'main' is a filled area, 'soft' a thin line. format: value → text. */
export class Chart {
    constructor({ label, series, format }) {
        Object.assign(this, { label, series, format, points: [] });
        this.areas = series.map(s => svg('path', { class: `area ${s.kind}` }));
        this.lines = series.map(s => svg('path', { class: `line ${s.kind}` }));
        this.cursor = svg('line', { class: 'cursor', y1: 0, y2: H });
        const level = y => svg('line', { class: 'grid', x1: 0, x2: W, y1: y, y2: y });
        const grid = [0.25, 0.5, 0.75].map(f => level(H * f));
        const size = { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none' };
        this.svg = svg('svg', { ...size, role: 'img', 'aria-label': label },
            grid, this.areas, this.lines, this.cursor);
        this.max = h('span', { class: 'chart-max', 'aria-hidden': 'true' });
        this.tip = h('div', { class: 'chart-tip', hidden: true });
        const foot = [`${WINDOW_MS / 60000} min ago`, 'now'].map(text => h('span', {}, text));
        this.el = h('div', { class: 'chart' }, this.svg, this.max, this.tip,
            h('div', { class: 'chart-foot', 'aria-hidden': 'true' }, foot));
        this.el.addEventListener('pointermove', e => this.point(e));
        this.el.addEventListener('pointerleave', () => this.leave());
    }

    clear() {
        this.points = [];
    }

    /* values: one for each series; NaN: none. */
    push(t, values) {
        const last = this.points[this.points.length - 1];
        if (last && t <= last.t) return;
        this.points.push({ t, values });
        while (this.points[0].t < t - WINDOW_MS - GAP_MS) this.points.shift();
    }

    x(t) {
        return W - ((this.now - t) / WINDOW_MS) * W;
    }

    y(v) {
        return H - 1.5 - Math.max(0, Math.min(1, v / this.top)) * (H - 4);
    }

    draw(now) {
        this.now = now;
        this.top = niceTop(Math.max(0, ...this.points.flatMap(p => p.values).filter(Number.isFinite)));
        this.series.forEach((s, i) => {
            const runs = this.runs(i);
            const line = run => run.map(p => p.join(' ')).join('L');
            const area = run => `M${run[0][0]} ${H}L${line(run)}L${run[run.length - 1][0]} ${H}Z`;
            this.lines[i].setAttribute('d', runs.map(run => `M${line(run)}`).join(''));
            if (s.kind === 'main') this.areas[i].setAttribute('d', runs.map(area).join(''));
        });
        this.max.textContent = this.format(this.top);
        const last = this.points[this.points.length - 1];
        const says = last ? this.says(last).join(', ') : '';
        this.svg.setAttribute('aria-label', `${this.label}: ${says || 'no values yet'}`);
    }

    says(point) {
        return this.series.map((s, i) => [s.name, point.values[i]])
            .filter(([, v]) => Number.isFinite(v)).map(([name, v]) => `${name} ${this.format(v)}`);
    }

    /* Sections without a gap, in SVG coordinates. */
    runs(i) {
        const out = [];
        let run = [], before = 0;
        const end = () => {
            if (run.length) out.push(run.length > 1 ? run : [run[0], run[0]]); /* a single value is drawn as a dot */
            run = [];
        };
        for (const p of this.points) {
            const v = p.values[i];
            if (p.t - before > GAP_MS || !Number.isFinite(v)) end();
            if (!Number.isFinite(v)) continue;
            run.push([this.x(p.t).toFixed(1), this.y(v).toFixed(1)]);
            before = p.t;
        }
        end();
        return out;
    }

    /* Shows the values at the time under the pointer. */
    point(e) {
        const box = this.svg.getBoundingClientRect();
        const t = this.now - (1 - (e.clientX - box.left) / box.width) * WINDOW_MS;
        const far = p => Math.abs(p.t - t);
        const near = this.points.reduce((best, p) => (!best || far(p) < far(best) ? p : best), null);
        if (!near || far(near) > GAP_MS) return this.leave();
        for (const end of ['x1', 'x2']) this.cursor.setAttribute(end, this.x(near.t));
        this.cursor.classList.add('on');
        this.tip.hidden = false;
        const ago = Math.max(0, Math.round((this.now - near.t) / 1000));
        this.tip.textContent = [...this.says(near), `${ago} s ago`].join(' · ');
    }

    leave() {
        this.tip.hidden = true;
        this.cursor.classList.remove('on');
    }
}

/* A stacked bar: parts [{ name, value }] of a whole. */
export function stack(parts, whole, label) {
    const bar = svg('svg', {
        class: 'stack', viewBox: '0 0 1000 12', preserveAspectRatio: 'none', role: 'img', 'aria-label': label,
    });
    let x = 0;
    parts.forEach((part, i) => {
        const w = whole > 0 ? Math.min(1000 - x, (part.value / whole) * 1000) : 0;
        bar.append(svg('rect', { class: `part part-${i}`, x, y: 0, width: w > 6 ? w - 3 : w, height: 12 }));
        x += w;
    });
    return bar;
}
