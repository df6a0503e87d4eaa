#include "convert/sums.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

int sums_file(const char *path, char hex[65], struct err *e)
{
    struct filemap m = { 0 };
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int rc = filemap_open(&m, path, e);

    if (rc != OK) return rc;
    if (!EVP_Digest(m.n ? (const void *)m.p : "", m.n, hash, &n, EVP_sha256(), NULL) || n != 32)
        rc = err_set(e, E_INTERNAL, "%s: SHA-256 failed", path);
    for (unsigned i = 0; rc == OK && i < n; i++) snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    filemap_release(&m);
    return rc;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int sums_folder(const char *dir, struct err *e)
{
    struct dirent **list = NULL;
    struct buf out = { 0 };
    int n = scandir(dir, &list, NULL, by_name), rc = OK;

    for (int i = 0; i < n; i++) {
        struct str name = str_c(list[i]->d_name);
        char hex[65], *path = path_join(dir, list[i]->d_name);
        bool skip = name.p[0] == '.' || str_is(name, "SHA256SUMS") ||
                    str_find(name, STR(".part-")) >= 0 || file_is_dir(path);
        if (rc == OK && !skip && (rc = sums_file(path, hex, e)) == OK)
            buf_printf(&out, "%s  %s\n", hex, list[i]->d_name);
        mem_free(path);
        free(list[i]);
    }
    free(list);
    if (rc == OK) {
        char *path = path_join(dir, "SHA256SUMS");
        rc = file_replace(path, buf_str(&out), e);
        mem_free(path);
    }
    buf_release(&out);
    return rc;
}
