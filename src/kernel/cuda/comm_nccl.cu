/* comm_nccl.cu - finds tern-nccl.so: named by TERN_NCCL_LIB, else beside this library. */
#include "kernel/cuda/comm.cuh"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool name_library(char *out, size_t cap)
{
    const char *named = getenv("TERN_NCCL_LIB");
    Dl_info info;
    const char *slash;

    if (named && *named) return (size_t)snprintf(out, cap, "%s", named) < cap;
    if (dladdr((const void *)name_library, &info) == 0 || !info.dli_fname) return false;
    slash = strrchr(info.dli_fname, '/');
    return (size_t)snprintf(out, cap, "%.*stern-nccl.so",
                            slash ? (int)(slash + 1 - info.dli_fname) : 0, info.dli_fname) < cap;
}

/* Never unloaded: NCCL has threads. */
static int open_library(nccllib_open_fn **fn, struct err *e)
{
    static void *lib;
    char path[4096];

    if (!lib) {
        if (!name_library(path, sizeof path) || access(path, R_OK) != 0)
            return err_set(e, E_UNSUPPORTED, "tern-nccl.so is not beside tern-cuda.so");
        if (!(lib = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
            return err_set(e, E_UNSUPPORTED, "cannot open %s: %s", path, dlerror());
    }
    *(void **)fn = dlsym(lib, NCCLLIB_SYMBOL);
    return *fn ? OK : err_set(e, E_UNSUPPORTED, "tern-nccl.so does not export " NCCLLIB_SYMBOL);
}

int cu_nccl_open(struct nccllib *out, struct err *e)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    nccllib_open_fn *fn = NULL;
    int rc;

    pthread_mutex_lock(&lock); /* two models may be loading */
    if ((rc = open_library(&fn, e)) == OK) rc = fn(out, nccllib_version(), e);
    pthread_mutex_unlock(&lock);
    return rc;
}
