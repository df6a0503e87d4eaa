/* tern-nccl.so: says plainly that NCCL is missing, too old or incomplete, and hands out its calls where it
 * is there. Each case is a process of its own: a library is opened once. */
#include "support.h"

#include "kernel/nccllib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *built(const char *name)
{
    static char path[4][1024];
    static int at;
    const char *build = getenv("TERN_BUILD");
    char *p = path[at++ % 4];

    snprintf(p, sizeof path[0], "%s/%s", build ? build : "build", name);
    return p;
}

static int open_nccl(struct nccllib *n, uint64_t version, struct err *e)
{
    void *lib = dlopen(built("tern-nccl.so"), RTLD_NOW | RTLD_LOCAL);
    nccllib_open_fn *fn;

    if (!lib) return err_set(e, E_INTERNAL, "%s", dlerror());
    *(void **)&fn = dlsym(lib, NCCLLIB_SYMBOL);
    return fn ? fn(n, version, e) : err_set(e, E_INTERNAL, "no symbol");
}

/* Runs in a child; 0: as it should be. */
static void in_child(int (*fn)(void))
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) _exit(fn());
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int expect(int code, const char *word)
{
    struct nccllib n;
    struct err e = { 0 };
    int rc = open_nccl(&n, nccllib_version(), &e);

    if (rc == code && strstr(e.msg, word)) return 0;
    fprintf(stderr, "code %d: %s\n", rc, e.msg);
    return 1;
}

static int missing(void)
{
    setenv("TERN_LIBNCCL", "/nonexistent/libnccl.so.2", 1);
    return expect(E_UNSUPPORTED, "NCCL is not installed");
}

static int not_nccl(void)
{
    setenv("TERN_LIBNCCL", built("tests/fake_nvml.so"), 1);
    return expect(E_UNSUPPORTED, "does not export ncclGetVersion");
}

static int too_old(void)
{
    setenv("TERN_LIBNCCL", built("tests/fake_nccl.so"), 1);
    setenv("FAKE_NCCL_VERSION", "2804", 1);
    return expect(E_UNSUPPORTED, "too old");
}

static int another_build(void)
{
    struct nccllib n;
    struct err e = { 0 };

    setenv("TERN_LIBNCCL", built("tests/fake_nccl.so"), 1);
    return open_nccl(&n, nccllib_version() + 1, &e) != E_UNSUPPORTED ||
           !strstr(e.msg, "another build");
}

static int one_rank(void)
{
    unsigned char id[NCCLLIB_ID_BYTES] = { 0 };
    float x[3] = { 1, 2, 3 };
    struct nccllib n;
    struct err e = { 0 };
    void *comm = NULL;

    setenv("TERN_LIBNCCL", built("tests/fake_nccl.so"), 1);
    if (open_nccl(&n, nccllib_version(), &e) != OK || n.version != 22809) return 1;
    if (n.make_id(id, &e) != OK || id[0] != 7 || id[127] != 7) return 2;
    if (n.join(&comm, 0, 1, id, &e) != OK) return 3;
    if (n.sum(comm, x, 3, NULL, &e) != OK || x[2] != 3) return 4;
    if (n.sum(NULL, x, 3, NULL, &e) != E_DEVICE || !strstr(e.msg, "NCCL: invalid argument"))
        return 5;
    n.leave(comm);
    setenv("FAKE_NCCL_FAIL", "1", 1);
    return n.make_id(id, &e) != E_DEVICE || !strstr(e.msg, "unhandled system error");
}

static void a_library_that_is_not_there_is_named(void **state)
{
    (void)state;
    in_child(missing);
    in_child(not_nccl);
    in_child(too_old);
    in_child(another_build);
}

static void calls_are_handed_out(void **state)
{
    (void)state;
    in_child(one_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_that_is_not_there_is_named),
        cmocka_unit_test(calls_are_handed_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
