// Inline structure of Markdown: text of a block → nodes.

import { h } from './dom.js';

const DEPTH = 16; /* nesting of emphasis */

const isSpace = c => c === undefined || /\s/.test(c);
const isWord = c => c !== undefined && /[\p{L}\p{N}]/u.test(c);

function safeUrl(text) {
    let url;
    try {
        url = new URL(text);
    } catch {
        return null;
    }
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : null;
}

function link(href, ...kids) {
    return h('a', { href, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...kids);
}

function runOf(s, i) {
    let j = i;
    while (s[j] === s[i]) j++;
    return j - i;
}

/* One pass over a text. `dead` records marks for which no end was found: there is none further on
 * either, which keeps the time linear for hostile text. */
class Inline {
    constructor(s, open, depth) {
        Object.assign(this, { s, open, depth, i: 0, plain: '', out: [], dead: new Set() });
    }

    flush() {
        if (this.plain) this.out.push(document.createTextNode(this.plain));
        this.plain = '';
    }

    add(node, next) {
        this.flush();
        this.out.push(node);
        this.i = next;
    }

    literal(n) {
        this.plain += this.s.slice(this.i, this.i + n);
        this.i += n;
    }

    run() {
        const s = this.s;
        while (this.i < s.length) {
            const c = s[this.i];
            if (c === '\\' && /[!-/:-@[-`{-~]/.test(s[this.i + 1] ?? '')) {
                this.i++;
                this.literal(1);
            } else if (c === '`') this.code();
            else if (c === '*' || c === '_' || c === '~') this.emphasis(c);
            else if (c === '[' || (c === '!' && s[this.i + 1] === '[')) this.bracket();
            else if (c === '<') this.angle();
            else if (c === 'h' && !isWord(s[this.i - 1])) this.bare();
            else if (c === '\n') {
                this.plain = this.plain.trimEnd();
                this.add(h('br'), this.i + 1);
            } else this.literal(1);
        }
        this.flush();
        return this.out;
    }

    closeCode(from, n) {
        for (let j = this.s.indexOf('`', from); j >= 0; j = this.s.indexOf('`', j)) {
            const r = runOf(this.s, j);
            if (r === n) return j;
            j += r;
        }
        return -1;
    }

    code() {
        const n = runOf(this.s, this.i),
            from = this.i + n,
            key = '`' + n;
        let end = this.dead.has(key) ? -1 : this.closeCode(from, n);
        if (end < 0) this.dead.add(key);
        if (end < 0 && this.open) end = this.s.length;
        if (end < 0) return this.literal(n);
        let text = this.s.slice(from, end).replace(/\n/g, ' ');
        if (/^ .*[^ ].* $/.test(text)) text = text.slice(1, -1);
        if (text) this.add(h('code', {}, text), Math.min(end + n, this.s.length));
        else this.i = this.s.length;
    }

    /* The position from `from` on of the closing mark of len times c; -1: none. */
    closeEmphasis(from, c, len) {
        const s = this.s;
        for (let j = from; j < s.length;) {
            if (s[j] === '\\') {
                j += 2;
                continue;
            }
            if (s[j] === '`') {
                const n = runOf(s, j),
                    end = this.dead.has('`' + n) ? -1 : this.closeCode(j + n, n);
                if (end < 0) this.dead.add('`' + n);
                j = end < 0 ? j + n : end + n;
                continue;
            }
            if (s[j] !== c) {
                j++;
                continue;
            }
            const r = runOf(s, j);
            const fits = len === 1 ? r % 2 === 1 : r >= len;
            if (fits && !isSpace(s[j - 1]) && j + r - len > from - 1 && (c !== '_' || !isWord(s[j + r])))
                return j + r - len;
            j += r;
        }
        return -1;
    }

    emphasis(c) {
        const s = this.s,
            n = runOf(s, this.i),
            before = s[this.i - 1],
            after = s[this.i + n];
        if (this.open && after === undefined) {
            this.i = s.length;
            return;
        } /* the rest has not arrived */
        const opens =
            !isSpace(after) &&
            (c !== '_' || !isWord(before)) &&
            this.depth < DEPTH &&
            n <= 3 &&
            (c !== '~' || n === 2);
        if (!opens) return this.literal(n);
        const key = c + n,
            from = this.i + n;
        let end = this.dead.has(key) ? -1 : this.closeEmphasis(from, c, n),
            next = end + n;
        if (end < 0) this.dead.add(key);
        if (end < 0 && this.open && !isWord(before)) end = next = s.length;
        if (end <= from) return this.literal(n);
        const kids = new Inline(s.slice(from, end), this.open && next >= s.length, this.depth + 1).run();
        const node =
            c === '~'
                ? h('del', {}, kids)
                : n === 1
                  ? h('em', {}, kids)
                  : n === 2
                    ? h('strong', {}, kids)
                    : h('strong', {}, h('em', {}, kids));
        this.add(node, next);
    }

    /* The partner of the bracket at i. All pairs are found at the first call. */
    closeBracket(i) {
        if (!this.pairs) {
            const opened = [];
            this.pairs = new Map();
            for (let j = 0; j < this.s.length; j++) {
                if (this.s[j] === '\\') j++;
                else if (this.s[j] === '[') opened.push(j);
                else if (this.s[j] === ']' && opened.length) this.pairs.set(opened.pop(), j);
            }
        }
        return this.pairs.get(i) ?? -1;
    }

    /* [text](address "title"); ![text](address) becomes a link too. */
    bracket() {
        const s = this.s,
            from = this.i + (s[this.i] === '!' ? 2 : 1);
        const end = this.depth >= DEPTH ? -1 : this.closeBracket(from - 1);
        if (end < 0 || s[end + 1] !== '(') return this.literal(from - this.i);
        const m = /^\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(
            s.slice(end + 1, end + 4096),
        );
        if (!m && !(this.open && s.indexOf(')', end) < 0)) return this.literal(from - this.i);
        const kids = new Inline(s.slice(from, end), false, this.depth + 1).run();
        const href = m && safeUrl(m[1]);
        this.add(href ? link(href, kids) : h('span', {}, kids), m ? end + 1 + m[0].length : s.length);
    }

    angle() {
        const m = /^<(?:(https?:\/\/[^\s<>]+)|(br ?\/?))>/i.exec(this.s.slice(this.i, this.i + 2048));
        if (!m) return this.literal(1);
        const href = m[1] && safeUrl(m[1]);
        if (m[2]) this.add(h('br'), this.i + m[0].length);
        else if (href) this.add(link(href, m[1]), this.i + m[0].length);
        else this.literal(m[0].length);
    }

    bare() {
        const m = /^https?:\/\/[^\s<>"'`|]+/.exec(this.s.slice(this.i, this.i + 2048));
        if (!m) return this.literal(1);
        let text = m[0].replace(/[.,;:!?*_~]+$/, '');
        if (text.endsWith(')') && !text.includes('(')) text = text.slice(0, -1);
        const href = safeUrl(text);
        if (href) this.add(link(href, text), this.i + text.length);
        else this.literal(text.length);
    }
}

export const inline = (text, open) => new Inline(text, open, 0).run();
