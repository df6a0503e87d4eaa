// The same nine questions to every package: a text with its usage, a stream, tools (auto, required, named, parallel), an object
// by its schema, abort, retry. adapters.mjs says how each package is asked; where a package has no such feature it has a text
// that says so, and that is printed.

import { check, long, occupy, serve, until } from './harness.mjs';
import { adapters } from './adapters.mjs';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const zurich = { city: 'Zürich', days: 2 };

function checkUsage(usage) {
    assert.ok(usage.input > 0 && usage.output > 0, JSON.stringify(usage));
}

function checkObject(o) {
    assert.ok(Number.isInteger(o.n) && typeof o.ok === 'boolean', JSON.stringify(o));
}

/* Each cell: its name, and how it is tested. A cell gets the adapter of a package, open on the server with the scripted model
 * and the one of random text, and the same adapter with retries on a server that takes one request at a time. */
const cells = {
    text: async ({ client }) => {
        const r = await client.text('scripted', 'play hello');
        assert.equal(r.text, 'Hello, world.');
        checkUsage(r.usage);
    },
    stream: async ({ client }) => {
        const r = await client.stream('scripted', 'play hello');
        assert.equal(r.pieces.join(''), 'Hello, world.');
        assert.ok(r.pieces.filter(p => p).length > 1, `${r.pieces.length} pieces`);
        checkUsage(r.usage);
    },
    auto: async ({ client }) => {
        assert.deepEqual(await client.calls('scripted', 'play call', 'auto'), [{ name: 'get_weather', args: zurich }]);
    },
    required: async ({ client }) => {
        const calls = await client.calls('random', 'x', 'required');
        assert.ok(calls.length >= 1 && calls.every(c => ['get_weather', 'add'].includes(c.name)), JSON.stringify(calls));
        assert.ok(calls.every(c => typeof c.args === 'object'), JSON.stringify(calls));
    },
    named: async ({ client }) => {
        const calls = await client.calls('random', 'x', 'add');
        assert.ok(calls.length >= 1 && calls.every(c => c.name === 'add'), JSON.stringify(calls));
        assert.ok(calls.every(c => typeof c.args === 'object'), JSON.stringify(calls));
    },
    parallel: async ({ client }) => {
        assert.deepEqual(await client.calls('scripted', 'play two', 'auto'), [
            { name: 'get_weather', args: { city: 'Bern' } },
            { name: 'add', args: { a: 1, b: 2 } },
        ]);
    },
    structured: async ({ client }) => {
        checkObject(await client.object('random', 'x'));
    },
    abort: ({ client, server }) =>
        server.frees(ms => client.abort('tern-tales', 'Tell a story.', long.max_tokens, ms), client.sequences ?? 1),
    retry: async ({ narrow, patient }) => {
        await narrow.idle();
        const refused = async () => (await narrow.status()).requests.rejected.queue_full;
        const before = await refused();
        const release = await occupy(narrow);
        const asked = patient.object('tern-tales', 'Tell a story.');
        asked.catch(() => {}); /* awaited below */
        await until(async () => (await refused()) > before, 'it is refused', 60000);
        await release();
        checkObject(await asked);
    },
};

export default async function ({ narrow }) {
    const dir = mkdtempSync(join(tmpdir(), 'tern-matrix-'));
    const only = process.env.TERN_CLIENT; /* one package, while a test is being written */
    let server;
    try {
        assert.equal(spawnSync('python3', ['tests/scripted.py', join(dir, 'scripted')]).status, 0);
        assert.equal(spawnSync('python3', ['tests/scripted.py', '--random', join(dir, 'random'), 'hermes']).status, 0);
        server = await serve(['-m', join(dir, 'scripted'), '-m', join(dir, 'random')]);
        for (const [name, open] of Object.entries(adapters)) {
            if (only && !name.includes(only)) continue;
            const client = open(server, 0);
            const patient = open(narrow, 5);
            for (const [cell, test] of Object.entries(cells)) {
                if (client.lacks?.[cell]) console.log(`# ${name}: ${cell}: ${client.lacks[cell]}`);
                else await check(`${name}: ${cell}`, () => test({ client, server, narrow, patient }));
            }
        }
    } catch (e) {
        await check('matrix: the server starts', async () => Promise.reject(e));
    } finally {
        await server?.stop();
        rmSync(dir, { recursive: true, force: true });
    }
}
