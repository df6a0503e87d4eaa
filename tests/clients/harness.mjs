// Shared by the tests: counted checks, waiting, servers.

import { spawn } from 'node:child_process';
import assert from 'node:assert/strict';

let passed = 0,
    failed = 0;

function reason(e) {
    const text = String(e?.message ?? e) || String(e?.name);
    return text
        .split('\n')
        .filter(l => l.trim())
        .slice(0, 8)
        .join(' | ')
        .slice(0, 600);
}

/* Runs one check; it fails after ms milliseconds. */
export async function check(name, fn, ms = 300000) {
    let timer;
    const late = new Promise((_, no) => {
        timer = setTimeout(() => no(new Error(`no end after ${ms} ms`)), ms);
    });
    try {
        await Promise.race([fn(), late]);
        passed++;
        console.log(`ok ${name}`);
    } catch (e) {
        failed++;
        console.log(`not ok ${name}: ${reason(e)}`);
    } finally {
        clearTimeout(timer);
    }
}

export function result() {
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0 && passed > 0;
}

export const sleep = ms => new Promise(done => setTimeout(done, ms));

/* Waits until fn returns a true value, and returns it. */
export async function until(fn, says, ms) {
    const end = Date.now() + ms;
    for (;;) {
        const value = await fn();
        if (value) return value;
        if (Date.now() > end) throw new Error(`not within ${ms} ms: ${says}`);
        await sleep(10);
    }
}

/* The error that a promise is rejected with. */
export async function thrown(promise) {
    try {
        await promise;
    } catch (e) {
        return e;
    }
    throw new Error('nothing was thrown');
}

export async function collect(iterable) {
    const all = [];
    for await (const one of iterable) all.push(one);
    return all;
}

/* ---- servers ---- */

/* Without the environment variables of the clients and of tern. */
for (const name of Object.keys(process.env))
    if (/^(OPENAI|ANTHROPIC|OLLAMA|LANGCHAIN|LANGSMITH)_|_PROXY$/i.test(name)) delete process.env[name];

function serverEnv() {
    return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TERN_')));
}

export class Server {
    constructor(child, url, headers = {}) {
        Object.assign(this, { child, url, headers, v1: `${url}/v1` });
    }

    async status() {
        const r = await fetch(`${this.url}/status`, { headers: this.headers });
        assert.equal(r.status, 200, `GET /status: ${r.status}`);
        return r.json();
    }

    async busy() {
        const { queue } = await this.status();
        return queue.running + queue.waiting;
    }

    /* Waits until no request runs or waits, at most ms. */
    async idle(ms = 120000) {
        await until(async () => (await this.busy()) === 0, 'nothing runs and nothing waits', ms);
    }

    /* Runs fn, which abandons n engine requests: they must be cancelled, without further tokens. fn gets a time limit for its
     * client, in milliseconds. Where that ends before the request arrives, on a busy machine, a longer one is tried. */
    async frees(fn, n = 1) {
        for (let ms = 150; ; ms *= 2) {
            await this.idle();
            const before = (await this.status()).requests;
            await fn(ms);
            await this.idle();
            const after = await this.status();
            if (after.requests.submitted === before.submitted && ms < 20000) continue;
            const cancelled = after.requests.finished.cancelled - before.finished.cancelled;
            assert.equal(cancelled, n, `${cancelled} cancelled, expected ${n}`);
            await sleep(50);
            assert.equal(
                (await this.status()).tokens.generated,
                after.tokens.generated,
                'tokens after the cancel',
            );
            return;
        }
    }

    async stop() {
        const ended = new Promise(done => this.child.once('exit', (code, signal) => done(signal ?? code)));
        if (this.child.exitCode !== null) return this.child.exitCode;
        this.child.kill('SIGTERM');
        return ended;
    }
}

const running = new Set();
process.on('exit', () => running.forEach(child => child.kill('SIGKILL')));
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(130));

/* Starts a server with these flags on a free port and waits until it is ready. */
export async function serve(flags = [], headers = {}) {
    const program = `${process.env.TERN_BUILD ?? 'build'}/tern`;
    const argv = ['serve', '-m', 'models/tern-tales.gguf', '--host', '127.0.0.1', '--port', '0', ...flags];
    const child = spawn(program, argv, { env: serverEnv(), stdio: ['ignore', 'pipe', 'pipe'] });
    let log = '';

    running.add(child);
    child.on('error', e => (log += e.message));
    child.on('exit', () => running.delete(child));
    for (const out of [child.stdout, child.stderr]) out.on('data', d => (log = (log + d).slice(-20000)));
    const url = await until(
        () => {
            if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}: ${log}`);
            return log.match(/https?:\/\/127\.0\.0\.1:\d+/)?.[0];
        },
        'the server prints its address',
        20000,
    );
    const s = new Server(child, url, headers);
    s.log = () => log;
    await until(async () => (await fetch(`${url}/ready`).catch(() => null))?.status === 200, 'ready', 120000);
    return s;
}

/* ---- bodies ---- */

export const model = 'tern-tales';
export const messages = [{ role: 'user', content: 'Tell me a story about a frog.' }];
/* Long enough to be abandoned halfway: the model's context is 512 tokens. */
export const long = { model, messages, max_tokens: 450, ignore_eos: true, temperature: 1, n: 8 };

/* Keeps a server busy with one stream until the returned function is called. */
export async function occupy(s, more = {}) {
    const abort = new AbortController();
    const r = await fetch(`${s.v1}/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...s.headers },
        body: JSON.stringify({ ...long, n: 1, stream: true, ...more }),
        signal: abort.signal,
    });
    assert.equal(r.status, 200, `${r.status}`);
    const reader = r.body.getReader();
    await reader.read();
    const rest = (async () => {
        while (!(await reader.read()).done);
    })().catch(() => {});
    return async () => {
        abort.abort();
        await rest;
    };
}

/* ---- comparing answers ---- */

/* Compares two greedy answers to one question, as lists of tokens with their top logprobs. The number of
 * tokens in a step selects the kernel, and so the rounding: the answers may differ where two tokens are equally
 * likely, and nowhere else. A sequence that reads another's keys would differ by far more. */
export function assertAlike(a, b) {
    const near = 0.25;
    const at = (list, i, token) => list[i].top_logprobs.find(t => t.token === token)?.logprob ?? -Infinity;
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
        const [x, y] = [a[i], b[i]];
        if (x.token !== y.token) {
            const gaps = [x.logprob - at(a, i, y.token), y.logprob - at(b, i, x.token)];
            assert.ok(Math.max(...gaps) < near, `token ${i}: '${x.token}' or '${y.token}', ${gaps} apart`);
            return;
        }
        const off = Math.abs(x.logprob - y.logprob);
        assert.ok(off < near, `token ${i} '${x.token}': ${x.logprob} and ${y.logprob}`);
    }
    assert.equal(a.length, b.length);
}
