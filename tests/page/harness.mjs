// Shared by the tests of the page: counted checks, waiting, a browser that records errors.

import { chromium } from 'playwright-core';

let passed = 0,
    failed = 0;

export function assert(truth, says) {
    if (!truth) throw new Error(says);
}

export async function check(promise, fn) {
    try {
        await fn();
        passed++;
        console.log(`ok ${promise}`);
    } catch (e) {
        failed++;
        console.log(`not ok ${promise}: ${e.message.split('\n').slice(0, 6).join(' | ')}`);
    }
}

export function result() {
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0 && passed > 0;
}

export const sleep = ms => new Promise(done => setTimeout(done, ms));

/* Waits until fn returns a true value, and returns it. */
export async function until(fn, says, ms = 60000) {
    const end = Date.now() + ms;
    for (;;) {
        const value = await fn();
        if (value) return value;
        if (Date.now() > end) throw new Error(`not within ${ms} ms: ${says}`);
        await sleep(25);
    }
}

export async function openBrowser(executablePath) {
    return chromium.launch({ executablePath, args: ['--no-sandbox', '--font-render-hinting=none'] });
}

/* A page with empty storage. Logged errors, exceptions and requests to other hosts are recorded in
 * page.faults. */
export async function openPage(browser, url, options = {}) {
    const context = await browser.newContext({
        viewport: { width: 1280, height: 800 },
        reducedMotion: 'reduce',
        ...options,
    });
    const page = await context.newPage();
    page.faults = [];
    page.on('pageerror', e => page.faults.push(`exception: ${e.message}`));
    page.on('console', m => {
        if (m.type() === 'error' && !/status of 4\d\d/.test(m.text()))
            page.faults.push(`console: ${m.text()}`);
    });
    page.on('request', q => {
        if (!q.url().startsWith(url) && !q.url().startsWith('blob:'))
            page.faults.push(`request to another host: ${q.url()}`);
    });
    await page.goto(url + (options.hash ?? '/'));
    await until(
        () => page.evaluate(() => document.querySelector('#model option')?.value),
        'the list of models',
    );
    return page;
}

export const answers = page => page.locator('.message.assistant');

export async function ask(page, text) {
    await page.fill('#prompt', text);
    await page.press('#prompt', 'Enter');
}

export async function answered(page) {
    await until(
        () =>
            page.evaluate(
                () =>
                    document.querySelector('.message.assistant') &&
                    !document.querySelector('.message.running'),
            ),
        'the answer',
        60000,
    );
    return answers(page).last().locator('.answer').innerText();
}

/* Changes the page's requests: n answers of exactly that many tokens. */
export async function endless(page, tokens, n = 1) {
    await page.route('**/v1/chat/completions', route => {
        const body = { ...route.request().postDataJSON(), ignore_eos: true, max_tokens: tokens, n };
        route.continue({ postData: JSON.stringify(body) });
    });
}

export const status = async url => (await fetch(`${url}/status`)).json();

export const textOf = (page, selector) => page.locator(selector).first().innerText();

export const isReady = page =>
    page.evaluate(() => document.querySelector('.state')?.textContent === 'ready');

/* n clients that stream stories until the returned function is called. */
export function load(url, n) {
    const abort = new AbortController();
    const one = async i => {
        for (let k = 0; !abort.signal.aborted; k++) {
            const body = {
                messages: [{ role: 'user', content: `Tell me a story about number ${i} and ${k}.` }],
                stream: true,
                ignore_eos: true,
                max_tokens: 200 + 30 * i,
                temperature: 1,
            };
            try {
                const r = await fetch(`${url}/v1/chat/completions`, {
                    method: 'POST',
                    signal: abort.signal,
                    headers: { 'content-type': 'application/json' },
                    body: JSON.stringify(body),
                });
                await r.text();
            } catch {
                /* aborted */
            }
        }
    };
    const all = Promise.all(Array.from({ length: n }, (_, i) => one(i)));
    return async () => {
        abort.abort();
        await all;
    };
}

/* Runs in the page: texts under the selector whose contrast is below 4.5 to 1 (WCAG AA). */
export function faintTexts(selector) {
    const rgba = c => c.match(/[\d.]+/g).map(Number);
    const light = c => {
        const part = v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = c.map(v => part(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = e => {
        for (; e; e = e.parentElement) {
            const c = rgba(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] === 1) return c.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const out = [];
    for (const e of document.querySelectorAll(`:is(${selector}) *`)) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!own || !e.checkVisibility({ checkOpacity: true }) || e.disabled) continue;
        const a = light(rgba(getComputedStyle(e).color).slice(0, 3)),
            b = light(ground(e));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5)
            out.push(`${e.textContent.trim().slice(0, 30)} .${e.className}: ${ratio.toFixed(1)}`);
    }
    return out;
}
