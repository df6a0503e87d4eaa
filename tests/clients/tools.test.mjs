// Tool calls and reasoning, through openai and langchain, with a model that generates fixed texts (tests/scripted.py).

import { check, collect, serve } from './harness.mjs';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ChatOpenAI } from '@langchain/openai';
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

    await check('openai: a tool call without streaming', async () => {
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
    await check('openai: streamed tool calls are assembled by the helper', async () => {
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

// Forced calls of a model with random weights: with and without streaming, and through the helpers.
async function forcing({ client, model }) {
    const ask = more => ({
        model, tools, tool_choice: 'required', max_tokens: 400, seed: 3, temperature: 1,
        messages: [{ role: 'user', content: 'Weather?' }], ...more,
    });
    const shape = calls => calls.map(c => [c.function.name, c.function.arguments]);

    await check('openai: tool_choice required gives a call, equal with and without streaming', async () => {
        for (const seed of [1, 2, 3]) {
            const whole = await client.chat.completions.create(ask({ seed }));
            assert.equal(whole.choices[0].finish_reason, 'tool_calls');
            const calls = whole.choices[0].message.tool_calls;
            assert.ok(calls.length >= 1);
            for (const c of calls) assert.equal(typeof JSON.parse(c.function.arguments), 'object');
            const streamed = await client.chat.completions.stream(ask({ seed })).finalChatCompletion();
            assert.deepEqual(shape(streamed.choices[0].message.tool_calls), shape(calls));
            assert.equal(streamed.choices[0].finish_reason, 'tool_calls');
        }
    });
    await check('openai: streamed pieces of arguments add up', async () => {
        const stream = client.chat.completions.stream(ask({ parallel_tool_calls: false }));
        const pieces = [];
        let done;
        stream.on('tool_calls.function.arguments.delta', e => pieces.push(e.arguments_delta));
        stream.on('tool_calls.function.arguments.done', e => (done = e));
        const { choices } = await stream.finalChatCompletion();
        assert.ok(pieces.length > 3, `${pieces.length} pieces`);
        assert.equal(pieces.join(''), done.arguments);
        assert.equal(choices[0].message.tool_calls.length, 1);
        assert.equal(choices[0].message.tool_calls[0].function.arguments, done.arguments);
    });
    await check('openai: a named function is called once', async () => {
        const { choices } = await client.chat.completions.create(
            ask({ n: 3, tool_choice: { type: 'function', function: { name: 'add' } } }),
        );
        for (const c of choices) assert.deepEqual(c.message.tool_calls.map(t => t.function.name), ['add']);
    });
    await check('openai: an unknown function name is named in the error', async () => {
        await assert.rejects(
            client.chat.completions.create(ask({ tool_choice: { type: 'function', function: { name: 'nope' } } })),
            e => e.status === 400 && e.param === 'tool_choice' && e.message.includes('nope'),
        );
    });
}

async function chaining({ v1, model }) {
    const bind = more =>
        new ChatOpenAI({ model, apiKey: 'none', maxRetries: 0, maxTokens: 400, temperature: 1, configuration: { baseURL: v1 } })
            .bindTools(tools, { tool_choice: 'required', ...more });

    await check('langchain: a forced call without streaming', async () => {
        const { tool_calls, invalid_tool_calls } = await bind().invoke('Weather?');
        assert.ok(tool_calls.length >= 1 && !invalid_tool_calls?.length);
    });
    await check('langchain: a forced call assembled from a stream', async () => {
        let all;
        for await (const chunk of await bind({ parallel_tool_calls: false }).stream('Weather?'))
            all = all ? all.concat(chunk) : chunk;
        assert.equal(all.tool_calls.length, 1);
        assert.ok(['get_weather', 'add'].includes(all.tool_calls[0].name));
        assert.equal(all.tool_call_chunks.length, 1);
        assert.deepEqual(all.tool_calls[0].args, JSON.parse(all.tool_call_chunks[0].args));
    });
}

async function looping({ client, model }) {
    await check('openai: runTools runs the tool and continues', async () => {
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
        assert.equal(spawnSync('python3', ['tests/scripted.py', '--random', join(dir, 'random'), 'hermes']).status, 0);
        server = await serve(['-m', join(dir, 'scripted'), '-m', join(dir, 'random')]);
        const client = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries: 0 });
        await calling({ client, model: 'scripted' });
        await looping({ client, model: 'scripted' });
        await forcing({ client, model: 'random' });
        await chaining({ v1: server.v1, model: 'random' });
    } catch (e) {
        await check('tools: the server starts', async () => Promise.reject(e));
    } finally {
        await server?.stop();
        rmSync(dir, { recursive: true, force: true });
    }
}
