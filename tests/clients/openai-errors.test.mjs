// The openai client: errors are raised as the right class, with a code and the field.

import { check, messages, model, occupy, serve, thrown } from './harness.mjs';
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';

function checkError(e, kind, status, code, param) {
    assert.ok(e instanceof kind, `${e.name}: ${e.message}`);
    assert.equal(e.status, status);
    assert.equal(e.code, code);
    if (param !== undefined) assert.equal(e.param, param);
    assert.ok(e.requestID, 'no x-request-id');
    assert.ok(e.type, 'no type');
}

export default async function ({ server }) {
    const client = new OpenAI({ baseURL: server.v1, apiKey: 'none' });
    const chat = body => client.chat.completions.create({ model, messages, max_tokens: 4, ...body });

    await check('openai: an unknown model raises NotFoundError', async () => {
        checkError(
            await thrown(chat({ model: 'nobody' })),
            OpenAI.NotFoundError,
            404,
            'model_not_found',
            'model',
        );
        const e = await thrown(client.models.retrieve('nobody'));
        checkError(e, OpenAI.NotFoundError, 404, 'model_not_found');
    });
    const wrong = [
        ['temperature', 'hot'],
        ['max_tokens', '10'],
        ['max_tokens', -2],
        ['n', 0],
        ['top_p', 2],
        ['stream', 'yes'],
        ['stop', 5],
        ['seed', 'x'],
        ['messages', 'hello'],
        ['messages', []],
        ['top_logprobs', 99],
    ];
    for (const [field, value] of wrong)
        await check(
            `openai: ${field} ${JSON.stringify(value)} raises BadRequestError with the field`,
            async () => {
                const e = await thrown(chat({ [field]: value }));
                checkError(e, OpenAI.BadRequestError, 400, 'invalid_request', field);
                assert.ok(e.message.includes(field), e.message);
            },
        );
    await check('openai: a message without a role raises BadRequestError with its path', async () => {
        const e = await thrown(chat({ messages: [messages[0], { content: 'x' }] }));
        checkError(e, OpenAI.BadRequestError, 400, 'invalid_request');
        assert.match(e.param, /messages\[1\]/);
    });
    await check('openai: a prompt over the context raises BadRequestError with the limit', async () => {
        const e = await thrown(chat({ messages: [{ role: 'user', content: 'frog '.repeat(900) }] }));
        checkError(e, OpenAI.BadRequestError, 400, 'context_length_exceeded');
        assert.match(e.message, /\b512\b/);
        assert.ok(
            e.message.match(/\d+/g).some(n => Number(n) > 512),
            e.message,
        );
    });
    await check('openai: an error before a stream is raised', async () => {
        const e = await thrown(chat({ stream: true, temperature: 'hot' }));
        checkError(e, OpenAI.BadRequestError, 400, 'invalid_request', 'temperature');
    });
    await keys();
}

async function keys() {
    const dir = await mkdtemp(join(tmpdir(), 'tern-clients-'));
    const file = join(dir, 'keys');
    await writeFile(file, 'sk-first name=first\nsk-second name=second concurrency=1\n', { mode: 0o600 });
    const s = await serve(['--api-key-file', file], { Authorization: 'Bearer sk-first' });
    const with_ = (apiKey, more) => new OpenAI({ baseURL: s.v1, apiKey, maxRetries: 0, ...more });
    const ask = c => c.chat.completions.create({ model, messages, max_tokens: 4 });

    await check('openai: a wrong key raises AuthenticationError', async () => {
        checkError(await thrown(ask(with_('sk-wrong'))), OpenAI.AuthenticationError, 401, 'unauthorized');
        checkError(
            await thrown(with_('sk-wrong').models.list()),
            OpenAI.AuthenticationError,
            401,
            'unauthorized',
        );
    });
    await check('openai: the key as Bearer', async () => {
        assert.equal((await ask(with_('sk-first'))).usage.completion_tokens, 4);
    });
    await check('openai: the key as x-api-key', async () => {
        const defaultHeaders = { 'x-api-key': 'sk-second', Authorization: null };
        assert.equal((await ask(with_('none', { defaultHeaders }))).usage.completion_tokens, 4);
    });
    await check('openai: a key over its concurrency raises RateLimitError, others are served', async () => {
        const release = await occupy({ v1: s.v1, headers: { Authorization: 'Bearer sk-second' } });
        const e = await thrown(ask(with_('sk-second')));
        const other = await ask(with_('sk-first'));
        await release();
        checkError(e, OpenAI.RateLimitError, 429, 'concurrency_limit');
        assert.equal(other.usage.completion_tokens, 4);
        await s.idle();
    });
    await check('/health and /ready need no key', async () => {
        for (const path of ['/health', '/ready']) assert.equal((await fetch(s.url + path)).status, 200);
        assert.equal((await fetch(`${s.url}/status`)).status, 401);
    });
    await check('keys are not logged', async () => {
        assert.ok(!/sk-(first|second|wrong)/.test(s.log()), 'a key in the log');
    });
    await s.stop();
    await rm(dir, { recursive: true });
}
