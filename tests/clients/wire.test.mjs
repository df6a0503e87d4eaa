// HTTP without a client library: headers, framing, connections.

import { check, long, messages, model, sleep } from './harness.mjs';
import assert from 'node:assert/strict';
import http from 'node:http';

export default async function ({ server }) {
    const short = { model, messages, max_tokens: 8, temperature: 0 };
    const post = (body, headers = {}, path = '/v1/chat/completions') =>
        fetch(server.url + path, {
            method: 'POST',
            headers: { 'content-type': 'application/json', ...headers },
            body: typeof body === 'string' ? body : JSON.stringify(body),
        });

    for (const stream of [false, true]) {
        const kind = stream ? 'a stream' : 'an answer';
        await check(`${kind} has the correlation id of the request`, async () => {
            const r = await post({ ...short, stream }, { 'X-Correlation-Id': 'tests.1:a-b_c' });
            await r.text();
            assert.equal(r.headers.get('x-correlation-id'), 'tests.1:a-b_c');
            assert.equal(r.headers.get('x-request-id'), 'tests.1:a-b_c');
        });
        await check(`${kind} has a generated correlation id`, async () => {
            const ids = [];
            for (let i = 0; i < 2; i++) {
                const r = await post({ ...short, stream });
                await r.text();
                assert.equal(r.headers.get('x-correlation-id'), r.headers.get('x-request-id'));
                ids.push(r.headers.get('x-request-id'));
            }
            assert.match(ids[0], /^[\w.:-]{8,}$/);
            assert.notEqual(ids[0], ids[1]);
        });
        await check(`${kind} returns traceparent`, async () => {
            const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
            const r = await post({ ...short, stream }, { traceparent });
            await r.text();
            const got = r.headers.get('traceparent');
            assert.equal(got?.slice(0, 35), traceparent.slice(0, 35));
        });
    }
    await check('an error has the correlation id in header and body', async () => {
        const r = await post({ ...short, model: 'nobody' }, { 'X-Correlation-Id': 'e-1' });
        const { error } = await r.json();
        assert.equal(r.headers.get('x-correlation-id'), 'e-1');
        assert.equal(error.correlation_id, 'e-1');
        assert.deepEqual(Object.keys(error).sort(), ['code', 'correlation_id', 'message', 'param', 'type']);
    });
    await check('an unknown field is ignored and named in a header', async () => {
        const r = await post({ ...short, colour: 'green' });
        assert.equal(r.status, 200);
        assert.match([...r.headers].find(([, v]) => v.includes('colour'))?.[0] ?? '', /ignored|warning/);
        await r.text();
    });
    await check('a JSON error has its position', async () => {
        const r = await post('{"model": "tern-tales", "messages": [}');
        const { error } = await r.json();
        assert.equal(r.status, 400);
        assert.equal(error.code, 'invalid_request');
        assert.match(error.message, /line 1|column|position|byte/);
    });

    /* The bytes of the body, chunk by chunk. */
    async function events(body) {
        const r = await post({ ...body, stream: true });
        const decoder = new TextDecoder();
        let text = '';
        for await (const chunk of r.body) {
            text += decoder.decode(chunk, { stream: true });
        }
        return { r, text };
    }

    await check('each event is one data line and a blank line, [DONE] is the last', async () => {
        const { r, text } = await events({
            ...short,
            max_tokens: 32,
            stream_options: { include_usage: true },
        });
        assert.equal(r.status, 200);
        assert.match(r.headers.get('content-type'), /^text\/event-stream/);
        assert.match(r.headers.get('cache-control') ?? '', /no-cache|no-store/);
        assert.ok(text.endsWith('\n\n'), `ends with ${JSON.stringify(text.slice(-20))}`);
        const all = text.slice(0, -2).split('\n\n');
        for (const e of all) assert.match(e, /^data: [^\n]+$/);
        assert.equal(all.pop(), 'data: [DONE]');
        const chunks = all.map(e => JSON.parse(e.slice(6)));
        assert.ok(chunks.length > 10, `${chunks.length} chunks`);
        assert.equal(new Set(chunks.map(c => c.id)).size, 1);
        assert.ok(chunks.every(c => c.object === 'chat.completion.chunk'));
        assert.equal(chunks.at(-1).usage.completion_tokens, 32);
    });
    await check('tokens are sent when they are generated', async () => {
        /* Some events must arrive while the request still runs. A loaded machine may delay the client: five tries. */
        for (let i = 0; i < 5; i++) {
            const { body } = await post({ ...long, stream: true });
            let reads = 0;
            for await (const _ of body) {
                if (++reads < 3) continue;
                if ((await server.busy()) > 0) return;
                break;
            }
            await server.idle();
        }
        assert.fail('the request had ended in five tries when its third event arrived');
    });

    await check('one connection carries replies, streams and errors', async () => {
        const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
        const sockets = new Set();
        const one = (path, body) =>
            new Promise((done, no) => {
                const q = http.request(
                    server.url + path,
                    { agent, method: body ? 'POST' : 'GET', headers: { 'content-type': 'application/json' } },
                    r => {
                        sockets.add(q.socket);
                        r.resume();
                        r.on('end', () => done(r.statusCode));
                        r.on('error', no);
                    },
                );
                q.on('error', no);
                q.end(body && JSON.stringify(body));
            });
        const chat = '/v1/chat/completions';
        const asked = [
            [chat, short, 200],
            [chat, { ...short, stream: true }, 200],
            [chat, { ...short, temperature: 'hot' }, 400],
            ['/v1/models', null, 200],
            [chat, { ...short, model: 'nobody' }, 404],
            ['/nowhere', null, 404],
            [chat, null, 405],
            ['/health', null, 200],
            [chat, { ...short, stream: true }, 200],
        ];
        for (const [path, body, status] of asked) {
            assert.equal(await one(path, body), status, `${path} ${JSON.stringify(body)}`);
            await sleep(1); // the agent takes the socket back in the next tick
        }
        assert.equal(sockets.size, 1, `${sockets.size} connections`);
        agent.destroy();
    });

    await check('a deadline in x-stainless-timeout ends the request with 504', async () => {
        await server.idle();
        const body = { ...long, n: 16 };
        const all = await Promise.all(
            [0, 1, 2, 3, 4, 5, 6, 7].map(() => post(body, { 'x-stainless-timeout': '1' })),
        );
        const codes = await Promise.all(
            all.map(async r => `${r.status} ${(await r.json()).error?.code ?? ''}`),
        );
        assert.ok(codes.includes('504 deadline_exceeded'), codes.join(', '));
        await server.idle();
    });
}
