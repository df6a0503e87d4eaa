#include "kernel/backend.h"

#include "base/buf.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define CUDA_LIB "tern-cuda.so"

/* The program's folder with a slash behind it, or "". */
static void own_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    char *slash;

    out[n > 0 ? n : 0] = 0;
    slash = strrchr(out, '/');
    if (slash) slash[1] = 0;
    else out[0] = 0;
}

/* The library beside the program, in its lib folder, or where TERN_CUDA_LIB says. It stays open:
 * CUDA leaves things behind that run when the process ends. */
static int open_library(void **lib, struct err *e)
{
    const char *named = getenv("TERN_CUDA_LIB");
    char folder[4096];
    struct buf places[2] = { 0 }, looked = { 0 };
    int n = named ? 1 : 2, rc = OK;

    own_folder(folder, sizeof folder);
    buf_printf(&places[0], "%s%s", named ? "" : folder, named ? named : CUDA_LIB);
    buf_printf(&places[1], "%s../lib/tern/%s", folder, CUDA_LIB);
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
        rc = err_set(e, E_UNSUPPORTED, "no library for CUDA: looked for %s; `make cuda` builds it",
                     buf_cstr(&looked));
    buf_release(&places[0]);
    buf_release(&places[1]);
    buf_release(&looked);
    return rc;
}

static int cuda_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    static void *lib;
    backend_open_fn *open;
    int rc;

    if (!lib && (rc = open_library(&lib, e)) != OK) return rc;
    *(void **)&open = dlsym(lib, "tern_cuda_open");
    if (!open) return err_set(e, E_UNSUPPORTED, "%s is no library of tern's", CUDA_LIB);
    return open(out, opt, backend_layout(), e);
}

/* Kinds of devices that people have and tern has no backend for: named, so that nobody looks for a
 * typing mistake. */
static const char *foreign(const char *device)
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

int backend_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    const char *device = opt->device ? opt->device : "cpu";

    if (strcmp(device, "cpu") == 0) return cpu_open(out, opt, e);
    if (strncmp(device, "cuda", 4) == 0 && (device[4] == 0 || device[4] == ':'))
        return cuda_open(out, opt, e);
    if (foreign(device))
        return err_set(e, E_UNSUPPORTED,
                       "device \"%s\": tern has no backend for %s; there are \"cpu\" and \"cuda\"",
                       device, foreign(device));
    return err_set(e, E_UNSUPPORTED,
                   "device \"%s\": there are \"cpu\" and \"cuda\", \"cuda:1\" and so on", device);
}

void backend_close(struct backend *be)
{
    if (be) be->close(be);
}
