/* mapfault.c - the table of guarded maps, and the SIGBUS handler.
 *
 * The handler runs on a thread that was stopped anywhere, so it takes no lock and calls mmap only.
 * The table is static and its entries are changed under a lock by other threads meanwhile. An entry
 * has a version that is odd while it changes; the handler skips entries that are changing or have
 * changed while it read them. It misses none by that: the map whose page faulted is in use, so its
 * own entry stands still. */
#include "base/mapfault.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

struct mapguard {
    atomic_uint version;         /* odd: being changed */
    atomic_uintptr_t start, end; /* whole pages; start 0: free */
    atomic_bool broken;
};

static struct {
    pthread_mutex_t lock;    /* of the writers */
    struct sigaction before; /* the handler before ours */
    atomic_int passing;      /* the thread that is in `before`; 0: none */
    uintptr_t page;
    atomic_size_t n_used; /* entries from here on were never used */
    struct mapguard guards[MAPFAULT_MAPS];
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The guard of an address, and the end of its map; NULL: the address is in no map of ours. */
static struct mapguard *find_guard(uintptr_t at, uintptr_t *end)
{
    size_t n = atomic_load(&table.n_used);

    for (size_t i = 0; i < n; i++) {
        struct mapguard *g = &table.guards[i];
        unsigned version = atomic_load(&g->version);
        uintptr_t from = atomic_load(&g->start), to = atomic_load(&g->end);
        if (version % 2 || version != atomic_load(&g->version)) continue;
        if (!from || at < from || at >= to) continue;
        *end = to;
        return g;
    }
    return NULL;
}

/* As if we had no handler: the one before ours is called, or the default action comes when the
 * instruction faults again after our return, or when the signal is raised again. A handler that
 * was installed after ours, and before ours was installed again, may call us in turn: then it is
 * the default action's turn. */
static void pass_on(int sig, siginfo_t *info, void *context)
{
    const struct sigaction *b = &table.before;
    int self = (int)gettid();
    bool again = atomic_exchange(&table.passing, self) == self;

    if (!again && b->sa_flags & SA_SIGINFO) {
        b->sa_sigaction(sig, info, context);
    } else if (!again && b->sa_handler != SIG_DFL && b->sa_handler != SIG_IGN) {
        b->sa_handler(sig);
    } else if (info->si_code > 0 || b->sa_handler != SIG_IGN) {
        signal(sig, SIG_DFL);
        if (info->si_code <= 0) raise(sig); /* sent by a process: nothing faults again */
    }
    atomic_store(&table.passing, 0);
}

/* Everything from the lost page on becomes zeros at once: of a truncated file all of it is lost,
 * and the rest of a broken map is worth nothing either. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr & ~(table.page - 1), end = 0;
    struct mapguard *g = info->si_code > 0 ? find_guard((uintptr_t)info->si_addr, &end) : NULL;
    void *zeros;

    if (!g) {
        pass_on(sig, info, context);
        return;
    }
    atomic_store(&g->broken, true);
    zeros = mmap((void *)at, end - at, PROT_READ,
                 MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) pass_on(sig, info, context);
}

/* Under the lock. */
static void install_handler(void)
{
    struct sigaction a = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK }, old;

    if (sigaction(SIGBUS, NULL, &old) != 0) return;
    if (old.sa_flags & SA_SIGINFO && old.sa_sigaction == on_bus_error) return;
    table.page = (uintptr_t)sysconf(_SC_PAGESIZE);
    table.before = old; /* known before a fault can need it */
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, NULL);
}

static void change_guard(struct mapguard *g, uintptr_t start, uintptr_t end)
{
    atomic_fetch_add(&g->version, 1);
    atomic_store(&g->start, start);
    atomic_store(&g->end, end);
    atomic_store(&g->broken, false);
    atomic_fetch_add(&g->version, 1);
}

struct mapguard *mapguard_add(const void *p, size_t n)
{
    struct mapguard *g = NULL;
    uintptr_t start = (uintptr_t)p;
    size_t i;

    pthread_mutex_lock(&table.lock);
    install_handler();
    for (i = 0; i < MAPFAULT_MAPS && atomic_load(&table.guards[i].start); i++) {}
    if (i < MAPFAULT_MAPS) {
        g = &table.guards[i];
        change_guard(g, start, (start + n + table.page - 1) & ~(table.page - 1));
        if (i >= atomic_load(&table.n_used)) atomic_store(&table.n_used, i + 1);
    }
    pthread_mutex_unlock(&table.lock);
    return g;
}

void mapguard_drop(struct mapguard *g)
{
    if (!g) return;
    pthread_mutex_lock(&table.lock);
    change_guard(g, 0, 0);
    pthread_mutex_unlock(&table.lock);
}

bool mapguard_is_broken(const struct mapguard *g) { return atomic_load(&g->broken); }
