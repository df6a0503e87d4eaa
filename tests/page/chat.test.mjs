// The chat view: streaming, stopping, history, settings, errors.

import {
    answered,
    answers,
    ask,
    assert,
    check,
    endless,
    load,
    openPage,
    sleep,
    status,
    textOf,
    until,
} from './harness.mjs';

const TOKENS = 400; /* of an answer without an end token; the model's context is 512 */
const CHOICES = 8;

export async function chatTests(browser, url) {
    await check('an answer streams, with statistics below it', async () => {
        const page = await openPage(browser, url);
        await endless(page, 300);
        await page.evaluate(() => {
            window.lengths = new Set();
            new MutationObserver(() =>
                window.lengths.add(document.querySelector('.answer')?.textContent.length ?? 0),
            ).observe(document.getElementById('thread'), {
                subtree: true,
                childList: true,
                characterData: true,
            });
        });
        const stop = load(url, 4); /* on an idle server the answer would be complete after a few frames */
        await ask(page, 'Tell me a story about a frog.');
        const story = await answered(page).finally(stop);
        const n = await page.evaluate(() => window.lengths.size);
        assert(story.length > 300, `the story has ${story.length} characters`);
        assert(n >= 5, `only ${n} different lengths of the answer were observed`);
        const stats = await textOf(page, '.message.assistant .stats');
        assert(
            /300 tokens · [\d.,]+ tok\/s · first token after .* · prompt \d+/.test(stats),
            `unexpected statistics: ${stats}`,
        );
        assert(stats.includes('token limit reached'), `no finish reason in: ${stats}`);
        assert(page.faults.length === 0, page.faults.join('; '));
        await page.context().close();
    });

    for (const way of ['the button', 'Escape']) {
        await check(`${way} stops an answer, on the server too`, async () => {
            const page = await openPage(browser, url);
            await until(async () => (await status(url)).queue.running === 0, 'an idle server');
            const before = (await status(url)).requests.finished.cancelled;
            await endless(page, TOKENS, CHOICES);
            await page.evaluate(byKey => {
                /* inside the page: the model is faster than calls from the test */
                new MutationObserver(() => {
                    if ((document.querySelector('.answer')?.textContent.length ?? 0) < 20) return;
                    const escape = new KeyboardEvent('keydown', { key: 'Escape', bubbles: true });
                    if (byKey) document.getElementById('prompt').dispatchEvent(escape);
                    else document.getElementById('stop').click();
                }).observe(document.getElementById('thread'), { subtree: true, childList: true });
            }, way === 'Escape');
            await ask(page, 'Tell me a very long story.');
            const story = await answered(page);
            await until(
                async () => (await status(url)).queue.running === 0,
                'no running request on the server',
                60000,
            );
            const after = (await status(url)).requests.finished.cancelled;
            assert(after > before, 'the server did not count a cancelled request');
            await sleep(200);
            assert((await textOf(page, '.answer')) === story, 'the text grew after the stop');
            const stats = await textOf(page, '.message.assistant .stats');
            assert(stats.includes('stopped'), `no 'stopped' in: ${stats}`);
            assert(parseInt(stats, 10) < TOKENS * CHOICES, stats);
            const back =
                (await page.locator('#send').isVisible()) && !(await page.locator('#stop').isVisible());
            assert(back, 'the button did not change back');
            await page.context().close();
        });
    }

    await check('a conversation longer than the context drops its oldest messages', async () => {
        const page = await openPage(browser, url);
        for (let k = 0; k < 4; k++) {
            await ask(page, `Tell me a story about number ${k}. ${'It is a long day. '.repeat(12)}`);
            await answered(page);
            assert((await page.locator('.error').count()) === 0, `question ${k} failed`);
        }
        assert((await page.locator('.forgotten').count()) === 1, 'no line marks the dropped messages');
        await page.context().close();
    });

    await check('conversations survive a reload and can be renamed, deleted and exported', async () => {
        const page = await openPage(browser, url);
        await ask(page, 'Tell me a story about a boat.');
        const story = await answered(page);
        await page.reload(url);
        await until(() => answers(page).count(), 'the answer after the reload');
        assert((await answers(page).last().locator('.answer').innerText()) === story, 'the answer changed');
        await page.keyboard.press('Control+k');
        assert((await page.locator('.message').count()) === 0, 'Ctrl+K does not show an empty conversation');
        await ask(page, 'Tell me a story about a hat.');
        await answered(page);
        assert((await page.locator('.chat').count()) === 2, 'expected two conversations');
        await page.getByRole('button', { name: 'Rename “Tell me a story about a boat.”' }).focus();
        await page.keyboard.press('Enter');
        await page.fill('.rename', 'Boats');
        await page.keyboard.press('Enter');
        await page.getByRole('button', { name: 'Boats', exact: true }).click();
        assert(
            (await textOf(page, '.message.user .bubble')) === 'Tell me a story about a boat.',
            'the renamed conversation does not open',
        );
        await page.getByRole('button', { name: 'Delete “Boats”' }).focus();
        await page.keyboard.press('Enter');
        assert((await page.locator('.chat').count()) === 1, 'expected one conversation');
        await page.getByRole('button', { name: 'Undo' }).click();
        assert((await page.locator('.chat').count()) === 2, 'undo did not restore the conversation');
        const [file] = await Promise.all([
            page.waitForEvent('download'),
            page.getByRole('button', { name: 'Export “Boats”' }).evaluate(b => b.click()),
        ]);
        const chunks = [];
        for await (const c of await file.createReadStream()) chunks.push(c);
        const saved = JSON.parse(Buffer.concat(chunks).toString());
        assert(saved.chats[0].messages[1].content.length > 20, 'the exported file lacks the answer');
        assert(page.faults.length === 0, page.faults.join('; '));
        await page.context().close();
    });

    await check('the last answer can be regenerated and the last question edited', async () => {
        const page = await openPage(browser, url);
        await ask(page, 'Tell me a story about a cat.');
        await answered(page);
        await page.getByRole('button', { name: 'Regenerate the answer' }).click();
        await answered(page);
        assert((await page.locator('.message').count()) === 2, 'expected one question and one answer');
        await page.getByRole('button', { name: 'Edit message' }).focus();
        await page.keyboard.press('Enter');
        await page.fill('.edit', 'Tell me a story about a dog.');
        await page.keyboard.press('Enter');
        await answered(page);
        assert(
            (await page.locator('.message').count()) === 2 &&
                (await textOf(page, '.bubble')) === 'Tell me a story about a dog.',
            'the edited question was not sent',
        );
        await page.context().close();
    });

    await check('settings are sent with the question', async () => {
        const page = await openPage(browser, url);
        await page.click('#settings-open');
        await page.fill('#set-system', 'Be brief.');
        await page.fill('#set-max-tokens', '7');
        await page.locator('#set-temperature').fill('0');
        await page.fill('#set-key', 'a-key');
        await page.keyboard.press('Escape');
        const [asked] = await Promise.all([
            page.waitForRequest('**/v1/chat/completions'),
            ask(page, 'Hello'),
        ]);
        const body = asked.postDataJSON();
        assert(
            body.max_tokens === 7 &&
                body.temperature === 0 &&
                body.messages[0].role === 'system' &&
                body.messages[0].content === 'Be brief.' &&
                body.stream_options.include_usage === true,
            JSON.stringify(body),
        );
        assert((await asked.allHeaders()).authorization === 'Bearer a-key', 'the API key was not sent');
        await answered(page);
        assert(
            await page.evaluate(() => !JSON.stringify(localStorage).includes('a-key')),
            'the API key is in localStorage',
        );
        await page.context().close();
    });

    await check('an error shows the message of the server and a button to try again', async () => {
        const page = await openPage(browser, url);
        await page.evaluate(() => {
            const other = document.createElement('option');
            other.value = other.textContent = 'no-such-model';
            document.getElementById('model').append(other);
        });
        await page.selectOption('#model', 'no-such-model');
        await ask(page, 'Hello?');
        await until(() => page.locator('.error').count(), 'the error');
        const said = await textOf(page, '.error');
        assert(said.includes('no-such-model') && said.includes('model_not_found'), said);
        await page.selectOption('#model', { index: 0 });
        await page.getByRole('button', { name: 'Try again' }).click();
        await until(async () => (await page.locator('.error').count()) === 0, 'the error to disappear');
        assert((await answered(page)).length > 0, 'no answer after trying again');
        await page.context().close();
    });

    await check('a server with API keys makes the page ask for one', async () => {
        const page = await openPage(browser, url);
        await page.route('**/v1/models', async route => {
            if ((await route.request().allHeaders()).authorization === 'Bearer sesame')
                return route.continue();
            const error = { message: 'No API key was given.', code: 'unauthorized' };
            return route.fulfill({
                status: 401,
                contentType: 'application/json',
                body: JSON.stringify({ error }),
            });
        });
        await page.reload(url);
        await until(() => page.locator('#settings').isVisible(), 'the settings dialog');
        assert(
            await page.evaluate(() => document.activeElement.id === 'set-key'),
            'the API key field has no focus',
        );
        await page.fill('#set-key', 'sesame');
        await page.keyboard.press('Enter');
        await until(
            () => page.evaluate(() => document.querySelector('#model').value === 'tern-tales'),
            'the model',
        );
        await page.context().close();
    });

    await check('the page shows how far a model is loaded', async () => {
        const page = await openPage(browser, url);
        const loading = { id: 'slow', meta: { state: 'loading' }, status: { value: 'loading', progress: 37 } };
        const send = (route, body) => route.fulfill({ contentType: 'application/json', body: JSON.stringify(body) });
        await page.route('**/v1/models', route => send(route, { data: [loading] }));
        await page.route('**/v1/models/slow', route => send(route, loading));
        let end;
        const answer = new Promise(resolve => (end = resolve));
        await page.route('**/v1/chat/completions', async route => {
            await answer;
            await route.abort();
        });
        await page.reload(url);
        await until(async () => (await textOf(page, '#model')).includes('slow · loading 37 %'), 'the progress in the list');
        await ask(page, 'Hello?');
        await until(async () => (await textOf(page, '.answer')).includes('Loading the model: 37 %'), 'the progress in the answer');
        end();
        await page.context().close();
    });

    await check('the retry button counts Retry-After down', async () => {
        const page = await openPage(browser, url);
        await page.route('**/v1/chat/completions', route =>
            route.fulfill({
                status: 429,
                headers: { 'retry-after': '2' },
                contentType: 'application/json',
                body: JSON.stringify({
                    error: {
                        message: 'The queue is full.',
                        type: 'rate_limit',
                        code: 'queue_full',
                        correlation_id: 'c-1',
                    },
                }),
            }),
        );
        await ask(page, 'Hello?');
        const button = page.locator('.error button');
        await until(() => button.count(), 'the error');
        assert(
            (await button.isDisabled()) && /Try again in [12] s/.test(await button.innerText()),
            await button.innerText(),
        );
        await until(async () => await button.isEnabled(), 'the button to be enabled', 60000);
        await page.context().close();
    });

    await check('the view follows the answer only while scrolled to its end', async () => {
        const page = await openPage(browser, url, { viewport: { width: 900, height: 420 } });
        await endless(page, TOKENS);
        await ask(page, 'Tell me a long story.');
        const at = () =>
            page.evaluate(() => {
                const s = document.getElementById('scroll');
                return { top: s.scrollTop, gap: s.scrollHeight - s.clientHeight - s.scrollTop };
            });
        await until(async () => (await at()).top > 100, 'enough text to scroll');
        assert((await at()).gap < 60, `the view does not follow: ${JSON.stringify(await at())}`);
        await page.evaluate(() => {
            document.getElementById('scroll').scrollTop = 0;
        });
        await answered(page);
        assert((await at()).top === 0, 'the view scrolled');
        await page.click('#latest');
        await until(async () => (await at()).gap < 5, 'the end of the conversation');
        await page.context().close();
    });

    await check('reasoning is collapsed and tool calls are formatted', async () => {
        const page = await openPage(browser, url);
        const chunk = delta => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`;
        const call = (index, more) => chunk({ tool_calls: [{ index, ...more }] });
        await page.route('**/v1/chat/completions', route =>
            route.fulfill({
                contentType: 'text/event-stream',
                body: [
                    chunk({ role: 'assistant', content: '' }),
                    chunk({ reasoning_content: 'I need <b>the' }),
                    chunk({ reasoning_content: ' weather.\nSo I ask.' }),
                    chunk({ content: 'Let me **look**.' }),
                    call(0, { id: 'call_1', type: 'function', function: { name: 'get_weather', arguments: '' } }),
                    call(0, { function: { arguments: '{"city":' } }),
                    call(0, { function: { arguments: '"Bern","days":[1,2]}' } }),
                    call(1, { id: 'call_2', type: 'function', function: { name: 'now', arguments: '{"a' } }),
                    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n',
                ].join(''),
            }),
        );
        await ask(page, 'Weather in Bern?');
        await answered(page);
        const thought = page.locator('.thought details'), text = page.locator('.reasoning');
        assert((await thought.count()) === 1 && !(await text.isVisible()), 'reasoning is not collapsed');
        assert((await textOf(page, '.thought summary')) === 'Reasoning, 7 words', await textOf(page, '.thought summary'));
        assert((await textOf(page, '.answer')) === 'Let me look.', await textOf(page, '.answer'));
        await page.click('.thought summary');
        assert(await text.isVisible(), 'reasoning does not expand');
        assert((await text.innerText()) === 'I need <b>the weather.\nSo I ask.', await text.innerText());
        const calls = await page.locator('.call').allInnerTexts();
        assert(calls.length === 2, `${calls.length} calls`);
        assert(/^Tool call: get_weather\s+\{\n {2}"city": "Bern",\n {2}"days": \[/.test(calls[0]), calls[0]);
        assert(calls[1].includes('{"a'), calls[1]);
        await page.reload();
        await until(() => page.locator('.call').count(), 'the saved tool calls');
        assert(!(await page.locator('.reasoning').isVisible()), 'saved reasoning is not collapsed');
        assert(page.faults.length === 0, page.faults.join('; '));
        await page.context().close();
    });
}
