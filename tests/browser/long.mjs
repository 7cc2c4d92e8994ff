// What takes long to see of the page of an agent, with Debian's Chromium. Started by tests/tests/ui.rs in its long form.
//
//   node long.mjs ADDRESS MODULES PROFILE judge               axe's whole matrix: each view, and a host, a service and a container
//   node long.mjs ADDRESS MODULES PROFILE stay SECONDS MOST   open pages do not grow while the cluster changes, and no task takes MOST ms
//
// Prints one line for each thing that was seen; the exit code is 1 at the first that is wrong.

import assert from 'node:assert/strict';
import { join } from 'node:path';

import { open } from './chromium.mjs';
import { VIEWS, judge } from './judge.mjs';

const [address, modules, profile, what, seconds, most] = process.argv.slice(2);
const say = (text) => console.log(text);

const context = await open(modules, join(profile, 'long'));

if (what === 'judge') {
  const page = context.pages()[0];
  const first = async (path, table) => {
    await page.goto(new URL(path, address).href);
    return (await page.locator(`#${table} td a`).first().getAttribute('href')).slice('/ui/'.length);
  };
  const host = await first('hosts', 'hosts');
  const views = { ...VIEWS, host, service: await first('services', 'services'), container: await first(host, 'containers') };
  await context.close();
  await judge(modules, profile, address, views, [{ colorScheme: 'light' }, { colorScheme: 'dark' }, { forcedColors: 'active' }], say);
} else {
  // Only tasks that take longer than 50 ms are reported by a browser.
  await context.addInitScript(() => {
    globalThis.longest = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) globalThis.longest = Math.max(globalThis.longest, entry.duration);
    }).observe({ type: 'longtask' });
  });
  const views = await Promise.all(['hosts', 'services', 'changes'].map(async (name) => {
    const page = await context.newPage();
    await page.goto(address + VIEWS[name]);
    const session = await context.newCDPSession(page);
    await session.send('Performance.enable');
    const figures = async () => {
      await session.send('HeapProfiler.collectGarbage');
      const { metrics } = await session.send('Performance.getMetrics');
      const of = (name) => metrics.find((metric) => metric.name === name).value;
      const [live, longest] = await page.evaluate(() => {
        const longest = globalThis.longest;
        globalThis.longest = 0;
        return [document.getElementById('live').textContent, longest];
      });
      return { live, longest, heap: of('JSHeapUsedSize'), nodes: of('Nodes') };
    };
    return { name, page, figures };
  }));
  const wait = (share) => new Promise((done) => setTimeout(done, Number(seconds) * 1000 * share));
  // The first tenth fills what is used again later.
  await wait(0.1);
  const before = await Promise.all(views.map((view) => view.figures()));
  const texts = await Promise.all(views.map((view) => view.page.locator('main').textContent()));
  await wait(0.9);
  const after = await Promise.all(views.map((view) => view.figures()));
  for (const [at, { name, page }] of views.entries()) {
    const { heap, nodes } = before[at];
    say(`${name}: heap ${heap} + ${after[at].heap - heap}, nodes ${nodes} + ${after[at].nodes - nodes}, longest task ${after[at].longest} ms`);
    assert.equal(after[at].live, 'live');
    if (name === 'changes') assert.notEqual(await page.locator('main').textContent(), texts[at], 'it changed all the time');
    assert.ok(after[at].heap - heap <= 1e6, 'the heap grows by 1 MB at most');
    assert.ok(after[at].nodes - nodes <= nodes / 20, 'so do the nodes by a twentieth');
    assert.ok(after[at].longest <= Number(most), 'no task is long');
  }
  await context.close();
}
say('done');
