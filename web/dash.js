// The dashboard: polls GET /status once a second while it is visible. A gateway's status has another form, which
// cluster.js shows.

import { getJson } from './api.js';
import { ClusterView } from './cluster.js';
import { $, fmtInt, fmtMs, fmtRate, fmtSpan, h } from './dom.js';
import {
    CallsCard, MemoryCard, ModelsCard, SettingsCard, TotalsCard, chartCard, percent,
} from './panels.js';

const EVERY_MS = 1000;
const GAP_MS = 3500; /* after a longer pause the charts are filled from the server's history */
const RECENT_MS = 10000; /* window of the recent latencies */

/* /status has latencies since the start of the server. Two samples some seconds apart give the mean
 * between them. */
class Recent {
    #samples = [];

    push(t, l) {
        if (!l) return NaN;
        this.#samples.push({ t, count: l.count, sum: l.count * l.mean });
        while (this.#samples.length > 2 && this.#samples[1].t <= t - RECENT_MS) this.#samples.shift();
        const a = this.#samples[0], b = this.#samples[this.#samples.length - 1];
        if (b.count < a.count) this.#samples = [b]; /* the server was restarted */
        return b.count > a.count ? (b.sum - a.sum) / (b.count - a.count) : NaN;
    }
}

function sumKv(models) {
    const sum = { used: 0, idle: 0, total: 0 };
    for (const { kv = {} } of models) for (const k in sum) sum[k] += kv[k] ?? 0;
    return sum;
}

function latency(l) {
    if (!l?.count) return ['–', 'no requests yet'];
    return [fmtMs(l.p50), `p95 ${fmtMs(l.p95)} · p99 ${fmtMs(l.p99)}`];
}

export class Dashboard {
    constructor() {
        this.timer = 0;
        this.visible = false;
        this.lastAt = 0;
        document.addEventListener('visibilitychange', () => this.wake());
    }

    setVisible(on) {
        this.visible = on;
        if (on && !this.charts) this.build();
        this.wake();
    }

    wake() {
        clearTimeout(this.timer);
        if (this.visible && !document.hidden) this.poll();
    }

    async poll() {
        const current = (this.current = {}); /* a later poll replaces this one */
        try {
            const status = await getJson('/status');
            if (this.current !== current) return;
            this.show(status);
            this.fault.hidden = true;
        } catch (e) {
            if (this.current !== current) return;
            const denied = e.status === 401 || e.status === 403;
            this.state.textContent = denied ? 'denied' : 'unreachable';
            this.state.dataset.state = 'failed';
            this.fault.hidden = false;
            this.fault.textContent = denied ? `${e.message} (Enter an API key in the settings.)` : e.message;
        }
        if (this.visible && !document.hidden) this.timer = setTimeout(() => this.poll(), EVERY_MS);
    }

    build() {
        this.state = h('span', { class: 'state' }, '…');
        this.about = h('span', { class: 'about' });
        this.fault = h('p', { class: 'fault', role: 'status', hidden: true });
        this.rate = chartCard('Tokens per second', 'tok/s', ['generated', 'prompt'], fmtRate);
        this.load = chartCard('Requests', 'running', ['running', 'waiting'], fmtInt);
        this.kv = chartCard('KV cache', 'in use', ['in use', 'with cached prefixes'], percent);
        this.first = chartCard('Time to first token', 'p50', ['recent mean', 'p95'], fmtMs);
        this.gap = chartCard('Inter-token latency', 'p50', ['recent mean', 'p95'], fmtMs);
        this.charts = [this.rate, this.load, this.kv, this.first, this.gap];
        this.panels = [MemoryCard, CallsCard, TotalsCard, ModelsCard, SettingsCard].map(Panel => new Panel());
        this.cards = h('div', { class: 'cards' }, [...this.charts, ...this.panels].map(c => c.el));
        $('dash').replaceChildren(h('header', { class: 'dash-head' }, this.state, this.about), this.fault, this.cards);
    }

    showCluster(s) {
        if (!this.cluster) {
            this.cluster = new ClusterView();
            this.cards.replaceChildren(...this.cluster.els);
        }
        const [state, about] = this.cluster.head(s);
        this.state.textContent = this.state.dataset.state = state;
        this.about.textContent = about;
        this.cluster.show(s, Date.now());
    }

    show(s) {
        if (s.role === 'gateway') return this.showCluster(s);
        const now = Date.now(), kv = sumKv(s.models ?? []);
        this.head(s);
        this.numbers(s, kv);
        if (now - this.lastAt > GAP_MS) this.seed(s, kv, now);
        else this.push(s, kv, now);
        this.lastAt = now;
        for (const { chart } of this.charts) chart.draw(now);
        for (const panel of this.panels) panel.show(s);
    }

    head(s) {
        this.state.textContent = s.state ?? 'up';
        this.state.dataset.state = s.state ?? '';
        this.about.textContent = [
            (s.models ?? []).map(m => m.id).join(', '), s.uptime_s && `up ${fmtSpan(s.uptime_s)}`,
            s.version && `tern ${s.version}`, s.pid && `pid ${s.pid}`, s.reason,
        ].filter(Boolean).join(' · ');
    }

    numbers(s, kv) {
        const { queue: q = {}, scheduler = {}, latencies = {} } = s, rates = scheduler.rates ?? {};
        const wait = q.wait_ms?.count ? ` · wait p95 ${fmtMs(q.wait_ms.p95)}` : '';
        const rate = k => fmtRate(rates[k] ?? 0);
        this.rate.set(rate('generated_per_s'),
            `prompt ${rate('prompt_per_s')} tok/s · ${rate('requests_per_s')} requests/s`);
        this.load.set(fmtInt(q.running ?? 0),
            `${fmtInt(q.waiting ?? 0)} waiting, peak ${fmtInt(q.peak ?? 0)}${wait}`);
        this.kv.set(kv.total ? percent(kv.used / kv.total) : '–',
            `${fmtInt(kv.used)} of ${fmtInt(kv.total)} blocks · ${fmtInt(kv.idle)} cached for prefixes`);
        this.first.set(...latency(latencies.ttft_ms));
        this.gap.set(...latency(latencies.itl_ms));
    }

    /* The server keeps a history of two minutes, so the charts are full from the start. */
    seed(s, kv, now) {
        const past = s.history ?? {}, step = (past.step_s ?? 1) * 1000;
        const n = Math.max(0, ...['generated_per_s', 'running', 'kv_used'].map(k => past[k]?.length ?? 0));
        const at = (k, i) => past[k]?.[past[k].length - n + i] ?? NaN;
        for (const { chart } of this.charts) chart.clear();
        for (let i = 0; i < n; i++) {
            const t = now - (n - 1 - i) * step;
            this.rate.chart.push(t, [at('generated_per_s', i), at('prompt_per_s', i)]);
            this.load.chart.push(t, [at('running', i), at('waiting', i)]);
            this.kv.chart.push(t, [at('kv_used', i) / kv.total, NaN]);
        }
        this.recent = { first: new Recent(), gap: new Recent() };
        this.recent.first.push(now, s.latencies?.ttft_ms);
        this.recent.gap.push(now, s.latencies?.itl_ms);
    }

    push(s, kv, now) {
        const past = s.history ?? {}, rates = s.scheduler?.rates;
        const { ttft_ms: ttft, itl_ms: itl } = s.latencies ?? {};
        const newest = k => past[k]?.[past[k].length - 1] ?? rates?.[k] ?? NaN;
        this.rate.chart.push(now, [newest('generated_per_s'), newest('prompt_per_s')]);
        this.load.chart.push(now, [s.queue?.running ?? NaN, s.queue?.waiting ?? NaN]);
        this.kv.chart.push(now, [kv.used / kv.total, (kv.used + kv.idle) / kv.total]);
        this.first.chart.push(now, [this.recent.first.push(now, ttft), ttft?.count ? ttft.p95 : NaN]);
        this.gap.chart.push(now, [this.recent.gap.push(now, itl), itl?.count ? itl.p95 : NaN]);
    }
}
