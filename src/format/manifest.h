/* manifest.h - the SHA-256 sum and the size of every file of a model, in a text file beside it.
 *
 *     # 1432576 bytes
 *     9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model.safetensors
 *
 * Lines are those that sha256sum prints and `sha256sum -c` checks; the size is in the comment before
 * a line, and sha256sum skips it. A file without sizes, by another program, is read as well.
 *
 *   a folder            FOLDER/SHA256SUMS: every file of it and of its folders, but for hidden and
 *                       unfinished ones (".part-") and manifests
 *   a GGUF file         FILE.sha256: the file; of a split set FIRST_PART.sha256: all parts. Where
 *                       there is none, SHA256SUMS in the same folder is asked for these files
 *   another file        that of its folder if it has a config.json, otherwise as a GGUF file
 *
 * The manifest is a foreign file: its size, lines and names are bounded, and no name leads out of the
 * model's folder. Sums are of the bytes on disk: those of an encrypted model need no key. Paths may
 * be confined (base/confine.h). Functions without state: any thread. */
#ifndef TERN_FORMAT_MANIFEST_H
#define TERN_FORMAT_MANIFEST_H

#include "base/crypto.h"
#include "base/err.h"
#include "base/str.h"

#include <stdatomic.h>

#define MANIFEST_FOLDER "SHA256SUMS"
#define MANIFEST_SUFFIX ".sha256"

struct manifest_file {
    char *name; /* relative to the manifest's folder: "onnx/model.onnx" */
    unsigned char sum[CRYPTO_SUM];
    uint64_t bytes;
    bool has_bytes;
    int line; /* of the manifest it was read from */
};

struct manifest { /* a zeroed one is empty */
    struct manifest_file *files;
    size_t n, cap;
};

/* bytes: UINT64_MAX: not known. E_INVALID: the name would leave the folder, or cannot be in a
 * manifest. */
int manifest_add(struct manifest *m, struct str name, uint64_t bytes,
                 const unsigned char sum[CRYPTO_SUM], struct err *e);
const struct manifest_file *manifest_get(const struct manifest *m, const char *name); /* or NULL */
/* E_FORMAT names path and line. On failure m is to be released as well. */
int manifest_parse(struct manifest *m, struct str text, const char *path, struct err *e);
int manifest_read(struct manifest *m, const char *path, struct err *e);
/* Sorted by name, so that the same files give the same manifest; the file is replaced as a whole. */
int manifest_save(struct manifest *m, const char *path, struct err *e);
void manifest_release(struct manifest *m);

/* ---- the manifest of a model ---- */

struct manifest_opt {
    int n_threads; /* files are hashed side by side; 0: physical cores, at most 8 */
    /* Called by any of the threads, one at a time. May be NULL. */
    void (*progress)(void *arg, uint64_t done, uint64_t total, const char *name);
    void *arg;
    const atomic_int *stop; /* other than 0 ends the hashing with E_CANCELLED; may be NULL */
};

struct manifest_result {
    char path[4096]; /* of the manifest; "" where there is none */
    char
        sum[CRYPTO_HEX]; /* of the one file of the model, or of the manifest where it has several */
    size_t n_files;
    uint64_t bytes;
};

/* The sum of one file: of the bytes that are on disk. bytes may be NULL. */
int manifest_hash(const char *path, unsigned char sum[CRYPTO_SUM], uint64_t *bytes, struct err *e);
/* Hashes the files of the model and writes its manifest. opt and r may be NULL. */
int manifest_write(const char *model, const struct manifest_opt *opt, struct manifest_result *r,
                   struct err *e);
/* Compares the files of the model with its manifest: sizes first, then sums. E_NOTFOUND: it has
 * none. E_DAMAGED: a file is missing, has another size or sum, or is not listed; the message names
 * the manifest, the line, the file, and the value that is expected and found. */
int manifest_check(const char *model, const struct manifest_opt *opt, struct manifest_result *r,
                   struct err *e);

/* The files of a model: their names in list (zeroed before), relative to *dir, which is freed with
 * mem_free. *is_folder: all files of a folder, not one file or its parts. */
int manifest_list(const char *model, struct manifest *list, char **dir, bool *is_folder,
                  struct err *e);

/* How a load uses the manifest. */
enum manifest_mode { MANIFEST_OFF, MANIFEST_WARN, MANIFEST_REQUIRE };
/* "off", "warn", "require"; false: another word. */
bool manifest_mode_by_name(const char *word, enum manifest_mode *out);
/* For a load: REQUIRE fails where manifest_check does; WARN logs it and is OK. */
int manifest_enforce(const char *model, enum manifest_mode mode, struct err *e);
#endif
