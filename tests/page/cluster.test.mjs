// The page of a gateway: its second tab shows the cluster.

import { answered, ask, assert, check, isReady, openPage, until } from './harness.mjs';

export async function clusterTests(browser, url, pictures) {
    await check('the page of a gateway shows its workers, their devices, models, load and links', async () => {
        const page = await openPage(browser, url);
        await until(async () => (await page.locator('#tab-dash').innerText()) === 'Cluster', 'the name of the tab');
        await ask(page, 'Tell me a story.');
        assert((await answered(page)).length > 0, 'no answer through the gateway');
        await page.click('#tab-dash');
        await until(() => isReady(page), 'the state of the gateway');
        const value = name => page.locator(`.card[aria-label="${name}"] .value`).innerText();
        await until(async () => (await value('Workers ready')) === '1 of 1', 'one worker');
        const row = page.locator('.workers tbody tr');
        await until(async () => /threads?\)/.test(await row.locator('td').nth(1).innerText()), 'the device of the worker');
        const texts = await row.locator('td').allInnerTexts();
        assert((await row.count()) === 1 && texts[0] === 'ready', `the row of the worker: ${texts}`);
        assert(texts[2] === 'tern-tales', `the models of the worker: ${texts[2]}`);
        await until(async () => Number(await row.locator('td').nth(6).innerText()) >= 1, 'requests of the worker');
        assert(/reused$/.test(texts.at(-1)), `the connections: ${texts.at(-1)}`);
        await page.route('**/status', async route => {
            const response = await route.fetch(), json = await response.json();
            json.workers[0].gang = 'm: 2 members (tp 2, pp 1) on a, b, 8 % communication';
            await route.fulfill({ response, json });
        });
        await until(async () => /threads?\); m: 2 members/.test(await row.locator('td').nth(1).innerText()), 'the gang of the worker');
        assert((await page.locator('.settings-table tbody tr').count()) > 20, 'the settings of the gateway');
        await page.screenshot({ path: `${pictures}/cluster.png` });
        assert(page.faults.length === 0, page.faults.join('; '));
        await page.context().close();
    });
}
