// Helpers for DOM nodes, number formats, notifications and downloads.

const SVG = 'http://www.w3.org/2000/svg';

export const $ = id => document.getElementById(id);

function appendAll(node, kids) {
    for (const kid of kids.flat(Infinity)) {
        if (kid === null || kid === undefined || kid === false || kid === '') continue;
        node.append(kid instanceof Node ? kid : String(kid));
    }
    return node;
}

/* h('button', { class: 'x', onclick: f, disabled: true }, 'text', child) */
export function h(tag, props = {}, ...kids) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
        else node.setAttribute(name, value === true ? '' : value);
    }
    return appendAll(node, kids);
}

export function svg(tag, attrs = {}, ...kids) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, value);
    return appendAll(node, kids);
}

/* A <symbol> of index.html. */
export function icon(name) {
    return svg('svg', { class: 'icon', 'aria-hidden': 'true' }, svg('use', { href: '#i-' + name }));
}

/* A button with an icon; the label is its accessible name and tooltip. */
export function iconButton(name, label, onclick) {
    const props = { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick };
    return h('button', props, icon(name));
}

export function textButton(text, onclick, kind = '') {
    return h('button', { type: 'button', class: `button ${kind}`, onclick }, text);
}

/* A table that scrolls horizontally where it is too wide. heads: texts, or <th> nodes. */
export function table(label, heads, body, props = {}) {
    const row = heads.map(t => (t instanceof Node ? t : h('th', { scope: 'col' }, t)));
    return h('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': label },
        h('table', props, h('thead', {}, h('tr', {}, row)), body));
}

export function fmtInt(n) {
    return Math.round(n).toLocaleString('en');
}

export function fmtRate(n) {
    return n >= 100 ? fmtInt(n) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

export function fmtBytes(n) {
    if (n < 1024) return `${Math.round(n)} B`;
    const units = ['KiB', 'MiB', 'GiB', 'TiB'];
    let i = -1;
    do {
        n /= 1024;
        i++;
    } while (n >= 1024 && i < units.length - 1);
    return `${n >= 100 ? Math.round(n) : n >= 10 ? n.toFixed(1) : n.toFixed(2)} ${units[i]}`;
}

export function fmtMs(ms) {
    if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
    if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
    return `${ms >= 100 ? Math.round(ms) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

export function fmtSpan(seconds) {
    const d = Math.floor(seconds / 86400),
        hours = Math.floor(seconds / 3600) % 24;
    const m = Math.floor(seconds / 60) % 60,
        s = Math.floor(seconds) % 60;
    if (d) return `${d} d ${hours} h`;
    if (hours) return `${hours} h ${m} min`;
    return m ? `${m} min ${s} s` : `${s} s`;
}

export async function copyText(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        return false; /* no permission, or the page was not loaded over HTTPS or from loopback */
    }
}

/* Announces a text to screen readers. */
export function announce(text) {
    const node = $('live');
    node.textContent = '';
    requestAnimationFrame(() => {
        node.textContent = text;
    });
}

/* A notification at the bottom of the page, with an optional action button. */
export function toast(text, action = null, fn = null) {
    const line = h('div', { class: 'toast', role: 'status' }, h('span', {}, text));
    const end = () => line.remove();
    if (action)
        line.append(
            h(
                'button',
                {
                    type: 'button',
                    class: 'link',
                    onclick: () => {
                        end();
                        fn();
                    },
                },
                action,
            ),
        );
    $('toasts').append(line);
    setTimeout(end, action ? 8000 : 4000);
}

export function download(name, text) {
    const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
    h('a', { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}
