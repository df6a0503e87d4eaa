// Markdown → DOM nodes. The model's text never becomes HTML: everything is made with createElement
// and text nodes, links are http and https only, images are shown as links (nothing is fetched).
//
// While an answer streams its text is "open": a mark that is not closed yet counts as closed at the
// end, and a last line that may be the beginning of a mark is held back, so that the layout does not
// jump when the rest arrives.

import { copyText, h, icon, table } from './dom.js';
import { linesOf, parse } from './mdblocks.js';
import { inline } from './mdinline.js';

const DEPTH = 16; /* nesting of quotes and lists */

function codeNode(block) {
    const code = h('code', {}, block.text);
    const says = h('span', {}, 'Copy');
    const copy = async () => {
        says.textContent = (await copyText(code.textContent)) ? 'Copied' : 'Copying failed';
        setTimeout(() => (says.textContent = 'Copy'), 1500);
    };
    const button = h('button', { type: 'button', class: 'copy', 'aria-label': 'Copy code', onclick: copy },
        icon('copy'), says);
    return h('div', { class: 'code' },
        h('div', { class: 'code-head' }, h('span', {}, block.lang || 'text'), button),
        h('pre', { tabindex: '0', role: 'region', 'aria-label': 'Code' }, code));
}

/* An item that is one paragraph has no <p>; "[ ]" and "[x]" become boxes. */
function itemNode(lines, open, depth) {
    const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
    const rest = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
    const done = task && task[1] !== ' ';
    const item = h('li', { class: task && 'task' });
    const label = done ? 'done' : 'not done';
    if (task) item.append(h('span', { class: 'box', role: 'img', 'aria-label': label }, done ? '☑' : '☐'));
    parse(rest, open).forEach((b, k) => {
        if (k === 0 && b.type === 'p') item.append(...inline(b.text, b.open));
        else item.append(blockNode(b, depth));
    });
    return item;
}

/* The page itself has h1 and h2, so # becomes h3 for screen readers. */
function headingNode({ level, text, open }) {
    return h(`h${Math.min(6, level + 2)}`, { class: `h${level}` }, inline(text, open));
}

function listNode(block, depth) {
    const last = block.items.length - 1;
    const items = block.items.map((lines, k) => itemNode(lines, block.open && k === last, depth + 1));
    if (!block.ordered) return h('ul', {}, items);
    return h('ol', { start: block.start !== 1 && block.start }, items);
}

function tableNode(block) {
    const last = block.rows.length - 1;
    const cell = (tag, text, k, open) =>
        h(tag, { class: block.align[k] || null, scope: tag === 'th' && 'col' }, inline(text, open));
    const head = block.head.map((t, k) => cell('th', t, k, block.open && last < 0));
    const rows = block.rows.map((row, r) =>
        h('tr', {}, block.head.map((_, k) => cell('td', row[k] ?? '', k, block.open && r === last))));
    return table('Table', head, h('tbody', {}, rows));
}

function blockNode(block, depth = 0) {
    if (depth > DEPTH) return h('p', {}, block.src);
    const { text, open } = block;
    switch (block.type) {
        case 'code': return codeNode(block);
        case 'rule': return h('hr');
        case 'heading': return headingNode(block);
        case 'quote': return h('blockquote', {}, parse(block.inner, open).map(b => blockNode(b, depth + 1)));
        case 'list': return listNode(block, depth);
        case 'table': return tableNode(block);
        default: return h('p', {}, inline(text, open));
    }
}

const isGrown = (old, b) => old?.type === 'code' && b.type === 'code' && old.lang === b.lang;

/* Renders text into node. Blocks that did not change keep their nodes, so that selection and scroll
 * position stay; a growing code block keeps its box. Nothing else may add children to node. */
export function render(node, text, { open = false } = {}) {
    const blocks = parse(linesOf(text, open), open);
    const shown = node.ternBlocks ?? [];

    blocks.forEach((b, k) => {
        const old = shown[k], at = node.children[k];
        if (old && old.type === b.type && old.src === b.src && old.open === b.open) return;
        if (isGrown(old, b)) at.querySelector('code').textContent = b.text;
        else if (at) at.replaceWith(blockNode(b));
        else node.append(blockNode(b));
    });
    while (node.children.length > blocks.length) node.lastElementChild.remove();
    node.ternBlocks = blocks;
}
