// Looks at the page of an agent with Debian's Chromium: node look.mjs ADDRESS MODULES PROFILE [FOLDER FOR IMAGES [WHAT THEY ARE OF]]
//
// With the last argument, which ends the names of the images, only these are made.
//
// Prints one line for each thing that was seen; the exit code is 1 at the first that is wrong. Started by tests/tests/ui.rs.

import assert from 'node:assert/strict';
import { join } from 'node:path';

import { open as browser } from './chromium.mjs';
import { VIEWS, judge } from './judge.mjs';

const [address, modules, profile, images, subject] = process.argv.slice(2);
const open = (name, more) => browser(modules, join(profile, name), more);
const say = (text) => console.log(text);

// What a browser complains of, such as a breach of the policy, is a failure.
const complaints = [];
const watch = (page) => {
  page.on('console', (message) => { if (['error', 'warning'].includes(message.type())) complaints.push(message.text()); });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('dialog', (dialog) => { complaints.push('dialog ' + dialog.message()); dialog.dismiss(); });
};

// Pictures for people.
const pictures = async (page, end) => {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    for (const [name, path] of Object.entries(VIEWS)) {
      await page.goto(address + path);
      await page.waitForFunction(() => document.getElementById('live').textContent === 'live');
      await page.screenshot({ path: join(images, `${name}${end}-${colorScheme}.png`) });
    }
  }
  say('pictures');
};
if (subject) {
  const live = await open('pictures');
  watch(live.pages()[0]);
  await pictures(live.pages()[0], `-${subject}`);
  assert.deepEqual(complaints, []);
  await live.close();
  say('done');
  process.exit();
}

// 1. Every view without script, then the same with it: the text of the tables is the same.
const plain = await open('plain', { javaScriptEnabled: false });
const live = await open('live');
const [still, page] = [plain.pages()[0], live.pages()[0]];
watch(page);
for (const [name, path] of Object.entries(VIEWS)) {
  await still.goto(address + path);
  const before = await still.locator('h1').textContent();
  assert.ok(before);
  await page.goto(address + path);
  await page.waitForFunction(() => document.getElementById('live').textContent === 'live');
  assert.equal(await page.locator('h1').textContent(), before);
  // Times go on, and so do the changes.
  if (!['changes', 'overview'].includes(name)) {
    assert.deepEqual(await page.locator('td').allTextContents(), await still.locator('td').allTextContents(), name);
  }
  say(`${name}: the same without script`);
}

// 2. axe: no violation in any view, light and dark, wide and narrow.
await judge(modules, profile, address, VIEWS, [{ colorScheme: 'light' }, { colorScheme: 'dark' }], say);

// 3. The keyboard alone.
await page.goto(address);
await page.keyboard.press('g');
await page.keyboard.press('h');
await page.waitForURL('**/ui/hosts');
await page.keyboard.press('/');
assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
await page.keyboard.press('Escape');
await page.locator('#hosts td a').first().focus();
await page.keyboard.press('ArrowDown');
const name = await page.evaluate(() => document.activeElement.textContent);
await page.keyboard.press('Enter');
await page.waitForURL('**/ui/hosts/*');
assert.equal(await page.locator('h1').textContent(), name);
await page.keyboard.press('?');
assert.ok(await page.evaluate(() => document.getElementById('help').open));
say('keyboard: sections, search, tables, help');
if (images) await pictures(page, '');

// 4. A change is seen without a reload: the test that started this writes it when it reads this line, and ends with "done".
await page.goto(address + 'services');
await page.evaluate(() => { globalThis.same = true; });
await page.waitForFunction(() => document.getElementById('live').textContent === 'live');
say('waiting for a change');
await page.waitForFunction(() => document.body.textContent.includes('img src=x onerror'), null, { timeout: 20000 });
assert.ok(await page.evaluate(() => globalThis.same), 'it was not loaded again');
assert.equal(await page.locator('main img').count(), 0);
say('live: a service with a hostile name appeared as text');

assert.deepEqual(complaints, []);
await plain.close();
await live.close();
say('done');
