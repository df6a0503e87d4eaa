// Responses, Messages and Ollama through their own clients, with a model that generates fixed texts and one of random
// weights (tests/scripted.py): streaming, tools (auto, required, named, parallel), structured output, abort, usage.

import { check, collect, serve, thrown } from './harness.mjs';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';
import { Ollama } from 'ollama';
import { ChatOpenAI } from '@langchain/openai';
import { ChatAnthropic } from '@langchain/anthropic';
import { ChatOllama, OllamaEmbeddings } from '@langchain/ollama';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { generateText, generateObject, streamText, stepCountIs, tool } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Agent, run, setDefaultOpenAIClient, setTracingDisabled, tool as agentTool } from '@openai/agents';
import { openai as llamaOpenAI } from '@llamaindex/openai';
import { tool as llamaTool } from 'llamaindex';
import { z } from 'zod';

const weather = {
    name: 'get_weather',
    description: 'Weather of a city.',
    parameters: {
        type: 'object',
        properties: { city: { type: 'string' }, days: { type: 'integer' } },
        required: ['city'],
    },
};
const add = { name: 'add', parameters: { type: 'object', properties: { a: {}, b: {} } } };
const schema = {
    type: 'object',
    properties: { n: { type: 'integer' }, ok: { type: 'boolean' } },
    required: ['n', 'ok'],
    additionalProperties: false,
};
const shape = z.object({ n: z.number().int(), ok: z.boolean() });
const zurich = { city: 'Zürich', days: 2 };

/* ---- openai: Responses ---- */

async function responses({ client, server }) {
    const tools = [weather, add].map(t => ({ type: 'function', strict: false, ...t }));
    const play = name => ({ model: 'scripted', input: `play ${name}` });

    await check('openai responses: a text, its usage and its id', async () => {
        const r = await client.responses.create(play('hello'));
        assert.equal(r.output_text, 'Hello, world.');
        assert.equal(r.status, 'completed');
        assert.equal(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens);
        assert.equal((await client.responses.retrieve(r.id)).output[0].id, r.output[0].id);
        assert.equal((await client.responses.inputItems.list(r.id)).data.length, 1);
        await client.responses.delete(r.id);
        await assert.rejects(client.responses.retrieve(r.id), e => e.status === 404);
    });
    await check('openai responses: the stream helper assembles the events', async () => {
        const stream = client.responses.stream({ ...play('call'), tools });
        const args = [];
        stream.on('response.function_call_arguments.delta', e => args.push(e.delta));
        const r = await stream.finalResponse();
        assert.deepEqual(r.output.map(o => o.type), ['reasoning', 'message', 'function_call']);
        assert.deepEqual(JSON.parse(args.join('')), zurich);
        assert.equal(r.output_text, 'Let me look.');
    });
    await check('openai responses: a tool loop by previous_response_id', async () => {
        const first = await client.responses.create({ ...play('call'), tools });
        const call = first.output.find(o => o.type === 'function_call');
        const second = await client.responses.create({
            model: 'scripted', tools, previous_response_id: first.id,
            input: [{ type: 'function_call_output', call_id: call.call_id, output: 'play hello' }],
        });
        assert.equal(second.output_text, 'Hello, world.');
    });
    await check('openai responses: parallel, required and named calls', async () => {
        const two = await client.responses.create({ ...play('two'), tools });
        assert.deepEqual(two.output.map(o => o.name), ['get_weather', 'add']);
        for (const tool_choice of ['required', { type: 'function', name: 'add' }]) {
            const r = await client.responses.create({
                model: 'random', input: 'x', tools, tool_choice, max_output_tokens: 400, parallel_tool_calls: false,
            });
            const calls = r.output.filter(o => o.type === 'function_call');
            assert.equal(calls.length, 1);
            assert.equal(typeof JSON.parse(calls[0].arguments), 'object');
        }
    });
    await check('openai responses: structured output is parsed', async () => {
        const r = await client.responses.parse({
            model: 'random', input: 'x', max_output_tokens: 300,
            text: { format: { type: 'json_schema', name: 's', schema, strict: true } },
        });
        assert.ok(shape.safeParse(r.output_parsed).success, r.output_text);
    });
    await check('openai responses: abort frees the request', async () => {
        await server.frees(async () => {
            const stream = await client.responses.create({
                model: 'tern-tales', input: 'Tell a story.', max_output_tokens: 450, ignore_eos: true, stream: true,
            });
            for await (const e of stream) if (e.type === 'response.output_text.delta') break;
        });
    });
    await check('openai responses: errors have type, param and code', async () => {
        const e = await thrown(client.responses.create({ model: 'scripted', input: 'x '.repeat(9000) }));
        assert.ok(e instanceof OpenAI.BadRequestError);
        assert.equal(e.code, 'context_length_exceeded');
        assert.equal(e.param, 'input');
    });
}

/* ---- @anthropic-ai/sdk ---- */

async function messages({ server }) {
    const client = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
    const tools = [weather, add].map(({ parameters, ...t }) => ({ ...t, input_schema: parameters }));
    const play = name => ({ model: 'scripted', max_tokens: 100, messages: [{ role: 'user', content: `play ${name}` }] });

    await check('anthropic: a text, and the tokens of a prompt', async () => {
        const m = await client.messages.create(play('hello'));
        assert.deepEqual(m.content, [{ type: 'text', text: 'Hello, world.' }]);
        assert.equal(m.stop_reason, 'end_turn');
        const { max_tokens, ...asked } = play('hello');
        const { input_tokens } = await client.messages.countTokens(asked);
        assert.equal(input_tokens, m.usage.input_tokens + m.usage.cache_read_input_tokens);
    });
    await check('anthropic: streamed blocks of thinking, text and tool use', async () => {
        const stream = client.messages.stream({ ...play('call'), tools });
        const json = [];
        stream.on('inputJson', d => json.push(d));
        const m = await stream.finalMessage();
        assert.deepEqual(m.content.map(b => b.type), ['thinking', 'text', 'tool_use']);
        assert.deepEqual(m.content[2].input, zurich);
        assert.deepEqual(JSON.parse(json.join('')), zurich);
        assert.ok(m.content[0].signature.length > 0);
        assert.equal(m.stop_reason, 'tool_use');
        const next = await client.messages.create({
            model: 'scripted', max_tokens: 100, tools,
            messages: [...play('call').messages, { role: 'assistant', content: m.content },
                { role: 'user', content: [{ type: 'tool_result', tool_use_id: m.content[2].id, content: 'play hello' }] }],
        });
        assert.equal(next.content[0].text, 'Hello, world.');
    });
    await check('anthropic: any, a named tool, and parallel calls', async () => {
        const two = await client.messages.create({ ...play('two'), tools });
        assert.deepEqual(two.content.map(b => b.name), ['get_weather', 'add']);
        for (const tool_choice of [{ type: 'any', disable_parallel_tool_use: true }, { type: 'tool', name: 'add' }]) {
            const m = await client.messages.create({
                model: 'random', max_tokens: 400, tools, tool_choice, messages: [{ role: 'user', content: 'x' }],
            });
            assert.equal(m.content.filter(b => b.type === 'tool_use').length, 1);
            assert.equal(m.stop_reason, 'tool_use');
        }
    });
    await check('anthropic: the second turn comes from the cache', async () => {
        const system = 'Always the same system prompt, long enough for some blocks. '.repeat(8);
        const first = await client.messages.create({ ...play('hello'), system });
        const second = await client.messages.create({
            ...play('hello'), system,
            messages: [...play('hello').messages, { role: 'assistant', content: first.content }, { role: 'user', content: 'play hello' }],
        });
        assert.ok(second.usage.cache_read_input_tokens > 300, JSON.stringify(second.usage));
        assert.ok(second.usage.input_tokens < 64, JSON.stringify(second.usage));
    });
    await check('anthropic: abort frees the request', async () => {
        await server.frees(async () => {
            const stream = client.messages.stream({
                model: 'tern-tales', max_tokens: 450, ignore_eos: true, messages: [{ role: 'user', content: 'Tell a story.' }],
            });
            for await (const e of stream) if (e.type === 'content_block_delta') break;
        });
    });
    await check('anthropic: errors are of the SDK\'s classes', async () => {
        const bad = await thrown(client.messages.create({ ...play('hello'), temperature: 9 }));
        assert.ok(bad instanceof Anthropic.BadRequestError);
        assert.equal(bad.error.error.type, 'invalid_request_error');
        assert.ok(bad.requestID);
        assert.ok((await thrown(client.messages.create({ ...play('hello'), model: 'none' }))) instanceof Anthropic.NotFoundError);
    });
}

/* ---- ollama ---- */

async function ollama({ server }) {
    const client = new Ollama({ host: server.url });
    const tools = [weather, add].map(fn => ({ type: 'function', function: fn }));
    const play = name => ({ model: 'scripted', messages: [{ role: 'user', content: `play ${name}` }] });

    await check('ollama: chat, whole and streamed', async () => {
        const whole = await client.chat(play('hello'));
        assert.equal(whole.message.content, 'Hello, world.');
        assert.ok(whole.done && whole.total_duration > 0 && whole.eval_count > 0);
        const parts = await collect(await client.chat({ ...play('hello'), stream: true }));
        assert.equal(parts.map(p => p.message.content).join(''), 'Hello, world.');
        assert.equal(parts.at(-1).done_reason, 'stop');
    });
    await check('ollama: thinking and tool calls', async () => {
        const parts = await collect(await client.chat({ ...play('call'), tools, stream: true, think: true }));
        assert.equal(parts.map(p => p.message.thinking ?? '').join(''), 'I need the weather.');
        const calls = parts.flatMap(p => p.message.tool_calls ?? []);
        assert.deepEqual(calls.map(c => c.function), [{ name: 'get_weather', arguments: zurich }]);
        const next = await client.chat({
            model: 'scripted', tools,
            messages: [...play('call').messages, { role: 'assistant', content: '', tool_calls: calls },
                { role: 'tool', tool_name: 'get_weather', content: 'play hello' }],
        });
        assert.equal(next.message.content, 'Hello, world.');
    });
    await check('ollama: a schema, generate, embeddings, and the lists', async () => {
        const r = await client.chat({ model: 'random', messages: [{ role: 'user', content: 'x' }], format: schema, options: { num_predict: 300 } });
        assert.ok(shape.safeParse(JSON.parse(r.message.content)).success, r.message.content);
        assert.equal((await client.generate({ model: 'scripted', prompt: 'play hello' })).response, 'Hello, world.');
        assert.equal((await client.embed({ model: 'tern-tales', input: ['a', 'b'] })).embeddings.length, 2);
        assert.ok((await client.list()).models.some(m => m.name === 'scripted:latest'));
        assert.ok((await client.ps()).models.length >= 2);
        assert.ok((await client.show({ model: 'scripted' })).capabilities.includes('tools'));
    });
    await check('ollama: abort frees the request, and errors are texts', async () => {
        await server.frees(async () => {
            const stream = await client.chat({
                model: 'tern-tales', stream: true, messages: [{ role: 'user', content: 'Tell a story.' }], options: { num_predict: 450 },
            });
            for await (const _ of stream) break;
            stream.abort();
        });
        const e = await thrown(client.chat({ ...play('hello'), model: 'none' }));
        assert.ok(e.message.includes('none') && !e.message.includes('[object'), e.message);
    });
}

/* ---- langchain ---- */

async function langchain({ server }) {
    const makers = {
        '@langchain/openai responses': more =>
            new ChatOpenAI({ apiKey: 'none', maxRetries: 0, useResponsesApi: true, configuration: { baseURL: server.v1 }, ...more }),
        '@langchain/anthropic': more => new ChatAnthropic({ apiKey: 'none', maxRetries: 0, maxTokens: 400, anthropicApiUrl: server.url, ...more }),
        '@langchain/ollama': more => new ChatOllama({ baseUrl: server.url, maxRetries: 0, ...more }),
    };
    const tools = [weather, add].map(fn => ({ type: 'function', function: fn }));

    for (const [name, make] of Object.entries(makers)) {
        await check(`${name}: a text, whole and streamed`, async () => {
            const model = make({ model: 'scripted' });
            assert.equal((await model.invoke('play hello')).text, 'Hello, world.');
            let all;
            for await (const chunk of await model.stream('play hello')) all = all ? all.concat(chunk) : chunk;
            assert.equal(all.text, 'Hello, world.');
            assert.ok(all.usage_metadata.total_tokens > 0);
        });
        await check(`${name}: a tool call and its result`, async () => {
            const model = make({ model: 'scripted' }).bindTools(tools);
            const asked = new HumanMessage('play call');
            const answer = await model.invoke([asked]);
            assert.deepEqual(answer.tool_calls.map(c => [c.name, c.args]), [['get_weather', zurich]]);
            let all;
            for await (const chunk of await model.stream([asked])) all = all ? all.concat(chunk) : chunk;
            assert.deepEqual(all.tool_calls.map(c => c.args), [zurich]);
            const result = new ToolMessage({ tool_call_id: answer.tool_calls[0].id, name: 'get_weather', content: 'play hello' });
            assert.equal((await model.invoke([asked, answer, result])).text, 'Hello, world.');
        });
    }
    await check('@langchain/anthropic: a forced call', async () => {
        const model = makers['@langchain/anthropic']({ model: 'random' }).bindTools(tools, { tool_choice: 'any' });
        assert.ok((await model.invoke('x')).tool_calls.length >= 1);
    });
    await check('@langchain/ollama: embeddings', async () => {
        const e = new OllamaEmbeddings({ model: 'tern-tales', baseUrl: server.url });
        assert.equal((await e.embedDocuments(['a', 'b'])).length, 2);
    });
}

/* ---- ai ---- */

async function vercel({ server }) {
    const makers = {
        '@ai-sdk/openai': createOpenAI({ baseURL: server.v1, apiKey: 'none' }),
        '@ai-sdk/anthropic': createAnthropic({ baseURL: server.v1, apiKey: 'none' }),
        '@ai-sdk/openai-compatible': createOpenAICompatible({ name: 'tern', baseURL: server.v1, supportsStructuredOutputs: true }),
    };

    for (const [name, provider] of Object.entries(makers)) {
        const asked = [];
        const get_weather = tool({
            description: 'Weather of a city.',
            inputSchema: z.object({ city: z.string(), days: z.number().int().optional() }),
            execute: async args => {
                asked.push(args);
                return 'play hello';
            },
        });
        await check(`${name}: a text, whole and streamed`, async () => {
            const whole = await generateText({ model: provider('scripted'), prompt: 'play hello', maxRetries: 0 });
            assert.equal(whole.text, 'Hello, world.');
            assert.ok(whole.usage.outputTokens > 0);
            const stream = streamText({ model: provider('scripted'), prompt: 'play hello', maxRetries: 0 });
            assert.equal((await collect(stream.textStream)).join(''), 'Hello, world.');
        });
        await check(`${name}: a tool runs and the answer continues`, async () => {
            asked.length = 0;
            const stream = streamText({
                model: provider('scripted'), prompt: 'play call', tools: { get_weather }, stopWhen: stepCountIs(1), maxRetries: 0,
            });
            const calls = await stream.toolCalls;
            assert.deepEqual(calls.map(c => c.input), [zurich]);
            const whole = await generateText({
                model: provider('scripted'), prompt: 'play call', tools: { get_weather }, stopWhen: stepCountIs(2), maxRetries: 0,
            });
            assert.equal(whole.steps.length, 2);
            assert.equal(asked.length, 2);
            assert.ok(whole.steps[1].finishReason, JSON.stringify(whole.steps[1].finishReason));
        });
        await check(`${name}: a required tool`, async () => {
            const r = await generateText({
                model: provider('random'), prompt: 'x', tools: { get_weather: { ...get_weather, execute: undefined } },
                toolChoice: 'required', maxOutputTokens: 400, maxRetries: 0,
            });
            assert.ok(r.toolCalls.length >= 1);
        });
        await check(`${name}: an object by its schema`, async () => {
            const { object } = await generateObject({ model: provider('random'), schema: shape, prompt: 'x', maxOutputTokens: 400, maxRetries: 0 });
            assert.ok(shape.safeParse(object).success);
        });
        await check(`${name}: abort frees the request`, async () => {
            await server.frees(async () => {
                const abort = new AbortController();
                const stream = streamText({
                    model: provider('tern-tales'), prompt: 'Tell a story.', maxOutputTokens: 450, abortSignal: abort.signal, maxRetries: 0,
                    onError: () => {},
                });
                for await (const _ of stream.textStream) {
                    abort.abort();
                    break;
                }
                await stream.consumeStream({ onError: () => {} });
            });
        });
    }
}

/* ---- @openai/agents, llamaindex ---- */

async function agents({ client }) {
    setTracingDisabled(true);
    setDefaultOpenAIClient(client);
    const asked = [];
    const get_weather = agentTool({
        name: 'get_weather', description: 'Weather of a city.', strict: false,
        parameters: { type: 'object', properties: weather.parameters.properties, required: ['city'], additionalProperties: true },
        execute: async args => {
            asked.push(args);
            return 'play hello';
        },
    });
    const agent = new Agent({ name: 'a', model: 'scripted', instructions: 'Be brief.', tools: [get_weather] });

    await check('@openai/agents: runs a tool and finishes', async () => {
        const result = await run(agent, 'play call');
        assert.equal(result.finalOutput, 'Hello, world.');
        assert.deepEqual(asked, [zurich]);
    });
    await check('@openai/agents: the same, streamed', async () => {
        const result = await run(agent, 'play call', { stream: true });
        for await (const _ of result);
        await result.completed;
        assert.equal(result.finalOutput, 'Hello, world.');
    });
}

async function llama({ server }) {
    const llm = llamaOpenAI({ model: 'scripted', apiKey: 'none', baseURL: server.v1, maxRetries: 0 });

    await check('llamaindex: a text, whole and streamed', async () => {
        const r = await llm.chat({ messages: [{ role: 'user', content: 'play hello' }] });
        assert.equal(r.message.content, 'Hello, world.');
        let text = '';
        for await (const chunk of await llm.chat({ messages: [{ role: 'user', content: 'play hello' }], stream: true })) text += chunk.delta;
        assert.equal(text, 'Hello, world.');
    });
    await check('llamaindex: a tool call', async () => {
        const get_weather = llamaTool({
            name: 'get_weather', description: 'Weather of a city.', parameters: z.object({ city: z.string(), days: z.number().optional() }),
            execute: () => 'sun',
        });
        const r = await llm.chat({ messages: [{ role: 'user', content: 'play call' }], tools: [get_weather] });
        assert.equal(r.message.options.toolCall[0].name, 'get_weather');
    });
}

export default async function () {
    const dir = mkdtempSync(join(tmpdir(), 'tern-protocols-'));
    let server;
    try {
        assert.equal(spawnSync('python3', ['tests/scripted.py', join(dir, 'scripted')]).status, 0);
        assert.equal(spawnSync('python3', ['tests/scripted.py', '--random', join(dir, 'random'), 'hermes']).status, 0);
        server = await serve(['-m', join(dir, 'scripted'), '-m', join(dir, 'random')]);
        const client = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries: 0 });
        for (const part of [responses, messages, ollama, langchain, vercel, agents, llama]) await part({ client, server });
    } catch (e) {
        await check('protocols: the server starts', async () => Promise.reject(e));
    } finally {
        await server?.stop();
        rmSync(dir, { recursive: true, force: true });
    }
}
