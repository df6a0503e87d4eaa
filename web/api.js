// Client of the server's HTTP API: JSON calls, event streams, errors.

const KEY = 'tern.key';

/* sessionStorage: the key is gone when the tab is closed. */
export function apiKey() {
    try {
        return sessionStorage.getItem(KEY) || '';
    } catch {
        return '';
    }
}

export function setApiKey(key) {
    try {
        if (key) sessionStorage.setItem(KEY, key);
        else sessionStorage.removeItem(KEY);
    } catch {
        /* no storage: the server answers 401 */
    }
}

export class ApiError extends Error {
    constructor(message, { status = 0, code = '', retryAfter = 0, correlation = '' } = {}) {
        super(message);
        this.status = status; /* HTTP status; 0: no answer */
        this.code = code;
        this.retryAfter = retryAfter; /* seconds; 0: unknown */
        this.correlation = correlation;
    }
}

/* Retry-After is seconds or a date. */
export function retrySeconds(header, now = Date.now()) {
    if (!header) return 0;
    const n = Number(header);
    if (Number.isFinite(n)) return Math.max(0, Math.ceil(n));
    const at = Date.parse(header);
    return Number.isNaN(at) ? 0 : Math.max(0, Math.ceil((at - now) / 1000));
}

/* From the error object of the API. */
function errorFromBody(error, status, retryAfter) {
    return new ApiError(String(error.message || `the server answered ${status}`), {
        status,
        retryAfter,
        code: String(error.code || ''),
        correlation: String(error.correlation_id || ''),
    });
}

async function errorFromResponse(response) {
    const retryAfter = retrySeconds(response.headers.get('retry-after'));
    let body = null;
    try {
        body = await response.json();
    } catch {
        /* not JSON: a proxy's error page */
    }
    return errorFromBody(body?.error ?? {}, response.status, retryAfter);
}

export async function call(path, { method = 'GET', body = null, signal = null } = {}) {
    const headers = {};
    const key = apiKey();
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== null) headers['content-type'] = 'application/json';
    let response;
    try {
        response = await fetch(path, {
            method,
            headers,
            signal,
            cache: 'no-store',
            body: body === null ? null : JSON.stringify(body),
        });
    } catch (e) {
        if (e.name === 'AbortError') throw e;
        throw new ApiError('The server cannot be reached.');
    }
    if (!response.ok) throw await errorFromResponse(response);
    return response;
}

export async function getJson(path, signal = null) {
    return (await call(path, { signal })).json();
}

export function cancelCall(id) {
    return call(`/v1/requests/${encodeURIComponent(id)}/cancel`, { method: 'POST', body: {} });
}

/* Parser of server-sent events: text in pieces of any size → data of complete events. */
export class EventParser {
    #rest = '';
    #data = [];

    push(text) {
        const lines = (this.#rest + text).split('\n');
        const events = [];
        this.#rest = lines.pop();
        for (let line of lines) {
            if (line.endsWith('\r')) line = line.slice(0, -1);
            if (line === '') {
                if (this.#data.length) events.push(this.#data.join('\n'));
                this.#data = [];
            } else if (line.startsWith('data:')) {
                this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
            }
        }
        return events;
    }
}

/* Yields the chunks of a streamed chat completion, until [DONE]. */
export async function* streamChat(body, signal) {
    const response = await call('/v1/chat/completions', { method: 'POST', body, signal });
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    const parser = new EventParser();
    try {
        for (;;) {
            let part;
            try {
                part = await reader.read();
            } catch (e) {
                if (e.name === 'AbortError') throw e;
                throw new ApiError('The connection was lost before the answer was complete.');
            }
            if (part.done) throw new ApiError('The connection ended before the answer was complete.');
            for (const data of parser.push(decoder.decode(part.value, { stream: true }))) {
                if (data === '[DONE]') return;
                const chunk = JSON.parse(data);
                if (chunk.error) throw errorFromBody(chunk.error, 200, 0);
                yield chunk;
            }
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
