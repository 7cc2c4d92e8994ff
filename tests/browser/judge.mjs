// The views of the page, and axe's judgement of them: each view in each of these colours, wide and narrow.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { open, packages } from './chromium.mjs';

/** The views by name, below the address of the page. */
export const VIEWS = {
  overview: '', hosts: 'hosts', services: 'services', stacks: 'stacks', names: 'names?name=web&client=shop-web-1&compare=services',
  placements: 'placements/explain?image=web&memory=30GiB', changes: 'changes',
};

const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];

/** Fails if axe finds a violation, or if a view is wider than its window; `colours` are what a page is emulated with. */
export const judge = async (modules, profile, address, views, colours, say) => {
  const axe = readFileSync(packages(modules).resolve('axe-core/axe.min.js'), 'utf8');
  const context = await open(modules, join(profile, 'judged'), { bypassCSP: true });
  const page = context.pages()[0];
  for (const colour of colours) {
    await page.emulateMedia(colour);
    // Then the colours are the system's own, and axe takes -webkit-text-fill-color for them, which Chromium leaves as it is.
    const rules = colour.forcedColors ? { 'color-contrast': { enabled: false } } : {};
    for (const width of [1280, 320]) {
      await page.setViewportSize({ width, height: 800 });
      for (const [name, path] of Object.entries(views)) {
        await page.goto(address + path);
        await page.evaluate(axe);
        const found = await page.evaluate((options) => globalThis.axe.run(document, options), { runOnly: RULES, rules });
        const wrong = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary).join(' | ')}`);
        assert.deepEqual(wrong, [], `${name} ${JSON.stringify(colour)} ${width}`);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(over <= 0, `${name} is ${over} px wider than ${width}`);
      }
    }
    say(`axe: 0 violations, ${JSON.stringify(colour)}`);
  }
  await context.close();
};
