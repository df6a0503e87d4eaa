// The cluster view: GET /status of a gateway, as cards of numbers and a table of workers. It takes the
// place of the dashboard where the page is served by a gateway.

import { fmtInt, fmtMs, fmtSpan, h, table } from './dom.js';
import { NumberCard, SettingsCard, chartCard, percent } from './panels.js';

const sum = (list, key) => list.reduce((n, w) => n + (w[key] ?? 0), 0);
const share = (part, whole) => (whole > 0 ? percent(part / whole) : '–');

/* A worker keeps its row, so that a selected text stays while the numbers change. */
class WorkersCard {
    constructor() {
        const heads = ['Worker', 'State', 'Devices', 'Models', 'Running', 'Waiting', 'KV free', 'Requests', 'Failed', 'Streams taken over',
            'Heartbeat', 'Connections'];
        this.body = h('tbody');
        this.none = h('p', { class: 'nothing' }, 'No workers yet.');
        this.table = table('Workers', heads, this.body, { class: 'workers' });
        this.el = h('section', { class: 'card full', 'aria-label': 'Workers' },
            h('header', {}, h('h2', {}, 'Workers')), this.table, this.none);
    }

    show(workers) {
        const old = new Map([...this.body.rows].map(row => [row.dataset.url, row]));
        this.table.hidden = !workers.length;
        this.none.hidden = workers.length > 0;
        workers.forEach((w, i) => {
            const row = old.get(w.url) ?? this.row(w.url);
            old.delete(w.url);
            this.fill(row, w);
            if (this.body.rows[i] !== row) this.body.insertBefore(row, this.body.rows[i] ?? null);
        });
        for (const row of old.values()) row.remove();
    }

    row(url) {
        const numbers = Array.from({ length: 8 }, () => h('td', { class: 'num' }));
        const texts = Array.from({ length: 2 }, () => h('td'));
        return h('tr', { 'data-url': url }, h('th', { scope: 'row' }, url),
            h('td', {}, h('span', { class: 'state' })), texts, numbers);
    }

    fill(row, w) {
        const link = w.connections ?? {};
        const state = row.cells[1].firstChild;
        const models = (w.models ?? []).map(m => ((w.loaded ?? []).includes(m) ? m : `${m} (not loaded)`));
        const breaker = w.breaker && w.breaker !== 'closed' ? ` · breaker ${w.breaker.replace('_', ' ')}` : '';
        const texts = [
            [w.devices, w.gang].filter(Boolean).join('; ') || '–', models.join(', ') || '–', fmtInt(w.running ?? 0), fmtInt(w.waiting ?? 0),
            percent(w.kv_free ?? 1), fmtInt(w.requests ?? 0), fmtInt(w.failures ?? 0), fmtInt(w.replayed ?? 0), fmtMs(w.rtt_ms ?? 0),
            `${fmtInt((link.idle ?? 0) + (link.busy ?? 0))} open, ${share(link.reused ?? 0, (link.reused ?? 0) + (link.opened ?? 0))} reused`,
        ];
        state.dataset.state = w.state;
        state.textContent = [w.state + breaker, w.reason].filter(Boolean).join(': ');
        texts.forEach((t, i) => {
            if (row.cells[i + 2].textContent !== t) row.cells[i + 2].textContent = t;
        });
    }
}

export class ClusterView {
    constructor() {
        this.load = chartCard('Requests', 'in flight', ['running on workers', 'waiting there'], fmtInt);
        this.up = new NumberCard('Workers ready', '', null);
        this.placed = new NumberCard('Placed by prefix', 'of all', null);
        this.balance = new NumberCard('Imbalance', 'above the mean', null);
        this.moved = new NumberCard('Streams taken over', '', null);
        this.workers = new WorkersCard();
        this.settings = new SettingsCard();
        this.load.el.classList.add('wide');
        this.els = [this.up, this.placed, this.balance, this.load, this.moved, this.workers, this.settings].map(c => c.el);
    }

    /* The line at the top: state of the whole, and what the gateway is. */
    head(s) {
        const ready = (s.workers ?? []).filter(w => w.state === 'ready').length;
        const nats = s.nats && `NATS ${s.nats.connected ? 'connected' : 'not connected'}`;
        return [ready ? 'ready' : 'failed', [
            'gateway', s.uptime_s && `up ${fmtSpan(s.uptime_s)}`, s.version && `tern ${s.version}`,
            s.policy && `policy ${s.policy}`, nats, !ready && 'no worker is ready',
        ].filter(Boolean).join(' · ')];
    }

    show(s, now) {
        const { workers = [] } = s, ready = workers.filter(w => w.state === 'ready');
        this.up.set(`${ready.length} of ${workers.length}`, workers.filter(w => w.state !== 'ready')
            .map(w => `${w.url} ${w.state}`).join(', ') || 'all answer their heartbeats');
        this.load.set(fmtInt(s.in_flight ?? 0), `${fmtInt(sum(workers, 'running'))} running, ${fmtInt(sum(workers, 'waiting'))} waiting on workers`);
        this.placed.set(share(s.placed_by_prefix ?? 0, s.placed ?? 0), `placements: ${fmtInt(s.placed ?? 0)}`);
        this.balance.set(percent(s.imbalance ?? 0), 'work of the most loaded worker');
        this.moved.set(fmtInt(s.replays ?? 0), `${fmtInt(s.retries ?? 0)} requests tried again before their first token`);
        this.load.chart.push(now, [sum(workers, 'running'), sum(workers, 'waiting')]);
        this.load.chart.draw(now);
        this.workers.show(workers);
        this.settings.show(s);
    }
}
