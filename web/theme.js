// Before the first paint, so that a chosen theme never flashes the other one.
(() => {
    try {
        const theme = localStorage.getItem('tern.theme');
        if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
    } catch {
        /* storage is off: the system's theme it is */
    }
})();
