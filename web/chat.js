// The chat view: conversations, the message box, and answers while they stream.
//
// An answer belongs to its conversation, not to the view: it continues while another conversation
// is shown, and several may stream at once.

import { $, announce, download, fmtInt, h, toast } from './dom.js';
import { Job, bodyOf, fit, laterStart } from './job.js';
import { MessageView } from './message.js';
import { Sidebar, startButton } from './sidebar.js';
import { exportChats, importChats, listChats, loadChat, newChat, removeChat, saveChat } from './store.js';

const TALES = [
    'Tell me a story about a frog.',
    'Tell me a story about a lost kite.',
    'Tell me a story about two friends and the sea.',
];
const STARTS = [
    'Explain how tides work, in five sentences.',
    'Write a haiku about the first snow.',
    'Compare bread and cake in a table.',
];
/* Browsers open at most six connections per server over HTTP/1.1; the rest of the page needs some. */
const MAX_JOBS = 4;
const NEAR_PX = 56; /* within this distance of the end, the view follows new text */
const SAVE_MS = 1000; /* between saves while an answer streams */
const CURRENT = 'tern.current';

export class Chat {
    constructor(settings) {
        this.settings = settings;
        this.jobs = new Map(); /* conversation id → Job */
        this.views = []; /* MessageViews of the conversation that is shown */
        this.drafts = new Map(); /* conversation id → text in the message box */
        this.stick = true; /* scroll along with new text */
        this.sidebar = new Sidebar({
            open: id => this.open(id),
            rename: (id, title) => this.rename(id, title),
            save: id => this.exportOne(id),
            remove: id => this.remove(id),
        });
        this.bind();
        let id = null;
        try {
            id = sessionStorage.getItem(CURRENT);
        } catch {
            /* no storage: the newest conversation is shown */
        }
        this.show(loadChat(id) ?? loadChat(listChats()[0]?.id) ?? newChat());
    }

    bind() {
        $('composer').addEventListener('submit', e => {
            e.preventDefault();
            this.send();
        });
        $('prompt').addEventListener('input', () => this.typed());
        $('prompt').addEventListener('keydown', e => {
            if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
                e.preventDefault();
                this.send();
            }
        });
        $('stop').addEventListener('click', () => this.stop());
        $('new-chat').addEventListener('click', () => this.startNew());
        $('latest').addEventListener('click', () => this.toBottom());
        $('scroll').addEventListener('scroll', () => {
            const s = $('scroll');
            this.stick = s.scrollHeight - s.scrollTop - s.clientHeight < NEAR_PX;
            $('latest').hidden = this.stick;
        });
        new ResizeObserver(() => {
            if (this.stick) this.toBottom();
        }).observe($('thread'));
        addEventListener('storage', e => {
            if (e.key === 'tern.chats') this.list();
        });
        addEventListener('pagehide', () => {
            for (const job of this.jobs.values()) saveChat(job.chat);
        });
    }

    /* context: length in tokens; 0: unknown. */
    setModel(id, context) {
        this.model = id;
        this.context = context;
        const starts = /tales/.test(id) ? TALES : STARTS;
        const sendStart = text => {
            $('prompt').value = text;
            this.send();
        };
        $('starts').replaceChildren(...starts.map(text => startButton(text, () => sendStart(text))));
    }

    // ---- conversations ----

    list() {
        this.sidebar.show(listChats(), this.chat?.id, id => this.jobs.has(id));
    }

    save(chat) {
        if (!saveChat(chat) && !this.warned) {
            this.warned = true;
            toast('This browser’s storage is full: new messages are not saved.');
        }
    }

    show(chat) {
        if (this.chat) this.drafts.set(this.chat.id, $('prompt').value);
        this.chat = chat;
        for (const m of chat.messages) {
            if (m.running && this.jobs.get(chat.id)?.message !== m)
                Object.assign(m, { running: false, stopped: true });
        }
        try {
            sessionStorage.setItem(CURRENT, chat.id);
        } catch {
            /* no storage: the newest conversation opens next time */
        }
        $('prompt').value = this.drafts.get(chat.id) ?? '';
        this.thread();
        this.typed();
        this.list();
        this.toBottom();
    }

    /* Rebuilds the views of all messages; a streaming answer continues in its new view. */
    thread() {
        const { messages, from } = this.chat;
        const acts = { retry: () => this.retry(), edit: text => this.edit(text) };
        this.views = messages.map(m => new MessageView(m, acts));
        $('thread').replaceChildren(
            ...this.views.flatMap((v, i) =>
                i > 0 && i === from
                    ? [h('p', { class: 'forgotten' }, 'Messages above this line are no longer sent to the model: the context is full.'), v.el]
                    : [v.el],
            ),
        );
        this.mark();
    }

    /* Only the last question can be edited and only the last answer regenerated. */
    mark() {
        const messages = this.chat.messages;
        const running = this.jobs.has(this.chat.id);
        const lastUser = messages.findLastIndex(m => m.role === 'user');
        this.views.forEach((v, i) =>
            v.setLast(!running && (i === lastUser || (i === messages.length - 1 && i > lastUser))),
        );
        $('empty').hidden = messages.length > 0;
        $('send').hidden = running;
        $('stop').hidden = !running;
    }

    open(id) {
        if (id === this.chat.id) return;
        const chat = this.jobs.get(id)?.chat ?? loadChat(id);
        if (chat) this.show(chat);
        else this.list();
        $('prompt').focus();
    }

    startNew() {
        this.sidebar.drawer(false);
        if (this.chat.messages.length) this.show(newChat());
        $('prompt').focus();
    }

    rename(id, title) {
        const chat = this.jobs.get(id)?.chat ?? (id === this.chat.id ? this.chat : loadChat(id));
        if (chat && title) {
            Object.assign(chat, { title, named: true });
            this.save(chat);
        }
        this.list();
    }

    remove(id) {
        this.jobs.get(id)?.stop();
        const chat = id === this.chat.id ? this.chat : loadChat(id);
        removeChat(id);
        if (id === this.chat.id) this.show(loadChat(listChats()[0]?.id) ?? newChat());
        else this.list();
        if (chat)
            toast('Conversation deleted.', 'Undo', () => {
                this.save(chat);
                this.show(chat);
            });
    }

    removeAll() {
        const chats = listChats()
            .map(c => loadChat(c.id))
            .filter(Boolean);
        for (const job of this.jobs.values()) job.stop();
        for (const c of chats) removeChat(c.id);
        this.show(newChat());
        toast(
            `${fmtInt(chats.length)} conversation${chats.length === 1 ? '' : 's'} deleted.`,
            'Undo',
            () => {
                for (const c of chats) this.save(c);
                if (chats.length) this.show(chats[0]);
            },
        );
    }

    exportOne(id) {
        const chat = loadChat(id);
        if (chat)
            download(
                `tern-${
                    chat.title
                        .toLowerCase()
                        .replace(/[^a-z0-9]+/g, '-')
                        .slice(0, 40) || 'chat'
                }.json`,
                exportChats([chat]),
            );
    }

    exportAll() {
        download(
            'tern-chats.json',
            exportChats(
                listChats()
                    .map(c => loadChat(c.id))
                    .filter(Boolean),
            ),
        );
    }

    importAll(text) {
        try {
            const chats = importChats(text);
            for (const c of chats) this.save(c);
            this.list();
            toast(`${chats.length} conversation${chats.length === 1 ? '' : 's'} imported.`);
        } catch (e) {
            toast(e instanceof SyntaxError ? 'This file is not JSON.' : e.message);
        }
    }

    // ---- the message box ----

    typed() {
        const area = $('prompt');
        area.style.height = 'auto';
        area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
        $('send').disabled = area.value.trim() === '';
    }

    toBottom() {
        this.stick = true;
        $('latest').hidden = true;
        $('scroll').scrollTop = $('scroll').scrollHeight;
    }

    escape() {
        if (this.sidebar.isOpen()) this.sidebar.drawer(false);
        else this.stop();
    }

    stop() {
        this.jobs.get(this.chat.id)?.stop();
        $('prompt').focus();
    }

    send() {
        const text = $('prompt').value.trim();
        if (!text || this.jobs.has(this.chat.id)) return;
        if (this.jobs.size >= MAX_JOBS)
            return toast(`${MAX_JOBS} answers are being generated; wait until one of them is complete.`);
        this.chat.messages.push({ role: 'user', content: text });
        $('prompt').value = '';
        this.typed();
        this.answer();
    }

    retry() {
        const messages = this.chat.messages;
        while (messages.length && messages[messages.length - 1].role === 'assistant') messages.pop();
        if (messages.length) this.answer();
    }

    edit(text) {
        const messages = this.chat.messages;
        const last = messages.findLastIndex(m => m.role === 'user');
        messages.splice(last, messages.length, { role: 'user', content: text });
        this.chat.from = Math.min(this.chat.from, last);
        this.answer();
    }

    // ---- an answer ----

    async answer() {
        const chat = this.chat;
        if (this.context) fit(chat, this.context, this.settings.max_tokens);
        const job = new Job(chat, () => this.draw(job));
        this.jobs.set(chat.id, job);
        this.save(chat);
        this.thread();
        this.list();
        this.toBottom();
        announce('Generating an answer');
        await job.run(bodyOf(chat, this.settings, this.model));
        this.finish(job);
        if (job.message.error?.code === 'context_length_exceeded' && this.chat === chat && laterStart(chat) > 0) {
            chat.from = laterStart(chat);
            this.retry();
        }
    }

    draw(job) {
        job.frame ||= requestAnimationFrame(() => {
            job.frame = 0;
            this.viewOf(job)?.update();
            if (this.stick && this.chat === job.chat) this.toBottom();
        });
        if (performance.now() - job.savedAt > SAVE_MS) {
            job.savedAt = performance.now();
            this.save(job.chat);
        }
    }

    viewOf(job) {
        return this.chat === job.chat ? this.views.find(v => v.message === job.message) : null;
    }

    finish(job) {
        const { chat, message } = job;
        cancelAnimationFrame(job.frame);
        this.jobs.delete(chat.id);
        if (listChats().some(c => c.id === chat.id)) this.save(chat); /* not if it was deleted meanwhile */
        this.viewOf(job)?.update();
        if (this.chat === chat) {
            this.mark();
            if (this.stick) this.toBottom();
        }
        this.list();
        if (message.error) announce(message.error.message);
        else announce(message.stopped ? 'Stopped' : `Answer: ${message.content.slice(0, 2000)}`);
    }
}
