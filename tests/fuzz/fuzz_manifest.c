/* Fuzz target: an arbitrary manifest. What is accepted has names that stay inside the folder, each of
 * them once. */
#include "base/file.h"
#include "base/mem.h"
#include "format/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct manifest m = { 0 };
    struct err e;

    if (manifest_parse(&m, str_of((const char *)data, n), "fuzz", &e) == OK)
        for (size_t i = 0; i < m.n; i++) {
            char *path = NULL;
            if (path_under(&path, "dir", str_c(m.files[i].name), &e) != OK) __builtin_trap();
            if (manifest_get(&m, m.files[i].name) != &m.files[i]) __builtin_trap();
            mem_free(path);
        }
    manifest_release(&m);
    return 0;
}
