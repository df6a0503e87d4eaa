/* fault.c - counting, failing and recording of allocations, reads, mappings and threads.
 *
 * Events are counted over all threads. An event fails when its number within its kind is the one
 * chosen for this run; everything after it works again, so that error paths are tested with an
 * allocator that works, as they find it in practice. */
#include "fault.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum kind { KIND_ALLOC, KIND_READ, KIND_MMAP, KIND_THREAD, KIND_SYSTEM, KINDS };
enum { FRAMES = 14, SLOTS = 1 << 18, SECONDS = 300, SHOWN_LEAKS = 3 };

static const char *const kind_names[KINDS] = { "allocation", "read", "mmap", "thread",
                                               "system call" };

/* ---- state of a run ---- */

static atomic_bool armed;        /* events are counted */
static atomic_int held;          /* no thread's events are, while above 0 */
static _Thread_local int paused; /* this thread's events are not */
static atomic_long count[KINDS]; /* events of this run */
static enum kind fail_kind;      /* what fails in this run */
static long fail_at;             /* and which event of the kind, from 1; 0: none */
static void *fail_stack[FRAMES]; /* who asked for it */
static int n_fail_stack;
static const char *scenario;

/* ---- live allocations: an open-addressing table of pointers ---- */

static struct live {
    void *p;
    unsigned long born; /* the run in which it was allocated */
} * live;
/* Call stacks, [SLOTS] beside `live`. Walking the stack is slow, so they are recorded only while a
 * run that has leaked is repeated. */
static struct stack {
    void *frame[FRAMES];
    int n;
} * stacks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t n_live;
static size_t before_run;        /* live when the scenario began; those are not reported */
static unsigned long generation; /* of the run that is under way */

static size_t slot_of(void *p)
{
    size_t i = ((size_t)p >> 4) * 0x9e3779b97f4a7c15u >> 40 & (SLOTS - 1);
    while (live[i].p && live[i].p != p) i = (i + 1) & (SLOTS - 1);
    return i;
}

static void record_alloc(void *p)
{
    size_t i;

    if (!p || !live) return;
    pthread_mutex_lock(&lock);
    i = slot_of(p);
    n_live += !live[i].p;
    live[i].p = p;
    live[i].born = generation;
    if (stacks) stacks[i].n = backtrace(stacks[i].frame, FRAMES);
    if (n_live > SLOTS / 2) abort(); /* the scenario is too large for the table */
    pthread_mutex_unlock(&lock);
}

static void record_free(void *p)
{
    size_t i, k;

    if (!p || !live) return;
    pthread_mutex_lock(&lock);
    i = slot_of(p);
    if (live[i].p) { /* Knuth's algorithm R: later entries move up into the hole */
        n_live--;
        live[i].p = NULL;
        for (k = (i + 1) & (SLOTS - 1); live[k].p; k = (k + 1) & (SLOTS - 1)) {
            struct live x = live[k];
            live[k].p = NULL;
            size_t to = slot_of(x.p);
            live[to] = x;
            if (stacks && to != k) stacks[to] = stacks[k];
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- failing ---- */

static bool must_fail(enum kind k)
{
    if (!atomic_load(&armed) || paused || atomic_load(&held)) return false;
    if (atomic_fetch_add(&count[k], 1) + 1 != fail_at || k != fail_kind) return false;
    n_fail_stack = backtrace(fail_stack, FRAMES);
    errno = ENOMEM;
    return true;
}

static void show_stack(const char *what, void *const *stack, int n)
{
    fprintf(stderr, "%s:\n", what);
    backtrace_symbols_fd(stack, n, 2);
}

static void show_fault(const char *what)
{
    fprintf(stderr, "\nfault: %s: %s with %s %ld failing\n", scenario, what, kind_names[fail_kind],
            fail_at);
    show_stack("the call that failed", fail_stack, n_fail_stack);
}

static void on_signal(int sig)
{
    void *stack[32];
    int n = backtrace(stack, 32);

    atomic_store(&armed, false);
    show_fault(sig == SIGALRM ? "hangs" : "crashes");
    show_stack("where it is", stack, n);
    _exit(1);
}

bool fault_fails(void) { return must_fail(KIND_SYSTEM); }
void fault_pause(void) { paused++; }
void fault_resume(void) { paused--; }
void fault_hold(void) { atomic_fetch_add(&held, 1); }
void fault_release(void) { atomic_fetch_sub(&held, 1); }

/* ---- wrapped calls ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void __real_free(void *p);
ssize_t __real_read(int fd, void *p, size_t n);
int __real_open(const char *path, int flags, ...);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);

void *__wrap_malloc(size_t n)
{
    void *p = must_fail(KIND_ALLOC) ? NULL : __real_malloc(n);
    record_alloc(p);
    return p;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = must_fail(KIND_ALLOC) ? NULL : __real_calloc(n, size);
    record_alloc(p);
    return p;
}

void *__wrap_realloc(void *old, size_t n)
{
    void *p;

    if (must_fail(KIND_ALLOC)) return NULL;
    record_free(old);
    p = __real_realloc(old, n);
    record_alloc(p ? p : old);
    return p;
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
    int rc = must_fail(KIND_ALLOC) ? ENOMEM : __real_posix_memalign(p, align, n);
    if (rc == 0) record_alloc(*p);
    return rc;
}

void __wrap_free(void *p)
{
    record_free(p);
    __real_free(p);
}

/* Only reads of regular files: a wake-up through an eventfd or a socket is no input. */
ssize_t __wrap_read(int fd, void *p, size_t n)
{
    bool file = lseek(fd, 0, SEEK_CUR) >= 0;

    if (!file || !must_fail(KIND_READ)) return __real_read(fd, p, n);
    errno = EIO;
    return -1;
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    int mode = 0;

    if (flags & O_CREAT) {
        va_start(ap, flags);
        mode = va_arg(ap, int);
        va_end(ap);
    }
    if (!must_fail(KIND_READ)) return __real_open(path, flags, mode);
    errno = EMFILE;
    return -1;
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
    if (!must_fail(KIND_MMAP)) return __real_mmap(at, n, prot, flags, fd, off);
    errno = ENOMEM;
    return MAP_FAILED;
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    return must_fail(KIND_THREAD) ? EAGAIN : __real_pthread_create(t, a, fn, arg);
}

/* ---- runs ---- */

void fault_init(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM };
    void *warm[2];

    live = __real_calloc(SLOTS, sizeof *live);
    if (!live) abort();
    backtrace(warm, 2); /* loads libgcc, which allocates */
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        if (THIN > 1 && signals[i] != SIGALRM) continue; /* the sanitizer's report says more */
        signal(signals[i], on_signal);
    }
}

static int run_once(fault_scenario *run, void *arg, enum kind k, long at, struct err *e)
{
    int rc;

    for (int i = 0; i < KINDS; i++) atomic_store(&count[i], 0);
    fail_kind = k;
    fail_at = at;
    n_fail_stack = 0;
    generation++;
    before_run = n_live;
    memset(e, 0, sizeof *e);
    alarm(SECONDS);
    atomic_store(&armed, true);
    rc = run(arg, e);
    atomic_store(&armed, false);
    alarm(0);
    return rc;
}

static void show_leaks(void)
{
    int shown = 0;

    show_fault("leaks");
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < SLOTS && shown < SHOWN_LEAKS; i++)
        if (live[i].p && live[i].born == generation && ++shown)
            show_stack("an allocation that is left", stacks[i].frame, stacks[i].n);
    pthread_mutex_unlock(&lock);
}

/* Fails the test if the last run left an allocation behind, after repeating it with call stacks. */
static void check_leaks(fault_scenario *run, void *arg)
{
    struct err e;

    if (n_live <= before_run) return;
    stacks = __real_calloc(SLOTS, sizeof *stacks);
    if (stacks) run_once(run, arg, fail_kind, fail_at, &e);
    if (stacks && n_live > before_run) show_leaks();
    fail_msg("%s: an allocation is left after %s %ld failed", scenario, kind_names[fail_kind],
             fail_at);
}

/* Sanitizers are slow: they see the first 40 events and then one in 17. */
static long next_event(long n) { return n < 40 || THIN == 1 ? n + 1 : n + 17; }

static void run_kind(fault_scenario *run, void *arg, enum kind k, long *n_faults, long *n_errors)
{
    struct err e;

    for (long n = 1;; n = next_event(n)) {
        int rc = run_once(run, arg, k, n, &e);
        bool reached = atomic_load(&count[k]) >= n;

        if (!reached) {
            if (rc != OK) fail_msg("%s: without a fault: %s", scenario, e.msg);
            return;
        }
        ++*n_faults;
        *n_errors += rc != OK;
        if (rc != OK && (e.code != rc || !e.msg[0])) {
            show_fault("returns an error without a code or message");
            fail_msg("%s: returned %d with code %d, message '%s'", scenario, rc, e.code, e.msg);
        }
        check_leaks(run, arg);
        if (n % 16 == 1 && run_once(run, arg, k, 0, &e) != OK)
            fail_msg("%s: the run after %s %ld failed: %s", scenario, kind_names[k], n, e.msg);
    }
}

void fault_run(const char *name, fault_scenario *run, void *arg)
{
    long n_faults = 0, n_errors = 0;
    struct err e;

    scenario = name;
    for (int i = 0; i < 2; i++) /* the second time everything that stays is there */
        if (run_once(run, arg, KIND_ALLOC, 0, &e) != OK)
            fail_msg("%s: without faults: %s", name, e.msg);
    for (int k = 0; k < KINDS; k++) run_kind(run, arg, (enum kind)k, &n_faults, &n_errors);
    print_message("fault: %s: %ld faults, %ld ended in a typed error, %ld were tolerated; "
                  "0 process ends, 0 leaks\n",
                  name, n_faults, n_errors, n_faults - n_errors);
}
