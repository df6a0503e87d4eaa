/* backend.c - opens the backend that a device name stands for.
 *
 * CUDA is a shared library that is loaded with dlopen when a CUDA device is asked for, so that one
 * program runs on machines without an NVIDIA driver. */
#include "kernel/backend.h"

#include "base/buf.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define CUDA_LIB "tern-cuda.so"

/* The folder of the running program with a trailing slash, or "" if it cannot be found. */
static void find_program_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    char *slash;

    out[n > 0 ? n : 0] = 0;
    slash = strrchr(out, '/');
    if (slash) slash[1] = 0;
    else out[0] = 0;
}

/* Loads the library named by TERN_CUDA_LIB, or else from the program's folder or ../lib/tern. It is
 * never unloaded: the CUDA runtime registers functions that run when the process exits. */
static int load_cuda_library(void **lib, struct err *e)
{
    const char *named = getenv("TERN_CUDA_LIB");
    char folder[4096];
    struct buf places[2] = { 0 }, looked = { 0 };
    int n = named ? 1 : 2, rc = OK;

    find_program_folder(folder, sizeof folder);
    buf_printf(&places[0], "%s%s", named ? "" : folder, named ? named : CUDA_LIB);
    buf_printf(&places[1], "%s../lib/tern/%s", folder, CUDA_LIB);
    if ((rc = buf_check(&places[0], e)) != OK || (rc = buf_check(&places[1], e)) != OK) n = 0;
    for (int i = 0; i < n && !*lib; i++) {
        const char *path = buf_cstr(&places[i]);
        buf_printf(&looked, "%s%s", i ? ", " : "", path);
        if (access(path, R_OK) != 0) continue;
        *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (*lib) continue;
        rc = err_set(e, E_UNSUPPORTED, "cannot open %s: %s", path, dlerror());
        break;
    }
    if (!*lib && rc == OK)
        rc = err_set(e, E_UNSUPPORTED,
                     "the CUDA library was not found: tried %s; `make cuda` builds it",
                     buf_cstr(&looked));
    buf_release(&places[0]);
    buf_release(&places[1]);
    buf_release(&looked);
    return rc;
}

/* dlsym returns an object pointer; the cast to a function pointer is POSIX's idiom. */
static int cuda_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *lib;
    backend_open_fn *open;
    int rc = OK;

    pthread_mutex_lock(&lock); /* two models may be loading */
    if (!lib) rc = load_cuda_library(&lib, e);
    pthread_mutex_unlock(&lock);
    if (rc != OK) return rc;
    *(void **)&open = dlsym(lib, "tern_cuda_open");
    if (!open)
        return err_set(e, E_UNSUPPORTED, "%s does not export tern_cuda_open: not tern's library",
                       CUDA_LIB);
    return open(out, opt, backend_layout(), e);
}

/* The API that a device name of another program stands for, or NULL. The message then says that
 * tern has no backend for it, so that the user does not search for a typing mistake. */
static const char *name_foreign_api(const char *device)
{
    static const char *const kinds[][2] = { { "metal", "Metal" }, { "rocm", "ROCm" },
                                            { "hip", "ROCm" },    { "vulkan", "Vulkan" },
                                            { "sycl", "SYCL" },   { "xpu", "SYCL" },
                                            { "mps", "Metal" } };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i][0]);
        if (strncmp(device, kinds[i][0], n) == 0 && (device[n] == 0 || device[n] == ':'))
            return kinds[i][1];
    }
    return NULL;
}

/* "cpu", "cuda" or "cuda:N". */
int backend_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    const char *device = opt->device ? opt->device : "cpu";

    if (strcmp(device, "cpu") == 0) return cpu_open(out, opt, e);
    if (strncmp(device, "cuda", 4) == 0 && (device[4] == 0 || device[4] == ':'))
        return cuda_open(out, opt, e);
    if (name_foreign_api(device))
        return err_set(
            e, E_UNSUPPORTED,
            "device \"%s\": tern has no backend for %s; supported are \"cpu\" and \"cuda\"", device,
            name_foreign_api(device));
    return err_set(e, E_UNSUPPORTED, "device \"%s\": must be \"cpu\", \"cuda\" or \"cuda:N\"",
                   device);
}

void backend_close(struct backend *be)
{
    if (be) be->close(be);
}
