// Runs before the first paint, so that a page with a chosen theme does not flash the other one.
(() => {
    try {
        const theme = localStorage.getItem('tern.theme');
        if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
    } catch {
        /* no storage: the system's theme is used */
    }
})();
