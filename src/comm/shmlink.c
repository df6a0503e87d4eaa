/* shmlink.c - rings of bytes in shared memory, one per ordered pair of members.
 *
 * Positions only grow; a ring's bytes [read, written) are on their way. The writer publishes by a
 * release store of `written`, the reader by one of `read`, so the bytes themselves need no locks.
 * A member that goes to sleep raises its flag first and looks once more: whoever moves a position
 * afterwards sees the flag and wakes it. */
#include "comm/shmlink.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LINE = 64,
    RING_BYTES = 1 << 20,
    SPINS = 4000,      /* looks before the time slice is given up: some ten microseconds */
    YIELDS = 200,      /* then so many times the time slice */
    SLEEP_NS = 2000000 /* then sleep; also how soon the deadline is seen */
};

/* Each side's position on a cache line of its own. */
struct ring {
    _Alignas(LINE) atomic_size_t written;
    _Alignas(LINE) atomic_size_t read;
    _Alignas(LINE) unsigned char bytes[RING_BYTES];
};

struct bell { /* of one member */
    _Alignas(LINE) atomic_uint rings;
    atomic_uint sleeps;
};

struct region {
    atomic_int failed; /* 0: no; 1: its text is being written; 2: why is the reason */
    char why[256];
    struct bell bells[COMM_MAX];
    struct ring rings[]; /* [size * size]: from, to */
};

struct shmlink {
    struct comm_link link;
    struct region *r;
    size_t mapped; /* bytes to unmap; 0: the caller's memory */
};

size_t shmlink_bytes(int size)
{
    return sizeof(struct region) + (size_t)size * (size_t)size * sizeof(struct ring);
}

static struct ring *ring_of(const struct shmlink *s, int from, int to)
{
    return &s->r->rings[from * s->link.size + to];
}

/* ---- bells ---- */

/* Orders a store before a later load of another member's word. ThreadSanitizer does not know fences: without
 * this one a member may miss a bell, and then sleeps for SLEEP_NS. */
static inline void fence_all(void)
{
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static void ring_bell(struct shmlink *s, int member)
{
    struct bell *b = &s->r->bells[member];

    fence_all();
    if (!atomic_load_explicit(&b->sleeps, memory_order_relaxed)) return;
    atomic_fetch_add(&b->rings, 1);
    syscall(SYS_futex, &b->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void sleep_for_bell(struct shmlink *s, unsigned seen)
{
    struct bell *b = &s->r->bells[s->link.rank];
    struct timespec t = { .tv_nsec = SLEEP_NS };

    syscall(SYS_futex, &b->rings, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* ---- moving bytes ---- */

/* As many bytes as the ring has room for, or holds. Returns their number. */
static size_t write_ring(struct ring *g, const char *p, size_t n)
{
    size_t at = atomic_load_explicit(&g->written, memory_order_relaxed),
           room = RING_BYTES - (at - atomic_load_explicit(&g->read, memory_order_acquire)),
           pos = at % RING_BYTES, first;

    if (n > room) n = room;
    first = n < RING_BYTES - pos ? n : RING_BYTES - pos;
    memcpy(g->bytes + pos, p, first);
    memcpy(g->bytes, p + first, n - first);
    atomic_store_explicit(&g->written, at + n, memory_order_release);
    return n;
}

static size_t read_ring(struct ring *g, char *p, size_t n)
{
    size_t at = atomic_load_explicit(&g->read, memory_order_relaxed),
           have = atomic_load_explicit(&g->written, memory_order_acquire) - at,
           pos = at % RING_BYTES, first;

    if (n > have) n = have;
    first = n < RING_BYTES - pos ? n : RING_BYTES - pos;
    memcpy(p, g->bytes + pos, first);
    memcpy(p + first, g->bytes, n - first);
    atomic_store_explicit(&g->read, at + n, memory_order_release);
    return n;
}

/* Moves as many bytes as there is room for. Messages of one pair and direction keep their order: a
 * later one waits for those before it. Returns whether anything moved; *left: messages that are not done. */
static bool progress(struct shmlink *s, struct comm_move *m, int n, int *left)
{
    bool moved = false;

    *left = 0;
    for (int i = 0; i < n; i++) {
        bool before = false;
        size_t k;

        if (m[i].done == m[i].n) continue;
        ++*left;
        for (int j = 0; j < i && !before; j++)
            before = m[j].peer == m[i].peer && m[j].send == m[i].send && m[j].done < m[j].n;
        if (before) continue;
        if (m[i].send)
            k = write_ring(ring_of(s, s->link.rank, m[i].peer), (char *)m[i].p + m[i].done,
                           m[i].n - m[i].done);
        else
            k = read_ring(ring_of(s, m[i].peer, s->link.rank), (char *)m[i].p + m[i].done,
                          m[i].n - m[i].done);
        if (k == 0) continue;
        m[i].done += k;
        moved = true;
        if (m[i].done == m[i].n) --*left;
        ring_bell(s, m[i].peer);
    }
    return moved;
}

static int check_failed(struct shmlink *s, struct err *e)
{
    int v = atomic_load_explicit(&s->r->failed, memory_order_acquire);

    if (v == 0) return OK;
    return err_set(e, E_WORKER, "the gang has ended: %.255s",
                   v == 2 ? s->r->why : "a member failed");
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* One wait after the i-th look without progress. */
static bool wait_more(struct shmlink *s, struct comm_move *m, int n, long i)
{
    struct bell *b = &s->r->bells[s->link.rank];
    unsigned seen;
    int left;
    bool moved;

    if (i < SPINS) {
        pause_cpu();
        return false;
    }
    if (i < SPINS + YIELDS) {
        sched_yield();
        return false;
    }
    seen = atomic_load(&b->rings);
    atomic_store(&b->sleeps, 1);
    fence_all();
    moved = progress(s, m, n, &left);
    if (!moved && !atomic_load_explicit(&s->r->failed, memory_order_relaxed))
        sleep_for_bell(s, seen);
    atomic_store(&b->sleeps, 0);
    return moved;
}

/* Names the first member that is waited for, and ends the wait of all. */
static int fail_late(struct shmlink *s, const struct comm_move *m, int n, struct err *e)
{
    char why[128];
    int i = 0;

    while (i < n - 1 && m[i].done == m[i].n) i++;
    snprintf(why, sizeof why, "member %d %s nothing before the deadline of member %d", m[i].peer,
             m[i].send ? "took" : "sent", s->link.rank);
    s->link.abort(&s->link, why);
    return err_set(e, E_DEADLINE, "%s", why);
}

static int move_shm(struct comm_link *k, struct comm_move *m, int n, uint64_t deadline_ns,
                    struct err *e)
{
    struct shmlink *s = (struct shmlink *)k;
    int left = 0, rc;
    long idle = 0;

    for (int i = 0; i < n; i++) m[i].done = 0;
    for (;;) {
        bool moved = progress(s, m, n, &left);
        if (left == 0) return OK;
        if (moved) {
            idle = 0;
            continue;
        }
        if (wait_more(s, m, n, idle)) idle = 0;
        else idle++;
        if (idle % 256 && idle < SPINS) continue; /* the clock costs more than a look */
        if ((rc = check_failed(s, e)) != OK) return rc;
        if (clock_ns() >= deadline_ns) return fail_late(s, m, n, e);
    }
}

static void abort_shm(struct comm_link *k, const char *why)
{
    struct shmlink *s = (struct shmlink *)k;
    int zero = 0;

    if (!atomic_compare_exchange_strong(&s->r->failed, &zero, 1)) return;
    snprintf(s->r->why, sizeof s->r->why, "%s", why);
    atomic_store_explicit(&s->r->failed, 2, memory_order_release);
    for (int i = 0; i < s->link.size; i++) ring_bell(s, i);
}

static bool is_aborted(struct comm_link *k)
{
    return atomic_load_explicit(&((struct shmlink *)k)->r->failed, memory_order_relaxed) != 0;
}

static void close_shm(struct comm_link *k)
{
    struct shmlink *s = (struct shmlink *)k;

    if (s->mapped) munmap(s->r, s->mapped);
    mem_free(s);
}

int shmlink_open(struct comm_link **out, void *region, int rank, int size, struct err *e)
{
    struct shmlink *s;

    if (size < 1 || size > COMM_MAX || rank < 0 || rank >= size)
        return err_set(e, E_INVALID, "member %d of %d: there can be %d", rank, size, COMM_MAX);
    if (!(s = mem_new(struct shmlink))) return err_nomem(e, "a link");
    *s = (struct shmlink){ .link = { .rank = rank,
                                     .size = size,
                                     .name = "shared memory",
                                     .move = move_shm,
                                     .abort = abort_shm,
                                     .is_aborted = is_aborted,
                                     .close = close_shm },
                           .r = region };
    *out = &s->link;
    return OK;
}

int shmlink_file(int *fd, int size, struct err *e)
{
    *fd = memfd_create("tern-gang", MFD_CLOEXEC);
    if (*fd < 0) return err_set(e, E_IO, "no memory to share: %s", strerror(errno));
    if (ftruncate(*fd, (off_t)shmlink_bytes(size)) == 0) return OK;
    err_set(e, E_IO, "no memory to share: %s", strerror(errno));
    close(*fd);
    *fd = -1;
    return E_IO;
}

int shmlink_open_file(struct comm_link **out, int fd, int rank, int size, struct err *e)
{
    size_t n = size > 0 && size <= COMM_MAX ? shmlink_bytes(size) : 0;
    void *p = n ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    int rc;

    close(fd);
    if (p == MAP_FAILED)
        return err_set(e, E_IO, "cannot map the shared memory of %d members: %s", size,
                       strerror(errno));
    if ((rc = shmlink_open(out, p, rank, size, e)) != OK) {
        munmap(p, n);
        return rc;
    }
    ((struct shmlink *)*out)->mapped = n;
    return OK;
}
