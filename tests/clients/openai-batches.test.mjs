// The openai client: files and batches.

import { check, model, thrown, until } from './harness.mjs';
import assert from 'node:assert/strict';
import OpenAI, { toFile } from 'openai';

const endpoint = '/v1/chat/completions';

const lineOf = (id, body) =>
    JSON.stringify({
        custom_id: id,
        method: 'POST',
        url: endpoint,
        body: { model, messages: [{ role: 'user', content: 'Hello' }], temperature: 0, max_tokens: 6, ...body },
    });

export default async function ({ server }) {
    const client = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries: 0 });
    const upload = async text =>
        client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' });
    const start = async text =>
        client.batches.create({
            input_file_id: (await upload(text)).id,
            endpoint,
            completion_window: '24h',
            metadata: { from: 'openai' },
        });
    const end = id =>
        until(
            async () => {
                const b = await client.batches.retrieve(id);
                return ['completed', 'failed', 'expired', 'cancelled'].includes(b.status) && b;
            },
            `the end of ${id}`,
            60000,
        );

    await check('openai: a file is uploaded, listed, read and deleted', async () => {
        const text = 'one line\n'.repeat(20000);
        const file = await upload(text);
        assert.equal(file.object, 'file');
        assert.equal(file.bytes, text.length);
        assert.equal(file.filename, 'in.jsonl');
        assert.deepEqual(await client.files.retrieve(file.id), file);
        const ids = [];
        for await (const f of client.files.list({ limit: 2 })) ids.push(f.id);
        assert.ok(ids.includes(file.id));
        assert.equal(await (await client.files.content(file.id)).text(), text);
        assert.deepEqual(await client.files.delete(file.id), { id: file.id, object: 'file', deleted: true });
        assert.equal((await thrown(client.files.retrieve(file.id))).status, 404);
    });

    await check(
        'openai: a batch is completed',
        async () => {
            const text = [...Array(12).keys()].map(i => lineOf(`c${i}`, i === 5 ? { temperature: 99 } : {})).join('\n');
            const made = await start(text);
            assert.equal(made.object, 'batch');
            assert.deepEqual(made.metadata, { from: 'openai' });
            const b = await end(made.id);
            assert.equal(b.status, 'completed');
            assert.deepEqual(b.request_counts, { total: 12, completed: 11, failed: 1 });
            const out = (await (await client.files.content(b.output_file_id)).text()).trim().split('\n').map(JSON.parse);
            const bad = (await (await client.files.content(b.error_file_id)).text()).trim().split('\n').map(JSON.parse);
            assert.deepEqual(out.map(r => r.custom_id).sort(), [...Array(12).keys()].filter(i => i !== 5).map(i => `c${i}`).sort());
            assert.ok(out.every(r => r.response.body.choices[0].message.role === 'assistant'));
            assert.equal(bad[0].custom_id, 'c5');
            assert.equal(bad[0].response.status_code, 400);
            const ids = [];
            for await (const x of client.batches.list({ limit: 1 })) ids.push(x.id);
            assert.ok(ids.includes(b.id));
        },
        90000,
    );

    await check(
        'openai: a batch is cancelled, and one with wrong lines fails',
        async () => {
            const long = [...Array(50).keys()].map(i => lineOf(`c${i}`, { max_tokens: 450, ignore_eos: true })).join('\n');
            const made = await start(long);
            assert.ok(['cancelling', 'cancelled'].includes((await client.batches.cancel(made.id)).status));
            assert.equal((await end(made.id)).status, 'cancelled');
            const failed = await end((await start('{"custom_id": 1}')).id);
            assert.equal(failed.status, 'failed');
            assert.equal(failed.errors.data[0].line, 1);
            const e = await thrown(
                client.batches.create({ input_file_id: 'file-none', endpoint, completion_window: '24h' }),
            );
            assert.equal(e.status, 404);
        },
        90000,
    );
}
