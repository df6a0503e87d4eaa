// The list of conversations, with actions: open, rename, export, delete.

import { $, h, icon, iconButton } from './dom.js';

function dayOf(at, now) {
    const midnight = new Date(now).setHours(0, 0, 0, 0);
    if (at >= midnight) return 'Today';
    if (at >= midnight - 86400000) return 'Yesterday';
    return at >= midnight - 7 * 86400000 ? 'This week' : 'Earlier';
}

export class Sidebar {
    /* acts: { open(id), rename(id, title), save(id), remove(id) } */
    constructor(acts) {
        this.acts = acts;
        $('drawer-open').addEventListener('click', () =>
            this.drawer($('drawer-open').getAttribute('aria-expanded') !== 'true'),
        );
        $('shade').addEventListener('click', () => this.drawer(false));
        this.narrow = matchMedia('(max-width: 820px)');
        this.narrow.addEventListener('change', () => this.drawer(false));
        this.drawer(false);
    }

    /* On narrow screens the list is a drawer over the conversation. */
    drawer(open) {
        const on = open && this.narrow.matches;
        document.body.classList.toggle('drawer', on);
        $('drawer-open').setAttribute('aria-expanded', on);
        $('shade').hidden = !on;
        $('sidebar').inert = this.narrow.matches && !on;
        if (on) $('new-chat').focus();
    }

    isOpen() {
        return document.body.classList.contains('drawer');
    }

    show(list, current, isRunning) {
        if (this.renaming) return; /* the end of renaming shows the list again */
        const now = Date.now(), nodes = [];
        let day = '', group = null;
        for (const chat of list) {
            const d = dayOf(chat.at, now);
            if (d !== day) {
                day = d;
                group = h('ul', { 'aria-label': d });
                nodes.push(h('h3', {}, d), group);
            }
            group.append(this.item(chat, chat.id === current, isRunning(chat.id)));
        }
        $('chats').replaceChildren(...nodes);
    }

    item(chat, current, running) {
        const open = () => {
            this.drawer(false);
            this.acts.open(chat.id);
        };
        const props = { type: 'button', class: 'chat-name', title: chat.title, onclick: open };
        const name = h('button', { ...props, 'aria-current': current && 'true' }, h('span', {}, chat.title),
            running && h('i', { class: 'pulse', role: 'img', 'aria-label': 'generating' }));
        const item = h('li', { class: `chat ${current ? 'current' : ''}` }, name);
        item.append(h('div', { class: 'chat-acts' },
            iconButton('edit', `Rename “${chat.title}”`, () => this.rename(item, chat)),
            iconButton('save', `Export “${chat.title}”`, () => this.acts.save(chat.id)),
            iconButton('trash', `Delete “${chat.title}”`, () => this.acts.remove(chat.id))));
        return item;
    }

    rename(item, chat) {
        const input = h('input', { type: 'text', class: 'rename', 'aria-label': 'New name', maxlength: 120 });
        this.renaming = true;
        const end = keep => {
            if (!this.renaming) return;
            this.renaming = false;
            this.acts.rename(chat.id, keep ? input.value.trim() : '');
        };
        input.value = chat.title;
        input.addEventListener('keydown', e => {
            if (e.key === 'Enter' && !e.isComposing) end(true);
            else if (e.key === 'Escape') {
                e.preventDefault();
                end(false);
            }
        });
        input.addEventListener('blur', () => end(true));
        item.replaceChildren(input);
        input.focus();
        input.select();
    }
}

export function startButton(text, fn) {
    return h('button', { type: 'button', class: 'start', onclick: fn }, h('span', {}, text), icon('send'));
}
