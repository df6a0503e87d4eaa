// All tests, one after the other: node main.mjs. Only some of them: node main.mjs matrix tools

import { check, result, serve } from './harness.mjs';
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import wire from './wire.test.mjs';
import openaiAnswers from './openai.test.mjs';
import openaiBatches from './openai-batches.test.mjs';
import openaiEnds from './openai-ends.test.mjs';
import openaiErrors from './openai-errors.test.mjs';
import ai from './ai.test.mjs';
import langchain from './langchain.test.mjs';
import tools from './tools.test.mjs';
import protocols from './protocols.test.mjs';
import matrix from './matrix.test.mjs';

const data = mkdtempSync(`${tmpdir()}/tern-data-`);
process.on('exit', () => rmSync(data, { recursive: true, force: true }));
const server = await serve(['--data-dir', data]);
/* One request runs, none may wait: the second is rejected. */
const narrow = await serve(['--max-seqs', '1', '--max-requests', '1']);

const all = { wire, openaiAnswers, openaiBatches, openaiEnds, openaiErrors, ai, langchain, tools, protocols, matrix };
const asked = process.argv.slice(2);
for (const name of asked.length ? asked : Object.keys(all)) await all[name]({ server, narrow });

await check('afterwards no request runs or waits and no block is in use', async () => {
    for (const s of [server, narrow]) {
        await s.idle();
        const { models, calls } = await s.status();
        assert.equal(calls.length, 0, `calls: ${JSON.stringify(calls)}`);
        assert.equal(models[0].kv.used, 0, `${models[0].kv.used} blocks`);
    }
});
await check('SIGTERM: exit code 0', async () => {
    for (const s of [server, narrow]) assert.equal(await s.stop(), 0, s.log().slice(-500));
});
process.exit(result() ? 0 : 1);
