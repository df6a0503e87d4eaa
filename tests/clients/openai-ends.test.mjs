// The openai client: aborts, timeouts, cancels, shutdown.

import {
    assertAlike,
    check,
    long,
    messages,
    model,
    occupy,
    serve,
    sleep,
    thrown,
    until,
} from './harness.mjs';
import assert from 'node:assert/strict';
import OpenAI, { APIConnectionTimeoutError, APIError, APIUserAbortError } from 'openai';

/* Reads n chunks, then calls leave(); if that returns true the loop ends. */
async function readSome(stream, n, leave) {
    let seen = 0;
    for await (const _ of stream) if (++seen === n && leave()) break;
    return seen;
}

const open = (s, more) => new OpenAI({ baseURL: s.v1, apiKey: 'none', maxRetries: 0, ...more });
const endless = { ...long, stream: true };

export default async function ({ server, narrow }) {
    await leaving(server);
    await timing(server);
    await cancelling(server);
    await rejecting(narrow);
    await draining();
}

async function leaving(server) {
    const client = open(server);

    await check('openai: aborting a stream frees its sequences', () =>
        server.frees(async () => {
            const abort = new AbortController();
            const stream = await client.chat.completions.create(endless, { signal: abort.signal });
            const seen = await readSome(stream, 20, () => abort.abort());
            assert.ok(seen < 450, `${seen} pieces`);
        }, long.n),
    );
    await check('openai: breaking out of the loop frees its sequences', () =>
        server.frees(async () => {
            const stream = await client.chat.completions.create(endless);
            assert.equal(await readSome(stream, 20, () => true), 20);
        }, long.n),
    );
    await check('openai: stream.controller.abort() frees its sequences', () =>
        server.frees(async () => {
            const stream = await client.chat.completions.create(endless);
            await readSome(stream, 20, () => stream.controller.abort());
        }, long.n),
    );
    await check('openai: aborting a request without streaming frees its sequences', () =>
        server.frees(async () => {
            const abort = new AbortController();
            const asked = client.chat.completions.create(long, { signal: abort.signal });
            until(() => server.busy(), 'it runs', 60000).then(() => abort.abort());
            assert.ok((await thrown(asked)) instanceof APIUserAbortError);
        }, long.n),
    );
    await check('openai: an abort of a queued request removes it from the queue', async () => {
        const abort = new AbortController();
        const n = 8;
        const asked = client.chat.completions.create({ ...long, n: 16 }, { signal: abort.signal });
        const waits = client.chat.completions.create({ ...long, n }, { signal: abort.signal });
        await until(async () => (await server.status()).queue.waiting >= n, 'it waits', 60000);
        const gone = Promise.all([thrown(asked), thrown(waits)]);
        abort.abort();
        assert.ok((await gone).every(e => e instanceof APIUserAbortError));
        await server.idle();
    });
    await check('openai: other streams continue while one is aborted', async () => {
        const body = { model, messages, temperature: 0, max_tokens: 200, logprobs: true, top_logprobs: 5 };
        const ask = async () => (await client.chat.completions.create(body)).choices[0].logprobs.content;
        const alone = await ask();
        const both = ask();
        await readSome(await client.chat.completions.create(endless), 10, () => true);
        assertAlike(await both, alone);
    });
}

async function timing(server) {
    const client = open(server);

    await check('openai: the timeout of a client raises its error and cancels the request', () =>
        server.frees(async ms => {
            const e = await thrown(
                open(server, { timeout: ms }).chat.completions.create({ ...long, n: 16 }),
            );
            assert.ok(e instanceof APIConnectionTimeoutError, `${e.name}: ${e.message}`);
        }, 16),
    );
    await check('openai: the timeout of a request raises its error and cancels the request', () =>
        server.frees(async ms => {
            const e = await thrown(client.chat.completions.create({ ...long, n: 16 }, { timeout: ms }));
            assert.ok(e instanceof APIConnectionTimeoutError, `${e.name}: ${e.message}`);
        }, 16),
    );
    await check('openai: retries after a timeout do not accumulate', async () => {
        let most = 0,
            over = false;
        const watch = (async () => {
            while (!over) {
                most = Math.max(most, await server.busy());
                await sleep(20);
            }
        })();
        /* Where the time ends before a try arrives, on a busy machine, a longer one is used. */
        for (let ms = 150; ; ms *= 2) {
            await server.idle();
            const before = (await server.status()).requests;
            const patient = open(server, { timeout: ms, maxRetries: 2 });
            const e = await thrown(patient.chat.completions.create({ ...long, n: 16 }));
            assert.ok(e instanceof APIConnectionTimeoutError, `${e.name}: ${e.message}`);
            await server.idle();
            const after = (await server.status()).requests;
            if (after.submitted - before.submitted < 3 * 16 && ms < 20000) continue;
            assert.equal(after.submitted - before.submitted, 3 * 16, 'three tries');
            assert.equal(after.finished.cancelled - before.finished.cancelled, 3 * 16, 'each given up');
            break;
        }
        over = true;
        await watch;
        assert.ok(most <= 16, `${most} at once`);
    });
}

async function cancelling(server) {
    const client = open(server);

    await check('openai: a stream cancelled by its id throws, and a second cancel succeeds', async () => {
        const stream = await client.chat.completions.create(endless);
        const cancel = async id => {
            const r = await fetch(`${server.v1}/requests/${id}/cancel`, { method: 'POST' });
            return [r.status, (await r.json()).cancelled];
        };
        let id;
        const e = await thrown(
            (async () => {
                for await (const chunk of stream) {
                    if (!id) assert.deepEqual(await cancel((id = chunk.id)), [200, true]);
                }
            })(),
        );
        assert.ok(e instanceof APIError, `${e.name}: ${e.message}`);
        assert.equal(e.code, 'cancelled');
        assert.equal((await cancel(id))[0], 200);
        await server.idle();
        assert.deepEqual(await cancel(id), [200, false]);
    });
}

async function rejecting(narrow) {
    await check(
        'openai: without retries, a full server raises RateLimitError with 429, the error code and Retry-After',
        async () => {
            const release = await occupy(narrow);
            const e = await thrown(open(narrow).chat.completions.create({ model, messages, max_tokens: 4 }));
            await release();
            assert.ok(e instanceof OpenAI.RateLimitError, `${e.name}: ${e.message}`);
            assert.equal(e.status, 429);
            assert.equal(e.code, 'queue_full');
            assert.match(e.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
            await narrow.idle();
        },
    );
    await check(
        'openai: with retries it succeeds when there is room, after Retry-After',
        async () => {
            const release = await occupy(narrow);
            const tries = [];
            const watched = open(narrow, {
                maxRetries: 3,
                fetch: async (...args) => {
                    const r = await fetch(...args);
                    tries.push([performance.now(), r.status, Number(r.headers.get('retry-after'))]);
                    return r;
                },
            });
            const asked = watched.chat.completions.create({ model, messages, max_tokens: 4 });
            await until(() => tries.length, 'the first reply', 60000);
            await release();
            const r = await asked;
            assert.equal(r.usage.completion_tokens, 4);
            /* The place may be free a little later than the stream's end. */
            assert.equal(tries.at(-1)[1], 200);
            assert.ok(tries.length > 1 && tries.slice(0, -1).every(t => t[1] === 429), JSON.stringify(tries));
            const waited = tries[1][0] - tries[0][0];
            assert.ok(waited >= tries[0][2] * 1000 - 5, `${waited} ms, Retry-After ${tries[0][2]} s`);
        },
    );
    await check(
        'openai: four concurrent requests succeed on a server that runs one',
        async () => {
            const patient = open(narrow, { maxRetries: 20 });
            const all = await Promise.all(
                [0, 1, 2, 3].map(() => patient.chat.completions.create({ model, messages, max_tokens: 8 })),
            );
            assert.ok(all.every(r => r.usage.completion_tokens === 8));
        },
        60000,
    );
}

async function draining() {
    await check('openai: SIGTERM: streams are completed, new requests are rejected', async () => {
        const s = await serve();
        const last = open(s);
        const body = { ...endless, n: 4, max_tokens: 200 };
        const ends = [];
        let over, refused;
        for await (const { choices } of await last.chat.completions.create(body)) {
            if (!over) {
                over = s.stop();
                await until(
                    async () => (await fetch(`${s.url}/ready`).catch(() => null))?.status !== 200,
                    'draining',
                    1000,
                );
                refused = await thrown(last.chat.completions.create({ model, messages, max_tokens: 4 }));
            }
            for (const c of choices) if (c.finish_reason) ends.push(c.finish_reason);
        }
        assert.deepEqual(ends, Array(body.n).fill('length'));
        assert.ok(
            refused.status === 503 || refused instanceof OpenAI.APIConnectionError,
            `${refused.message}`,
        );
        if (refused.status) assert.equal(refused.code, 'shutting_down');
        assert.equal(await over, 0, s.log().slice(-500));
    });
}
