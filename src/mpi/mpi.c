/* mpi.c - tern-mpi.so: a link over MPI. Every move is a set of non-blocking sends and receives that
 * are tested until all are done, or the deadline has passed. */
#include "gang/mpilink.h"

#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG = 1, LOOKS = 2000, PIECE = 1 << 30, SPIN_NS = 5000000, LONG_NS = 1000000000 };

struct mpilink {
    struct comm_link link;
    atomic_bool failed;
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(struct err *e, int code, const char *what)
{
    if (e) {
        e->code = code;
        snprintf(e->msg, sizeof e->msg, "the gang has ended: %s", what);
    }
    return code;
}

/* One request for each message; messages are shorter than PIECE. */
static int post(struct mpilink *k, struct comm_move *m, MPI_Request *q)
{
    (void)k;
    if (m->send) return MPI_Isend(m->p, (int)m->n, MPI_BYTE, m->peer, TAG, MPI_COMM_WORLD, q);
    return MPI_Irecv(m->p, (int)m->n, MPI_BYTE, m->peer, TAG, MPI_COMM_WORLD, q);
}

/* A member that waits for work does not keep a core busy: a pause of a step's length costs a step a few
 * microseconds, a long one a millisecond. */
static void rest(uint64_t waited)
{
    if (waited < SPIN_NS) sched_yield();
    else nanosleep(&(struct timespec){ .tv_nsec = waited < LONG_NS ? 20000 : 1000000 }, NULL);
}

static int move_mpi(struct comm_link *l, struct comm_move *m, int n, uint64_t deadline_ns,
                    struct err *e)
{
    struct mpilink *k = (struct mpilink *)l;
    MPI_Request q[2 * COMM_MAX];
    uint64_t start = now_ns(), waited = 0;
    int done = 0;

    if (n > 2 * COMM_MAX) return fail(e, E_INTERNAL, "too many messages at once");
    if (atomic_load(&k->failed)) return fail(e, E_WORKER, "the MPI job has ended");
    for (int i = 0; i < n; i++)
        if (m[i].n >= PIECE || post(k, &m[i], &q[i]) != MPI_SUCCESS)
            return fail(e, E_WORKER, "MPI takes no message of that size");
    for (long looks = 1;; looks++) {
        if (MPI_Testall(n, q, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return fail(e, E_WORKER, "MPI reports an error");
        if (done) return OK;
        if (waited < SPIN_NS && looks % LOOKS) continue;
        rest(waited);
        waited = now_ns() - start;
        if (atomic_load(&k->failed)) return fail(e, E_WORKER, "a member failed");
        if (start + waited >= deadline_ns) {
            l->abort(l, "a member is late");
            return fail(e, E_DEADLINE, "a member sent or took nothing before the deadline");
        }
    }
}

/* A job without one of its processes is no job: mpirun ends all of them. */
static void abort_mpi(struct comm_link *l, const char *why)
{
    struct mpilink *k = (struct mpilink *)l;

    if (atomic_exchange(&k->failed, true)) return;
    (void)why; /* mpirun says which process ended the job */
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static bool is_aborted(struct comm_link *l) { return atomic_load(&((struct mpilink *)l)->failed); }

static void close_mpi(struct comm_link *l)
{
    struct mpilink *k = (struct mpilink *)l;
    int finished = 0;

    MPI_Finalized(&finished);
    if (!finished) MPI_Finalize();
    atomic_store(&k->failed, true); /* MPI starts once: whoever opens the link again is told so */
}

__attribute__((visibility("default"))) int tern_mpi_open(struct comm_link **out, uint64_t version,
                                                         struct err *e);

int tern_mpi_open(struct comm_link **out, uint64_t version, struct err *e)
{
    static struct mpilink the_link;
    static bool opened;
    struct mpilink *k;
    int got = 0;

    if (version != mpilink_version())
        return fail(e, E_UNSUPPORTED, "tern-mpi.so is of another build than this program");
    if (opened) return fail(e, E_INTERNAL, "MPI is open already");
    k = &the_link; /* MPI starts once in a process */
    opened = true;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &got) != MPI_SUCCESS) {
        return fail(e, E_UNSUPPORTED, "MPI did not start");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &k->link.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &k->link.size);
    k->link.name = "mpi";
    k->link.move = move_mpi;
    k->link.abort = abort_mpi;
    k->link.is_aborted = is_aborted;
    k->link.close = close_mpi;
    *out = &k->link;
    return OK;
}
