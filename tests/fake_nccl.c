/* fake_nccl.c - NCCL's entry points as tern-nccl.so calls them, for tests without a GPU: one member, whose
 * sums are its own numbers. FAKE_NCCL_VERSION and FAKE_NCCL_FAIL in the environment change what it says. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char internal[128];
} id;

int ncclGetVersion(int *v);
int ncclGetUniqueId(id *out);
int ncclCommInitRank(void **comm, int n, id which, int rank);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
const char *ncclGetErrorString(int result);

static int the_comm;

int ncclGetVersion(int *v)
{
    const char *s = getenv("FAKE_NCCL_VERSION");

    *v = s ? atoi(s) : 22809;
    return 0;
}

int ncclGetUniqueId(id *out)
{
    memset(out, 7, sizeof *out);
    return getenv("FAKE_NCCL_FAIL") ? 2 : 0;
}

int ncclCommInitRank(void **comm, int n, id which, int rank)
{
    *comm = &the_comm;
    return n == 1 && rank == 0 && which.internal[127] == 7 ? 0 : 4;
}

/* type 7 is float32, op 0 a sum. */
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream)
{
    (void)stream;
    if (comm != &the_comm || type != 7 || op != 0) return 4;
    memmove(to, from, n * sizeof(float));
    return 0;
}

int ncclCommDestroy(void *comm) { return comm == &the_comm ? 0 : 4; }
int ncclCommAbort(void *comm) { return comm == &the_comm ? 0 : 4; }
const char *ncclGetErrorString(int result)
{
    return result == 4 ? "invalid argument" : "unhandled system error";
}
