#include "convert/sums.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

/* The whole file is mapped: EVP_Digest needs one pass and no buffer. */
int sums_hash_file(const char *path, char hex[65], struct err *e)
{
    struct filemap m = { 0 };
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int rc = filemap_open(&m, path, e);

    if (rc != OK) return rc;
    if (!EVP_Digest(m.n ? (const void *)m.p : "", m.n, hash, &n, EVP_sha256(), NULL) || n != 32)
        rc = err_set(e, E_INTERNAL, "%s: OpenSSL could not compute its SHA-256", path);
    for (unsigned i = 0; rc == OK && i < n; i++) snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    filemap_release(&m);
    return rc;
}

/* Sorted by bytes, not by locale: the file is the same on every machine. */
static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Appends "HEX  NAME\n" unless the file is one that SHA256SUMS leaves out. */
static int add_line(struct buf *out, const char *dir, const char *name, struct err *e)
{
    char hex[65], *path;
    int rc = OK;

    if (name[0] == '.' || strcmp(name, "SHA256SUMS") == 0 || strstr(name, ".part-")) return OK;
    if (!(path = path_join(dir, name))) return err_nomem(e, "the path of a file to hash");
    if (!file_is_dir(path) && (rc = sums_hash_file(path, hex, e)) == OK)
        buf_printf(out, "%s  %s\n", hex, name);
    mem_free(path);
    return rc;
}

static int write_sums(const char *dir, const struct buf *text, struct err *e)
{
    char *path = path_join(dir, "SHA256SUMS");
    int rc = path ? buf_check(text, e) : err_nomem(e, "the path of SHA256SUMS");

    if (rc == OK) rc = file_replace(path, buf_str(text), e);
    mem_free(path);
    return rc;
}

int sums_write_folder(const char *dir, struct err *e)
{
    struct dirent **list = NULL;
    struct buf text = { 0 };
    int n = scandir(dir, &list, NULL, compare_names), rc = OK;

    if (n < 0) return err_set(e, E_IO, "cannot list the folder %s: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (rc == OK) rc = add_line(&text, dir, list[i]->d_name, e);
        free(list[i]);
    }
    free(list);
    if (rc == OK) rc = write_sums(dir, &text, e);
    buf_release(&text);
    return rc;
}
