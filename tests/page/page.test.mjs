// All tests of the page: node page.test.mjs URL CHROMIUM PICTURES GATEWAY

import { chatTests } from './chat.test.mjs';
import { clusterTests } from './cluster.test.mjs';
import { dashTests, takePictures } from './dash.test.mjs';
import { check, openBrowser, result, until } from './harness.mjs';
import { hostileTests } from './hostile.test.mjs';
import { looksTests } from './looks.test.mjs';
import { markdownTests } from './markdown.test.mjs';

const [url, executablePath, pictures, gateway] = process.argv.slice(2);
const browser = await openBrowser(executablePath);

await check('the server is ready', () =>
    until(async () => (await fetch(`${url}/ready`)).ok, '/ready', 60000),
);
await chatTests(browser, url);
await markdownTests(browser, url);
await looksTests(browser, url);
await dashTests(browser, url);
await clusterTests(browser, gateway, pictures);
await hostileTests(executablePath, url);
await takePictures(browser, url, pictures);

await browser.close();
process.exit(result() ? 0 : 1);
