// The dashboard's cards without a chart: memory, requests, totals, models, settings. Each has an
// element .el and a method show(status); fields that /status lacks are left out.

import { cancelCall } from './api.js';
import { Chart, stack } from './charts.js';
import { fmtBytes, fmtInt, fmtMs, fmtRate, h, table, textButton, toast } from './dom.js';

export const percent = f => `${(f * 100).toFixed(f > 0 && f < 0.0995 ? 1 : 0)}%`;

const known = n => typeof n === 'number' && Number.isFinite(n);

function card(title, kind, ...kids) {
    return h('section', { class: `card ${kind}`, 'aria-label': title }, ...kids);
}

/* A title, one large number, a line below it, and a chart. */
export class NumberCard {
    constructor(title, unit, picture, legend = []) {
        const kinds = legend.map(l => h('span', { class: l.kind }, l.name));
        this.value = h('strong', { class: 'value' }, '–');
        this.sub = h('p', { class: 'sub' });
        this.el = card(title, '',
            h('header', {}, h('h2', {}, title), h('span', { class: 'legend' }, kinds)),
            h('p', { class: 'big' }, this.value, h('span', { class: 'unit' }, unit)), this.sub, picture);
    }

    set(value, sub) {
        this.value.textContent = value;
        this.sub.textContent = sub;
    }
}

/* A number and its course over the last minutes; the first name is the main series. */
export function chartCard(title, unit, names, format) {
    const series = names.map((name, i) => ({ name, kind: i ? 'soft' : 'main' }));
    const chart = new Chart({ label: title, series, format });
    return Object.assign(new NumberCard(title, unit, chart.el, series), { chart });
}

export class MemoryCard {
    constructor() {
        this.box = h('div', { class: 'memory' });
        this.card = new NumberCard('Memory', 'resident', this.box);
        this.el = this.card.el;
    }

    show({ memory: m = {} }) {
        const parts = [['weights', m.weights], ['KV', m.kv], ['scratch', m.scratch]]
            .filter(([, value]) => known(value)).map(([name, value]) => ({ name, value }));
        const whole = Math.max(parts.reduce((sum, p) => sum + p.value, 0), m.rss ?? 0, m.limit ?? 0);
        const says = parts.map(p => `${p.name} ${fmtBytes(p.value)}`).join(', ');
        const peak = known(m.rss_peak) && `peak ${fmtBytes(Math.max(m.rss_peak, m.rss ?? 0))}`;
        const limit = m.limit ? `limit ${fmtBytes(m.limit)}` : 'no limit';
        this.card.set(known(m.rss) ? fmtBytes(m.rss) : '–', [peak, limit].filter(Boolean).join(' · '));
        this.box.replaceChildren(stack(parts, whole, `Memory: ${says}`),
            h('ul', { class: 'kinds' }, parts.map((p, i) => h('li', {},
                h('i', { class: `dot part-${i}` }), h('span', {}, p.name), h('b', {}, fmtBytes(p.value))))));
    }
}

/* A request keeps its row, so that its button keeps the focus while the numbers change. */
export class CallsCard {
    constructor() {
        const heads = ['State', 'Request', 'Model', 'Prompt', 'Output', 'Age'];
        const last = h('th', { scope: 'col' }, h('span', { class: 'hidden' }, 'Cancel'));
        this.count = h('span', { class: 'legend' });
        this.body = h('tbody');
        this.table = table('Requests in flight', [...heads, last], this.body);
        this.table.hidden = true;
        this.none = h('p', { class: 'nothing' }, 'No requests in flight.');
        this.el = card('Requests in flight', 'wide calls',
            h('header', {}, h('h2', {}, 'In flight'), this.count), this.table, this.none);
    }

    show({ calls = [] }) {
        const old = new Map([...this.body.rows].map(row => [row.dataset.id, row]));
        this.count.textContent = calls.length ? fmtInt(calls.length) : '';
        this.table.hidden = !calls.length;
        this.none.hidden = calls.length > 0;
        calls.forEach((call, i) => {
            const row = old.get(call.id) ?? this.row(call.id);
            old.delete(call.id);
            this.fill(row, call);
            if (this.body.rows[i] !== row) this.body.insertBefore(row, this.body.rows[i] ?? null);
        });
        for (const row of old.values()) row.remove();
    }

    row(id) {
        const button = textButton('Cancel', () => this.cancel(id, button), 'small');
        button.setAttribute('aria-label', `Cancel ${id}`);
        const cells = ['', 'id', '', 'num', 'num', 'num'].map(kind => h('td', { class: kind || null }));
        return h('tr', { 'data-id': id }, cells, h('td', { class: 'num' }, button));
    }

    fill(row, c) {
        const number = n => (known(n) ? fmtInt(n) : '');
        const age = known(c.age_ms) ? fmtMs(c.age_ms) : '';
        const [prompt, made] = [number(c.prompt_tokens), number(c.output_tokens)];
        const texts = [c.state ?? '', c.id, c.model ?? '', prompt, made, age];
        texts.forEach((t, i) => {
            if (row.cells[i].textContent !== t) row.cells[i].textContent = t;
        });
    }

    async cancel(id, button) {
        button.disabled = true;
        try {
            await cancelCall(id);
        } catch (e) {
            if (e.status !== 404) toast(e.message); /* 404: the request has ended */
            button.disabled = false;
        }
    }
}

export class TotalsCard {
    constructor() {
        this.list = h('dl', { class: 'totals' });
        this.el = card('Totals', '',
            h('header', {}, h('h2', {}, 'Totals since start')), this.list);
    }

    show({ requests: r = {}, tokens: t = {}, scheduler: k = {}, connections: c = {} }) {
        const sum = o => Object.values(o ?? {}).reduce((a, b) => a + (known(b) ? b : 0), 0);
        const most = o => Object.entries(o ?? {}).filter(([, n]) => n > 0)
            .map(([name, n]) => `${name.replaceAll('_', ' ')} ${fmtInt(n)}`).join(', ');
        const number = n => known(n) && fmtInt(n);
        const rows = [
            ['Requests', number(r.submitted), most(r.finished)],
            ['Rejected', r.rejected && fmtInt(sum(r.rejected)), most(r.rejected)],
            ['Generated tokens', number(t.generated)],
            ['Prompt tokens', number(t.prompt), known(t.cached) && `${fmtInt(t.cached)} from cache`],
            ['Prefix cache hits', known(k.prefix_hit_rate) && percent(k.prefix_hit_rate)],
            ['Tokens per step', known(k.tokens_per_step) && fmtRate(k.tokens_per_step),
                known(k.preemptions) && `${fmtInt(k.preemptions)} preempted`],
            ['Connections', number(c.open), known(c.accepted) && `${fmtInt(c.accepted)} accepted`],
        ];
        this.list.replaceChildren(...rows.filter(([, value]) => value).map(([name, value, note]) => {
            const small = note && h('small', { title: note }, note);
            return h('div', {}, h('dt', {}, name), h('dd', {}, small, h('b', {}, value)));
        }));
    }
}

export class ModelsCard {
    constructor() {
        const heads = ['Model', 'State', 'Architecture', 'Size', 'Context', 'KV', 'Memory', 'Loaded in'];
        this.body = h('tbody');
        this.el = card('Models', 'full',
            h('header', {}, h('h2', {}, 'Models')), table('Models', heads, this.body));
    }

    show({ models = [] }) {
        this.body.replaceChildren(...models.map(m => h('tr', {},
            h('th', { scope: 'row', title: m.path }, m.id),
            this.cells(m).map(text => h('td', {}, text || '')))));
    }

    cells(m) {
        const size = n => (n >= 1e9 ? `${(n / 1e9).toFixed(2)} B` : `${(n / 1e6).toFixed(1)} M`);
        const n_kv = (m.kv?.total ?? 0) * (m.kv?.block_tokens ?? 0);
        return [
            m.error || (m.state === 'loading' ? `loading ${m.progress ?? 0} %` : m.state), m.arch, m.parameters && size(m.parameters), m.context && fmtInt(m.context),
            [m.kv_type, n_kv && `${fmtInt(n_kv)} tokens`].filter(Boolean).join(', '),
            m.memory?.total && fmtBytes(m.memory.total), m.load_ms && fmtMs(m.load_ms),
        ];
    }
}

export class SettingsCard {
    constructor() {
        const props = { type: 'search', placeholder: 'Filter', 'aria-label': 'Filter settings' };
        this.filter = h('input', { class: 'filter', ...props, oninput: () => this.applyFilter() });
        this.body = h('tbody');
        this.none = h('p', { class: 'sub', hidden: true }, 'No setting matches the filter.');
        this.el = card('Effective settings', 'full',
            h('header', {}, h('h2', {}, 'Effective settings'), this.filter),
            table('Settings', ['Setting', 'Value', 'From'], this.body, { class: 'settings-table' }),
            this.none);
    }

    show({ settings = {} }) {
        const text = JSON.stringify(settings);
        if (text === this.text) return;
        this.text = text;
        const byName = Object.entries(settings).sort(([a], [b]) => a.localeCompare(b));
        this.body.replaceChildren(...byName.map(([name, { value = '', effective = value, from = '' }]) => {
            const says = typeof effective === 'object' ? JSON.stringify(effective) : String(effective);
            return h('tr', { class: from !== 'default' && 'set' },
                h('th', { scope: 'row' }, name), h('td', {}, says || '–'), h('td', {}, from));
        }));
        this.applyFilter();
    }

    applyFilter() {
        const want = this.filter.value.trim().toLowerCase();
        let n = 0;
        for (const row of this.body.rows) {
            row.hidden = want !== '' && !row.textContent.toLowerCase().includes(want);
            if (!row.hidden) n++;
        }
        this.none.hidden = n > 0 || want === '';
    }
}
