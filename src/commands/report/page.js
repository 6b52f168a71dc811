'use strict';
const colors = ['#2563eb', '#ea580c', '#16a34a', '#9333ea', '#0891b2', '#dc2626', '#a16207', '#64748b'];
const phases = { data: '#64748b', forward: '#2563eb', backward: '#9333ea', communication: '#ea580c', optimizer: '#16a34a' };
const titles = { loss: 'loss', perplexity: 'perplexity', grad_norm: 'gradient norm', lr: 'learning rate',
    tokens_per_s: 'tokens/s', mfu: 'MFU', tflops: 'TFLOP/s per rank', attended_share: 'share of causal keys attended',
    memory_bytes: 'memory in use (GiB)', memory_peak_bytes: 'memory, peak (GiB)', seconds: 'seconds per step' };
const hidden = /^(consumed_samples|tokens|loss_weight|tokens_so_far|epochs_so_far|skipped|eval_loss_weight|perplexity|memory_peak_bytes|.*_s)$/;
const order = ['loss', 'grad_norm', 'lr', 'tokens_per_s', 'mfu', 'tflops', 'memory_bytes', 'attended_share', 'seconds'];
let data = JSON.parse(document.getElementById('data').textContent);
const state = { off: new Set(), zoom: null, raw: true, logY: new Set() };

function element(name, attributes = {}, ...children) {
    const svg = ['svg', 'g', 'path', 'polyline', 'line', 'text', 'rect', 'circle', 'clipPath'].includes(name);
    const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes))
        key.startsWith('on') ? made.addEventListener(key.slice(2), value) : made.setAttribute(key, value);
    made.append(...children);
    return made;
}
const number = (x, digits = 5) => x === null || x === undefined || !isFinite(x) ? '-' :
    Math.abs(x) >= 1e7 || (x !== 0 && Math.abs(x) < 1e-3) ? (+x.toPrecision(digits)).toExponential() :
    Number.isInteger(x) ? x.toLocaleString('en') : String(+x.toPrecision(digits));
const gib = bytes => bytes === undefined ? '-' : bytes < 2 ** 30 ? number(bytes / 2 ** 20, 3) + ' MiB' : number(bytes / 2 ** 30, 3) + ' GiB';
const shown = run => !state.off.has(run.name);

function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
    const step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10), found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) found.push(+(i * step).toPrecision(12));
    return found;
}

// A chart of lines: {name, color, x, y, [tx, ty: its trend], [dots]}. `scale` divides what is shown of y.
function chart(title, lines, options = {}) {
    const key = options.key || title, wide = options.wide ? ' wide' : '';
    const card = element('div', { class: 'card' + wide, 'data-key': key });
    const draw = () => {
        const width = Math.max(card.clientWidth - 26, 260), height = options.height || 210;
        const scale = options.scale || 1, left = 58, right = 24, top = 8, bottom = 24, logarithmic = state.logY.has(key);
        const inside = x => !state.zoom || options.ownX || (x >= state.zoom[0] && x <= state.zoom[1]);
        let low = Infinity, high = -Infinity, from = Infinity, to = -Infinity;
        for (const line of lines) {
            const kept = [];
            for (let i = 0; i < line.x.length; ++i) {
                if (!inside(line.x[i]) || line.y[i] === null || (logarithmic && line.y[i] <= 0)) continue;
                from = Math.min(from, line.x[i]); to = Math.max(to, line.x[i]); kept.push(line.y[i]);
            }
            kept.sort((a, b) => a - b);  // the wildest hundredth may leave the window at the top
            if (!kept.length) continue;
            low = Math.min(low, kept[0]);
            high = Math.max(high, kept[Math.max(0, kept.length - 1 - Math.floor(kept.length / 100))]);
        }
        if (state.zoom && !options.ownX) [from, to] = state.zoom;
        if (!(to > from)) { from -= 1; to += 1; }
        if (options.zero) low = Math.min(low, 0);
        if (!(high > low)) { const by = Math.abs(high) * .05 || 1e-3; low -= by; high += by; }
        const f = logarithmic ? Math.log10 : v => v, floor = f(low) - .03 * (f(high) - f(low)), ceiling = f(high) + .04 * (f(high) - f(low));
        const X = v => left + (v - from) / (to - from) * (width - left - right);
        const Y = v => top + (ceiling - f(v)) / (ceiling - floor) * (height - top - bottom);
        const svg = element('svg', { viewBox: `0 0 ${width} ${height}`, height, 'data-x': `${from},${to}`, 'data-y': `${floor},${ceiling}`,
            'data-box': `${left},${top},${width - left - right},${height - top - bottom}` });
        const clip = 'clip' + Math.random().toString(36).slice(2);
        svg.append(element('clipPath', { id: clip }, element('rect', { x: left, y: 0, width: width - left - right + 5, height: height - bottom })));
        for (const value of ticks(floor / scale, ceiling / scale, 5)) {
            const y = top + (ceiling - value * scale) / (ceiling - floor) * (height - top - bottom);
            svg.append(element('line', { class: 'rule', x1: left, x2: width - right, y1: y, y2: y }),
                element('text', { x: left - 6, y: y + 4, 'text-anchor': 'end' }, number(logarithmic ? 10 ** (value * scale) / scale : value, 4)));
        }
        for (const value of ticks(from, to, Math.max(2, Math.floor(width / 110))))
            svg.append(element('text', { x: X(value), y: height - 6, 'text-anchor': 'middle' }, number(value)));
        const area = element('g', { 'clip-path': `url(#${clip})` });
        const path = (xs, ys) => xs.map((x, i) => [x, ys[i]]).filter(([x, y]) => y !== null && (!logarithmic || y > 0))
            .map(([x, y]) => X(x).toFixed(2) + ',' + Y(y).toFixed(2)).join(' ');
        for (const line of lines) {
            if (line.dots)
                line.x.forEach((x, i) => line.y[i] !== null && inside(x) && area.append(element('circle', { cx: X(x), cy: Y(line.y[i]), r: 3.5, fill: line.color })));
            const both = line.ty !== undefined;
            if (state.raw || !both || line.dots)
                area.append(element('polyline', { class: both ? 'raw' : 'trend', stroke: line.color, points: path(line.x, line.y),
                    'data-line': line.name, ...(line.dots ? { 'stroke-dasharray': '2 5', 'stroke-width': 1.5 } : {}) }));
            if (both) area.append(element('polyline', { class: 'trend', stroke: line.color, points: path(line.tx, line.ty) }));
        }
        const cursor = element('line', { class: 'cursor', y1: top, y2: height - bottom, visibility: 'hidden' });
        const pick = element('rect', { class: 'pick', y: top, height: height - top - bottom, visibility: 'hidden' });
        const tip = element('div', { class: 'tip' }), marks = element('g');
        svg.append(area, cursor, pick, marks);
        const place = event => { const box = svg.getBoundingClientRect(); return Math.min(Math.max((event.clientX - box.left) * width / box.width, left), width - right); };
        const value = pixel => from + (pixel - left) / (width - left - right) * (to - from);
        let begin = null;
        const hover = pixel => {
            const at = value(pixel), said = [];
            marks.replaceChildren();
            let nearest = null;
            for (const line of lines) {
                let best = -1;  // x rises
                let a = 0, b = line.x.length - 1;
                while (a < b) { const middle = (a + b) >> 1; line.x[middle] < at ? a = middle + 1 : b = middle; }
                for (const i of [a - 1, a])
                    if (i >= 0 && i < line.x.length && line.y[i] !== null && (best < 0 || Math.abs(line.x[i] - at) < Math.abs(line.x[best] - at))) best = i;
                if (best < 0 || !inside(line.x[best])) continue;
                nearest ??= line.x[best];
                said.push(`${line.name}: ${line.y[best] / scale} at ${options.xName || 'step'} ${line.x[best]}`);
                marks.append(element('circle', { cx: X(line.x[best]), cy: Y(line.y[best]), r: 3, fill: line.color }));
            }
            if (nearest !== null) { cursor.setAttribute('x1', X(nearest)); cursor.setAttribute('x2', X(nearest)); cursor.setAttribute('visibility', 'visible'); }
            tip.textContent = said.join('   ');
        };
        svg.addEventListener('pointerdown', event => { begin = place(event); svg.setPointerCapture(event.pointerId); });
        svg.addEventListener('pointermove', event => {
            const now = place(event);
            hover(now);
            if (begin === null || options.ownX) return;
            pick.setAttribute('x', Math.min(begin, now)); pick.setAttribute('width', Math.abs(now - begin)); pick.setAttribute('visibility', 'visible');
        });
        svg.addEventListener('pointerup', event => {
            const now = place(event), start = begin;
            begin = null; pick.setAttribute('visibility', 'hidden');
            if (start !== null && Math.abs(now - start) > 8 && !options.ownX) { state.zoom = [value(Math.min(start, now)), value(Math.max(start, now))]; redraw(); }
        });
        svg.addEventListener('pointerleave', () => { if (begin === null) { cursor.setAttribute('visibility', 'hidden'); marks.replaceChildren(); tip.textContent = ''; } });
        svg.addEventListener('dblclick', () => { state.zoom = null; redraw(); });
        const toggle = element('button', { onclick: () => { logarithmic ? state.logY.delete(key) : state.logY.add(key); draw(); }, title: 'linear or logarithmic' }, logarithmic ? 'log' : 'linear');
        const legend = element('div', { class: 'legend' }, ...lines.map(line => element('span', {}, element('i', { style: `background:${line.color}` }), line.name)));
        card.replaceChildren(element('h3', {}, title, toggle), legend, svg, tip);
    };
    card.draw = draw;
    return card;
}

function section(title, ...content) { return element('section', {}, element('h2', {}, title), ...content); }
function table(head, rows) {
    return element('div', { class: 'scroll' }, element('table', {}, element('tr', {}, ...head.map(text => element('th', {}, text))),
        ...rows.map(row => element('tr', {}, ...row.map(cell => element('td', {}, cell instanceof Node ? cell : String(cell)))))));
}

function curves(runs) {
    const keys = new Set(runs.flatMap(run => Object.keys(run.series)));
    const lone = [...keys].filter(key => !hidden.test(key) && !(key.startsWith('eval_') && keys.has(key.slice(5))));
    lone.push(...['tokens_per_s'].filter(key => keys.has(key)));
    const rank = key => order.includes(key) ? order.indexOf(key) : 99;
    return [...new Set(lone)].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1)).map(key => {
        const lines = [];
        data.runs.forEach((run, i) => {
            if (!shown(run)) return;
            for (const [name, dots] of [[key, key.startsWith('eval_')], ['eval_' + key, true]]) {
                const s = run.series[name];
                if (s) lines.push({ name: (data.runs.length > 1 ? run.name + ' ' : '') + name, color: colors[(name === key ? i : i + (data.runs.length > 1 ? 0 : 1)) % colors.length], dots, ...s });
            }
        });
        return chart(titles[key] || key.replaceAll('_', ' '), lines, { key, wide: key === 'loss', height: key === 'loss' ? 300 : 210, scale: key.endsWith('_bytes') ? 2 ** 30 : 1 });
    });
}

function summary(runs) {
    const last = (run, key) => { const s = run.series[key]; return s ? s.y[s.y.length - 1] : null; };
    const mean = (run, key) => run.series[key] ? run.series[key].mean : null;
    const steps = run => { const s = run.series.tokens_so_far || run.series.loss; return s ? s.x[s.x.length - 1] : 0; };
    const facts = run => run.facts || {};
    const rows = [
        ['steps', run => { const n = steps(run), all = run.config['train.steps']; return n || all ? number(n) + (all ? ' of ' + number(+all) : '') : '-'; }],
        ['last loss', run => { const s = run.series.loss, at = s ? s.x[s.x.length - 1] : 0; return number(last(run, 'loss')) + (s && at < steps(run) ? ` at step ${at}` : ''); }], ['best held-out loss', run => number(run.best_loss)],
        ['held-out data', run => new Set(runs.map(other => other.held_out).filter(Boolean)).size > 1 && run.held_out || '-'],
        ['tokens', run => number(last(run, 'tokens_so_far'))], ['epochs', run => number(last(run, 'epochs_so_far'), 3)],
        ['tokens/s, mean', run => number(mean(run, 'tokens_per_s'), 4)], ['MFU, mean', run => { const m = mean(run, 'mfu'); return m === null ? '-' : number(100 * m, 3) + '%'; }],
        ['hardware', run => facts(run).hardware || '-'], ['layout', run => facts(run).layout || '-'], ['parameters', run => number(facts(run).parameters)],
        ['memory planned', run => gib(facts(run).memory_planned_bytes)], ['memory used, peak', run => gib(last(run, 'memory_peak_bytes') ?? undefined)],
        ['GPU kernels', run => facts(run).kernels || '-'], ['data', run => facts(run).data || '-'], ['started', run => facts(run).started || '-'], ['program', run => facts(run).program || '-']];
    const known = rows.filter(([, get]) => runs.some(run => get(run) !== '-'));
    return known.length ? table(['', ...runs.map(run => run.name)], known.map(([name, get]) => [name, ...runs.map(get)])) : null;
}

function times(runs) {
    const cards = runs.map(run => {
        const means = Object.keys(phases).filter(name => run.series[name + '_s']).map(name => [name, run.series[name + '_s'].mean]);
        if (!means.length) return null;
        const whole = run.series.seconds ? run.series.seconds.mean : 0, sum = means.reduce((total, [, x]) => total + x, 0);
        if (whole > sum) means.push(['other', whole - sum]);
        const all = Math.max(whole, sum);
        return element('div', { class: 'card' }, element('h3', {}, run.name),
            element('div', { class: 'stack' }, ...means.map(([name, x]) => element('div', { style: `width:${100 * x / all}%;background:${phases[name] || 'var(--line)'}`, title: name }))),
            table(['', 'ms a step', 'share'], means.map(([name, x]) => [element('span', {}, element('i', { style: `display:inline-block;width:10px;height:10px;margin-right:6px;background:${phases[name] || 'var(--line)'}` }), name), number(1e3 * x, 4), number(100 * x / all, 3) + '%'])));
    }).filter(Boolean);
    return cards.length ? section('Where the time goes', element('div', { class: 'grid' }, ...cards)) : null;
}

function differences(runs) {
    const keys = [...new Set(runs.flatMap(run => Object.keys(run.config)))].filter(key => key !== 'output_dir');
    const several = runs.length > 1;
    const rows = keys.filter(key => several ? new Set(runs.map(run => run.config[key])).size > 1 : data.defaults[key] !== runs[0].config[key])
        .map(key => [key, several ? data.defaults[key] ?? '' : data.defaults[key] ?? '', ...runs.map(run => run.config[key] ?? '')]);
    if (!rows.length) return null;
    return section(several ? 'Where the configs differ' : 'What the config changes', table(['key', 'default', ...runs.map(run => run.name)], rows));
}

function positions(runs) {
    const lines = [];
    for (const run of runs) {
        const arms = {};
        for (const bin of run.position)
            if (bin.weight > 0) (arms[`${run.name} ${bin.attention} step ${bin.step ?? ''} ${bin.overrides ?? ''}`.trim()] ??= []).push(bin);
        for (const [name, bins] of Object.entries(arms))
            lines.push({ name, color: colors[lines.length % colors.length], x: bins.map(bin => (bin.begin + bin.end) / 2), y: bins.map(bin => bin.nll / bin.weight) });
    }
    return lines.length ? section('Held-out loss by position', element('div', { class: 'grid' }, chart('nats per token', lines, { key: 'position', ownX: true, wide: true, xName: 'position' }))) : null;
}

// Items of needle and ruler that pass: a row per task and length, a column per evaluation, a square per depth.
function itemTable(runs) {
    const columns = new Map(), rows = new Map(), several = data.runs.length > 1;
    for (const run of runs)
        for (const sum of run.items) {
            const column = `${several ? run.name + ', ' : ''}${sum.attention ?? ''}, step ${sum.step ?? '-'} ${sum.overrides ?? ''}`.trim();
            const row = `${sum.suite} ${sum.task ?? ''}|${sum.length}`;
            const cells = rows.get(row) ?? rows.set(row, new Map()).get(row);
            columns.set(column, true);
            (cells.get(column) ?? cells.set(column, []).get(column)).push(sum);
        }
    if (!rows.size) return null;
    const total = (sums, key) => sums.reduce((all, sum) => all + (sum[key] ?? NaN), 0);
    const percent = sums => {  // 100 where all pass, 0 where none does
        const passed = total(sums, 'passed'), items = total(sums, 'items'), share = 100 * passed / items;
        return passed === 0 || passed === items ? share : Math.min(Math.max(share, 0.1), 99.9);
    };
    const cell = sums => {
        if (!sums) return '-';
        const loss = total(sums, 'nll') / total(sums, 'weight');
        const squares = sums.length < 2 ? [] : [...sums].sort((a, b) => a.depth - b.depth).map(sum => element('i',
            { class: 'share', style: `--share:${percent([sum])}%`, title: `depth ${sum.depth}: ${sum.passed} of ${sum.items}` }));
        return element('span', {}, `${number(percent(sums), 3)}% of ${number(total(sums, 'items'))}` + (isFinite(loss) ? `, ${number(loss, 3)}` : ''), element('br'), ...squares);
    };
    const order = [...rows.keys()].sort((a, b) => { const [x, m] = a.split('|'), [y, n] = b.split('|'); return x < y ? -1 : x > y ? 1 : m - n; });
    return section('Needles and RULER', element('div', { class: 'soft' }, 'items that pass, then the loss per token of their answers in nats; squares: by depth'),
        element('div', { class: 'items' }, table(['task', 'tokens', ...columns.keys()], order.map(row => [...row.split('|').map((text, i) => i ? number(+text) : text), ...[...columns.keys()].map(column => cell(rows.get(row).get(column)))]))));
}

// Rows: blocks of queries; columns: blocks of keys; darker: chosen by more of the heads and tokens.
function blockMaps(runs) {
    const found = [];
    for (const run of runs) {
        if (!run.blocks) continue;
        const each = run.blocks.blocks_per_cell || 1, blocks = i => each > 1 ? `blocks ${each * i} to ${each * (i + 1) - 1}` : `block ${i}`;
        for (const layer of run.blocks.layers) {
            const size = layer.map.length, canvas = element('canvas', { width: size, height: size });
            const paint = canvas.getContext('2d');
            layer.map.forEach((row, q) => row.forEach((share, k) => { paint.fillStyle = `rgba(37,99,235,${share})`; paint.fillRect(k, q, 1, 1); }));
            canvas.addEventListener('pointermove', event => {
                const box = canvas.getBoundingClientRect(), q = Math.min(size - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * size))), k = Math.min(size - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * size)));
                said.textContent = k <= q ? `queries of ${blocks(q)}, keys of ${blocks(k)}: ${number(100 * layer.map[q][k], 3)}% of heads` : '';
            });
            const said = element('div', { class: 'soft' });
            found.push(element('div', {}, element('div', { class: 'soft' }, `${run.name}, layer ${layer.layer}, step ${run.blocks.step}`), canvas, said));
        }
    }
    return found.length ? section('Which blocks the heads choose', element('div', { class: 'maps' }, ...found)) : null;
}

function texts(runs) {
    const samples = runs.flatMap(run => run.samples.map(s => element('div', { class: 'card' }, element('div', { class: 'soft' }, `${run.name}, step ${s.step}`), element('pre', {}, element('b', {}, s.prompt || ''), s.text || ''))));
    const warnings = runs.flatMap(run => run.warnings.map(line => element('pre', { class: 'warn' }, (runs.length > 1 ? run.name + '  ' : '') + line)));
    return [samples.length ? section('Samples', element('div', { class: 'grid' }, ...samples)) : null,
        section('Warnings', ...(warnings.length ? warnings : [element('div', { class: 'soft' }, 'none')]))];
}

function build() {
    const runs = data.runs.filter(shown), body = document.getElementById('body');
    document.title = data.runs.map(run => run.name).join(', ') + ' - perigee report';
    document.getElementById('title').textContent = data.runs.map(run => run.name).join(', ');
    const names = element('div', { class: 'legend' }, ...(data.runs.length > 1 ? data.runs.map((run, i) => element('span', { class: shown(run) ? '' : 'off', onclick: () => { state.off.has(run.name) ? state.off.delete(run.name) : state.off.add(run.name); build(); } },
        element('i', { style: `background:${colors[i % colors.length]}` }), run.name)) : []));
    const controls = element('div', { class: 'bar' }, names, element('button', { onclick: () => { state.zoom = null; redraw(); } }, 'whole run'),
        element('button', { onclick: () => { state.raw = !state.raw; redraw(); } }, 'raw values on/off'), element('span', { class: 'soft' }, 'drag over a curve to zoom, double-click to go back'));
    const drawn = curves(runs);
    body.replaceChildren(...[summary(runs), drawn.length ? section('Curves', controls, element('div', { class: 'grid', style: 'margin-top:10px' }, ...drawn)) : null,
        times(runs), positions(runs), itemTable(runs), blockMaps(runs), differences(runs), ...texts(runs)].filter(Boolean));
    redraw();
}
function redraw() { for (const card of document.querySelectorAll('.card')) if (card.draw) card.draw(); }

document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
});
let width = innerWidth;
addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
build();
if (data.live) setInterval(async () => {
    try { const fresh = await (await fetch('data')).json(); if (JSON.stringify(fresh) !== JSON.stringify(data)) { data = fresh; build(); } } catch { /* the server has ended */ }
}, 5000);
