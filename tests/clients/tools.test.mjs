// Tool calls and reasoning, through openai and ai, with a model that says what it is told to (tests/scripted.py).

import { check, collect, serve } from './harness.mjs';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';

const tools = [
    {
        type: 'function',
        function: {
            name: 'get_weather',
            description: 'Weather of a city.',
            parameters: {
                type: 'object',
                properties: { city: { type: 'string' }, days: { type: 'integer' } },
                required: ['city'],
            },
        },
    },
    { type: 'function', function: { name: 'add', parameters: { type: 'object', properties: { a: {}, b: {} } } } },
];

async function calling({ client, model }) {
    const play = name => ({ model, tools, messages: [{ role: 'user', content: `play ${name}` }] });

    await check('openai: a tool call comes whole', async () => {
        const { choices } = await client.chat.completions.create(play('call'));
        const { message, finish_reason } = choices[0];
        assert.equal(finish_reason, 'tool_calls');
        assert.equal(message.content, 'Let me look.');
        assert.equal(message.reasoning_content, 'I need the weather.');
        assert.equal(message.tool_calls.length, 1);
        assert.equal(message.tool_calls[0].type, 'function');
        assert.equal(message.tool_calls[0].function.name, 'get_weather');
        assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: 'Zürich', days: 2 });
    });
    await check('openai: tool calls stream, and the helper puts them together', async () => {
        const stream = client.chat.completions.stream(play('two'));
        const done = [];
        stream.on('tool_calls.function.arguments.done', e => done.push([e.index, e.name, e.arguments]));
        const { choices } = await stream.finalChatCompletion();
        assert.equal(choices[0].finish_reason, 'tool_calls');
        assert.deepEqual(
            choices[0].message.tool_calls.map(c => [c.function.name, JSON.parse(c.function.arguments)]),
            [
                ['get_weather', { city: 'Bern' }],
                ['add', { a: 1, b: 2 }],
            ],
        );
        assert.deepEqual(done.map(d => d[1]), ['get_weather', 'add']);
    });
    await check('openai: chunks of a call have an index, an id and no text', async () => {
        const chunks = await collect(await client.chat.completions.create({ ...play('two'), stream: true }));
        const parts = chunks.flatMap(c => c.choices[0]?.delta.tool_calls ?? []);
        assert.deepEqual([...new Set(parts.map(p => p.index))], [0, 1]);
        assert.equal(new Set(parts.map(p => p.id).filter(Boolean)).size, 2);
        assert.equal(chunks.map(c => c.choices[0]?.delta.content ?? '').join(''), '');
    });
}

async function looping({ client, model }) {
    await check('openai: runTools calls, answers and goes on', async () => {
        const asked = [];
        const runner = client.chat.completions.runTools({
            model,
            messages: [{ role: 'user', content: 'play call' }],
            tools: [
                {
                    type: 'function',
                    function: {
                        ...tools[0].function,
                        parse: JSON.parse,
                        function: args => {
                            asked.push(args);
                            return 'play hello';
                        },
                    },
                },
            ],
        });
        assert.equal(await runner.finalContent(), 'Hello, world.');
        assert.deepEqual(asked, [{ city: 'Zürich', days: 2 }]);
    });
}

export default async function () {
    const dir = mkdtempSync(join(tmpdir(), 'tern-scripted-'));
    const made = spawnSync('python3', ['tests/scripted.py', join(dir, 'scripted')], { encoding: 'utf8' });
    let server;
    try {
        assert.equal(made.status, 0, made.stderr);
        server = await serve(['-m', join(dir, 'scripted')]);
        const client = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries: 0 });
        await calling({ client, model: 'scripted' });
        await looping({ client, model: 'scripted' });
    } catch (e) {
        await check('tools: the server starts', async () => Promise.reject(e));
    } finally {
        await server?.stop();
        rmSync(dir, { recursive: true, force: true });
    }
}
