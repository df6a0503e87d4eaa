// @langchain/openai.

import { assertAlike, check, collect, long, messages, model, occupy, thrown, until } from './harness.mjs';
import { HumanMessage, SystemMessage } from '@langchain/core/messages';
import { StringOutputParser } from '@langchain/core/output_parsers';
import { ChatPromptTemplate } from '@langchain/core/prompts';
import { ChatOpenAI, OpenAI } from '@langchain/openai';
import assert from 'node:assert/strict';

const prompt = messages[0].content;

export default async function ({ server, narrow }) {
    const open = (s, more) => ({
        model,
        apiKey: 'none',
        temperature: 0,
        maxTokens: 40,
        maxRetries: 0,
        configuration: { baseURL: s.v1 },
        ...more,
    });
    const chat = more => new ChatOpenAI(open(server, more));
    const endless = more =>
        chat({
            temperature: 1,
            maxTokens: long.max_tokens,
            n: long.n,
            modelKwargs: { ignore_eos: true },
            ...more,
        });

    await answers({ chat, open, server });
    await ends({ server, endless });
    await refusals({ narrow, open });
}

async function answers({ chat, open, server }) {
    await check('langchain: invoke returns text and usage', async () => {
        const r = await chat().invoke([new SystemMessage('You tell stories.'), new HumanMessage(prompt)]);
        assert.ok(r.content.length > 20, r.content);
        assert.equal(r.usage_metadata.output_tokens, 40);
        assert.equal(r.usage_metadata.total_tokens, r.usage_metadata.input_tokens + 40);
        assert.equal(r.response_metadata.finish_reason, 'length');
    });
    await check('langchain: stream streams the same text, with usage', async () => {
        const chunks = await collect(await chat().stream(prompt));
        const whole = chunks.reduce((a, b) => a.concat(b));
        assert.equal(whole.content, (await chat().invoke(prompt)).content);
        assert.ok(chunks.filter(c => c.content).length > 20);
        assert.equal(whole.usage_metadata.output_tokens, 40);
    });
    await check('langchain: batch with concurrency returns the answers in order', async () => {
        const prompts = ['a frog', 'a dog', 'the sea', 'a tree', 'the moon', 'a shoe'].map(
            w => `Tell me about ${w}.`,
        );
        const llm = chat({ logprobs: true, topLogprobs: 5 });
        const list = r => r.response_metadata.logprobs.content;
        const alone = [];
        for (const p of prompts) alone.push(list(await llm.invoke(p)));
        const all = await llm.batch(prompts, { maxConcurrency: 3 });
        all.forEach((r, i) => assertAlike(list(r), alone[i]));
    });
    await check('langchain: n=2 returns two generations', async () => {
        const r = await chat({ n: 2, temperature: 1 }).generate([[new HumanMessage(prompt)]]);
        assert.equal(r.generations[0].length, 2);
        assert.ok(r.generations[0].every(g => g.text.length > 20));
    });
    await check('langchain: logprobs', async () => {
        const r = await chat({ logprobs: true, topLogprobs: 3, maxTokens: 8 }).invoke(prompt);
        const list = r.response_metadata.logprobs.content;
        assert.equal(list.length, 8);
        assert.equal(list.map(t => t.token).join(''), r.content);
        assert.ok(list.every(t => t.top_logprobs.length === 3));
    });
    await check('langchain: stop ends the answer', async () => {
        const text = (await chat().invoke(prompt)).content;
        const stop = text.slice(25, 36);
        const r = await chat().invoke(prompt, { stop: [stop] });
        assert.equal(r.content, text.slice(0, text.indexOf(stop)));
    });
    await check('langchain: a chain of template, model and parser streams', async () => {
        const template = ChatPromptTemplate.fromMessages([['user', 'Tell me a story about {what}.']]);
        const chain = template.pipe(chat()).pipe(new StringOutputParser());
        const pieces = await collect(await chain.stream({ what: 'a frog' }));
        assert.equal(pieces.join(''), (await chat().invoke(prompt)).content);
        assert.ok(pieces.filter(p => p).length > 20);
    });
    await check('langchain: the completion model, with and without streaming', async () => {
        const llm = new OpenAI(open(server));
        const text = await llm.invoke('Once upon a time');
        assert.ok(text.length > 20, text);
        assert.equal((await collect(await llm.stream('Once upon a time'))).join(''), text);
    });
}

async function ends({ server, endless }) {
    await check('langchain: a signal ends a stream and frees its sequences', () =>
        server.frees(async () => {
            const abort = new AbortController();
            const read = async () => {
                let seen = 0;
                for await (const _ of await endless().stream(prompt, { signal: abort.signal }))
                    if (++seen === 20) abort.abort();
            };
            const e = await thrown(read());
            assert.match(`${e.name} ${e.message}`, /abort/i);
        }, long.n),
    );
    await check('langchain: breaking out of the loop frees its sequences', () =>
        server.frees(async () => {
            let seen = 0;
            for await (const _ of await endless().stream(prompt)) if (++seen === 20) break;
        }, long.n),
    );
    await check('langchain: a signal ends invoke and frees its sequences', () =>
        server.frees(async () => {
            const abort = new AbortController();
            const asked = endless().invoke(prompt, { signal: abort.signal });
            until(() => server.busy(), 'it runs', 60000).then(() => abort.abort());
            assert.match(String(await thrown(asked)), /abort/i);
        }, long.n),
    );
    await check('langchain: the timeout raises its error and cancels the request', () =>
        server.frees(async ms => {
            const e = await thrown(endless({ n: 16, timeout: ms }).invoke(prompt));
            assert.match(`${e.name} ${e.message}`, /time.?out|timed out/i);
        }, 16),
    );
}

async function refusals({ narrow, open }) {
    await check('langchain: without retries, a full server raises 429 with the error code', async () => {
        const release = await occupy(narrow);
        const e = await thrown(new ChatOpenAI(open(narrow)).invoke(prompt));
        await release();
        assert.equal(e.status, 429, `${e.name}: ${e.message}`);
        assert.equal(e.code, 'queue_full');
        assert.equal(e.rateLimitType, 'wait'); // not "capacity", which is not retried
        await narrow.idle();
    });
    await check('langchain: with retries it succeeds when there is room', async () => {
        const before = (await narrow.status()).requests.rejected.queue_full;
        const release = await occupy(narrow);
        const asked = new ChatOpenAI(open(narrow, { maxRetries: 4, maxTokens: 4 })).invoke(prompt);
        await until(
            async () => (await narrow.status()).requests.rejected.queue_full > before,
            'it is refused',
            60000,
        );
        await release();
        assert.equal((await asked).usage_metadata.output_tokens, 4);
    });
    await check('langchain: an unknown model raises 404', async () => {
        const e = await thrown(
            new ChatOpenAI(open(narrow, { model: 'nobody', maxRetries: 4 })).invoke(prompt),
        );
        assert.equal(e.status, 404, `${e.name}: ${e.message}`);
    });
}
