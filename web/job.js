// An answer in progress: the request, the streamed text, the statistics.

import { getJson, streamChat } from './api.js';

const LOOK_MS = 800; /* between two questions whether the model is still loading */

/* The next question at which a shorter history could begin; -1: it cannot be shorter. */
export function laterStart(chat) {
    return chat.messages.findIndex((m, i) => i > chat.from && m.role === 'user');
}

/* Drops the oldest questions and answers until a third of the context, or max_tokens, is free. The
 * number of tokens is estimated from the characters per token of the last answer. */
export function fit(chat, context, maxTokens) {
    const chars = () => chat.messages.slice(chat.from).reduce((sum, m) => sum + m.content.length, 0);
    const last = chat.messages.findLast(m => m.stats?.prompt);
    const n = last ? last.stats.prompt + last.stats.output : 1;
    const perToken = last ? (last.stats.chars + last.content.length) / n : 4;
    const room = context - Math.min(maxTokens ?? context / 3, context / 2);
    for (let next; chars() / perToken > room && (next = laterStart(chat)) > 0;) chat.from = next;
}

export function bodyOf(chat, settings, model) {
    const messages = chat.messages.slice(chat.from)
        .filter(m => m.content).map(({ role, content }) => ({ role, content }));
    const system = settings.system.trim();
    if (system) messages.unshift({ role: 'system', content: system });
    const body = { messages, stream: true, stream_options: { include_usage: true } };
    Object.assign(body, { temperature: settings.temperature, top_p: settings.top_p });
    if (model) body.model = model;
    if (settings.max_tokens) body.max_tokens = settings.max_tokens;
    return body;
}

/* Appends its message to the conversation when it is made; changed() is called for each chunk. */
export class Job {
    #abort = new AbortController();

    constructor(chat, changed) {
        this.chat = chat;
        this.message = { role: 'assistant', content: '', running: true };
        this.changed = changed;
        this.frame = 0;
        this.savedAt = performance.now();
        chat.at = Date.now();
        chat.messages.push(this.message);
    }

    stop() {
        this.#abort.abort();
    }

    /* Never throws: a failure becomes the message's error. */
    async run(body) {
        const { message } = this;
        const looking = setInterval(() => this.#look(body.model), LOOK_MS);
        try {
            await this.#stream(body, looking);
        } catch (e) {
            const { code = '', correlation = '', retryAfter = 0 } = e, until = Date.now() + retryAfter * 1000;
            if (e.name === 'AbortError') message.stopped = true;
            else message.error = { message: e.message, code, correlation, until };
        }
        clearInterval(looking);
        delete message.running;
        delete message.loading;
    }

    /* Before the first token: is the model loading, and how far is it? */
    async #look(model) {
        const { message } = this;
        if (!model || message.stats) return;
        const m = await getJson(`/v1/models/${encodeURI(model)}`).catch(() => null);
        const loading = m?.meta?.state === 'loading' ? m.status?.progress ?? 0 : undefined;
        if (!message.running || message.stats || loading === message.loading) return;
        message.loading = loading;
        this.changed();
    }

    async #stream(body, looking) {
        const { message } = this, began = performance.now();
        let first = 0, last = 0, pieces = 0;
        for await (const chunk of streamChat(body, this.#abort.signal)) {
            const choice = chunk.choices?.[0], stats = (message.stats ??= {});
            clearInterval(looking);
            if (this.#append(choice?.delta)) {
                last = performance.now();
                first ||= last;
                pieces++;
                Object.assign(stats, { output: pieces, first_ms: first - began });
            }
            if (choice?.finish_reason) stats.finish = choice.finish_reason;
            if (chunk.usage) this.#count(stats, chunk.usage, body.messages);
            if (stats.output > 1 && last > first) stats.rate = ((stats.output - 1) * 1000) / (last - first);
            this.changed();
        }
    }

    /* Appends text, reasoning or tool calls; true: the chunk had some. */
    #append(delta) {
        const { message } = this, think = delta?.reasoning_content, calls = delta?.tool_calls ?? [];
        if (delta?.content) message.content += delta.content;
        if (think) message.think = (message.think ?? '') + think;
        for (const { index, function: f } of calls) {
            const call = ((message.calls ??= [])[index] ??= { name: '', arguments: '' });
            call.name += f?.name ?? '';
            call.arguments += f?.arguments ?? '';
        }
        return Boolean(delta?.content || think || calls.length);
    }

    /* Replaces the estimates by the server's counts. */
    #count(stats, usage, messages) {
        stats.chars = messages.reduce((sum, m) => sum + m.content.length, 0);
        stats.output = usage.completion_tokens ?? stats.output;
        stats.prompt = usage.prompt_tokens;
        stats.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
}
