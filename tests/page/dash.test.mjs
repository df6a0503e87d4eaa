// The dashboard, and the two screenshots.

import { answered, ask, assert, check, isReady, load, openPage, sleep, status, until } from './harness.mjs';

export async function dashTests(browser, url) {
    await check('the dashboard updates under load, cancels a request and filters settings', async () => {
        const page = await openPage(browser, url, { hash: '/#dashboard' });
        const value = name => page.locator(`.card[aria-label="${name}"] .value`).innerText();
        await until(() => isReady(page), 'the first status');
        const stop = load(url, 6);
        try {
            await until(
                async () => Number((await value('Requests')).replace(/,/g, '')) >= 3,
                'requests running',
            );
            await until(
                async () => Number((await value('Tokens per second')).replace(/,/g, '')) > 10,
                'tokens per second',
            );
            await until(
                async () =>
                    /\d/.test(await value('Inter-token latency')) && /\d/.test(await value('Time to first token')),
                'latencies',
            );
            const seen = new Set();
            await until(
                async () => {
                    seen.add(await value('Tokens per second'));
                    return seen.size >= 3;
                },
                'changing numbers',
                15000,
            );
            const before = (await status(url)).requests.finished.cancelled;
            await until(
                async () => {
                    /* a request that has ended meanwhile is not cancelled: try the next one */
                    await page.evaluate(() => document.querySelector('.calls button:enabled')?.click());
                    await sleep(200);
                    return (await status(url)).requests.finished.cancelled > before;
                },
                'a cancelled request',
                10000,
            );
            const path = await page.evaluate(() =>
                document.querySelector('.card[aria-label="Requests"] .line.main').getAttribute('d'),
            );
            assert(path.split('L').length > 2, `the chart has no line: ${path}`);
        } finally {
            await stop();
        }
        const rows = () =>
            page.evaluate(
                () =>
                    [...document.querySelectorAll('.settings-table tbody tr')].filter(r => !r.hidden)
                        .length,
            );
        const all = await rows();
        await page.fill('.filter', 'max-');
        assert(all > 20 && (await rows()) < all && (await rows()) > 2, `${await rows()} of ${all}`);
        await page.click('#tab-chat');
        let asks = 0;
        page.on('request', q => {
            if (q.url().endsWith('/status')) asks++;
        });
        await sleep(2500);
        assert(asks <= 1, `${asks} requests for /status while the dashboard is hidden`);
        assert(page.faults.length === 0, page.faults.join('; '));
        await page.context().close();
    });
}

/* Takes screenshots of 1280 × 800 into the folder `pictures`. */
export async function takePictures(browser, url, pictures) {
    await check('screenshots', async () => {
        const page = await openPage(browser, url);
        await page.evaluate(() =>
            localStorage.setItem('tern.settings', JSON.stringify({ temperature: 0.4 })),
        );
        await page.reload(url);
        const conversations = [
            ['Tell me a story about a lost kite.'],
            ['Tell me a story about two friends and the sea.'],
            ['Tell me a story about a frog.', 'Tell me a story about a rainy day.'],
        ];
        for (const questions of conversations) {
            await page.keyboard.press('Control+k');
            for (const q of questions) {
                await ask(page, q);
                await answered(page);
            }
        }
        await page.mouse.move(1270, 400);
        await page.screenshot({ path: `${pictures}/page.png` });
        await page.click('#tab-dash');
        const part = (Number(process.env.PICTURE_S ?? 6) * 1000) / 3;
        for (const n of [3, 5, 8]) {
            const stop = load(url, n);
            await sleep(part);
            if (n === 8) await page.screenshot({ path: `${pictures}/dashboard.png` });
            await stop();
        }
        await page.context().close();
    });
}
