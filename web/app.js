// The frame of the page: tabs, theme, the list of models, settings. chat.js and dash.js fill the two
// views.

import { apiKey, getJson, setApiKey } from './api.js';
import { Chat } from './chat.js';
import { Dashboard } from './dash.js';
import { $, h } from './dom.js';
import { loadSettings, saveSettings } from './store.js';

const settings = loadSettings();
const chat = new Chat(settings);
const dash = new Dashboard();

// ---- tabs ----

const tabs = [$('tab-chat'), $('tab-dash')];

function showTab(tab, focus = false) {
    for (const t of tabs) {
        const on = t === tab;
        t.setAttribute('aria-selected', on);
        t.tabIndex = on ? 0 : -1;
        $(t.getAttribute('aria-controls')).hidden = !on;
    }
    document.body.classList.toggle('on-dash', tab === $('tab-dash'));
    document.title = tab === $('tab-dash') ? 'tern · dashboard' : 'tern';
    history.replaceState(null, '', tab === $('tab-dash') ? '#dashboard' : location.pathname);
    dash.setVisible(tab === $('tab-dash'));
    if (focus) tab.focus();
}

for (const tab of tabs) {
    tab.addEventListener('click', () => showTab(tab));
    tab.addEventListener('keydown', e => {
        const to = { ArrowLeft: 0, Home: 0, ArrowRight: 1, End: 1 }[e.key];
        if (to === undefined) return;
        e.preventDefault();
        showTab(tabs[to], true);
    });
}

// ---- theme ----

function setTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    try {
        localStorage.setItem('tern.theme', theme);
    } catch {
        /* no storage: the theme lasts until the page is closed */
    }
    $('set-theme').value = theme;
}

$('set-theme').value = document.documentElement.dataset.theme ?? '';
$('set-theme').addEventListener('change', () => setTheme($('set-theme').value));
$('theme').addEventListener('click', () => {
    const now =
        document.documentElement.dataset.theme ??
        (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
    setTheme(now === 'dark' ? 'light' : 'dark');
});

// ---- models ----

let retryTimer = 0;
const contexts = new Map(); /* model id → context length in tokens */

function setModel(id) {
    settings.model = id;
    chat.setModel(id, contexts.get(id) ?? 0);
}

const isLoading = m => m.meta?.state === 'loading';

/* While a model loads, how far it is. */
function nameOf(m) {
    return isLoading(m) ? `${m.id} · loading ${m.status?.progress ?? 0} %` : m.id;
}

/* The page of a gateway shows its cluster. Without the right to see /status the name stays. */
async function nameDashboard() {
    try {
        const { role } = await getJson('/status');
        if (role === 'gateway') $('tab-dash').textContent = 'Cluster';
    } catch {
        /* the view itself says why it has no numbers */
    }
}

async function loadModels() {
    const picker = $('model');
    clearTimeout(retryTimer);
    try {
        const { data = [] } = await getJson('/v1/models');
        picker.replaceChildren(...data.map(m => h('option', { value: m.id }, nameOf(m))));
        if (!data.some(m => m.id === settings.model)) settings.model = data[0]?.id ?? '';
        picker.value = settings.model;
        for (const m of data) contexts.set(m.id, m.meta?.context ?? 0);
        setModel(settings.model);
        if (data.some(isLoading)) retryTimer = setTimeout(loadModels, 1000);
        nameDashboard();
    } catch (e) {
        picker.replaceChildren(h('option', { value: '' }, e.status === 401 ? 'API key required' : 'server unreachable'));
        if (e.status === 401) openSettings(true);
        else retryTimer = setTimeout(loadModels, 3000);
    }
}

$('model').addEventListener('change', () => {
    setModel($('model').value);
    saveSettings(settings);
});

// ---- settings ----

function openSettings(needsKey = false) {
    const why = apiKey() ? 'The server does not accept this key. ' : 'The server requires an API key. ';
    $('set-key').value = apiKey();
    $('about-key').textContent = `${needsKey ? why : ''}Stored until this tab is closed.`;
    if (!$('settings').open) $('settings').showModal();
    if (needsKey) $('set-key').focus();
}

function bindRange(id, output, name) {
    const input = $(id);
    const show = () => {
        $(output).textContent = Number(input.value).toFixed(2);
    };
    input.value = settings[name];
    show();
    input.addEventListener('input', () => {
        settings[name] = Number(input.value);
        show();
        saveSettings(settings);
    });
}

bindRange('set-temperature', 'out-temperature', 'temperature');
bindRange('set-top-p', 'out-top-p', 'top_p');
$('set-system').value = settings.system;
$('set-system').addEventListener('input', () => {
    settings.system = $('set-system').value;
    saveSettings(settings);
});
$('set-max-tokens').value = settings.max_tokens ?? '';
$('set-max-tokens').addEventListener('input', () => {
    const n = Math.floor(Number($('set-max-tokens').value));
    settings.max_tokens = n >= 1 ? n : null;
    saveSettings(settings);
});
$('set-key').addEventListener('change', () => {
    setApiKey($('set-key').value.trim());
    loadModels();
});
$('settings-open').addEventListener('click', () => openSettings());
$('settings').addEventListener('click', e => {
    if (e.target === $('settings')) $('settings').close();
});

$('export-all').addEventListener('click', () => chat.exportAll());
$('delete-all').addEventListener('click', () => {
    $('settings').close();
    chat.removeAll();
});
$('import').addEventListener('click', () => $('import-file').click());
$('import-file').addEventListener('change', async () => {
    const [file] = $('import-file').files;
    if (file) chat.importAll(await file.text());
    $('import-file').value = '';
});

// ---- keyboard ----

document.addEventListener('keydown', e => {
    if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === 'k') {
        e.preventDefault();
        $('settings').close();
        showTab($('tab-chat'));
        chat.startNew();
    } else if (e.key === 'Escape' && !$('settings').open && !e.defaultPrevented) {
        chat.escape();
    }
});

document.addEventListener('visibilitychange', () => {
    if (!document.hidden && contexts.size === 0) loadModels();
});

showTab(location.hash === '#dashboard' ? $('tab-dash') : $('tab-chat'));
loadModels();
