// Appearance and accessibility: themes, contrast, narrow screens, labels, keyboard.

import { answered, ask, assert, check, faintTexts, isReady, openPage, until } from './harness.mjs';

export async function looksTests(browser, url) {
    await check('the theme follows the system until one is chosen, and the choice is kept', async () => {
        const page = await openPage(browser, url, { colorScheme: 'dark' });
        const back = () =>
            page.evaluate(() =>
                getComputedStyle(document.body)
                    .backgroundColor.match(/\d+/g)
                    .slice(0, 3)
                    .reduce((a, b) => a + Number(b), 0),
            );
        assert((await back()) < 150, `dark is ${await back()}`);
        await page.click('#theme');
        assert((await back()) > 600, `light is ${await back()}`);
        await page.reload(url);
        assert((await back()) > 600, 'the choice was not kept');
        await page.context().close();
    });

    await check('text has enough contrast in both themes', async () => {
        for (const colorScheme of ['light', 'dark']) {
            const page = await openPage(browser, url, { colorScheme });
            await ask(page, 'Tell me a story about a bee.');
            await answered(page);
            await page.click('#tab-dash');
            await until(() => isReady(page), 'the dashboard');
            const chat = await page.evaluate(faintTexts, '#view-dash, .top');
            await page.click('#tab-chat');
            const faint = [...chat, ...(await page.evaluate(faintTexts, '#view-chat'))];
            assert(faint.length === 0, `${colorScheme}: ${faint.slice(0, 5).join('; ')}`);
            await page.context().close();
        }
    });

    await check('the page fits into a width of 320 pixels', async () => {
        const page = await openPage(browser, url, {
            viewport: { width: 320, height: 640 },
            hasTouch: true,
        });
        const over = () => page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
        assert((await over()) <= 0, `empty: ${await over()} px too wide`);
        await ask(
            page,
            'Tell me about Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft.',
        );
        await answered(page);
        assert((await over()) <= 0, `with an answer: ${await over()} px too wide`);
        const wide = await page.evaluate(
            () =>
                [...document.querySelectorAll('.conversation *')].filter(
                    e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.sidebar'),
                ).length,
        );
        assert(wide === 0, `${wide} elements are wider than the screen`);
        await page.click('#drawer-open');
        await until(() => page.locator('#new-chat').isVisible(), 'the list of conversations');
        await page.keyboard.press('Escape');
        await page.click('#tab-dash');
        await until(() => isReady(page), 'the dashboard');
        assert((await over()) <= 0, `dashboard: ${await over()} px too wide`);
        await page.context().close();
    });

    await check('every control has a label, every tab a panel, and the keyboard reaches all', async () => {
        const page = await openPage(browser, url);
        await ask(page, 'Tell me a story about a mouse.');
        await answered(page);
        await page.click('#tab-dash');
        await until(() => isReady(page), 'the dashboard');
        await page.click('#tab-chat');
        const unnamed = await page.evaluate(() =>
            [
                ...document.querySelectorAll(
                    'button, input, select, textarea, a[href], [role=tab], [role=img], [role=region]',
                ),
            ]
                .filter(e => {
                    const labels = [...(e.labels ?? [])].map(l => l.textContent).join('');
                    const by = (e.getAttribute('aria-labelledby') ?? '')
                        .split(' ')
                        .map(id => document.getElementById(id)?.textContent ?? '')
                        .join('');
                    return !(
                        e.getAttribute('aria-label') ||
                        labels.trim() ||
                        by.trim() ||
                        (['BUTTON', 'A'].includes(e.tagName) && e.textContent.trim())
                    );
                })
                .map(e => e.outerHTML.slice(0, 120)),
        );
        assert(unnamed.length === 0, unnamed.join(' '));
        const tabs = await page.evaluate(() =>
            [...document.querySelectorAll('[role=tab]')].every(
                t =>
                    document.getElementById(t.getAttribute('aria-controls'))?.getAttribute('role') ===
                    'tabpanel',
            ),
        );
        assert(tabs, 'a tab without a panel');
        await page.locator('#tab-chat').focus();
        await page.keyboard.press('ArrowRight');
        assert(await page.locator('#view-dash').isVisible(), 'the arrow key does not change the tab');
        assert(
            (await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle)) === 'solid',
            'the focus has no outline',
        );
        assert(
            (await page.evaluate(() => document.querySelector('#live').getAttribute('aria-live'))) ===
                'polite',
            'no polite live region',
        );
        await page.context().close();
    });
}
