// One small interface over every package, for matrix.test.mjs. An adapter is opened on a server with a number of retries:
//   text(model, prompt)               { text, usage: { input, output } }
//   stream(model, prompt)             { pieces, usage }
//   calls(model, prompt, choice)      [{ name, args }]; choice: 'auto', 'required' or the name of a tool
//   object(model, prompt)             the object, as the package parsed it
//   abort(model, prompt, max, ms)     begins a long answer and abandons it; ms: a time limit, where there is no other way
//   sequences                         how many sequences that answer has, if not 1
//   lacks: { cell: reason }           what the package itself does not have

import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { Ollama } from 'ollama';
import { ChatOpenAI } from '@langchain/openai';
import { ChatAnthropic } from '@langchain/anthropic';
import { ChatOllama } from '@langchain/ollama';
import { Output, generateText, streamText, tool } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool as agentTool } from '@openai/agents';
import { openai as llamaOpenAI } from '@llamaindex/openai';
import { tool as llamaTool } from 'llamaindex';
import { z } from 'zod';
import { collect, thrown } from './harness.mjs';

const inputs = {
    get_weather: z.object({ city: z.enum(['Zürich', 'Bern']), days: z.number().int().optional() }),
    add: z.object({ a: z.number(), b: z.number() }),
};
const functions = [
    {
        name: 'get_weather',
        description: 'Weather of a city.',
        parameters: {
            type: 'object',
            properties: { city: { enum: ['Zürich', 'Bern'] }, days: { type: 'integer' } },
            required: ['city'],
        },
    },
    {
        name: 'add',
        description: 'The sum of two numbers.',
        parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
    },
];
const chatTools = functions.map(fn => ({ type: 'function', function: fn }));
const shape = z.object({ n: z.number().int(), ok: z.boolean() });
const user = content => [{ role: 'user', content }];
const most = 200; /* tokens of an answer that a grammar must end */

/* ---- openai ---- */

function openaiChat(server, maxRetries) {
    const chat = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries }).chat.completions;
    const usage = u => ({ input: u.prompt_tokens, output: u.completion_tokens });
    const choices = { auto: 'auto', required: 'required' };
    return {
        text: async (model, prompt) => {
            const r = await chat.create({ model, messages: user(prompt), max_tokens: 100 });
            return { text: r.choices[0].message.content, usage: usage(r.usage) };
        },
        stream: async (model, prompt) => {
            const chunks = await collect(
                await chat.create({ model, messages: user(prompt), stream: true, stream_options: { include_usage: true } }),
            );
            return { pieces: chunks.map(c => c.choices[0]?.delta.content ?? ''), usage: usage(chunks.at(-1).usage) };
        },
        calls: async (model, prompt, choice) => {
            const r = await chat.create({
                model, messages: user(prompt), tools: chatTools, max_tokens: most,
                tool_choice: choices[choice] ?? { type: 'function', function: { name: choice } },
            });
            return r.choices[0].message.tool_calls.map(c => ({ name: c.function.name, args: JSON.parse(c.function.arguments) }));
        },
        object: async (model, prompt) => {
            const r = await chat.parse({
                model, messages: user(prompt), max_tokens: most, response_format: zodResponseFormat(shape, 'shape'),
            });
            return r.choices[0].message.parsed;
        },
        abort: async (model, prompt, max_tokens) => {
            const stream = await chat.create({ model, messages: user(prompt), max_tokens, ignore_eos: true, stream: true });
            for await (const _ of stream) break;
        },
    };
}

function openaiResponses(server, maxRetries) {
    const { responses } = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries });
    const usage = u => ({ input: u.input_tokens, output: u.output_tokens });
    const tools = functions.map(fn => ({ type: 'function', strict: false, ...fn }));
    const choices = { auto: 'auto', required: 'required' };
    return {
        text: async (model, input) => {
            const r = await responses.create({ model, input, max_output_tokens: 100 });
            return { text: r.output_text, usage: usage(r.usage) };
        },
        stream: async (model, input) => {
            const events = await collect(await responses.create({ model, input, stream: true }));
            return {
                pieces: events.filter(e => e.type === 'response.output_text.delta').map(e => e.delta),
                usage: usage(events.at(-1).response.usage),
            };
        },
        calls: async (model, input, choice) => {
            const r = await responses.create({
                model, input, tools, max_output_tokens: most, tool_choice: choices[choice] ?? { type: 'function', name: choice },
            });
            const calls = r.output.filter(o => o.type === 'function_call');
            return calls.map(c => ({ name: c.name, args: JSON.parse(c.arguments) }));
        },
        object: async (model, input) => {
            const r = await responses.parse({ model, input, max_output_tokens: most, text: { format: zodTextFormat(shape, 'shape') } });
            return r.output_parsed;
        },
        abort: async (model, input, max_output_tokens) => {
            const stream = await responses.create({ model, input, max_output_tokens, ignore_eos: true, stream: true });
            for await (const e of stream) if (e.type === 'response.output_text.delta') break;
        },
    };
}

/* ---- @anthropic-ai/sdk ---- */

function anthropic(server, maxRetries) {
    const { messages } = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries });
    const usage = u => ({ input: u.input_tokens + u.cache_read_input_tokens, output: u.output_tokens });
    const tools = functions.map(({ parameters, ...fn }) => ({ ...fn, input_schema: parameters }));
    const choices = { auto: { type: 'auto' }, required: { type: 'any' } };
    return {
        text: async (model, prompt) => {
            const m = await messages.create({ model, messages: user(prompt), max_tokens: 100 });
            return { text: m.content[0].text, usage: usage(m.usage) };
        },
        stream: async (model, prompt) => {
            const pieces = [];
            const stream = messages.stream({ model, messages: user(prompt), max_tokens: 100 }).on('text', t => pieces.push(t));
            return { pieces, usage: usage((await stream.finalMessage()).usage) };
        },
        calls: async (model, prompt, choice) => {
            const m = await messages.create({
                model, messages: user(prompt), tools, max_tokens: most, tool_choice: choices[choice] ?? { type: 'tool', name: choice },
            });
            return m.content.filter(b => b.type === 'tool_use').map(b => ({ name: b.name, args: b.input }));
        },
        object: async (model, prompt) => {
            const m = await messages.parse({
                model, messages: user(prompt), max_tokens: most, output_config: { format: zodOutputFormat(shape) },
            });
            return m.parsed_output;
        },
        abort: async (model, prompt, max_tokens) => {
            const stream = messages.stream({ model, messages: user(prompt), max_tokens, ignore_eos: true });
            for await (const e of stream) if (e.type === 'content_block_delta') break;
        },
    };
}

/* ---- ollama ---- */

function ollama(server) {
    const client = new Ollama({ host: server.url });
    const usage = r => ({ input: r.prompt_eval_count, output: r.eval_count });
    return {
        text: async (model, prompt) => {
            const r = await client.chat({ model, messages: user(prompt) });
            return { text: r.message.content, usage: usage(r) };
        },
        stream: async (model, prompt) => {
            const parts = await collect(await client.chat({ model, messages: user(prompt), stream: true }));
            return { pieces: parts.map(p => p.message.content), usage: usage(parts.at(-1)) };
        },
        calls: async (model, prompt) => {
            const r = await client.chat({ model, messages: user(prompt), tools: chatTools });
            return r.message.tool_calls.map(c => ({ name: c.function.name, args: c.function.arguments }));
        },
        object: async (model, prompt) => {
            const format = z.toJSONSchema(shape);
            const r = await client.chat({ model, messages: user(prompt), format, options: { num_predict: most } });
            return JSON.parse(r.message.content);
        },
        abort: async (model, prompt, num_predict) => {
            const stream = await client.chat({ model, messages: user(prompt), stream: true, options: { num_predict } });
            for await (const _ of stream) break;
            stream.abort();
        },
        lacks: {
            required: 'Ollama\'s API has no tool_choice',
            named: 'Ollama\'s API has no tool_choice',
            retry: 'the package does not retry',
        },
    };
}

/* ---- LangChain ---- */

/* required: the package's word for "some tool"; structured: how it asks for an object, undefined: its default. */
function langchain(make, { required = 'required', structured, lacks } = {}) {
    const usage = u => ({ input: u.input_tokens, output: u.output_tokens });
    return {
        text: async (model, prompt) => {
            const r = await make(model, 100).invoke(prompt);
            return { text: r.text, usage: usage(r.usage_metadata) };
        },
        stream: async (model, prompt) => {
            const chunks = await collect(await make(model, 100).stream(prompt));
            return { pieces: chunks.map(c => c.text), usage: usage(chunks.reduce((a, b) => a.concat(b)).usage_metadata) };
        },
        calls: async (model, prompt, choice) => {
            const tool_choice = choice === 'required' ? required : choice;
            const bound = make(model, most).bindTools(chatTools, choice === 'auto' ? {} : { tool_choice });
            return (await bound.invoke(prompt)).tool_calls.map(c => ({ name: c.name, args: c.args }));
        },
        object: (model, prompt) => make(model, most).withStructuredOutput(shape, structured).invoke(prompt),
        abort: async (model, prompt, max) => {
            const abort = new AbortController();
            try {
                for await (const _ of await make(model, max).stream(prompt, { signal: abort.signal })) abort.abort();
            } catch (e) {
                if (!/abort/i.test(`${e.name} ${e.message}`)) throw e;
            }
        },
        lacks,
    };
}

function langchainOpenAI(useResponsesApi) {
    return (server, maxRetries) =>
        langchain((model, maxTokens) => new ChatOpenAI({
            model, maxTokens, maxRetries, useResponsesApi, apiKey: 'none', configuration: { baseURL: server.v1 },
            ...(model === 'tern-tales' && { modelKwargs: { ignore_eos: true } }),
        }), { lacks: useResponsesApi && { required: 'with Responses the package leaves "required" out of what it sends' } });
}

function langchainAnthropic(structured) {
    return (server, maxRetries) =>
        langchain(
            (model, maxTokens) => new ChatAnthropic({
                model, maxTokens, maxRetries, apiKey: 'none', anthropicApiUrl: server.url,
                ...(model === 'tern-tales' && { invocationKwargs: { ignore_eos: true } }),
            }),
            { required: 'any', structured },
        );
}

function langchainOllama(server, maxRetries) {
    return langchain((model, numPredict) => new ChatOllama({ model, numPredict, maxRetries, baseUrl: server.url }), {
        lacks: {
            required: 'Ollama\'s API has no tool_choice',
            named: 'Ollama\'s API has no tool_choice',
            abort: 'the package stops reading and leaves the connection open',
            retry: 'the package does not retry a chat',
        },
    });
}

/* ---- ai ---- */

function vercel(provide) {
    return (server, maxRetries) => {
        const provider = provide(server);
        const tools = Object.fromEntries(functions.map(fn => [fn.name, tool({ description: fn.description, inputSchema: inputs[fn.name] })]));
        const usage = u => ({ input: u.inputTokens, output: u.outputTokens });
        return {
            text: async (model, prompt) => {
                const r = await generateText({ model: provider(model), prompt, maxOutputTokens: 100, maxRetries });
                return { text: r.text, usage: usage(r.usage) };
            },
            stream: async (model, prompt) => {
                const r = streamText({ model: provider(model), prompt, maxOutputTokens: 100, maxRetries });
                return { pieces: await collect(r.textStream), usage: usage(await r.usage) };
            },
            calls: async (model, prompt, choice) => {
                const toolChoice = ['auto', 'required'].includes(choice) ? choice : { type: 'tool', toolName: choice };
                const r = await generateText({ model: provider(model), prompt, tools, toolChoice, maxOutputTokens: most, maxRetries });
                return r.toolCalls.map(c => ({ name: c.toolName, args: c.input }));
            },
            object: async (model, prompt) => {
                const output = Output.object({ schema: shape });
                const r = await generateText({ model: provider(model), prompt, output, maxOutputTokens: most, maxRetries });
                return r.output;
            },
            abort: async (model, prompt, maxOutputTokens) => {
                const abort = new AbortController();
                const r = streamText({
                    model: provider(model), prompt, maxOutputTokens, maxRetries, abortSignal: abort.signal, onError: () => {},
                });
                for await (const _ of r.textStream) abort.abort();
            },
        };
    };
}

/* ---- @openai/agents ---- */

function agents(useResponses) {
    return (server, maxRetries) => {
        setTracingDisabled(true);
        const openAIClient = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries });
        const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses }) });
        const agent = (model, maxTokens, more = {}) =>
            new Agent({ name: 'a', instructions: 'Be brief.', ...more, model, modelSettings: { maxTokens, ...more.modelSettings } });
        const usage = u => ({ input: u.inputTokens, output: u.outputTokens });
        return {
            text: async (model, prompt) => {
                const r = await runner.run(agent(model, 100), prompt);
                return { text: r.finalOutput, usage: usage(r.runContext.usage) };
            },
            stream: async (model, prompt) => {
                const r = await runner.run(agent(model, 100), prompt, { stream: true });
                const pieces = await collect(r.toTextStream());
                await r.completed;
                return { pieces, usage: usage(r.runContext.usage) };
            },
            calls: async (model, prompt, toolChoice) => {
                const made = [];
                const tools = functions.map(fn =>
                    agentTool({
                        ...fn, strict: false, parameters: { ...fn.parameters, additionalProperties: true },
                        execute: args => {
                            made.push({ name: fn.name, args });
                            return 'play hello';
                        },
                    }),
                );
                await runner.run(agent(model, most, { tools, toolUseBehavior: 'stop_on_first_tool', modelSettings: { toolChoice } }), prompt);
                return made;
            },
            object: async (model, prompt) => (await runner.run(agent(model, most, { outputType: shape }), prompt)).finalOutput,
            abort: async (model, prompt, max) => {
                const abort = new AbortController();
                const endless = { modelSettings: { providerData: { ignore_eos: true } } };
                const r = await runner.run(agent(model, max, endless), prompt, { stream: true, signal: abort.signal });
                try {
                    for await (const e of r) if (e.type === 'raw_model_stream_event' && e.data.type === 'output_text_delta') abort.abort();
                    await r.completed;
                } catch (e) {
                    if (!/abort/i.test(`${e.name} ${e.message}`)) throw e;
                }
            },
        };
    };
}

/* ---- llamaindex ---- */

function llamaindex(server, maxRetries) {
    const open = (model, maxTokens, additionalChatOptions, more) =>
        llamaOpenAI({ model, maxTokens, maxRetries, apiKey: 'none', baseURL: server.v1, additionalChatOptions, ...more });
    const choices = { auto: 'auto', required: 'required' };
    const tools = functions.map(fn =>
        llamaTool({ name: fn.name, description: fn.description, parameters: inputs[fn.name], execute: () => 'play hello' }),
    );
    const usage = u => ({ input: u.prompt_tokens, output: u.completion_tokens });
    return {
        text: async (model, prompt) => {
            const r = await open(model, 100).chat({ messages: user(prompt) });
            return { text: r.message.content, usage: usage(r.raw.usage) };
        },
        stream: async (model, prompt) => {
            const more = { stream_options: { include_usage: true } };
            const chunks = await collect(await open(model, 100, more).chat({ messages: user(prompt), stream: true }));
            return { pieces: chunks.map(c => c.delta), usage: usage(chunks.at(-1).raw.usage) };
        },
        calls: async (model, prompt, choice) => {
            const tool_choice = choices[choice] ?? { type: 'function', function: { name: choice } };
            const r = await open(model, most, { tool_choice }).chat({ messages: user(prompt), tools });
            return r.message.options.toolCall.map(c => ({ name: c.name, args: typeof c.input === 'string' ? JSON.parse(c.input) : c.input }));
        },
        object: async (model, prompt) => {
            const responseFormat = { type: 'json_schema', json_schema: { name: 'shape', strict: true, schema: z.toJSONSchema(shape) } };
            const r = await open(model, most).chat({ messages: user(prompt), responseFormat });
            return JSON.parse(r.message.content);
        },
        /* Its streams do not tell the connection that the reader went away: what it can abandon is a request that takes too long. */
        abort: async (model, prompt, maxTokens, timeout) => {
            const llm = open(model, maxTokens, { ignore_eos: true, n: 16 }, { timeout });
            const e = await thrown(llm.chat({ messages: user(prompt) }));
            if (!/time/i.test(e.message)) throw e;
        },
        sequences: 16,
    };
}

export const adapters = {
    'openai chat': openaiChat,
    'openai responses': openaiResponses,
    '@anthropic-ai/sdk': anthropic,
    'ollama': ollama,
    '@langchain/openai chat': langchainOpenAI(false),
    '@langchain/openai responses': langchainOpenAI(true),
    '@langchain/anthropic': langchainAnthropic(),
    '@langchain/anthropic by schema': langchainAnthropic({ method: 'jsonSchema' }),
    '@langchain/ollama': langchainOllama,
    'ai, @ai-sdk/openai': vercel(server => createOpenAI({ baseURL: server.v1, apiKey: 'none' })),
    'ai, @ai-sdk/anthropic': vercel(server => createAnthropic({ baseURL: server.v1, apiKey: 'none' })),
    'ai, @ai-sdk/openai-compatible': vercel(server =>
        createOpenAICompatible({ name: 'tern', baseURL: server.v1, supportsStructuredOutputs: true, includeUsage: true })),
    '@openai/agents': agents(true),
    '@openai/agents chat': agents(false),
    'llamaindex': llamaindex,
};
