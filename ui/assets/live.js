// @ts-check
'use strict';
// Keeps an open page up to date: one stream, whose pieces are put where the server said by block and key. Text becomes text
// alone, never markup. Without this script every view is complete as of its last load.

const main = /** @type {HTMLElement} */ (document.querySelector('main'));
const byId = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const SVG = /** @type {SVGElement} */ (document.querySelector('.brand svg')).namespaceURI;
/** Classes of the cells of a map, by digit. */
const LEVELS = ['l0', 'l1', 'l2', 'l3', 'l4', 'bad', 'off', 'none'];

/** Remembers a choice where the browser allows that. */
const memory = {
  get(/** @type {string} */ key) { try { return localStorage.getItem('berth-' + key) || ''; } catch { return ''; } },
  set(/** @type {string} */ key, /** @type {string} */ value) { try { localStorage.setItem('berth-' + key, value); } catch { /* not kept */ } },
};

/** Fills a cell: text, class, glyph, link, share, note. */
function fill(/** @type {HTMLElement} */ cell, /** @type {any[]} */ [text, tone, glyph, link, share, note]) {
  const parts = [];
  if (share !== null) {
    const bar = document.createElementNS(SVG, 'svg');
    for (const [name, value] of [['class', 'bar'], ['viewBox', '0 0 100 6'], ['preserveAspectRatio', 'none'], ['aria-hidden', 'true']]) bar.setAttribute(name, value);
    const rect = document.createElementNS(SVG, 'rect');
    rect.setAttribute('width', String(share));
    rect.setAttribute('height', '6');
    bar.append(rect);
    parts.push(bar);
  }
  if (glyph) {
    const mark = document.createElement('span');
    mark.className = 'glyph';
    mark.setAttribute('aria-hidden', 'true');
    mark.textContent = glyph;
    parts.push(mark);
  }
  // The server makes links to its own pages alone; nothing else is followed.
  if (link && link.startsWith('/ui/')) {
    const anchor = document.createElement('a');
    anchor.setAttribute('href', link);
    anchor.textContent = text;
    parts.push(anchor);
  } else {
    parts.push(text);
  }
  if (note) {
    const small = document.createElement('small');
    small.textContent = note;
    parts.push(small);
  }
  const number = cell.classList.contains('number');
  cell.className = tone + (number ? ' number' : '');
  cell.replaceChildren(...parts);
}

/** What a cell holds, to see whether it is different. */
const signs = new WeakMap();

/** @returns {boolean} whether something was different */
function put(/** @type {HTMLElement} */ cell, /** @type {any[]} */ piece) {
  const sign = JSON.stringify(piece);
  const known = signs.get(cell);
  signs.set(cell, sign);
  // What the server wrote itself is compared by its text, so that nothing flashes when the stream begins.
  if (known === sign) return false;
  const tone = cell.classList[0], plain = !tone || tone === 'number';
  if (known === undefined && cell.textContent === (piece[2] || '') + piece[0] + (piece[5] || '') && (plain ? 'plain' : tone) === piece[1]) return false;
  const focused = cell.contains(document.activeElement);
  fill(cell, piece);
  if (focused) cell.querySelector('a')?.focus();
  // An animation would cost a frame sixty times a second.
  cell.classList.add('changed');
  setTimeout(() => { if (signs.get(cell) === sign) cell.classList.remove('changed'); }, 800);
  return true;
}

/** Draws a map whose cells have these levels. */
function draw(/** @type {any} */ map, /** @type {string} */ levels) {
  if (map.dataset.levels === levels) return;
  const columns = Number(map.dataset.columns), drawn = map.querySelectorAll('path');
  const paths = LEVELS.map(() => /** @type {string[]} */ ([]));
  for (let at = 0; at < levels.length; at++) {
    paths[levels.charCodeAt(at) - 48]?.push(`M${at % columns} ${Math.floor(at / columns)}h1v1h-1z`);
  }
  paths.forEach((path, at) => drawn[LEVELS.length - 1 - at].setAttribute('d', path.join('')));
  map.dataset.levels = levels;
}

let spoken = 0;
let heard = new Date();

/** Loads the page again, which is not what it was; nothing that is being typed is lost. */
function again() {
  stream?.close();
  const typing = main.contains(document.activeElement) && /^(INPUT|SELECT)$/.test(document.activeElement?.tagName || '');
  if (typing) byId('live').textContent = 'changed: load the page again'; else location.reload();
}

/** Takes in one message of the stream. */
function take(/** @type {any} */ message) {
  heard = new Date();
  if (message.reload) { again(); return; }
  let changed = 0;
  for (const [block, key, value] of message.set || []) {
    const place = byId(block);
    if (!place) continue;
    if (typeof value === 'string') { draw(place, value); continue; }
    if (place.tagName === 'SPAN') { changed += put(place, value[0]) ? 1 : 0; continue; }
    let row = rowOf(place, key);
    if (!row && place.tagName === 'TABLE') {
      row = document.createElement('tr');
      row.dataset.key = key;
      for (const head of place.tHead.rows[0].cells) {
        const cell = document.createElement('td');
        if (head.className) cell.className = head.className;
        row.append(cell);
      }
      place.tBodies[0].append(row);
      rows.get(place).set(key, row);
    }
    const cells = row ? (row.tagName === 'TR' ? row.cells : [row.lastElementChild]) : [];
    let different = false;
    for (let at = 0; at < Math.min(cells.length, value.length); at++) different = put(cells[at], value[at]) || different;
    changed += different ? 1 : 0;
  }
  for (const [id, keys, caption] of message.order || []) arrange(byId(id), keys, caption);
  if (message.lead !== undefined && byId('lead').textContent !== message.lead) byId('lead').textContent = message.lead;
  if (byId('live').textContent !== 'live') byId('live').textContent = 'live';
  if (changed && byId('speak').checked && Date.now() - spoken > 5000) {
    spoken = Date.now();
    byId('said').textContent = changed === 1 ? 'One row changed' : changed + ' rows changed';
  }
}

/** Rows of each block by key. */
const rows = new WeakMap();

function rowOf(/** @type {any} */ place, /** @type {string} */ key) {
  if (!rows.has(place)) rows.set(place, new Map([...place.querySelectorAll('[data-key]')].map((row) => [row.dataset.key, row])));
  return rows.get(place).get(key);
}

/** Puts the rows of a table into this order, and takes out those that are not in it. */
function arrange(/** @type {any} */ table, /** @type {string[]} */ keys, /** @type {string} */ caption) {
  if (!table) return;
  rowOf(table, '');
  const known = rows.get(table), wanted = new Set(keys), body = table.tBodies[0];
  for (const [key, row] of known) if (!wanted.has(key)) { row.remove(); known.delete(key); }
  body.querySelector('.empty')?.remove();
  let next = body.firstElementChild;
  for (const key of keys) {
    const row = known.get(key);
    if (row === next) next = row?.nextElementSibling;
    else if (row) body.insertBefore(row, next);
  }
  if (!keys.length) {
    const row = document.createElement('tr'), cell = document.createElement('td');
    row.className = 'empty';
    cell.colSpan = table.tHead.rows[0].cells.length;
    cell.textContent = table.dataset.empty;
    row.append(cell);
    body.append(row);
  }
  byId(table.id + '-caption').textContent = caption;
}

/** @type {EventSource | null} */
let stream = null;

function follow() {
  if (document.hidden || stream) return;
  stream = new EventSource('/ui/v1/stream?at=' + encodeURIComponent(main.dataset.at || '/ui/') + '&frame=' + (main.dataset.frame || ''));
  stream.onmessage = (event) => take(JSON.parse(event.data));
  stream.onerror = () => {
    byId('live').textContent = 'not connected, as of ' + heard.toLocaleTimeString();
    // A server that refused is asked again after a while; a browser does so by itself only for a lost connection.
    if (stream && stream.readyState === EventSource.CLOSED) { stream = null; setTimeout(follow, 5000); }
  };
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) { stream?.close(); stream = null; } else follow();
});
addEventListener('pagehide', () => { stream?.close(); stream = null; });
addEventListener('pageshow', follow);

// --- maps: which host a cell is --------------------------------------------------------------------------------------

for (const map of /** @type {any} */ (document.querySelectorAll('.map svg'))) {
  /** @type {any} */
  let hosts = null;
  const at = (/** @type {PointerEvent} */ event) => {
    const box = map.getBoundingClientRect(), view = map.viewBox.baseVal;
    const column = Math.floor((event.clientX - box.left) / box.width * view.width);
    const row = Math.floor((event.clientY - box.top) / box.height * view.height);
    return row * Number(map.dataset.columns) + column;
  };
  map.addEventListener('pointerenter', async () => { hosts ||= await (await fetch(map.dataset.names)).json(); });
  map.addEventListener('pointermove', (/** @type {PointerEvent} */ event) => {
    const cell = at(event);
    byId('pointed').textContent = hosts?.name[cell] ? `${hosts.name[cell]}: ${hosts.state[cell]}, ${hosts.containers[cell]} containers, memory ${hosts.memory[cell]}, CPU ${hosts.cpu[cell]}` : '';
  });
  map.addEventListener('click', (/** @type {PointerEvent} */ event) => { const link = hosts?.link[at(event)]; if (link) location.assign(link); });
}

// --- keys and settings -----------------------------------------------------------------------------------------------

const SECTIONS = { o: '/ui/', h: '/ui/hosts', s: '/ui/services', k: '/ui/stacks', n: '/ui/names', p: '/ui/placements', c: '/ui/changes' };
let going = 0;

document.addEventListener('keydown', (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
  if (event.key === 'Escape' && target.id === 'search') { target.blur(); main.focus(); }
  if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
  const row = target.closest('tbody tr');
  if (row && (event.key === 'ArrowDown' || event.key === 'ArrowUp')) {
    const links = [.../** @type {any} */ (row.parentElement).querySelectorAll('tr > td:first-child a')];
    const here = links.findIndex((link) => row.contains(link));
    const next = links[here + (event.key === 'ArrowDown' ? 1 : -1)];
    if (next) { event.preventDefault(); next.focus(); }
    return;
  }
  if (!byId('keys').checked) return;
  if (Date.now() - going < 1500 && event.key in SECTIONS) { location.assign(SECTIONS[/** @type {'o'} */ (event.key)]); return; }
  going = event.key === 'g' ? Date.now() : 0;
  if (event.key === '/') { event.preventDefault(); byId('search').focus(); }
  if (event.key === '?') { byId('help').open = true; byId('help').querySelector('summary').focus(); }
});

const theme = byId('theme');
theme.value = memory.get('theme');
const paint = () => { if (theme.value) document.documentElement.dataset.theme = theme.value; else delete document.documentElement.dataset.theme; };
theme.addEventListener('change', () => { memory.set('theme', theme.value); paint(); });
paint();
for (const id of ['keys', 'speak']) {
  byId(id).checked = memory.get(id) !== 'off';
  byId(id).addEventListener('change', () => memory.set(id, byId(id).checked ? '' : 'off'));
}
byId('settings').hidden = false;
if (byId('copy') && navigator.clipboard) {
  byId('copy').hidden = false;
  byId('copy').addEventListener('click', async () => {
    await navigator.clipboard.writeText(byId('command').textContent);
    byId('said').textContent = 'Copied';
  });
}
follow();
