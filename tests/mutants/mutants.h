/* mutants.h - damaged models: each is a sound one with one to three changes that keep the rest of
 * the file in order, so that readers go on to the parts behind the header.
 *
 * A mutant depends on its seed only. Everything is allocated in one arena per mutant. */
#ifndef TERN_TESTS_MUTANTS_H
#define TERN_TESTS_MUTANTS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "format/source.h"

enum base_kind { BASE_GGUF, BASE_HF, BASE_ONNX };

/* A sound model: a GGUF file, or a folder. */
struct base {
    enum base_kind kind;
    char path[640];
};

struct mutation {
    struct rng rng;
    struct arena *arena;
    struct buf what;        /* what was changed, for people */
    const struct base *all; /* the sound models: keys of others are put into this one */
    int n_all;
};

/* ---- choosing ---- */

uint64_t pick(struct mutation *m, uint64_t n); /* 0 to n - 1; n 0: 0 */
bool chance(struct mutation *m, int percent);
/* A number that readers may stumble over, near v or anywhere. */
int64_t odd_int(struct mutation *m, int64_t v);
double odd_float(struct mutation *m, double v);
struct str odd_string(struct mutation *m); /* in the arena */
void note(struct mutation *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- tensors of GGUF and safetensors files ---- */

struct mut_tensor {
    struct str name;
    enum dtype type;
    int file_type; /* as it is written; -1: type */
    int n_dims;
    int64_t dims[8]; /* slowest first */
    struct str data;
    bool moved; /* offset is written instead of the real one */
    int64_t offset;
    bool gone;
};

struct mut_tensors {
    struct mut_tensor *v;
    int n, cap;
};

void tensors_of(struct mutation *m, struct mut_tensors *out, const struct source *s);
/* Changes one thing of the tensors. gguf: types of GGUF files; otherwise those of safetensors. */
void tensors_mutate(struct mutation *m, struct mut_tensors *t, bool gguf);
/* Every dimension of size `from` becomes `to`. */
void tensors_resize(struct mutation *m, struct mut_tensors *t, int64_t from, int64_t to);
int64_t tensors_some_dim(struct mutation *m, const struct mut_tensors *t);

/* ---- the kinds of models; each writes a mutant of b and returns its path ---- */

const char *mutate_gguf(struct mutation *m, const struct base *b, const char *dir);
const char *mutate_hf(struct mutation *m, const struct base *b, const char *dir);
const char *mutate_onnx(struct mutation *m, const struct base *b, const char *dir);

/* Changes a value anywhere in the file of this name, if it is there; text stays JSON. */
void mutate_json(struct mutation *m, const char *dir, const char *name);
/* Every integer `from` in it becomes `to`. */
void resize_json(struct mutation *m, const char *dir, const char *name, int64_t from, int64_t to);
void copy_folder(const char *from, const char *to);
void write_bytes(const char *path, struct str data);
#endif
