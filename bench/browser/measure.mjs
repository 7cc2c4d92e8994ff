// Measures pages with Debian's Chromium: node measure.mjs MODULES PROFILE
//
// Reads commands from its standard input, a line each, and answers each with one line of JSON. Started by `bench ui`.
//
//   load URL       opens it as a person does who types the address, and says what that took
//   text TEXT      waits until the page has this text, and says when that was (milliseconds since 1970)
//   figures        time in scripts, for messages and in all tasks so far, the longest task since the last time, and the heap after a collection

import { createInterface } from 'node:readline';

import { open } from '../../tests/browser/chromium.mjs';

const [modules, profile] = process.argv.slice(2);
const context = await open(modules, profile);
const page = context.pages()[0];
// Only tasks that take longer than 50 ms are reported by a browser.
await page.addInitScript(() => {
  globalThis.longest = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) globalThis.longest = Math.max(globalThis.longest, entry.duration);
  }).observe({ type: 'longtask', buffered: true });
  // What the page does with the messages of its stream, without what is done here.
  globalThis.taking = 0;
  const { set } = Object.getOwnPropertyDescriptor(EventSource.prototype, 'onmessage');
  Object.defineProperty(EventSource.prototype, 'onmessage', {
    set(take) {
      set.call(this, (event) => {
        const begun = performance.now();
        take(event);
        globalThis.taking += performance.now() - begun;
      });
    },
  });
});
const session = await context.newCDPSession(page);
await session.send('Performance.enable');

const commands = {
  async load(url) {
    await session.send('Network.clearBrowserCache');
    await page.goto(url);
    await page.waitForFunction(() => document.getElementById('live').textContent === 'live', null, { polling: 'raf' });
    return page.evaluate(async () => {
      const live = performance.now();
      await new Promise((done) => setTimeout(done, 500));
      // The stream goes on, so it is none of what is loaded; nor is it counted by the browser before it ends.
      const loaded = [performance.getEntriesByType('navigation')[0], ...performance.getEntriesByType('resource')];
      const sum = (key) => loaded.reduce((sum, entry) => sum + entry[key], 0);
      const longest = globalThis.longest;
      globalThis.longest = 0;
      return {
        painted: performance.getEntriesByName('first-contentful-paint')[0].startTime, live, longest,
        requests: loaded.length + 1, raw: sum('decodedBodySize'), sent: sum('encodedBodySize'),
        rows: document.querySelectorAll('main tbody tr').length, nodes: document.querySelectorAll('*').length,
      };
    });
  },
  async text(text) {
    const seen = await page.waitForFunction((text) => document.body.textContent.includes(text) && Date.now(), text, { polling: 'raf' });
    return { seen: await seen.jsonValue() };
  },
  async figures() {
    await session.send('HeapProfiler.collectGarbage');
    const { metrics } = await session.send('Performance.getMetrics');
    const of = (name) => metrics.find((metric) => metric.name === name).value;
    const [longest, taking] = await page.evaluate(() => { const longest = globalThis.longest; globalThis.longest = 0; return [longest, globalThis.taking]; });
    return { taking, script: of('ScriptDuration'), task: of('TaskDuration'), heap: of('JSHeapUsedSize'), nodes: of('Nodes'), longest };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...rest] = line.split(' ');
  console.log(JSON.stringify(await commands[name](rest.join(' '))));
}
await context.close();
