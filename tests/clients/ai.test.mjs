// The Vercel AI SDK (ai) with @ai-sdk/openai-compatible.

import { assertAlike, check, collect, long, messages, model, occupy, thrown, until } from './harness.mjs';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, RetryError, generateText, streamText } from 'ai';
import assert from 'node:assert/strict';

const prompt = messages[0].content;
/* Fields that the SDK does not know are sent as options of the provider. */
const endless = {
    prompt,
    temperature: 1,
    maxOutputTokens: long.max_tokens,
    maxRetries: 0,
    providerOptions: { tern: { ignore_eos: true, n: long.n } },
};

export default async function ({ server, narrow }) {
    const open = s =>
        createOpenAICompatible({ name: 'tern', baseURL: s.v1, apiKey: 'none', includeUsage: true });
    const tern = open(server)(model);
    const short = { model: tern, prompt, temperature: 0, maxOutputTokens: 40, maxRetries: 0 };

    await answers({ server, short, open });
    await ends({ server, tern });
    await refusals({ narrow, open });
}

async function answers({ server, short, open }) {
    await check('ai: generateText returns text and usage', async () => {
        const r = await generateText(short);
        assert.ok(r.text.length > 20, r.text);
        assert.equal(r.finishReason, 'length');
        assert.equal(r.usage.outputTokens, 40);
        assert.equal(r.usage.totalTokens, r.usage.inputTokens + 40);
        assert.equal(r.response.modelId, model);
        assert.equal(r.warnings?.length ?? 0, 0, JSON.stringify(r.warnings));
    });
    await check('ai: streamText streams the same text, with usage', async () => {
        const r = streamText(short);
        const pieces = await collect(r.textStream);
        assert.ok(pieces.length > 20, `${pieces.length} pieces`);
        assert.equal(pieces.join(''), (await generateText(short)).text);
        assert.equal(await r.finishReason, 'length');
        assert.equal((await r.usage).outputTokens, 40);
    });
    await check('ai: a conversation with a system prompt', async () => {
        const r = await generateText({
            ...short,
            prompt: undefined,
            system: 'You tell short stories.',
            messages: [
                { role: 'user', content: [{ type: 'text', text: 'Tell me about a cat.' }] },
                { role: 'assistant', content: 'There was a cat named Tom.' },
                { role: 'user', content: 'And then?' },
            ],
        });
        assert.ok(r.text.length > 20);
    });
    await check('ai: stopSequences end the answer', async () => {
        const { text } = await generateText(short);
        const stop = text.slice(25, 36);
        const want = text.slice(0, text.indexOf(stop));
        const r = await generateText({ ...short, stopSequences: [stop] });
        assert.equal(r.text, want);
        assert.equal(r.finishReason, 'stop');
        const s = streamText({ ...short, stopSequences: [stop] });
        assert.equal((await collect(s.textStream)).join(''), want);
    });
    await check('ai: n and logprobs as options of the provider', async () => {
        const options = { n: 2, logprobs: true, top_logprobs: 2 };
        const r = await generateText({ ...short, providerOptions: { tern: options } });
        const { choices } = r.response.body;
        assert.equal(choices.length, 2);
        for (const c of choices) {
            assert.equal(c.logprobs.content.length, 40);
            assert.equal(c.logprobs.content[0].top_logprobs.length, 2);
        }
        assert.equal(r.text, choices[0].message.content);
    });
    await check('ai: the completion model', async () => {
        const legacy = open(server).completionModel(model);
        const ask = { ...short, model: legacy, prompt: 'Once upon a time' };
        const r = await generateText(ask);
        assert.ok(r.text.length > 10, r.text);
        assert.equal((await collect(streamText(ask).textStream)).join(''), r.text);
    });
    await check('ai: six concurrent requests give the same answers as one after the other', async () => {
        const prompts = ['a frog', 'a dog', 'the sea', 'a tree', 'the moon', 'a shoe'].map(
            w => `Tell me about ${w}.`,
        );
        const providerOptions = { tern: { logprobs: true, top_logprobs: 5 } };
        const ask = async prompt => {
            const r = await generateText({ ...short, prompt, providerOptions });
            return r.response.body.choices[0].logprobs.content;
        };
        const alone = [];
        for (const p of prompts) alone.push(await ask(p));
        (await Promise.all(prompts.map(ask))).forEach((list, i) => assertAlike(list, alone[i]));
    });
}

async function ends({ server, tern }) {
    await check('ai: abortSignal ends a stream and frees its sequences', () =>
        server.frees(async () => {
            const abort = new AbortController();
            let aborted = false;
            const r = streamText({
                ...endless,
                model: tern,
                abortSignal: abort.signal,
                onAbort: () => (aborted = true),
            });
            let seen = 0;
            for await (const _ of r.textStream) if (++seen === 20) abort.abort();
            assert.ok(aborted && seen < 450, `${seen} pieces`);
        }, long.n),
    );
    await check('ai: abortSignal ends generateText and frees its sequences', () =>
        server.frees(async () => {
            const abort = new AbortController();
            const asked = generateText({ ...endless, model: tern, abortSignal: abort.signal });
            until(() => server.busy(), 'it runs', 60000).then(() => abort.abort());
            assert.equal((await thrown(asked)).name, 'AbortError');
        }, long.n),
    );
    await check('ai: the timeout raises its error and cancels the request', () =>
        server.frees(async ms => {
            const more = { tern: { ignore_eos: true, n: 16 } };
            const e = await thrown(
                generateText({ ...endless, model: tern, providerOptions: more, timeout: ms }),
            );
            assert.match(e.name, /TimeoutError|AbortError/);
        }, 16),
    );
}

async function refusals({ narrow, open }) {
    const ask = { model: open(narrow)(model), prompt, maxOutputTokens: 4 };

    await check('ai: without retries, a full server raises APICallError with 429 and the error code', async () => {
        const release = await occupy(narrow);
        const e = await thrown(generateText({ ...ask, maxRetries: 0 }));
        await release();
        assert.ok(APICallError.isInstance(e), `${e.name}: ${e.message}`);
        assert.equal(e.statusCode, 429);
        assert.ok(e.isRetryable);
        assert.equal(JSON.parse(e.responseBody).error.code, 'queue_full');
        await narrow.idle();
    });
    await check('ai: with retries it succeeds when there is room', async () => {
        const before = (await narrow.status()).requests.rejected.queue_full;
        const release = await occupy(narrow);
        const asked = generateText({ ...ask, maxRetries: 3 });
        await until(
            async () => (await narrow.status()).requests.rejected.queue_full > before,
            'it is refused',
            60000,
        );
        await release();
        assert.equal((await asked).usage.outputTokens, 4);
    });
    await check('ai: an invalid request is not retried', async () => {
        const e = await thrown(generateText({ ...ask, model: open(narrow)('nobody') }));
        assert.ok(APICallError.isInstance(e) && !RetryError.isInstance(e), `${e.name}: ${e.message}`);
        assert.equal(e.statusCode, 404);
        assert.ok(e.message.includes('nobody'), e.message);
    });
}
