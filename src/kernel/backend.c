/* backend.c - opens the backend that a device name stands for.
 *
 * CUDA is a shared library that is loaded with dlopen when a CUDA device is asked for, so that one
 * program runs on machines without an NVIDIA driver. */
#include "kernel/backend.h"

#include "base/buf.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_LIB "tern-cuda.so"

enum { N_PLACES = 4 };

/* Cuts a path behind its last slash; "" where it has none. */
static void cut_to_folder(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash) slash[1] = 0;
    else path[0] = 0;
}

/* The folder of the running program with a trailing slash, or "" if it cannot be found. */
static void find_program_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);

    out[n > 0 ? n : 0] = 0;
    cut_to_folder(out);
}

/* The folder of the file that this code lies in: libtern.so in a program that embeds tern, whose own
 * folder may be anywhere. */
static void find_library_folder(char *out, size_t size)
{
    static const char here[] = "";
    Dl_info info;
    char *real = dladdr(here, &info) != 0 && info.dli_fname ? realpath(info.dli_fname, NULL) : NULL;

    snprintf(out, size, "%s", real ? real : "");
    free(real);
    cut_to_folder(out);
}

static void name_places(struct buf *places)
{
    char program[4096], library[4096];

    find_program_folder(program, sizeof program);
    find_library_folder(library, sizeof library);
    buf_printf(&places[0], "%s%s", program, CUDA_LIB);
    buf_printf(&places[1], "%s../lib/tern/%s", program, CUDA_LIB);
    if (strcmp(program, library) == 0) return;
    buf_printf(&places[2], "%s%s", library, CUDA_LIB);
    buf_printf(&places[3], "%stern/%s", library, CUDA_LIB);
}

/* Loads the library named by TERN_CUDA_LIB, or else from the program's folder or ../lib/tern, or from
 * the folder of libtern.so or its tern/. It is never unloaded: the CUDA runtime registers functions
 * that run when the process exits. */
static int load_cuda_library(void **lib, struct err *e)
{
    const char *named = getenv("TERN_CUDA_LIB");
    struct buf places[N_PLACES] = { 0 }, looked = { 0 };
    int rc = OK;

    if (named) buf_puts(&places[0], named);
    else name_places(places);
    for (int i = 0; i < N_PLACES && rc == OK; i++) rc = buf_check(&places[i], e);
    for (int i = 0; i < N_PLACES && rc == OK && !*lib && places[i].n; i++) {
        const char *path = buf_cstr(&places[i]);
        buf_printf(&looked, "%s%s", i ? ", " : "", path);
        if (access(path, R_OK) != 0) continue;
        *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!*lib) rc = err_set(e, E_UNSUPPORTED, "cannot open %s: %s", path, dlerror());
    }
    if (!*lib && rc == OK)
        rc = err_set(e, E_UNSUPPORTED,
                     "the CUDA library was not found: tried %s; `make cuda` builds it",
                     buf_cstr(&looked));
    for (int i = 0; i < N_PLACES; i++) buf_release(&places[i]);
    buf_release(&looked);
    return rc;
}

/* A function of the library, which is loaded once: *fn is a pointer to a function. dlsym returns an
 * object pointer; the cast is POSIX's idiom. */
static int find_cuda(void **fn, const char *name, struct err *e)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *lib;
    int rc = OK;

    pthread_mutex_lock(&lock); /* two models may be loading */
    if (!lib) rc = load_cuda_library(&lib, e);
    pthread_mutex_unlock(&lock);
    if (rc != OK) return rc;
    *fn = dlsym(lib, name);
    if (*fn) return OK;
    return err_set(e, E_UNSUPPORTED, "%s does not export %s: not tern's library", CUDA_LIB, name);
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

/* "cuda" or "cuda:N". */
static bool is_cuda(const char *device)
{
    if (strncmp(device, "cuda", 4) != 0) return false;
    if (device[4] == 0) return true;
    return device[4] == ':' && device[5] && strspn(device + 5, "0123456789") == strlen(device + 5);
}

static int refuse_device(const char *device, struct err *e)
{
    const char *api = name_foreign_api(device);

    if (api)
        return err_set(
            e, E_UNSUPPORTED,
            "device \"%s\": tern has no backend for %s; supported are \"cpu\" and \"cuda\"", device,
            api);
    return err_set(e, strncmp(device, "cuda", 4) == 0 ? E_INVALID : E_UNSUPPORTED,
                   "device \"%s\": must be \"cpu\", \"cuda\" or \"cuda:N\"", device);
}

int backend_check(const char *device, struct err *e)
{
    backend_open_fn *open;

    if (!device || strcmp(device, "cpu") == 0) return OK;
    return is_cuda(device) ? find_cuda((void **)&open, "tern_cuda_open", e)
                           : refuse_device(device, e);
}

int backend_card(struct device_card *out, const struct backend_opt *opt, struct err *e)
{
    const char *device = opt->device ? opt->device : "cpu";
    backend_card_fn *card;
    int rc;

    *out = (struct device_card){ 0 };
    if (strcmp(device, "cpu") == 0) {
        cpu_card(out, opt);
        return OK;
    }
    if (!is_cuda(device)) return refuse_device(device, e);
    if ((rc = find_cuda((void **)&card, "tern_cuda_card", e)) != OK) return rc;
    return card(out, opt, backend_layout(), e);
}

int backend_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    const char *device = opt->device ? opt->device : "cpu";
    backend_open_fn *open;
    int rc;

    if (strcmp(device, "cpu") == 0) return cpu_open(out, opt, e);
    if (!is_cuda(device)) return refuse_device(device, e);
    if ((rc = find_cuda((void **)&open, "tern_cuda_open", e)) != OK) return rc;
    return open(out, opt, backend_layout(), e);
}

void backend_close(struct backend *be)
{
    if (be) be->close(be);
}
