/* mpilink.c - finds and opens tern-mpi.so. */
#include "gang/mpilink.h"

#include "base/file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool mpilink_is_job(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK");
}

/* $TERN_MPI_LIB, else beside the program, else in ../lib/tern. */
static bool name_place(int i, char *out, size_t cap)
{
    static const char *const below[] = { "", "../lib/tern/" };
    const char *named = getenv("TERN_MPI_LIB");
    char exe[3500];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (named && *named) return i == 0 && snprintf(out, cap, "%s", named) > 0;
    if (i > 1 || n <= 0) return false;
    exe[n] = 0;
    exe[path_base(exe) - exe] = 0;
    snprintf(out, cap, "%s%stern-mpi.so", exe, below[i]);
    return true;
}

int mpilink_open(struct comm_link **out, struct err *e)
{
    static struct comm_link *opened; /* MPI can be initialized once */
    mpilink_open_fn *fn;
    char path[4096];
    void *lib = NULL;
    int rc;

    if ((*out = opened)) return OK;
    for (int i = 0; !lib && name_place(i, path, sizeof path); i++)
        if (access(path, R_OK) == 0 && !(lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL)))
            return err_set(e, E_UNSUPPORTED, "cannot open %s: %s", path, dlerror());
    if (!lib)
        return err_set(e, E_UNSUPPORTED,
                       "tern-mpi.so is not here: install libopenmpi-dev and run make, or use "
                       "transport tcp");
    *(void **)&fn = dlsym(lib, MPILINK_SYMBOL);
    if (!fn) return err_set(e, E_UNSUPPORTED, "%s does not export " MPILINK_SYMBOL, path);
    if ((rc = fn(out, mpilink_version(), e)) == OK) opened = *out;
    return rc;
}
