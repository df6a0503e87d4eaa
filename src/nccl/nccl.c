/* nccl.c - tern-nccl.so: NCCL behind the table of kernel/nccllib.h.
 *
 * The entry points are declared here, and libnccl.so.2 is opened at run time: so this library is
 * built on machines without NCCL, and says plainly that it is missing where it is. Where the header
 * is at hand the declarations are checked against it. */
#include "kernel/nccllib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NCCL_OK = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0, NCCL_LEAST = 20900 };

struct nccl_id { /* passed by value */
    char bytes[NCCLLIB_ID_BYTES];
};

#if defined(TERN_HAS_NCCL_H)
#include <nccl.h>
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id) && (int)ncclSuccess == NCCL_OK &&
                   (int)ncclFloat32 == NCCL_FLOAT32 && (int)ncclSum == NCCL_SUM,
               "NCCL's own header says otherwise");
#endif

static struct {
    int (*get_version)(int *version);
    int (*get_unique_id)(struct nccl_id *id);
    int (*comm_init_rank)(void **comm, int size, struct nccl_id id, int rank);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, void *comm,
                      void *stream);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    const char *(*get_error_string)(int result);
} nccl;

static int fail(struct err *e, int code, const char *fmt, const char *what)
{
    if (e) {
        e->code = code;
        snprintf(e->msg, sizeof e->msg, fmt, what);
    }
    return code;
}

static int check(int result, struct err *e)
{
    if (result == NCCL_OK) return OK;
    return fail(e, E_DEVICE, "NCCL: %s", nccl.get_error_string(result));
}

static int make_id(unsigned char *id, struct err *e)
{
    struct nccl_id made;
    int rc = check(nccl.get_unique_id(&made), e);

    if (rc == OK) memcpy(id, made.bytes, sizeof made.bytes);
    return rc;
}

static int join(void **comm, int rank, int size, const unsigned char *id, struct err *e)
{
    struct nccl_id given;

    memcpy(given.bytes, id, sizeof given.bytes);
    return check(nccl.comm_init_rank(comm, size, given, rank), e);
}

static int sum(void *comm, float *x, size_t n, void *stream, struct err *e)
{
    return check(nccl.all_reduce(x, x, n, NCCL_FLOAT32, NCCL_SUM, comm, stream), e);
}

static void abort_comm(void *comm) { nccl.comm_abort(comm); }
static void leave(void *comm) { nccl.comm_destroy(comm); }

static int find_calls(void *lib, struct err *e)
{
    const struct {
        void **to;
        const char *name;
    } all[] = { { (void **)&nccl.get_version, "ncclGetVersion" },
                { (void **)&nccl.get_unique_id, "ncclGetUniqueId" },
                { (void **)&nccl.comm_init_rank, "ncclCommInitRank" },
                { (void **)&nccl.all_reduce, "ncclAllReduce" },
                { (void **)&nccl.comm_destroy, "ncclCommDestroy" },
                { (void **)&nccl.comm_abort, "ncclCommAbort" },
                { (void **)&nccl.get_error_string, "ncclGetErrorString" } };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i].to = dlsym(lib, all[i].name)))
            return fail(e, E_UNSUPPORTED, "NCCL's library does not export %s", all[i].name);
    return OK;
}

__attribute__((visibility("default"))) int tern_nccl_open(struct nccllib *out, uint64_t version,
                                                          struct err *e);

/* Never closed: NCCL has threads. Called by one thread at a time. */
int tern_nccl_open(struct nccllib *out, uint64_t version, struct err *e)
{
    static void *lib;
    const char *named = getenv("TERN_LIBNCCL"), *path = named && *named ? named : "libnccl.so.2";
    int rc, v = 0;

    if (version != nccllib_version())
        return fail(e, E_UNSUPPORTED, "%s is of another build than this program", "tern-nccl.so");
    if (!lib && !(lib = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        return fail(e, E_UNSUPPORTED, "NCCL is not installed: %s", dlerror());
    if ((rc = find_calls(lib, e)) != OK) return rc;
    if ((rc = check(nccl.get_version(&v), e)) != OK) return rc;
    if (v < NCCL_LEAST) return fail(e, E_UNSUPPORTED, "NCCL is too old: %s", "2.9 is the first");
    *out = (struct nccllib){ v, make_id, join, sum, abort_comm, leave };
    return OK;
}
