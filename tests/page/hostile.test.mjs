// What a hostile page in the user's browser can do to a server on loopback without keys: nothing.
//
// The page is on another origin (another port of 127.0.0.1), or its name was rebound to the server: Chromium resolves
// evil.test to 127.0.0.1. It tries to read answers and to cause work; the server's counters show that it did neither.

import http from 'node:http';

import { chromium } from 'playwright-core';
import { assert, check, until } from './harness.mjs';

/* The sum of a metric over its labels; label: only series that contain it. */
async function metric(url, name, label = '') {
    const lines = (await (await fetch(`${url}/metrics`)).text()).split('\n');
    return lines
        .filter(l => (l.startsWith(`${name} `) || l.startsWith(`${name}{`)) && l.includes(label))
        .reduce((sum, l) => sum + Number(l.slice(l.lastIndexOf(' '))), 0);
}

/* What the server did: requests accepted by an engine, tokens, good answers of the API. */
const work = async url => ({
    submitted: await metric(url, 'tern_requests_submitted_total'),
    generated: await metric(url, 'tern_generated_tokens_total'),
    answered: await metric(url, 'tern_http_requests_total', 'route="/v1/completions",status="2xx"'),
    models: await metric(url, 'tern_http_requests_total', 'route="/v1/models",status="2xx"'),
    status: await metric(url, 'tern_http_requests_total', 'route="/status",status="2xx"'),
});

const refused = (url, reason) => metric(url, 'tern_refused_total', `reason="${reason}"`);

/* Runs in the page: every way to send a request. Returns what it could read. */
async function attack(target) {
    const read = [];
    const body = '{"prompt": "Once", "max_tokens": 4}';
    const attempt = async (name, path, options) => {
        try {
            const r = await fetch(target + path, options);
            const text = await r.text();
            if (text && r.ok) read.push(`${name}: ${text.slice(0, 60)}`);
        } catch {
            /* the browser or the server refused */
        }
    };
    const tag = (kind, path) =>
        new Promise(done => {
            const e = document.createElement(kind);
            e.onload = () => (read.push(`${kind} ${path} loaded`), done());
            e.onerror = done;
            e.src = target + path;
            document.body.append(e);
        });
    for (const path of ['/v1/models', '/status', '/metrics']) {
        await attempt(`GET ${path}`, path, {});
        await attempt(`no-cors GET ${path}`, path, { mode: 'no-cors' });
        await tag('script', path);
    }
    const json = { 'content-type': 'application/json' };
    const plain = { 'content-type': 'text/plain' };
    await attempt('POST', '/v1/completions', { method: 'POST', headers: json, body });
    await attempt('plain POST', '/v1/completions', { method: 'POST', headers: plain, body });
    await attempt('no-cors POST', '/v1/completions', { method: 'POST', mode: 'no-cors', headers: plain, body });
    navigator.sendBeacon(`${target}/v1/completions`, body);
    const frame = document.createElement('iframe');
    frame.name = 'sink';
    document.body.append(frame);
    const form = document.createElement('form');
    Object.assign(form, { method: 'post', action: `${target}/v1/completions`, enctype: 'text/plain', target: 'sink' });
    const input = document.createElement('input');
    input.name = '{"prompt": "Once", "max_tokens": 4, "x": "';
    input.value = '"}';
    form.append(input);
    document.body.append(form);
    await new Promise(done => {
        frame.onload = done;
        form.submit();
        setTimeout(done, 5000);
    });
    return read;
}

async function expectNothing(page, url, target, reason, least) {
    const before = await work(url);
    const count = await refused(url, reason);
    const read = await page.evaluate(attack, target);
    assert(read.length === 0, `the page read ${read.join(' | ')}`);
    await until(async () => (await refused(url, reason)) >= count + least, `${least} refusals of ${reason}`);
    const after = await work(url);
    assert(JSON.stringify(before) === JSON.stringify(after), `work: ${JSON.stringify({ before, after })}`);
}

export async function hostileTests(executablePath, url) {
    const port = new URL(url).port;
    const args = ['--no-sandbox', '--host-resolver-rules=MAP evil.test 127.0.0.1'];
    const browser = await chromium.launch({ executablePath, args });
    const page = await (await browser.newContext()).newPage();
    const stranger = http.createServer((q, r) => {
        if (q.url === '/sandboxed') r.setHeader('Content-Security-Policy', 'sandbox allow-scripts allow-forms');
        r.setHeader('Content-Type', 'text/html');
        r.end('<!doctype html><body>hostile</body>');
    });
    await new Promise(done => stranger.listen(0, '127.0.0.1', done));

    await check('a page of another port reads nothing and causes no work', async () => {
        await page.goto(`http://127.0.0.1:${stranger.address().port}/`);
        await expectNothing(page, url, url, 'origin_not_allowed', 10);
    });
    await check('a page of another site reads nothing and causes no work', async () => {
        await page.goto(`http://evil.test:${stranger.address().port}/`);
        await expectNothing(page, url, url, 'origin_not_allowed', 10);
    });
    await check('a sandboxed page, whose origin is null, reads nothing and causes no work', async () => {
        await page.goto(`http://127.0.0.1:${stranger.address().port}/sandboxed`);
        await expectNothing(page, url, url, 'origin_not_allowed', 10);
    });
    await check('a name rebound to the server reads nothing and causes no work', async () => {
        const r = await page.goto(`http://evil.test:${port}/`);
        assert(r.status() === 403, `the page was served with ${r.status()}`);
        await expectNothing(page, url, `http://evil.test:${port}`, 'host_not_allowed', 10);
    });
    await check('the page of the server itself is served under localhost', async () => {
        const r = await page.goto(`http://localhost:${port}/`);
        assert(r.status() === 200, `status ${r.status()}`);
        const models = await page.evaluate(async () => (await fetch('/v1/models')).status);
        assert(models === 200, `GET /v1/models: ${models}`);
    });
    stranger.close();
    await browser.close();
}
