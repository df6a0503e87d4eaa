// Conversations and settings in localStorage: one entry for the list, one for each conversation.
// Without storage reads give the defaults and writes return false.

const LIST = 'tern.chats',
    CHAT = 'tern.chat.',
    SETTINGS = 'tern.settings';

/* null: the server's default. */
const DEFAULTS = { model: '', temperature: 0.8, top_p: 0.95, max_tokens: null, system: '' };

function read(key, fallback) {
    try {
        return JSON.parse(localStorage.getItem(key)) ?? fallback;
    } catch {
        return fallback;
    }
}

function write(key, value) {
    try {
        localStorage.setItem(key, JSON.stringify(value));
        return true;
    } catch {
        return false; /* full or disabled */
    }
}

export function loadSettings() {
    return { ...DEFAULTS, ...read(SETTINGS, {}) };
}

export function saveSettings(settings) {
    return write(SETTINGS, settings);
}

export function newChat() {
    const now = Date.now();
    return {
        id: now.toString(36) + Math.random().toString(36).slice(2, 8),
        title: '',
        named: false,
        made: now,
        at: now,
        from: 0, /* first message that is still sent to the model */
        messages: [],
    };
}

/* { id, title, at } of each conversation, the newest first. */
export function listChats() {
    return read(LIST, []).sort((a, b) => b.at - a.at);
}

export function loadChat(id) {
    return read(CHAT + id, null);
}

export function saveChat(chat) {
    if (!chat.named) chat.title = titleOf(chat);
    const list = read(LIST, []).filter(c => c.id !== chat.id);
    list.push({ id: chat.id, title: chat.title, at: chat.at });
    return write(CHAT + chat.id, chat) && write(LIST, list);
}

export function removeChat(id) {
    localStorage.removeItem(CHAT + id);
    write(
        LIST,
        read(LIST, []).filter(c => c.id !== id),
    );
}

function titleOf(chat) {
    const first =
        chat.messages
            .find(m => m.role === 'user')
            ?.content.trim()
            .replace(/\s+/g, ' ') ?? '';
    return first.length > 60 ? first.slice(0, 57).trimEnd() + '…' : first || 'New chat';
}

export function exportChats(chats) {
    return JSON.stringify(
        { format: 'tern-chats', version: 1, exported: new Date().toISOString(), chats },
        null,
        2,
    );
}

/* The conversations of a file made by exportChats; throws an Error for any other file. Only known
 * fields are copied: the file may come from anyone. */
export function importChats(text) {
    const file = JSON.parse(text);
    if (file?.format !== 'tern-chats' || !Array.isArray(file.chats))
        throw new Error('This file does not contain exported conversations.');
    return file.chats.map(c => ({
        ...newChat(),
        title: String(c.title ?? ''),
        named: true,
        at: Number(c.at) || Date.now(),
        messages: (Array.isArray(c.messages) ? c.messages : [])
            .filter(m => ['user', 'assistant'].includes(m?.role) && typeof m.content === 'string')
            .map(m => ({ role: m.role, content: m.content })),
    }));
}
