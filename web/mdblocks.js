// Block structure of Markdown: lines → [{ type, src, open, … }]. src is the block's source text.

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}>[ \t]?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const TABLE_RULE = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const HALF_MARK = /^(?:[-*+_~=]{1,3}|\d{1,9}[.)]?|#{1,6}|`{3,}[^`]*|`{1,2}|>|\||[-*+] \[[ xX]?\]?)?$/;

/* The lines of a text. The last line of an open text is left out while it may still become a mark. */
export function linesOf(text, open) {
    const lines = text.split(/\r\n?|\n/);
    if (open && HALF_MARK.test(lines[lines.length - 1].trim())) lines.pop();
    return lines;
}

const isBlank = line => /^[ \t]*$/.test(line);
const indentOf = line => /^[ \t]*/.exec(line)[0].replace(/\t/g, '    ').length;

function startsBlock(line) {
    return (
        FENCE.test(line) ||
        HEADING.test(line) ||
        RULE.test(line) ||
        QUOTE.test(line) ||
        (ITEM.test(line) && /\S[ \t]+\S/.test(line))
    );
}

function isTable(lines, i, open) {
    const head = lines[i],
        next = lines[i + 1];
    if (!head.includes('|')) return false;
    if (next !== undefined && TABLE_RULE.test(next) && next.includes('-'))
        return next.includes('|') || head.trim()[0] === '|';
    /* the line below the table head has not arrived completely */
    return (
        open &&
        head.trim()[0] === '|' &&
        (next === undefined || (i + 2 === lines.length && /^[ \t|:-]*$/.test(next)))
    );
}

function takeFence(lines, i, m) {
    const indent = m[1].length;
    const close = new RegExp(`^ {0,3}\\${m[2][0]}{${m[2].length},}[ \\t]*$`);
    const text = [];
    let j = i + 1;
    while (j < lines.length && !close.test(lines[j])) {
        text.push(lines[j].slice(Math.min(indent, indentOf(lines[j]))));
        j++;
    }
    return [
        { type: 'code', lang: m[3].trim().split(/\s+/)[0], text: text.join('\n') },
        Math.min(j + 1, lines.length),
    ];
}

function takeIndented(lines, i) {
    const text = [];
    let j = i;
    while (j < lines.length && (isBlank(lines[j]) || indentOf(lines[j]) >= 4))
        text.push(lines[j++].replace(/^(?: {4}|\t)/, ''));
    while (isBlank(text[text.length - 1])) {
        text.pop();
        j--;
    }
    return [{ type: 'code', lang: '', text: text.join('\n') }, j];
}

function takeQuote(lines, i) {
    const inner = [];
    let j = i;
    while (j < lines.length && (QUOTE.test(lines[j]) || (!isBlank(lines[j]) && !startsBlock(lines[j])))) {
        inner.push(lines[j++].replace(QUOTE, ''));
    }
    return [{ type: 'quote', inner }, j];
}

/* An item is its first line, the lines indented under it, and lines that continue it lazily. */
function takeList(lines, i, first) {
    const base = indentOf(first[1]),
        ordered = /\d/.test(first[2]);
    const list = { type: 'list', ordered, start: ordered ? parseInt(first[2], 10) : 1, items: [] };
    let j = i;
    while (j < lines.length) {
        const m = ITEM.exec(lines[j]);
        if (!m || RULE.test(lines[j]) || indentOf(m[1]) > base + 3 || /\d/.test(m[2]) !== ordered) break;
        if (indentOf(m[1]) < base && list.items.length) break;
        const inside = indentOf(m[1]) + m[2].length + 1;
        const inner = [m[4] ?? ''];
        j++;
        while (j < lines.length) {
            if (isBlank(lines[j])) {
                if (j + 1 < lines.length && !isBlank(lines[j + 1]) && indentOf(lines[j + 1]) >= inside)
                    inner.push('');
                else break;
            } else if (
                indentOf(lines[j]) >= inside ||
                (indentOf(lines[j]) > base + 1 && ITEM.test(lines[j]))
            ) {
                inner.push(lines[j].slice(Math.min(inside, /^[ \t]*/.exec(lines[j])[0].length)));
            } else if (startsBlock(lines[j]) || ITEM.test(lines[j])) {
                break;
            } else {
                inner.push(lines[j].trim());
            }
            j++;
        }
        list.items.push(inner);
        let k = j; /* blank lines between items do not end the list */
        while (k < lines.length && isBlank(lines[k])) k++;
        const again = k < lines.length && ITEM.exec(lines[k]);
        if (again && !RULE.test(lines[k]) && indentOf(again[1]) <= base + 3) j = k;
        else break;
    }
    return [list, j];
}

function cells(line) {
    let s = line.trim();
    if (s[0] === '|') s = s.slice(1);
    const out = [];
    let cell = '',
        code = false;
    for (let i = 0; i < s.length; i++) {
        if (s[i] === '\\' && s[i + 1] === '|') {
            cell += '|';
            i++;
            continue;
        }
        if (s[i] === '`') code = !code && s.indexOf('`', i + 1) >= 0;
        if (s[i] === '|' && !code) {
            out.push(cell.trim());
            cell = '';
            continue;
        }
        cell += s[i];
    }
    if (cell.trim() !== '') out.push(cell.trim());
    return out;
}

function takeTable(lines, i) {
    const head = cells(lines[i]);
    const align = (lines[i + 1] === undefined ? [] : cells(lines[i + 1])).map(c =>
        /^:-+:$/.test(c) ? 'center' : /-:$/.test(c) ? 'right' : '',
    );
    const rows = [];
    let j = Math.min(i + 2, lines.length);
    while (j < lines.length && !isBlank(lines[j]) && lines[j].includes('|')) rows.push(cells(lines[j++]));
    return [{ type: 'table', head, align, rows }, j];
}

function takeParagraph(lines, i, open) {
    let j = i + 1;
    while (j < lines.length && !isBlank(lines[j]) && !startsBlock(lines[j]) && !isTable(lines, j, open))
        j++;
    return [{ type: 'p', text: lines.slice(i, j).join('\n') }, j];
}

function takeBlock(lines, i, open) {
    const line = lines[i];
    let m;
    if ((m = FENCE.exec(line))) return takeFence(lines, i, m);
    if ((m = HEADING.exec(line)))
        return [{ type: 'heading', level: m[1].length, text: m[2].trim().replace(/ #+$/, '') }, i + 1];
    if (RULE.test(line)) return [{ type: 'rule' }, i + 1];
    if (QUOTE.test(line)) return takeQuote(lines, i);
    if ((m = ITEM.exec(line)) && m[4]) return takeList(lines, i, m);
    if (isTable(lines, i, open)) return takeTable(lines, i);
    if (indentOf(line) >= 4) return takeIndented(lines, i);
    return takeParagraph(lines, i, open);
}

/* Only the last block is open: later text cannot change the blocks before it. */
export function parse(lines, open) {
    const blocks = [];
    for (let i = 0; i < lines.length;) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        const [block, end] = takeBlock(lines, i, open);
        block.src = lines.slice(i, end).join('\n');
        block.open = open && end >= lines.length;
        blocks.push(block);
        i = end;
    }
    return blocks;
}
