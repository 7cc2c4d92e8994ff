// Debian's Chromium, driven by npm's playwright-core: for the test of the page and for `bench ui`.

import { createRequire } from 'node:module';
import { resolve } from 'node:path';

const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--hide-scrollbars'];

/** What finds the packages below this folder. */
export const packages = (modules) => createRequire(resolve(modules, 'here.cjs'));

/** A browser with one page, whose profile is in this folder. */
export const open = (modules, profile, more) => packages(modules)('playwright-core').chromium.launchPersistentContext(profile, {
  executablePath: '/usr/bin/chromium', headless: true, args: FLAGS, viewport: { width: 1280, height: 800 }, ...more,
});
