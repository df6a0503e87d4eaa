// The view of one message: its text, statistics and actions.

import { copyText, fmtInt, fmtMs, fmtRate, h, icon, iconButton, textButton } from './dom.js';
import { render } from './markdown.js';

const FINISH = { length: 'token limit reached', cancelled: 'cancelled', deadline: 'deadline passed' };

function copyButton(text) {
    const button = iconButton('copy', 'Copy message', async () => {
        const done = await copyText(text());
        button.replaceChildren(icon(done ? 'check' : 'alert'));
        setTimeout(() => button.replaceChildren(icon('copy')), 1500);
    });
    return button;
}

/* Indented JSON; the raw text while it is incomplete. */
export function pretty(args) {
    try {
        return JSON.stringify(JSON.parse(args), null, 2);
    } catch {
        return args;
    }
}

/* acts: { retry, edit(text) }: callbacks of the buttons. */
export class MessageView {
    constructor(message, acts) {
        this.message = message;
        this.acts = acts;
        const user = message.role === 'user';
        this.body = h('div', { class: user ? 'bubble' : 'answer' });
        this.thought = h('div', { class: 'thought' });
        this.calls = h('div', { class: 'calls' });
        this.foot = h('div', { class: 'foot' });
        const props = { class: `message ${message.role}`, 'aria-label': user ? 'You' : 'Answer' };
        this.el = h('article', props, user ? [] : this.thought, this.body, user ? [] : this.calls, this.foot);
        this.last = false;
        this.update();
    }

    get running() {
        return Boolean(this.message.running);
    }

    update() {
        const m = this.message;
        if (m.role === 'user') {
            this.body.textContent = m.content;
            this.actions();
            return;
        }
        this.el.classList.toggle('running', this.running);
        if (this.running) this.el.setAttribute('aria-busy', 'true');
        else this.el.removeAttribute('aria-busy');
        this.think();
        this.showCalls();
        if (!m.content && this.running && !m.think && !m.calls) this.wait();
        else if (m.content) {
            if (this.waiting) {
                this.body.replaceChildren();
                this.waiting = false;
            }
            render(this.body, m.content, { open: this.running });
        } else {
            this.body.replaceChildren();
            this.waiting = false;
        }
        this.running ? this.live() : this.actions();
    }

    /* Reasoning of the model, collapsed by default. */
    think() {
        const { think, content } = this.message;
        if (!think) return;
        if (!this.thinking) {
            this.thinking = { title: h('summary', {}), text: h('div', { class: 'reasoning' }) };
            this.thought.replaceChildren(h('details', {}, this.thinking.title, this.thinking.text));
        }
        const words = think.trim().split(/\s+/).length, busy = this.running && !content;
        this.thinking.title.textContent =
            `${busy ? 'Reasoning…' : 'Reasoning,'} ${fmtInt(words)} word${words === 1 ? '' : 's'}`;
        this.thinking.text.textContent = think;
    }

    showCalls() {
        const calls = (this.message.calls ?? []).filter(Boolean);
        this.calls.replaceChildren(...calls.map(c =>
            h('figure', { class: 'call' }, h('figcaption', {}, 'Tool call: ', h('code', {}, c.name)),
                h('pre', {}, pretty(c.arguments)))));
    }

    wait() {
        const { loading } = this.message;
        if (!this.waiting) {
            const props = { class: 'dots', role: 'img', 'aria-label': 'Waiting for the first token' };
            this.loading = h('span', { class: 'sub', role: 'status' });
            this.body.replaceChildren(h('span', props, h('i'), h('i'), h('i')), ' ', this.loading);
        }
        this.waiting = true;
        this.loading.textContent = loading === undefined ? '' : `Loading the model: ${loading} %`;
    }

    /* While the answer streams only the numbers change. */
    live() {
        const s = this.message.stats;
        if (!this.numbers) {
            this.numbers = h('span', { class: 'stats', 'aria-hidden': 'true' });
            this.foot.replaceChildren(this.numbers);
        }
        this.numbers.textContent = s?.output ? this.says(s).join(' · ') : '';
    }

    says(s) {
        const out = [];
        if (s.output) out.push(`${fmtInt(s.output)} token${s.output === 1 ? '' : 's'}`);
        if (s.rate) out.push(`${fmtRate(s.rate)} tok/s`);
        if (s.first_ms) out.push(`first token after ${fmtMs(s.first_ms)}`);
        if (s.prompt)
            out.push(`prompt ${fmtInt(s.prompt)}${s.cached ? ` (${fmtInt(s.cached)} cached)` : ''}`);
        return out;
    }

    actions() {
        const m = this.message;
        this.numbers = null;
        this.foot.replaceChildren();
        if (m.error) this.foot.append(this.errorBox(m.error));
        const row = h('div', { class: 'acts' });
        if (m.content) row.append(copyButton(() => m.content));
        if (m.role === 'assistant') {
            if (this.last && !m.error) row.append(iconButton('retry', 'Regenerate the answer', this.acts.retry));
            const notes = m.stats ? this.says(m.stats) : [];
            if (m.stopped) notes.push('stopped');
            else if (FINISH[m.stats?.finish]) notes.push(FINISH[m.stats.finish]);
            if (notes.length) row.append(h('span', { class: 'stats' }, notes.join(' · ')));
        } else if (this.last) {
            row.append(iconButton('edit', 'Edit message', () => this.edit()));
        }
        if (row.children.length) this.foot.append(row);
    }

    /* The server's message, its error code, and a button that is enabled when Retry-After has passed. */
    errorBox(error) {
        const small = [error.code, error.correlation].filter(Boolean).join(' · ');
        const says = h('div', {}, h('p', {}, error.message), small && h('p', { class: 'small' }, small));
        const again = textButton('Try again', this.acts.retry);
        if (this.last) {
            says.append(h('div', { class: 'row' }, again));
            this.countDown(again, error);
        }
        return h('div', { class: 'error' }, icon('alert'), says);
    }

    countDown(button, error) {
        const left = Math.ceil((error.until - Date.now()) / 1000);
        button.disabled = left > 0;
        button.textContent = left > 0 ? `Try again in ${left} s` : 'Try again';
        if (left > 0) setTimeout(() => this.countDown(button, error), 250);
    }

    setLast(last) {
        if (this.last === last) return;
        this.last = last;
        if (!this.running) this.actions();
    }

    edit() {
        const rows = Math.min(12, this.message.content.split('\n').length + 1);
        const area = h('textarea', { class: 'edit', 'aria-label': 'Edit message', rows });
        const end = () => {
            this.body.replaceChildren();
            this.body.classList.remove('editing');
            this.update();
        };
        const save = () => {
            const text = area.value.trim();
            if (!text) return;
            end();
            this.acts.edit(text);
        };
        area.value = this.message.content;
        area.addEventListener('keydown', e => {
            if (e.key === 'Escape') {
                e.preventDefault();
                end();
            } else if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
                e.preventDefault();
                save();
            }
        });
        this.foot.replaceChildren();
        this.body.classList.add('editing');
        this.body.replaceChildren(area, h('div', { class: 'row' },
            textButton('Send', save, 'primary'), textButton('Cancel', end)));
        area.focus();
    }
}
