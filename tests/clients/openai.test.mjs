// The openai client: completions, streams, parameters.

import { assertAlike, check, collect, messages, model } from './harness.mjs';
import assert from 'node:assert/strict';
import OpenAI from 'openai';

/* Assembles the answer of each choice from chunks. */
function assemble(chunks) {
    const choices = [];
    for (const c of chunks)
        for (const { index, delta, text, finish_reason, logprobs } of c.choices) {
            const one = (choices[index] ??= { text: '', pieces: 0, finish: null, logprobs: [] });
            const piece = delta ? (delta.content ?? '') : text;
            assert.equal(one.finish, null, `choice ${index} goes on after its end`);
            one.text += piece;
            one.pieces += piece !== '';
            one.logprobs.push(...(logprobs?.content ?? []));
            one.finish = finish_reason ?? null;
        }
    return choices;
}

const bytesOf = list => Buffer.from(list.flatMap(t => t.bytes));

function checkLogprobs(list, text, nTop) {
    assert.equal(bytesOf(list).toString(), text);
    for (const t of list) {
        assert.ok(t.logprob <= 0 && Number.isFinite(t.logprob), `logprob ${t.logprob}`);
        assert.equal(t.top_logprobs.length, nTop);
        assert.equal(t.top_logprobs[0].token, t.token); // greedy: the sampled token is the most likely one
        assert.equal(t.top_logprobs[0].logprob, t.logprob);
        for (let i = 1; i < nTop; i++) assert.ok(t.top_logprobs[i - 1].logprob >= t.top_logprobs[i].logprob);
        assert.ok(t.top_logprobs.reduce((sum, o) => sum + Math.exp(o.logprob), 0) < 1.001);
    }
}

export default async function ({ server }) {
    const client = new OpenAI({ baseURL: server.v1, apiKey: 'none', maxRetries: 0 });
    const chat = (body, options) =>
        client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 40, ...body }, options);
    const complete = body =>
        client.completions.create({
            model,
            prompt: 'Once upon a time',
            temperature: 0,
            max_tokens: 24,
            ...body,
        });
    const textOf = r => r.choices[0].message.content;

    await chatting({ client, chat, textOf });
    await choosing({ chat });
    await stopping({ chat, textOf });
    await legacy({ server, complete });
    await listing({ client });
    await embedding({ client });
    await many({ server, client });
}

async function chatting({ client, chat, textOf }) {
    await check('openai: chat returns text and usage', async () => {
        const r = await chat();
        const [c] = r.choices;
        assert.match(r.id, /^chatcmpl-./);
        assert.equal(r.object, 'chat.completion');
        assert.equal(r.model, model);
        assert.ok(Math.abs(r.created - Date.now() / 1000) < 10);
        assert.equal(r.choices.length, 1);
        assert.equal(c.index, 0);
        assert.equal(c.message.role, 'assistant');
        assert.ok(c.message.content.length > 20, c.message.content);
        assert.equal(c.finish_reason, 'length');
        assert.equal(r.usage.completion_tokens, 40);
        assert.ok(r.usage.prompt_tokens > 4);
        assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + 40);
        assert.ok(r._request_id, 'no x-request-id');
    });
    await check('openai: a stream has the same text', async () => {
        const chunks = await collect(await chat({ stream: true }));
        const [c] = assemble(chunks);
        assert.equal(c.text, textOf(await chat()));
        assert.ok(c.pieces > 20, `${c.pieces} pieces`);
        assert.equal(c.finish, 'length');
        assert.equal(chunks[0].choices[0].delta.role, 'assistant');
        assert.ok(
            chunks.every(k => k.usage === undefined || k.usage === null),
            'usage that was not asked for',
        );
    });
    await check('openai: a stream ends with usage if requested', async () => {
        const chunks = await collect(await chat({ stream: true, stream_options: { include_usage: true } }));
        const last = chunks.pop(),
            whole = await chat();
        assert.deepEqual(last.choices, []);
        assert.equal(last.usage.completion_tokens, 40);
        assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
        assert.ok(
            chunks.every(k => k.usage === null),
            'the others have null',
        );
    });
    await check('openai: the stream helper assembles the same completion', async () => {
        const runner = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 40 });
        let seen = '';
        runner.on('content', delta => (seen += delta));
        const r = await runner.finalChatCompletion();
        assert.equal(textOf(r), textOf(await chat()));
        assert.equal(seen, textOf(r));
    });
    await check('openai: the same seed gives the same answer, another seed another one', async () => {
        const text = async seed => textOf(await chat({ temperature: 1, seed }));
        const a = await text(7);
        assert.equal(await text(7), a);
        assert.notEqual(await text(8), a);
    });
    await check('openai: max_completion_tokens is max_tokens', async () => {
        const r = await chat({ max_tokens: undefined, max_completion_tokens: 5 });
        assert.equal(r.usage.completion_tokens, 5);
        assert.equal(r.choices[0].finish_reason, 'length');
    });
    await check('openai: an answer that ends has the finish reason stop', async () => {
        const r = await chat({ max_tokens: undefined });
        assert.equal(r.choices[0].finish_reason, 'stop');
        assert.ok(r.usage.total_tokens < 512);
    });
    await check(
        'openai: messages of all roles, and content in parts',
        async () => {
            const parts = content => [{ type: 'text', text: content }];
            const messages = wrap => [
                { role: 'system', content: wrap('You tell short stories.') },
                { role: 'user', content: wrap('Tell me about a cat.') },
                { role: 'assistant', content: wrap('There was a cat named Tom.') },
                { role: 'user', content: wrap('And then?') },
            ];
            /* The second prompt comes from the cache, whose rounding differs: few tokens are sure to agree. */
            const plain = await chat({ messages: messages(t => t), max_tokens: 8 }),
                parted = await chat({ messages: messages(parts), max_tokens: 8 });
            assert.equal(textOf(parted), textOf(plain));
            assert.equal(parted.usage.prompt_tokens, plain.usage.prompt_tokens);
        },
    );
    await check('openai: without a model the first one is used', async () => {
        assert.equal((await chat({ model: undefined })).model, model);
    });
    await check('openai: a large logit_bias determines the token', async () => {
        const r = await chat({ logprobs: true, top_logprobs: 1, max_tokens: 4, logit_bias: { 300: 100 } });
        assert.equal(new Set(r.choices[0].logprobs.content.map(t => t.token)).size, 1);
    });
}

async function choosing({ chat }) {
    await check('openai: n=2 returns two choices', async () => {
        const r = await chat({ n: 2, temperature: 1, seed: 3 });
        assert.deepEqual(
            r.choices.map(c => c.index),
            [0, 1],
        );
        assert.ok(r.choices.every(c => c.message.content.length > 20 && c.finish_reason));
        assert.notEqual(r.choices[0].message.content, r.choices[1].message.content);
        assert.ok(r.usage.completion_tokens > 40 && r.usage.completion_tokens <= 80);
    });
    await check('openai: n=2 streams two choices, each equal to a single one', async () => {
        const body = { logprobs: true, top_logprobs: 5 };
        const [alone] = (await chat(body)).choices;
        const both = assemble(await collect(await chat({ ...body, n: 2, stream: true })));
        assert.equal(both.length, 2);
        for (const c of both) {
            assertAlike(c.logprobs, alone.logprobs.content);
            assert.equal(bytesOf(c.logprobs).toString(), c.text);
            assert.equal(c.finish, 'length');
            assert.ok(c.pieces > 10);
        }
    });
    await check('openai: logprobs of each token and of the alternatives', async () => {
        const r = await chat({ logprobs: true, top_logprobs: 3, max_tokens: 16 });
        const list = r.choices[0].logprobs.content;
        assert.equal(list.length, r.usage.completion_tokens);
        checkLogprobs(list, r.choices[0].message.content, 3);
    });
    await check('openai: a stream has the same logprobs', async () => {
        const body = { logprobs: true, top_logprobs: 3, max_tokens: 16 };
        const [c] = assemble(await collect(await chat({ ...body, stream: true })));
        checkLogprobs(c.logprobs, c.text, 3);
        const whole = (await chat(body)).choices[0].logprobs.content;
        assert.deepEqual(
            c.logprobs.map(t => t.token),
            whole.map(t => t.token),
        );
        c.logprobs.forEach((t, i) => assert.ok(Math.abs(t.logprob - whole[i].logprob) < 0.02));
    });
}

async function stopping({ chat, textOf }) {
    await check('openai: a stop string across tokens ends the answer', async () => {
        const text = textOf(await chat());
        for (const [from, n] of [
            [9, 7],
            [20, 3],
            [31, 12],
        ]) {
            const stop = text.slice(from, from + n);
            const r = await chat({ stop });
            assert.equal(textOf(r), text.slice(0, text.indexOf(stop)), `stop ${JSON.stringify(stop)}`);
            assert.equal(r.choices[0].finish_reason, 'stop');
        }
    });
    await check('openai: no part of a stop string is streamed', async () => {
        const text = textOf(await chat());
        const stop = text.slice(25, 36);
        const [c] = assemble(await collect(await chat({ stop: ['never said', stop], stream: true })));
        assert.equal(c.text, text.slice(0, text.indexOf(stop)));
        assert.equal(c.finish, 'stop');
    });
    await check('openai: text that begins like a stop string is not lost', async () => {
        const text = textOf(await chat());
        const [c] = assemble(
            await collect(await chat({ stop: text.slice(10, 18) + '\u0001', stream: true })),
        );
        assert.equal(c.text, text);
        assert.equal(c.finish, 'length');
    });
}

async function legacy({ server, complete }) {
    await check('openai: completions return text and usage', async () => {
        const r = await complete();
        assert.equal(r.object, 'text_completion');
        assert.match(r.id, /^cmpl-./);
        assert.ok(r.choices[0].text.length > 10);
        assert.equal(r.usage.completion_tokens, 24);
    });
    await check('openai: completions stream the same text', async () => {
        const chunks = await collect(await complete({ stream: true }));
        const [c] = assemble(chunks);
        assert.ok(chunks.every(k => k.object === 'text_completion'));
        assert.equal(c.text, (await complete()).choices[0].text);
        assert.ok(c.pieces > 10);
    });
    await check('openai: a prompt of token ids equals its text', async () => {
        const r = await fetch(`${server.url}/tokenize`, {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify({ content: 'Once upon a time', add_special: true }),
        });
        const { tokens } = await r.json();
        assert.ok(tokens.length > 2 && tokens.every(Number.isInteger));
        const byIds = await complete({ prompt: tokens }),
            byText = await complete();
        assert.equal(byIds.choices[0].text, byText.choices[0].text);
        assert.equal(byIds.usage.prompt_tokens, tokens.length);
        const [c] = assemble(await collect(await complete({ prompt: tokens, stream: true })));
        assert.equal(c.text, byText.choices[0].text);
    });
    await check('openai: a list of prompts returns a choice for each', async () => {
        const prompt = ['Once upon a time', 'The little dog'];
        const list = c => {
            const { tokens, token_logprobs, top_logprobs } = c.logprobs;
            return tokens.map((token, i) => {
                const top = Object.entries(top_logprobs[i]).map(([token, logprob]) => ({ token, logprob }));
                return { token, logprob: token_logprobs[i], top_logprobs: top };
            });
        };
        const r = await complete({ prompt, logprobs: 5 });
        assert.deepEqual(
            r.choices.map(c => c.index),
            [0, 1],
        );
        for (const [i, one] of prompt.entries())
            assertAlike(list(r.choices[i]), list((await complete({ prompt: one, logprobs: 5 })).choices[0]));
    });
    await check('openai: echo returns the prompt before the text', async () => {
        const r = await complete({ echo: true });
        assert.equal(r.choices[0].text, 'Once upon a time' + (await complete()).choices[0].text);
    });
    await check('openai: logprobs of completions', async () => {
        const r = await complete({ logprobs: 2 });
        const { tokens, token_logprobs, top_logprobs, text_offset } = r.choices[0].logprobs;
        assert.equal(tokens.length, 24);
        assert.equal(token_logprobs.length, 24);
        assert.equal(tokens.join(''), r.choices[0].text);
        assert.ok(top_logprobs.every((t, i) => Object.keys(t).length >= 2 && tokens[i] in t));
        assert.ok(text_offset.every((o, i) => r.choices[0].text.startsWith(tokens[i], o - text_offset[0])));
    });
}

async function listing({ client }) {
    await check('openai: models are listed and found by name', async () => {
        const all = await collect(await client.models.list());
        assert.deepEqual(
            all.map(m => m.id),
            [model],
        );
        const one = await client.models.retrieve(model);
        assert.equal(one.id, model);
        assert.equal(one.object, 'model');
        assert.ok(Number.isInteger(one.created) && one.owned_by);
    });
}

async function embedding({ client }) {
    await check('openai: embeddings of full and reduced length, as floats and base64', async () => {
        const input = ['Once upon a time', 'A green frog sat on a stone.'];
        const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
        const whole = await client.embeddings.create({ model, input });          // the client asks for base64
        const plain = await client.embeddings.create({ model, input, encoding_format: 'float' });
        const short = await client.embeddings.create({ model, input: input[0], dimensions: 16 });
        assert.equal(whole.data.length, 2);
        assert.equal(whole.model, model);
        assert.ok(whole.usage.prompt_tokens > 0 && whole.usage.total_tokens === whole.usage.prompt_tokens);
        for (const [i, d] of whole.data.entries()) {
            assert.equal(d.index, i);
            assert.ok(Math.abs(dot(d.embedding, d.embedding) - 1) < 1e-4);
            assert.ok(dot(d.embedding, plain.data[i].embedding) > 0.999);
        }
        assert.equal(short.data[0].embedding.length, 16);
    });
}

async function many({ server, client }) {
    await check('openai: sequential calls use one connection', async () => {
        const ask = () => client.chat.completions.create({ model, messages, max_tokens: 4 });
        await ask();
        const before = (await server.status()).connections;
        for (let i = 0; i < 10; i++) await ask();
        const after = (await server.status()).connections;
        assert.ok(
            after.accepted - before.accepted <= 1,
            `${after.accepted - before.accepted} connections more`,
        );
        assert.ok(after.reused - before.reused >= 10);
    });
    await check('openai: 32 concurrent streams complete', async () => {
        const body = { model, messages, max_tokens: 30, ignore_eos: true, stream: true };
        const one = async seed => {
            const stream = await client.chat.completions.create({
                ...body,
                seed,
                temperature: 1,
                stream_options: { include_usage: true },
            });
            return (await collect(stream)).at(-1).usage.completion_tokens;
        };
        const all = await Promise.all(Array.from({ length: 32 }, (_, i) => one(i)));
        assert.ok(
            all.every(n => n === 30),
            all.join(' '),
        );
    });
    await check('openai: unsupported fields are ignored', async () => {
        const r = await client.chat.completions.create({
            model,
            messages: [{ ...messages[0], name: 'tom' }],
            max_tokens: 4,
            user: 'u-1',
            metadata: { a: 'b' },
            store: false,
            service_tier: 'auto',
            parallel_tool_calls: true,
            response_format: { type: 'text' },
            tool_choice: 'none',
        });
        assert.equal(r.usage.completion_tokens, 4);
    });
    await check('openai: answers match a JSON schema, with and without streaming', async () => {
        const schema = {
            type: 'object',
            properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 1, maximum: 99 } },
            required: ['name', 'age'],
            additionalProperties: false,
        };
        const ask = {
            model,
            messages,
            max_tokens: 150,
            temperature: 1.5,
            response_format: { type: 'json_schema', json_schema: { name: 'person', strict: true, schema } },
        };
        const keeps = text => {
            const v = JSON.parse(text);
            assert.deepEqual(Object.keys(v), ['name', 'age']);
            assert.ok(v.name.length <= 20 && v.age >= 1 && v.age <= 99, text);
        };
        keeps((await client.chat.completions.create(ask)).choices[0].message.content);
        let text = '';
        for await (const c of await client.chat.completions.create({ ...ask, stream: true }))
            text += c.choices[0]?.delta?.content ?? '';
        keeps(text);
        const any = { ...ask, response_format: { type: 'json_object' } };
        assert.equal(typeof JSON.parse((await client.chat.completions.create(any)).choices[0].message.content), 'object');
    });
}
